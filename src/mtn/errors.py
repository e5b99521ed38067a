"""Errors that a caller can act on, one line each."""

import difflib
from collections.abc import Iterable
from pathlib import Path

DISTRIBUTION = "memory-transformer"
"""What pip calls this package; Python and the command line call it mtn."""


class InputError(ValueError):
    """Bad input: the message names the parameter, the rule and the value. Commands print it and exit with code 2."""

    def __init__(self, message: str) -> None:
        """What a file says may be part of the message: a character that is not printable is shown as its escape."""
        shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(message))
        super().__init__("".join(shown))


class UnavailableError(InputError):
    """The input may be right: a server that is needed does not answer now, and may do so later."""


class NotPermittedError(InputError):
    """A file names something that is used only if the user names it too."""


def closest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one if there is a near one, otherwise all of them."""
    by_small_letters = {name.casefold(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.casefold(), by_small_letters, n=1, cutoff=0.5)
    return f"did you mean {by_small_letters[near[0]]!r}?" if near else f"valid: {', '.join(by_small_letters.values())}"


def install_line(extra: str) -> str:
    """The command that installs an optional part: of the published package, or of the clone that this file lies in."""
    clone = Path(__file__).resolve().parents[2]
    source = clone if (clone / "pyproject.toml").is_file() else DISTRIBUTION
    return f"pip install '{source}[{extra}]'"

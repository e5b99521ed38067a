"""The one error a caller can mend: it names the parameter, the rule and the value."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised at the boundary for bad input. The command line prints it as one line and exits with code 2."""


class Passing(InputError):
    """Nothing to mend in what was asked: a server does not answer, and may do so later."""


def closest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one if there is a near one, otherwise all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(known)}"

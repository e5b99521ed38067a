"""Text from files, made safe to show."""

import re
import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible, and part of words in some scripts and of emoji."""


def is_shown(character: str) -> bool:
    """Whether a terminal shows the character and does nothing else: no control, no new line, no change of direction."""
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in JOINERS


def printable(text: object) -> str:
    """The text on one line, with what a terminal would not show as escapes: ESC as `\\x1b`."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(c if is_shown(c) else c.encode("unicode_escape").decode("ascii") for c in line)


def shorten(text: str, most: int) -> str:
    """At most so many characters: cut behind a word where one ends in the second half, with an ellipsis."""
    if len(text) <= most:
        return text
    cut = text[: max(most - 1, 0)]
    words = cut if text[len(cut)].isspace() else re.sub(r"\s\S*$", "", cut)
    return (words if 2 * len(words) >= most else cut).rstrip() + "…"


def printable_json(text: str) -> str:
    """JSON with the same characters as JSON's own escapes, so that it says the same."""
    return re.sub(r"[^\n\x20-\x7e]", lambda match: match[0] if is_shown(match[0]) else _json_escape(match[0]), text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start]:02x}{units[start + 1]:02x}" for start in range(0, len(units), 2))

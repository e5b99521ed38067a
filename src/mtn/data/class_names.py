"""Names of classes: which are refused, and when two of them cannot be told apart by whoever reads them."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtn.errors import InputError
from mtn.runtime.capacity import machine_memory

REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional embeddings, overrides and isolates: they change how the text around a name is shown."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks without a glyph, beside those that a category of Unicode tells: fillers, the blank Braille cell."""
VARIATION = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Selectors of a glyph of the character before them."""


def check_name(name: str, description: str = "a label") -> None:
    """Raise if a name has characters that control a terminal or cannot be written, or nothing that can be seen."""
    if name.isascii() and name.isprintable() and not name.isspace() and name:
        return
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs") or character in REORDERING:
            raise InputError(
                f"{description} must not have control characters, direction overrides or lone surrogates, "
                f"got {name[:40]!a}"
            )
    if not appearance(name):
        raise InputError(f"{description} must have a visible character, got {name[:40]!a}")


def appearance(name: str) -> str:
    """What can be seen of a name: names of one appearance look the same.

    Composed (NFC), without characters that have no width, and without spaces at the ends.
    """
    if name.isascii():
        return name.strip()
    composed = unicodedata.normalize("NFC", VARIATION.sub("", name))
    seen = (character for character in composed if character not in BLANK and unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFC", "".join(seen)).strip()


def check_distinct(names: Iterable[str], known: Iterable[str] = (), description: str = "labels") -> None:
    """Raise if two different names look the same: both among `names`, or one of them among `known`."""
    names, known = set(names), set(known)
    new = names - known
    if not new:
        return
    by_appearance = {appearance(name): name for name in known}
    for name in sorted(new):
        other = by_appearance.setdefault(appearance(name), name)
        if other != name:
            raise InputError(f"{description} must look different, got {other!a} and {name!a}")


def check_class_names(names: Sequence[str], path: Path) -> None:
    """Raise unless each of a data set's names can be seen, and told from the others."""
    for name in names:
        check_name(name, f"{path}: the name of a class")
    check_distinct(names, description=f"{path}: names of classes")


def label_array(labels: Sequence[Any], path: Path) -> np.ndarray:
    """N labels of a table, all text or all integers; text that NumPy would cut off (trailing null bytes) is refused."""
    types = {type(label).__name__ for label in labels}
    if types != {"str"} and types != {"int"}:
        got = " and ".join(sorted(types))
        raise InputError(f"{path}: the column 'label' must be a list of integers or strings, got {got}")
    if types == {"int"}:
        return np.array(labels)
    for label in set(labels):
        check_name(label, f"{path}: a label")
    return text_array(labels, path)


def text_array(texts: Sequence[str], path: Path) -> np.ndarray:
    """N texts as an array, in which each takes as much memory as the longest: refused where that does not fit."""
    longest = max(map(len, texts), default=0)
    size = 4 * longest * len(texts)
    if size > machine_memory() // 4:
        raise InputError(
            f"{path} has {len(texts)} rows, and a label, split or id of {longest} characters: "
            f"they would take {size / 1e9:,.1f} GB"
        )
    return np.array(texts)

"""Labels of classes as Python values: their one type within a model, and their reading from arrays and text.

Two labels never become one without a word: whoever takes labels (fit, partial_fit, rename, the commands, the service)
calls `check_labels` before NumPy sees them, as NumPy makes "1" of 1, 1 of True, and "a" of "a" and a null byte.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from mtn.classifier.schema import LabelKind
from mtn.data.class_names import check_distinct, check_name
from mtn.errors import InputError

Label = str | int | float | bool
Id = str | int

_KINDS: dict[str, LabelKind] = {"U": "str", "i": "int", "u": "int", "b": "bool", "f": "float"}
"""The type of labels by the kind of numpy's dtype."""
_WORDS: dict[LabelKind, str] = {"str": "text", "int": "whole numbers", "float": "numbers", "bool": "True or False"}
"""For messages."""


INTEGERS = range(-(2**63), 2**63)
"""Beyond these NumPy takes numbers for floating-point ones, of which many are the same."""
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""The one way to write an integer: 01 is not 1."""


def kind_of(values: Any) -> LabelKind | None:
    """The type of the labels in an array, or of one label; None for anything that cannot be a label."""
    return _KINDS.get(np.asarray(values).dtype.kind)


def check_labels(y: Any, known: Iterable[Label | None] = ()) -> None:
    """Raise if some of N labels would be merged, look like each other or like one of the labels `known`, or cannot be
    seen. What is no list of labels at all is left to scikit-learn's checks.
    """
    values = _plain_values(y)
    types = {type(value).__name__ for value in values}
    if len(types) > 1:
        raise InputError(f"y must be all strings or all integers, got {' and '.join(sorted(types))}")
    if types == {"int"} and any(value not in INTEGERS for value in values):
        raise InputError("y must be integers from -2^63 to 2^63 - 1, or strings")
    if types == {"str"}:
        for name in values:
            check_name(name)
        check_distinct(values, (name for name in known if isinstance(name, str)))


def check_within(y: Any, classes: Any) -> None:
    """Raise if a label of y is not one of `classes`, of the same type."""
    allowed = {(type(value), value) for value in _plain_values(classes)}
    for label in _plain_values(y):
        if (type(label), label) not in allowed:
            raise InputError(f"y must be of the labels in `classes`, got {label!r}")


def _plain_values(y: Any) -> list[Any]:
    """The different labels as Python values, 1 and True being two; none for what is not a list of labels."""
    if isinstance(y, list | tuple):
        values: Iterable[Any] = y
    else:
        array = np.asarray(y)
        if array.ndim != 1:
            return []
        values = (array if array.dtype.kind == "O" else np.unique(array)).tolist()
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not all(isinstance(value, str | int | float | None) for value in plain):
        return []
    return [value for _, value in {(type(value), value) for value in plain}]


def read_labels(y: np.ndarray) -> tuple[list[Label], LabelKind]:
    """N labels as Python values, and their common type."""
    if y.dtype.kind == "O":
        types = {type(label.item() if isinstance(label, np.generic) else label).__name__ for label in y}
        if len(types) > 1 or not types <= {"str", "int", "bool", "float"}:
            raise InputError(f"y must be all strings or all integers, got {' and '.join(sorted(types))}")
        y = np.array(y.tolist())
    from sklearn.utils.multiclass import check_classification_targets  # here: an answer does without scikit-learn

    check_classification_targets(y)
    kind = kind_of(y)
    if kind is None:
        raise InputError(f"y must be all strings or all integers, got {y.dtype}")
    labels: list[Label] = y.tolist()
    return labels, kind


def parse_label(label: Label, kind: LabelKind) -> Label:
    """A label of the given type; text, as a user types it or as tables and folders have it, is converted."""
    if not isinstance(label, str):
        return label
    if kind == "str":
        return label
    if kind == "bool" and label in ("True", "False"):
        return label == "True"
    if kind == "int" and len(label) <= 20 and INTEGER.fullmatch(label) and int(label) in INTEGERS:
        return int(label)
    if kind == "float" and len(label) < 100 and (number := _float(label)) is not None:
        return number
    raise InputError(f"labels of this model are {_WORDS[kind]} ({kind}), got {label[:40]!r}")


def convert_label(label: Label, kind: LabelKind) -> Label:
    """As `parse_label`, but a label that is not of the given type stays as it is: it names no class of the model."""
    try:
        return parse_label(label, kind)
    except InputError:
        return label


def _float(text: str) -> float | None:
    """The finite number that text stands for, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None

"""Class orders as other toolboxes write them: a configuration of PyCIL or Mammoth, or PyCIL's list, as JSON."""

from pathlib import Path

import numpy as np

from mtn.errors import InputError
from mtn.storage import files


def read_order(path: Path, classes: int) -> list[int]:
    """Class indices in order of arrival, of a JSON file.

    A list of numbers is PyCIL's `class_order`, as its log prints it: class order[j] comes j-th. A configuration of
    PyCIL has `"shuffle": true` and a `"seed"`. One of Mammoth has `"permute_classes": true` and a `"seed"`, or the
    `"class_order"` itself: there class c comes in place class_order[c], the inverse (`store_masked_loaders`).
    """
    facts = files.read_json(path)
    if isinstance(facts, list):
        return _permutation(path, facts, classes)
    if not isinstance(facts, dict):
        raise InputError(f"stream.order file {path} must hold a list of class numbers, or a configuration")
    if facts.get("permute_classes"):
        places = facts.get("class_order")
        inverse = _shuffled(path, facts, classes) if places is None else _permutation(path, places, classes)
        return [int(label) for label in np.argsort(inverse)]
    if facts.get("shuffle"):
        return _shuffled(path, facts, classes)
    raise InputError(f"stream.order file {path} shuffles no classes: it needs shuffle or permute_classes, and a seed")


def _shuffled(path: Path, facts: dict[str, object], classes: int) -> list[int]:
    seed = facts.get("seed")
    if isinstance(seed, list) and len(seed) == 1:
        (seed,) = seed
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"stream.order file {path}: seed must be one whole number from 0 to 4294967295, got {seed!r}")
    return [int(label) for label in np.random.RandomState(seed).permutation(classes)]


def _permutation(path: Path, order: object, classes: int) -> list[int]:
    whole = isinstance(order, list) and all(type(label) is int for label in order)
    if not whole or sorted(order) != list(range(classes)):  # type: ignore[call-overload]
        raise InputError(f"stream.order file {path} must have each number from 0 to {classes - 1} once")
    return list(order)  # type: ignore[call-overload, no-any-return]

"""What a model remembers, exemplar by exemplar: pages of a class, one of them, a few to try."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from mtn.classifier import ClassifierState, Id, Label

MOST_TRIED = 24
"""Exemplars that are offered to try, and of a class at most so many as below."""
TRIED_OF_A_CLASS = 4


class Remembered(NamedTuple):
    """An exemplar: its number, which is never given twice, its id, and what was shown or said, if that was kept."""

    number: int
    id: Id
    label: Label
    picture: np.ndarray | None
    text: str | None


def of_class(state: ClassifierState, label: Label, start: int, count: int) -> list[Remembered]:
    """At most `count` exemplars of a class, from the one at place `start`."""
    rows = torch.nonzero(state.memory.y == state.class_index(label))[start : start + count, 0]
    return [_at(state, row) for row in rows.tolist()]


def find(state: ClassifierState, number: int) -> Remembered | None:
    """The exemplar of this number."""
    rows = torch.nonzero(state.memory.id == number)[:1, 0].tolist()
    return _at(state, rows[0]) if rows else None


def to_try(state: ClassifierState) -> list[Remembered]:
    """Exemplars that somebody can look at or read: one of each of some classes in turn, spread over all classes."""
    labels = [label for label, count in state.exemplar_counts() if count]
    chosen = labels[:: -(-len(labels) // MOST_TRIED) or 1]
    groups = [of_class(state, label, 0, TRIED_OF_A_CLASS) for label in chosen]
    return list(islice(_in_turn(groups), MOST_TRIED))


def _in_turn(groups: Sequence[Sequence[Remembered]]) -> Iterator[Remembered]:
    for place in range(TRIED_OF_A_CLASS):
        for group in groups:
            if place < len(group) and (group[place].picture is not None or group[place].text is not None):
                yield group[place]


def _at(state: ClassifierState, row: int) -> Remembered:
    number, label = int(state.memory.id[row]), state.label_of(int(state.memory.y[row]))
    picture, text = state.thumbnails.get(number), state.texts.get(number)
    return Remembered(number, state.own_ids.get(number, number), label, picture, text)

"""Everything a taught classifier has, in one object that is replaced as a whole and never changed."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtn.calibration import Gaussians
from mtn.classifier.labels import Id, Label, kind_of, parse_label
from mtn.classifier.schema import LabelKind
from mtn.errors import InputError, closest
from mtn.memory import Memory
from mtn.training import Learner

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
"""Mean 0 and standard deviation 1 of both signs of novelty: used until samples are known to measure them on."""

ESTIMATES = ("estimated_accuracy", "estimated_accuracy_new")
"""Keys of a lesson in the history: the accuracy expected over all classes, and over those that were new in it. None
where no estimate can be made; entries of earlier versions have neither."""


@dataclass(frozen=True)
class Exemplar:
    """A remembered sample: its id, its label, its row in the memory, and its text if it was a sentence."""

    id: Id
    label: Label
    position: int
    text: str | None = None


@dataclass(frozen=True, eq=False)
class ClassifierState:
    """What a classifier has learned.

    A state that a classifier has is not changed any more: to teach is to build another state from copies. So whoever
    holds a state can use it while others teach. The only writes are caches (`prepare` in mtn.classifier.queries).
    """

    learner: Learner
    label_kind: LabelKind
    feature_count: int
    feature_names: np.ndarray | None  # D column names of a data frame, dtype object
    source: dict[str, Any]  # how the vectors were made: {"encoder": ..., "kind": ...} or {"columns": [...]}
    names: tuple[Label | None, ...] = ()  # of every class in order of arrival, None once forgotten
    stops: tuple[int, ...] = ()  # the number of classes after each call of fit and partial_fit
    arrived: int = 0  # samples so far; each gets the next number
    own_ids: Mapping[int, Id] = field(default_factory=dict)  # the caller's ids of exemplars, by number
    thumbnails: Mapping[int, np.ndarray] = field(default_factory=dict)  # images of exemplars, by number
    texts: Mapping[int, str] = field(default_factory=dict)  # sentences of exemplars, by number
    history: tuple[dict[str, Any], ...] = ()  # an entry for each call of fit and partial_fit
    temperature: float = 1.0
    threshold: float | None = None  # of novelty
    usual: Tensor = field(default_factory=lambda: UNIT)  # 2,2: mean and deviation of the signs of novelty
    class_distance: Tensor | None = None  # C: how far, beyond the mean, samples of a class are from their neighbours
    folder: Path | None = None  # that the memory's collection in Milvus belongs to
    derived: list[Gaussians] = field(init=False, repr=False, default_factory=list)  # a cache of `queries.gaussians`
    columns: Tensor = field(init=False, repr=False)  # C: class indices sorted by label, without forgotten classes
    forgotten: list[int] = field(init=False, repr=False)  # class indices
    _labels: np.ndarray = field(init=False, repr=False)  # C: of `columns`

    def __post_init__(self) -> None:
        """Computed here, not when first used: an attribute added later could meet a copy that is being made."""
        present = [(name, index) for index, name in enumerate(self.names) if name is not None]
        columns = torch.tensor([index for _, index in sorted(present)], dtype=torch.long)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "_labels", np.array([self.names[index] for index in columns.tolist()]))
        object.__setattr__(self, "forgotten", [index for index, name in enumerate(self.names) if name is None])

    @property
    def memory(self) -> Memory:
        """The exemplars."""
        return self.learner.memory

    @property
    def uses_neighbours(self) -> bool:
        """Whether the method scores a query with its neighbours."""
        return self.learner.method.needs.neighbours

    @property
    def device(self) -> torch.device:
        """Where the method computes."""
        return self.learner.method.seen.device

    def classes(self) -> np.ndarray:
        """C sorted labels."""
        return self._labels.copy()

    def ids(self) -> list[Id]:
        """M ids of the exemplars: the caller's, or running numbers."""
        return [self.own_ids.get(number, number) for number in self.memory.id.tolist()]

    def label_of(self, class_index: int) -> Label:
        """The label of a class that is not forgotten."""
        name = self.names[class_index]
        assert name is not None
        return name

    def exemplars(self, rows: Tensor | None = None) -> list[Exemplar]:
        """What is remembered, in the order of the memory's rows, or at some of them."""
        rows = torch.arange(len(self.memory)) if rows is None else rows
        found = zip(self.memory.id[rows].tolist(), self.memory.y[rows].tolist(), rows.tolist(), strict=True)
        return [
            Exemplar(self.own_ids.get(number, number), self.label_of(class_index), row, self.texts.get(number))
            for number, class_index, row in found
        ]

    def exemplar_counts(self) -> list[tuple[Label, int]]:
        """Each label, sorted, with the number of its exemplars."""
        counts = torch.bincount(self.memory.y, minlength=len(self.names)).tolist()
        return [(self.label_of(index), counts[index]) for index in self.columns.tolist()]

    def class_index(self, label: Label) -> int:
        """The index of a class in order of arrival; an error for an unknown label."""
        if kind_of(label) != self.label_kind or label not in self.names:  # 1 == True, but not as labels
            raise InputError(f"no class {label!r}: {closest(str(label), map(str, self.classes()))}")
        return self.names.index(label)

    def exemplar_row(self, id: Id) -> int:
        """The row of an exemplar in the memory; an error for an unknown id."""
        ids = self.ids()
        if id not in ids:
            raise InputError(f"no exemplar has the id {id!r}; memory_ lists those there are")
        return ids.index(id)

    def parse_label(self, label: Label) -> Label:
        """A label as a user types it, converted to the type of this model's labels."""
        return parse_label(label, self.label_kind)

    def with_facts(self, **facts: Any) -> "ClassifierState":
        """The same learner with other facts: what was derived of it stays."""
        state = replace(self, **facts)
        state.derived.extend(self.derived)
        return state

    def with_memory(self, memory: Memory) -> "ClassifierState":
        """The same with another memory."""
        learner = copy.copy(self.learner)
        learner.memory = memory
        return replace(self, learner=learner)

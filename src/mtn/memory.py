"""Tasks -> exemplars: a bounded memory, exactly as full as its budget allows.

Every selection policy is one number a sample, its priority. Ring: the order of arrival, so that the latest are kept.
Herding: minus the rank in the herded order. Reservoir: a random key (the M largest keys of a stream are a uniform
sample of it).
"""

import copy
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from mtn.config import Budget
from mtn.errors import InputError
from mtn.samples import Samples, rank_within_class
from mtn.search import Location, NeighbourLists, VectorStore, in_process_store, make_store

Featurise = Callable[[Samples], Samples]
"""Images -> the vectors that a backbone makes of them; vectors are returned as they are."""
Trust = Callable[[Samples], Tensor | None]
"""Samples -> how probably each label is right (N); None: all are taken as right."""


class Memory:
    """Exemplars as unit vectors, or as images in bytes, with class and id. Rows are ordered by class, best first.

    The vectors are in `store`: in this process, or in a collection of Milvus.
    """

    def __init__(self, budget: Budget, *shape: int, store: VectorStore | None = None) -> None:
        """`shape` is that of a sample; not needed with a `store`, which may have rows."""
        self.budget = budget
        self.store = make_store(budget, shape) if store is None else store
        self.priority = torch.zeros(0, dtype=torch.float64)  # M
        self.arrived = 0  # samples so far, kept or not
        self.keeps_neighbours = False  # whether neighbours of exemplars are kept once they were searched for
        self._lists: NeighbourLists | None = None
        self._whole: Memory | None = None  # of which this is a part

    def __len__(self) -> int:
        return len(self.store)

    @property
    def y(self) -> Tensor:
        """M: the class of each exemplar."""
        return self.store.y

    @property
    def id(self) -> Tensor:
        """M: the id of each exemplar."""
        return self.store.id

    @property
    def sample_shape(self) -> torch.Size:
        """The shape of an exemplar: D, or H,W,3."""
        return self.store.shape[1:]

    @property
    def holds_images(self) -> bool:
        """Whether exemplars are images, not vectors."""
        return len(self.sample_shape) == 3

    @property
    def location(self) -> Location | None:
        """The collection that the vectors are in; None: they are in this process."""
        return self.store.location

    def vectors(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """The vectors of exemplars as float32: the shape of `rows`, then D."""
        return self.store.read(rows)

    def samples(self) -> Samples:
        """The exemplars, to be replayed."""
        return Samples(self.store.matrix(), np.arange(len(self)), self.y, self.id)

    # ---- changes

    def add(
        self,
        samples: Samples,
        generator: torch.Generator,
        featurise: Featurise = lambda samples: samples,
        trust: Trust = lambda samples: None,
    ) -> None:
        """Keep those of `samples` that the policy selects, arriving in random order; exemplars are dropped for them.

        Herding selects images by the vectors that `featurise` returns. A sample whose label is probably wrong comes
        after all others of its class.
        """
        samples = samples.select(torch.randperm(len(samples), generator=generator))
        y = torch.cat([self.y, samples.y])
        quota = self.quota(torch.bincount(y))
        trusted = trust(samples)
        right = torch.ones(len(samples), dtype=torch.bool) if trusted is None else trusted.cpu() > 0.5
        coming = self._prioritise(samples, right, quota, generator, featurise)
        priority = torch.cat([self.priority, coming.masked_fill(~right, -torch.inf)])
        self.arrived += len(samples)
        kept = self._select(y, priority, quota)
        old, new = kept[kept < len(self)], kept[kept >= len(self)]
        new = new[_order_by_class(y[new], priority[new])]
        chosen = samples.select(new - len(self))
        store, priority = self.store.add(chosen.id, chosen.y, chosen.x, keep=old), priority[torch.cat([old, new])]
        if (store.y.diff() < 0).any() or torch.isin(chosen.y, y[old]).any():
            self._set(store, priority)
        else:  # all classes are new: rows are in order, and millions are not copied once more
            self.store, self.priority = store, priority

    def remove(self, rows: Tensor) -> None:
        """Drop the exemplars at `rows` (a mask); the next task fills what becomes free."""
        self._lists = self._lists and self._lists.without(self.id[rows])
        self._set(self.store.take(~rows), self.priority[~rows])

    def relabel(self, row: int, label: int) -> None:
        """Give an exemplar another class."""
        self._set(self.store.relabel(row, label), self.priority)

    def _set(self, store: VectorStore, priority: Tensor) -> None:
        order = _order_by_class(store.y, priority)
        self.store, self.priority = store.take(order), priority[order]

    def prepare_for_queries(self) -> None:
        """Make many searches for a few queries each faster, until the memory changes."""
        self.store.prepare_for_queries()

    def neighbour_lists(self, ids: Tensor, k: int) -> NeighbourLists | None:
        """Lists of the nearest exemplars of these exemplars, k and more, kept or searched for now; None: none are kept.

        A part has those of the memory that it is a part of.
        """
        if self._whole is not None:
            return self._whole.neighbour_lists(ids, k)
        if not (self.keeps_neighbours and NeighbourLists.can_be_kept(self.store)):
            return None
        lists = (self._lists or NeighbourLists.none(self.store, k)).of(self.store, k)
        long = lists.id[lists.near[:, k - 1] >= 0]
        missing = ids[torch.isin(ids, self.id) & ~torch.isin(ids, long)].unique()
        self._lists = lists.filled(self.store, missing) if len(missing) else lists
        return self._lists

    # ---- other memories of the same exemplars

    def part(self, rows: Tensor) -> "Memory":
        """The exemplars at `rows` (a mask) alone, to look at: a part is neither saved nor committed."""
        part = self._with(self.store.subset(rows), self.priority[rows])
        part._whole = self if self._whole is None else self._whole
        return part

    def featurised(self, featurise: Featurise) -> "Memory":
        """The same exemplars as vectors."""
        if not self.holds_images:
            return self
        x = featurise(self.samples()).x()
        return self._with(in_process_store(self.budget, self.id, self.y, x), self.priority)

    def _with(self, store: VectorStore, priority: Tensor) -> "Memory":
        memory = Memory(self.budget, store=store)
        memory.priority = priority
        return memory

    def moved(self, store: VectorStore) -> "Memory":
        """The same exemplars in another, empty store; they also stay where they are."""
        moved = copy.copy(self)
        moved.store = store.add(self.id, self.y, self.store.read)
        for rows in self.samples().chunks() if store.location else ():
            if not torch.equal(moved.vectors(rows), self.vectors(rows)):
                raise InputError(f"{store}: what is read there is not what was written")
        return moved

    # ---- on disk

    def state(self) -> dict[str, Tensor]:
        """Named tensors, all but vectors that are in a collection."""
        return self.store.state() | {"priority": self.priority, "arrived": torch.tensor(self.arrived)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Become the memory that had this state. Connects to nothing: `verify` does."""
        self._set(self.store.load_state(state), state["priority"])
        self.arrived = int(state["arrived"])

    def verify(self) -> None:
        """Raise an error if a loaded memory's vectors are not in their collection."""
        self.store = self.store.verified()

    def commit(self) -> None:
        """Delete dropped exemplars from the collection; to be called once a state without them is on disk."""
        self.store = self.store.commit()

    # ---- selection

    def quota(self, available: Tensor) -> Tensor:
        """C: exemplars each class may have, given how many samples of it there are."""
        if self.budget.per_class is not None:
            return available.clamp(max=self.budget.per_class)
        assert self.budget.total is not None  # the configuration allows exactly one of the two
        return quotas(available, self.budget.total)

    def _select(self, y: Tensor, priority: Tensor, quota: Tensor) -> Tensor:
        """Rows that are kept, rising: of each class its quota, or with a reservoir of M the M largest keys of all."""
        if self.budget.select == "reservoir" and self.budget.total is not None:
            return torch.argsort(priority, descending=True, stable=True)[: self.budget.total].sort().values
        order = _order_by_class(y, priority)
        labels = y[order]
        return order[rank_within_class(labels) < quota[labels]].sort().values

    def _prioritise(
        self, samples: Samples, right: Tensor, quota: Tensor, generator: torch.Generator, featurise: Featurise
    ) -> Tensor:
        if self.budget.select == "reservoir":
            return torch.rand(len(samples), generator=generator, dtype=torch.float64)
        if self.budget.select == "ring":
            return self.arrived + torch.arange(len(samples), dtype=torch.float64)
        priority = torch.full((len(samples),), -torch.inf, dtype=torch.float64)
        samples = featurise(samples)
        for label in torch.unique(samples.y[right]):
            rows = ((samples.y == label) & right).nonzero().squeeze(1)
            chosen = rows[herd(samples.x(rows), int(quota[label]))]
            priority[chosen] = -torch.arange(len(chosen), dtype=torch.float64)
        return priority


def quotas(available: Tensor, total: int) -> Tensor:
    """C: slots of each class, equal but none above what is available; what small classes leave goes to the others.

    The sum is `total` whenever that many samples exist; the remainder goes to the classes that came first.
    """
    if int(available.sum()) <= total:
        return available.clone()
    low, high = 0, total  # the largest level with sum(min(available, level)) <= total
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if int(available.clamp(max=level).sum()) <= total else (low, level - 1)
    quota = available.clamp(max=low)
    quota[(available > low).nonzero().squeeze(1)[: total - int(quota.sum())]] += 1
    return quota


def herd(x: Tensor, count: int) -> Tensor:
    """Herding (iCaRL, Alg. 4): each pick brings the mean of the picks closest to the mean of all.

    argmin ||mu - (S + x)/j|| = argmax 2<j mu - S, x> - ||x||^2, with S the sum of earlier picks.
    """
    mean, squared = x.mean(0), (x * x).sum(1)
    total = torch.zeros_like(mean)
    picks = torch.empty(min(count, len(x)), dtype=torch.long)
    free = torch.ones(len(x), dtype=torch.bool)
    for j in range(len(picks)):
        gain = 2 * x @ ((j + 1) * mean - total) - squared
        picks[j] = gain.masked_fill(~free, -torch.inf).argmax()
        free[picks[j]] = False
        total += x[picks[j]]
    return picks


def _order_by_class(y: Tensor, priority: Tensor) -> Tensor:
    """N: rows by class, within a class by falling priority."""
    order = torch.argsort(priority, descending=True, stable=True)
    return order[torch.argsort(y[order], stable=True)]

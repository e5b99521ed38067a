"""Tasks -> exemplars: a bounded memory, exactly as full as its budget allows.

Every policy is one number a sample: its priority. Ring: when it came (the latest stay). Herding: minus its place in
the herded order. Reservoir: a random key (the largest M keys of a stream are a uniform sample of it).
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mtn import index
from mtn.config import Budget
from mtn.errors import InputError
from mtn.index import Index
from mtn.milvus import Collection, Remote
from mtn.samples import Samples

View = Callable[[Samples], Samples]
"""Images -> the vectors that a backbone makes of them; vectors stay as they are."""


class Memory:
    """Exemplars as unit vectors, or as images in bytes, with class and id. Rows stand by class, best first.

    With a collection the vectors are there, and only there.
    """

    def __init__(self, budget: Budget, *shape: int, collection: Collection | None = None) -> None:
        self.budget = budget
        kind = torch.uint8 if len(shape) == 3 else getattr(torch, budget.precision)
        here = torch.zeros(0, *shape, dtype=kind)
        self.x: Tensor | Remote = here if collection is None else Remote.empty(collection)
        self.columns: Tensor | None = None  # D,M once turned
        self.y = torch.zeros(0, dtype=torch.long)
        self.id = torch.zeros(0, dtype=torch.long)
        self.priority = torch.zeros(0, dtype=torch.float64)
        self.arrived = 0
        self.index: Index | None = None  # of more exemplars than are looked at one by one
        self.whole = True  # not a part of another

    def __len__(self) -> int:
        return len(self.y)

    def add(self, samples: Samples, generator: torch.Generator, view: View = lambda samples: samples) -> None:
        """Take in what deserves a place among `samples`, which arrive in random order; others shrink to make room.

        Herding judges images by their `view`.
        """
        samples = samples.select(torch.randperm(len(samples), generator=generator))
        y = torch.cat([self.y, samples.y])
        quota = self.quota(torch.bincount(y))
        priority = torch.cat([self.priority, self._prioritise(samples, quota, generator, view)])
        self.arrived += len(samples)
        kept = self._best(y, priority, quota)
        old, new = kept[kept < len(self)], kept[kept >= len(self)] - len(self)
        chosen = samples.select(new)
        self._set(
            self._joined(old, chosen),
            torch.cat([self.y[old], chosen.y]),
            torch.cat([self.id[old], chosen.id]),
            torch.cat([priority[old], priority[kept[kept >= len(self)]]]),
        )

    def _joined(self, old: Tensor, chosen: Samples) -> Tensor | Remote:
        if isinstance(self.x, Remote):
            return self.x.take(old).add(chosen.id, chosen.y, chosen.x)
        joined = self.x.new_empty(len(old) + len(chosen), *self.x.shape[1:])  # `cat` would copy millions twice
        torch.index_select(self.x, 0, old, out=joined[: len(old)])
        joined[len(old) :] = chosen.x()
        return joined

    def remove(self, rows: Tensor) -> None:
        """Let the exemplars at `rows` (a mask) go; what their places are worth shows at the next task."""
        self._set(_take(self.x, ~rows), self.y[~rows], self.id[~rows], self.priority[~rows])

    def relabel(self, row: int, label: int) -> None:
        y = self.y.clone()
        y[row] = label
        if isinstance(self.x, Remote):
            self.x.collection.relabel(int(self.id[row]), label)
        self._set(self.x, y, self.id, self.priority)

    def turn(self) -> None:
        """It will be asked again and again: lay the vectors out so that the product with a few takes half the time."""
        if (
            self.columns is None and isinstance(self.x, Tensor) and len(self) < index.WORTH
        ):  # a large one's would be dear
            self.columns = self.x.T.contiguous()

    def part(self, rows: Tensor) -> "Memory":
        """The exemplars at `rows` (a mask) alone."""
        part = Memory(self.budget, *self.x.shape[1:])
        part._set(_take(self.x, rows), self.y[rows], self.id[rows], self.priority[rows])
        part.index, part.whole = self.index, False
        return part

    def seen_by(self, view: View) -> "Memory":
        """The same exemplars as vectors."""
        if len(self.x.shape) == 2:
            return self
        x = view(self.samples()).x()
        seen = Memory(self.budget, x.shape[1])
        seen._set(x, self.y, self.id, self.priority)
        return seen

    def indexed(self) -> "Index | None":
        """What finds candidates, brought up to date; None where all exemplars are looked at."""
        x = self.x
        if self.budget.search == "exact" or len(self) < index.WORTH or isinstance(x, Remote):
            return None
        self.index = self.index or Index(x.shape[1])
        self.index.hold(self.id, lambda rows: x[rows], only=self.whole)
        return self.index

    def samples(self) -> Samples:
        """The exemplars, to be replayed."""
        return Samples(self.x.numpy() if isinstance(self.x, Tensor) else self.x, np.arange(len(self)), self.y, self.id)

    def state(self) -> dict[str, Tensor]:
        """All but vectors that are elsewhere."""
        if isinstance(self.x, Remote):
            vectors = {"hidden": self.x.hidden, "tasks": torch.tensor(self.x.tasks)}
        else:
            vectors = {"x": self.x}
        rest = {"y": self.y, "id": self.id, "priority": self.priority, "arrived": torch.tensor(self.arrived)}
        return vectors | rest

    def load_state(self, state: dict[str, Tensor]) -> None:
        if ("x" in state) == isinstance(self.x, Remote):
            raise InputError(f"memory.store must stay what it was, {'exact' if 'x' in state else 'milvus'}")
        if isinstance(self.x, Remote):
            x: Tensor | Remote = Remote(self.x.collection, state["id"], state["hidden"], int(state["tasks"])).checked()
        else:
            x = state["x"]
        self._set(x, state["y"], state["id"], state["priority"])
        self.arrived = int(state["arrived"])

    def settle(self) -> None:
        """The state is on disk: what it does not name goes."""
        if isinstance(self.x, Remote):
            self.x = self.x.settled()

    def moved(self, collection: Collection | None) -> "Memory":
        """The same exemplars with their vectors in an empty collection, or here; where they were they stay."""
        twin = copy.copy(self)
        if collection is None:
            twin.x = self.x[torch.arange(len(self))].to(getattr(torch, self.budget.precision))
            return twin
        twin.x = Remote.empty(collection).add(self.id, self.y, lambda rows: self.x[rows].float())
        for rows in self.samples().chunks():
            if not torch.equal(twin.x[rows], self.x[rows].float()):
                raise InputError(f"Milvus, {collection}: what is read there is not what was written")
        return twin

    def _set(self, x: Tensor | Remote, y: Tensor, ids: Tensor, priority: Tensor) -> None:
        order = _by_class(y, priority)
        self.x, self.y, self.id, self.priority = _take(x, order), y[order], ids[order], priority[order]
        self.columns = None

    def quota(self, available: Tensor) -> Tensor:
        """Places of each class, given how many samples of it there are."""
        if self.budget.per_class is not None:
            return available.clamp(max=self.budget.per_class)
        assert self.budget.total is not None  # the configuration allows exactly one of the two
        return quotas(available, self.budget.total)

    def _best(self, y: Tensor, priority: Tensor, quota: Tensor) -> Tensor:
        """Rows that stay: of each class its quota, or with a reservoir of M the M largest keys of all."""
        if self.budget.select == "reservoir" and self.budget.total is not None:
            return torch.argsort(priority, descending=True, stable=True)[: self.budget.total].sort().values
        order = _by_class(y, priority)
        counts = torch.bincount(y, minlength=len(quota))
        place = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[order]]
        return order[place < quota[y[order]]].sort().values

    def _prioritise(self, samples: Samples, quota: Tensor, generator: torch.Generator, view: View) -> Tensor:
        if self.budget.select == "reservoir":
            return torch.rand(len(samples), generator=generator, dtype=torch.float64)
        if self.budget.select == "ring":
            return self.arrived + torch.arange(len(samples), dtype=torch.float64)
        priority = torch.full((len(samples),), -torch.inf, dtype=torch.float64)
        samples = view(samples)
        for label in samples.y.unique():
            rows = (samples.y == label).nonzero().squeeze(1)
            chosen = rows[herd(samples.x(rows), int(quota[label]))]
            priority[chosen] = -torch.arange(len(chosen), dtype=torch.float64)
        return priority


def _take(x: Tensor | Remote, rows: Tensor) -> Tensor | Remote:
    return x[rows] if isinstance(x, Tensor) else x.take(rows)


def quotas(available: Tensor, total: int) -> Tensor:
    """Slots of each class: equal, but none above what is available; what small classes leave goes to the others.

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


def _by_class(y: Tensor, priority: Tensor) -> Tensor:
    """Order by class, within a class by falling priority."""
    order = torch.argsort(priority, descending=True, stable=True)
    return order[torch.argsort(y[order], stable=True)]

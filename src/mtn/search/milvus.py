"""Vectors in a collection of Milvus, where they are also compared with the queries.

Nothing is lost or doubled, whenever a process or the server stops. New exemplars are upserted by id under the number of
their task; then the state that names them is saved; only then `commit` deletes those that were dropped. A state does
not see rows of tasks it has not learned: they are of an attempt that failed, and are deleted when the task is tried
again, or of another process that is learning it right now.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mtn.errors import InputError
from mtn.search.collection import Collection
from mtn.search.store import Location, Nearest, Rows, VectorStore


@dataclass(eq=False, repr=False)
class MilvusStore(VectorStore):
    """Ids and labels in this process, vectors in a collection: they are fetched when they are read."""

    collection: Collection
    hidden: Tensor  # ids that are in the collection and are no rows of this store: dropped, or outside a subset
    tasks: int  # calls of `add` so far; the collection may have rows of later ones
    unverified: bool = False  # it was loaded, and nobody has checked that its rows are in the collection

    @classmethod
    def empty(cls, location: Location, dimension: int) -> Self:
        """A store without rows; the collection is created by the first `add`."""
        nothing = torch.zeros(0, dtype=torch.long)
        return cls(nothing, nothing, Collection(location, dimension), nothing, 0)

    def __str__(self) -> str:
        return f"Milvus, {self.collection}"

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.collection.dimension))

    @property
    def location(self) -> Location:
        return self.collection.location

    def take(self, rows: Tensor) -> Self:
        if len(self.subset(rows)) < len(self):
            self.verified()  # rows are about to be deleted for good
        return self.subset(rows)

    def subset(self, rows: Tensor) -> Self:
        ids = self.id[rows]
        dropped = self.id[~torch.isin(self.id, ids)]
        return replace(self, id=ids, y=self.y[rows], hidden=torch.cat([self.hidden, dropped]))

    def add(self, ids: Tensor, y: Tensor, read: Callable[[slice], Tensor], keep: Tensor | None = None) -> Self:
        """As one more task, whatever rows an earlier attempt at it has left."""
        self.verified()
        kept = self if keep is None else self.take(keep)
        if self.tasks:
            self.collection.delete_from(self.tasks)
        else:
            self.collection.create()
        self.collection.upsert(ids, y, self.tasks, read)
        hidden = kept.hidden[~torch.isin(kept.hidden, ids)]
        return replace(
            kept, id=torch.cat([kept.id, ids]), y=torch.cat([kept.y, y]), hidden=hidden, tasks=self.tasks + 1
        )

    def relabel(self, row: int, label: int) -> Self:
        self.verified().collection.relabel(int(self.id[row]), label)
        return super().relabel(row, label)

    def read(self, rows: Rows) -> Tensor:
        self.verified()
        if isinstance(rows, slice):
            return self.collection.vectors(self.id[rows])
        return self.collection.vectors(self.id[rows.cpu()]).to(rows.device)

    def matrix(self) -> "MilvusStore":
        return self

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of rows, as `Samples` reads them."""
        return self.read(torch.from_numpy(rows)).numpy()

    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        nearest = []
        for first in firsts:
            rows, scores = (part.to(query.device) for part in self._search_first(query, k, first))
            nearest.append((scores, rows.masked_fill(rows >= first, -1)))  # labels there may not be those saved here
        return nearest

    def _search_first(self, query: Tensor, k: int, first: int) -> tuple[Tensor, Tensor]:
        """Rows (-1: none) and cosines of the nearest (B,K) with labels below that of row `first`."""
        if not len(self):
            return torch.full((len(query), 0), -1), torch.zeros(len(query), 0)
        self.verified()
        conditions = [f"task < {self.tasks}"]
        conditions += [f"label < {int(self.y[first])}"] if first < len(self) else []
        conditions += [f"id not in {self.hidden.tolist()}"] if len(self.hidden) else []
        ids, similarity = self.collection.search(query, k, " and ".join(conditions))
        sorted_ids, sorted_rows = self._rows_by_id
        position = torch.searchsorted(sorted_ids, ids).clamp(max=len(self) - 1)
        return sorted_rows[position].where(sorted_ids[position] == ids, -1), similarity

    @cached_property
    def _rows_by_id(self) -> tuple[Tensor, Tensor]:
        """Ids rising, and their rows."""
        ordered = self.id.sort()
        return ordered.values, ordered.indices

    def state(self) -> dict[str, Tensor]:
        return {"hidden": self.hidden, "tasks": torch.tensor(self.tasks), "y": self.y, "id": self.id}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        if "x" in state:
            raise InputError("memory.store must stay what it was, exact")
        return replace(
            self, id=state["id"], y=state["y"], hidden=state["hidden"], tasks=int(state["tasks"]), unverified=True
        )

    def verified(self) -> Self:
        """Rows that are hidden may have been deleted already: then nothing is hidden.

        The answer is kept in this object: it is of the same rows before and after, and threads may share it.
        """
        if self.unverified:
            count = self.collection.count(self.tasks) if self.tasks else 0
            if count < len(self):
                raise InputError(f"{self}: it has {count} of this memory's {len(self)} exemplars")
            if count == len(self):
                self.hidden = self.hidden[:0]
            self.unverified = False
        return self

    def commit(self) -> Self:
        if not len(self.hidden) or not len(self.verified().hidden):
            return self
        self.collection.delete(self.hidden)
        return replace(self, hidden=self.hidden[:0])


def drop_collection(location: Location) -> None:
    """Delete a collection that no model uses any longer."""
    Collection(location, 0).drop()

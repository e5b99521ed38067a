"""Vectors in this process, of which only likely candidates are compared with a query: an inverted file of faiss.

Vectors are grouped around centroids, a byte a number, and only the groups nearest to a query are searched. More
candidates than needed are taken and ranked by the store's own vectors. Of the indexes of faiss this is one that vectors
can be removed from, and that is built in minutes (docs/how-to/large-memory.md).
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mtn.errors import InputError, install_line
from mtn.search.in_process import InProcessStore
from mtn.search.store import Nearest

MINIMUM = 50_000
"""Vectors from which on the inverted file is faster than comparing all of them."""
PROBES, PROBED_SHARE = 32, 1 / 32
"""Groups searched for a query: so many, or that share of them if it is more."""
CANDIDATES = 4
"""Times as many candidates as neighbours: with a byte a number the nearest cannot be told apart."""
GROWTH = 4
"""Centroids are trained anew when there are this many times as many vectors as at their training."""
TRAINING_VECTORS, ITERATIONS = 40, 10
"""Vectors a centroid is trained on, and iterations of k-means: assigning millions of vectors takes longer than that."""
CHUNK = 65_536


class InvertedFile:
    """The index: vectors by id, shared by a store, the stores made from it, and their subsets.

    It may hold vectors that the store it is asked for does not have: a search is restricted to that store's ids.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.ids = np.zeros(0, np.int64)  # rising
        self._trained_for = 0
        self._index: Any = None
        self._requested: Tensor | None = None  # N: ids of the latest update, by row
        self._order = np.zeros(0, np.int64)  # N: the rows by rising id

    def update(self, ids: Tensor, read: Callable[[Tensor], Tensor], *, remove_others: bool) -> None:
        """Add the vectors with these ids that are missing; `read` returns the vectors of rows."""
        if ids is self._requested:
            return
        requested = ids.numpy()
        if len(requested) > GROWTH * self._trained_for:
            self._train(len(requested), read)
        new = np.flatnonzero(~np.isin(requested, self.ids))
        for start in range(0, len(new), CHUNK):
            rows = new[start : start + CHUNK]
            self._index.add_with_ids(_to_numpy(read(torch.from_numpy(rows))), requested[rows])
        removed = np.setdiff1d(self.ids, requested) if remove_others else requested[:0]
        if len(removed):
            self._index.remove_ids(removed)
        if len(new) or len(removed):
            self.ids = np.setdiff1d(np.concatenate([self.ids, requested[new]]), removed)
        self._requested, self._order = ids, requested.argsort()

    def candidates(self, query: Tensor, k: int, first: int) -> Tensor:
        """B,C rows among the first of the latest update that may be of the k nearest, -1 where there are no more."""
        faiss = _import_faiss()
        assert self._requested is not None
        ids = self._requested.numpy()
        faiss.omp_set_num_threads(torch.get_num_threads())
        selector = None if first == len(self.ids) else faiss.IDSelectorBitmap(_bitmap(ids[:first]))
        probes = max(PROBES, round(PROBED_SHARE * self._index.nlist))
        parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
        hits = self._index.search(_to_numpy(query), CANDIDATES * k, params=parameters)[1]
        rows = self._order[np.searchsorted(ids, hits.clip(min=0), sorter=self._order).clip(max=len(ids) - 1)]
        return torch.from_numpy(np.where(hits < 0, -1, rows))

    def _train(self, count: int, read: Callable[[Tensor], Tensor]) -> None:
        """New centroids, from a part of the vectors that will be added; the index is empty then."""
        faiss = _import_faiss()
        groups = max(1, min(round(2 * math.sqrt(count)), count // TRAINING_VECTORS))
        rows = torch.linspace(0, count - 1, min(count, TRAINING_VECTORS * groups)).long()
        self._index = faiss.index_factory(self.dimension, f"IVF{groups},SQ8", faiss.METRIC_INNER_PRODUCT)
        self._index.cp.niter = ITERATIONS
        self._index.train(_to_numpy(read(rows)))
        self.ids, self._trained_for = self.ids[:0], count


@dataclass(eq=False, repr=False)
class InvertedFileStore(InProcessStore):
    """The in-process store with an approximate search; below `MINIMUM` vectors its search is exact."""

    index: InvertedFile | None = None  # made at the first search
    is_subset: bool = False  # then the index keeps the vectors of other rows

    def subset(self, rows: Tensor) -> Self:
        return replace(self.take(rows), is_subset=True)

    def detached(self) -> Self:
        return replace(self, index=copy.deepcopy(self.index))

    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        if len(self) < MINIMUM:
            return super().search(query, k, firsts)
        index = self._updated_index()
        return [self._rank(query, index.candidates(query, k, first).to(query.device), k) for first in firsts]

    def prepare_for_queries(self) -> None:
        if len(self) < MINIMUM:
            super().prepare_for_queries()
        else:
            self._updated_index()

    def to(self, device: torch.device | str) -> Self:
        if len(self) >= MINIMUM:
            self._updated_index()  # or each copy on a device would build its own
        return super().to(device)

    def _updated_index(self) -> InvertedFile:
        self.index = self.index or InvertedFile(self.shape[1])
        self.index.update(self.id, lambda rows: self.x[rows], remove_others=not self.is_subset)
        return self.index

    def _rank(self, query: Tensor, candidates: Tensor, k: int) -> Nearest:
        """The k nearest of the candidates B,C by their exact cosines."""
        cosines = torch.einsum("bd,bcd->bc", query, self.read(candidates)).masked_fill(candidates < 0, -torch.inf)
        scores, order = cosines.topk(min(k, cosines.shape[1]), dim=1)
        return scores, candidates.gather(1, order)


def _to_numpy(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.float().cpu().numpy())


def _bitmap(ids: np.ndarray) -> np.ndarray:
    """Bit i is set where i is one of the ids."""
    bits = np.zeros(-(-int(ids.max(initial=0) + 1) // 8) * 8, bool)
    bits[ids] = True
    return np.packbits(bits, bitorder="little")


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError(f"memory.search = 'approximate' needs faiss: {install_line('ann')}") from None
    return faiss

"""Which exemplars may be near a query, where there are too many to look at each: an inverted file of faiss.

Vectors are grouped around centres, a byte a number, and only the groups nearest to a query are looked at. Whoever asks
takes more than are needed and ranks them by the memory's own vectors. Of the indexes of faiss this is the one that
vectors can be taken out of, and that is built in minutes (docs/scale.md).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtn.errors import InputError

WORTH = 50_000
"""Exemplars from which on looking at some is faster than looking at all."""
GROUPS, SHARE = 32, 1 / 32
"""Looked at for a query: so many, or that share of them if it is more."""
SPARE = 4
"""Times as many candidates as neighbours: bytes do not tell the nearest apart."""
GROWTH = 4
"""Times as many vectors as the centres were found for: they are found anew."""
EACH, ROUNDS = 40, 10
"""Vectors that a centre is found from, and how often it is moved: assigning millions takes longer than that."""
CHUNK = 65_536


class Index:
    """The vectors of a memory by their ids, and perhaps some that it let go since."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.held = np.zeros(0, np.int64)  # ids, rising
        self._trained_for = 0
        self._index: Any = None
        self._latest: Tensor | None = None  # the ids that were asked for, by place
        self._order = np.zeros(0, np.int64)  # their places by rising id

    def hold(self, ids: Tensor, read: Callable[[Tensor], Tensor], *, only: bool) -> None:
        """See that the vectors with these ids are here, only they or among others; `read` gives those at places."""
        if ids is self._latest:
            return
        wanted = ids.numpy()
        if len(wanted) > GROWTH * self._trained_for:
            self._begin(len(wanted), read)
        new = np.flatnonzero(~np.isin(wanted, self.held))
        for start in range(0, len(new), CHUNK):
            rows = new[start : start + CHUNK]
            self._index.add_with_ids(_floats(read(torch.from_numpy(rows))), wanted[rows])
        gone = np.setdiff1d(self.held, wanted) if only else wanted[:0]
        if len(gone):
            self._index.remove_ids(gone)
        if len(new) or len(gone):
            self.held = np.setdiff1d(np.concatenate([self.held, wanted[new]]), gone)
        self._latest, self._order = ids, wanted.argsort()

    def candidates(self, query: Tensor, k: int, first: int) -> Tensor:
        """B,C places among the first of what was asked for that may be of the k nearest, -1 where there are no more."""
        faiss = _faiss()
        assert self._latest is not None
        ids = self._latest.numpy()
        faiss.omp_set_num_threads(torch.get_num_threads())
        among = None if first == len(self.held) else faiss.IDSelectorBitmap(_bits(ids[:first]))
        how = faiss.SearchParametersIVF(nprobe=max(GROUPS, round(SHARE * self._index.nlist)), sel=among)
        found = self._index.search(_floats(query), SPARE * k, params=how)[1]
        places = self._order[np.searchsorted(ids, found.clip(min=0), sorter=self._order).clip(max=len(ids) - 1)]
        return torch.from_numpy(np.where(found < 0, -1, places))

    def _begin(self, count: int, read: Callable[[Tensor], Tensor]) -> None:
        """Centres from a part of what will be held."""
        faiss = _faiss()
        groups = max(1, min(round(2 * math.sqrt(count)), count // EACH))
        some = torch.linspace(0, count - 1, min(count, EACH * groups)).long()
        self._index = faiss.index_factory(self.dimension, f"IVF{groups},SQ8", faiss.METRIC_INNER_PRODUCT)
        self._index.cp.niter = ROUNDS
        self._index.train(_floats(read(some)))
        self.held, self._trained_for = self.held[:0], count


def _floats(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.float().cpu().numpy())


def _bits(ids: np.ndarray) -> np.ndarray:
    marks = np.zeros(-(-int(ids.max(initial=0) + 1) // 8) * 8, bool)
    marks[ids] = True
    return np.packbits(marks, bitorder="little")


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError("memory.search = 'approximate' needs faiss: pip install 'mtn[ann]'") from None
    return faiss

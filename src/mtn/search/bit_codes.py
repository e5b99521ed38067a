"""Vectors in this process, of which only likely candidates are compared with a query: a first pass in bits.

A vector, less the mean of all, is projected on random directions, and the signs are its code of 64 bytes. Codes of two
vectors with the angle t between them differ in about t / pi of the bits (Charikar 2002), so the nearest vectors are
among those whose codes differ least from the query's. These are ranked by the store's own vectors. Nothing is trained
and there are no groups: a vector comes and goes with its code, and every code is looked at (faiss counts the bits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from mtn.errors import InputError, install_line
from mtn.search.in_process import InProcessStore
from mtn.search.store import Nearest

MINIMUM = 50_000
"""Vectors from which on codes are looked at first."""
BITS = 512
"""Of a code."""
CANDIDATES = 40
"""Times as many candidates as neighbours: bits cannot tell the nearest apart."""
AVERAGED, GROWTH = 20_000, 4
"""Vectors that the mean is taken of; and it is taken anew when there are so many times as many as there were then."""
CHUNK, MOST_RANKED = 65_536, 2**25
"""Vectors that are coded at once, and numbers of candidates that are compared at once: 128 MB."""


@cache
def directions(dimension: int) -> Tensor:
    """D,BITS: random, at right angles to each other as far as there is room for that; the same every time."""
    fixed = torch.Generator().manual_seed(0)
    drawn = torch.randn(max(dimension, BITS), min(dimension, BITS), generator=fixed)
    across: Tensor = torch.linalg.qr(drawn).Q
    return (across if dimension >= BITS else across.T).contiguous()


@dataclass(frozen=True, eq=False)
class BitCodes:
    """The codes of N vectors."""

    code: Tensor  # N,BITS/8 bytes
    mean: Tensor  # D
    averaged: int  # how many vectors there were when the mean was taken

    @staticmethod
    def of(x: Tensor) -> "BitCodes":
        """Of N,D numbers."""
        some = x[torch.linspace(0, len(x) - 1, min(len(x), AVERAGED)).long()]
        nothing = torch.zeros(0, BITS // 8, dtype=torch.uint8)
        return BitCodes(nothing, some.float().cpu().mean(0), len(x)).join(x)

    def take(self, rows: Tensor) -> "BitCodes":
        """Those at `rows`."""
        return BitCodes(self.code[rows], self.mean, self.averaged)

    def join(self, x: Tensor) -> "BitCodes":
        """These and more, x being the vectors of all."""
        if len(x) > GROWTH * self.averaged:
            return BitCodes.of(x)
        code = self.code.new_empty(len(x), BITS // 8)
        code[: len(self.code)] = self.code
        for start in range(len(self.code), len(x), CHUNK):
            code[start : start + CHUNK] = self.coded(x[start : start + CHUNK])
        return BitCodes(code, self.mean, self.averaged)

    def coded(self, x: Tensor) -> Tensor:
        """B,BITS/8 bytes of x B,D."""
        signs = (x.float().cpu() - self.mean) @ directions(x.shape[1]) > 0
        weights = 2 ** torch.arange(8, dtype=torch.uint8)
        code: Tensor = (signs.unflatten(1, (-1, 8)) * weights).sum(2, dtype=torch.uint8)
        return code

    def candidates(self, query: Tensor, count: int, first: int) -> Tensor:
        """B,C rows among the first whose codes differ least from those of queries B,D."""
        count = min(count, first)
        if not count:
            return torch.zeros(len(query), 0, dtype=torch.long)
        faiss = _import_faiss()
        faiss.omp_set_num_threads(torch.get_num_threads())
        enough = query[torch.arange(-(-len(query) // 4) * 4) % len(query)]  # products of fewer rows round differently
        code = self.coded(enough)[: len(query)]
        return torch.from_numpy(faiss.knn_hamming(code.numpy(), self.code[:first].numpy(), count)[1])


@dataclass(eq=False, repr=False)
class BitCodeStore(InProcessStore):
    """The in-process store with an approximate search; below `MINIMUM` vectors its search is exact."""

    codes: BitCodes | None = field(default=None, init=False)  # made at the first search

    def take(self, rows: Tensor) -> Self:
        taken = super().take(rows)
        taken.codes = self.codes and self.codes.take(rows)
        return taken

    def add(self, ids: Tensor, y: Tensor, read: Callable[[slice], Tensor], keep: Tensor | None = None) -> Self:
        added = super().add(ids, y, read, keep)
        added.codes = self.codes and (self.codes if keep is None else self.codes.take(keep)).join(added.x)
        return added

    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        if len(self) < MINIMUM:
            return super().search(query, k, firsts)
        self.prepare_for_queries()
        assert self.codes is not None
        found = [self.codes.candidates(query, CANDIDATES * k, first).to(query.device) for first in firsts]
        return [self._rank(query, candidates, k) for candidates in found]

    def prepare_for_queries(self) -> None:
        if len(self) < MINIMUM:
            super().prepare_for_queries()
        else:
            self.codes = self.codes or BitCodes.of(self.x)

    @property
    def query_multiple(self) -> int:
        return super().query_multiple if len(self) < MINIMUM else 1

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved.codes = self.codes
        return moved

    def _rank(self, query: Tensor, candidates: Tensor, k: int) -> Nearest:
        """The k nearest of the candidates B,C by their cosines, each by itself: matrix products round by their size."""
        size = max(1, MOST_RANKED // max(candidates.shape[1] * query.shape[1], 1))
        parts = [
            self.read(rows).mul_(some[:, None]).sum(2)
            for some, rows in zip(query.split(size), candidates.split(size), strict=True)
        ]
        scores, order = torch.cat(parts).topk(min(k, candidates.shape[1]), dim=1)
        return scores, candidates.gather(1, order)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError(f"memory.search = 'approximate' needs faiss: {install_line('ann')}") from None
    return faiss

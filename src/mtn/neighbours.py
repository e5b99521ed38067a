"""Queries x memory -> neighbours: top-k by cosine, chunk by chunk, never the query itself.

Exact, unless the memory has an index (mtn.index): then among its candidates. Vectors in Milvus are compared there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mtn import ranks
from mtn.index import Index
from mtn.memory import Memory
from mtn.milvus import Remote
from mtn.progress import Progress, silent
from mtn.samples import Samples

BLOCK = 65_536
"""Exemplars that are compared with a chunk of queries at once."""


@dataclass(frozen=True)
class Neighbours:
    """Nearest first. B queries, K neighbours, D features; where the mask is False there was no further exemplar."""

    x: Tensor  # B,K,D
    y: Tensor  # B,K
    similarity: Tensor  # B,K
    mask: Tensor  # B,K
    full: bool  # the mask is True everywhere, known without looking

    def __getitem__(self, rows: slice) -> "Neighbours":
        return Neighbours(self.x[rows], self.y[rows], self.similarity[rows], self.mask[rows], self.full)

    @staticmethod
    def join(parts: "list[Neighbours]") -> "Neighbours":
        """The neighbours of several batches as those of one."""
        return Neighbours(
            torch.cat([part.x for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat([part.similarity for part in parts]),
            torch.cat([part.mask for part in parts]),
            all(part.full for part in parts),
        )


@dataclass(frozen=True)
class Retrieval:
    """The neighbours of many queries as rows of a memory: found once a task, gathered batch by batch."""

    x: Tensor | Remote  # M,D
    y: Tensor  # M
    index: Tensor  # N,K rows of the memory, -1 where there is none
    similarity: Tensor  # N,K
    full: bool  # every query has all its k neighbours

    def of(self, queries: Tensor | slice) -> "Retrieval":
        """Of some of the queries, in their order."""
        return replace(self, index=self.index[queries], similarity=self.similarity[queries])

    def __getitem__(self, rows: Tensor | slice) -> Neighbours:
        index = self.index[rows]
        real = index.clamp(min=0).long()
        labels = self.y[real].where(index >= 0, 0)  # a class every model knows
        return Neighbours(self.x[real].float(), labels, self.similarity[rows], index >= 0, self.full)


def nearest(
    queries: Samples, memory: Memory, k: int, device: torch.device | str = "cpu", say: Progress = silent
) -> Retrieval:
    """The k nearest exemplars of every query."""
    return nearest_within(queries, memory, k, (len(memory),), device, say)[0]


def nearest_within(
    queries: Samples,
    memory: Memory,
    k: int,
    firsts: Sequence[int],
    device: torch.device | str = "cpu",
    say: Progress = silent,
) -> list[Retrieval]:
    """The k nearest of every query among the first n exemplars, for several n at the cost of one search.

    Exemplars stand by class in arrival order, so the first ones are those of the classes an older model knows. Of
    several processes each searches for its share of the queries.
    """
    x, y, ids = memory.x, memory.y.to(device), memory.id.to(device)
    x = x if isinstance(x, Remote) else x.to(device)
    index = torch.full((len(firsts), len(queries), k), -1, dtype=torch.int32, device=device)
    similarity = torch.zeros(len(firsts), len(queries), k, device=device)
    search = _search(memory, x)
    everything = slice(0, len(queries))
    own = ranks.own(everything)
    for rows in queries.chunks(within=own):
        query, itself = queries.x(rows).to(device), queries.id[rows].to(device)
        for place, (scores, found) in enumerate(search(query, firsts, k + 1)):
            found, scores = _without(itself, ids, found, scores, k)
            index[place, rows, : found.shape[1]] = found.int()
            similarity[place, rows, : found.shape[1]] = scores
        say("searching", rows.stop - own.start, own.stop - own.start)
    if not len(memory):  # a row for padding to point at
        x, y = torch.zeros(1, x.shape[1], device=device), y.new_zeros(1)
    parts = [[ranks.gather(part[own], everything) for part in both] for both in zip(index, similarity, strict=True)]
    return [Retrieval(x, y, index, similarity, bool((index >= 0).all())) for index, similarity in parts]


def top_k(cosines: Tensor, query_ids: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows (-1: none) and cosines of the nearest, given all cosines."""
    scores, rows = cosines.topk(min(k + 1, cosines.shape[1]), dim=1)
    return _without(query_ids, ids, rows, scores, k)


Best = list[tuple[Tensor, Tensor]]
"""For each of several n: cosines and rows (-1: none) of the nearest among the first n exemplars, B,K."""

Search = Callable[[Tensor, Sequence[int], int], Best]
"""Queries, those n, and K."""


def _search(memory: Memory, x: Tensor | Remote) -> Search:
    """How the nearest are found, by where and how many the vectors are."""
    if isinstance(x, Remote):
        return partial(_elsewhere, memory, x)
    likely = memory.indexed()
    if likely is not None:
        return partial(_likely, likely, x)
    return partial(_best, x.T if memory.columns is None else memory.columns.to(x.device))


def _best(columns: Tensor, query: Tensor, firsts: Sequence[int], k: int) -> Best:
    """Block by block of exemplars: the cosines of millions would not fit."""
    best: list[list[tuple[Tensor, Tensor]]] = [[] for _ in firsts]
    for start in range(0, max(*firsts, 1), BLOCK):
        cosines = query @ columns[:, start : start + BLOCK].to(query.dtype)
        for parts, first in zip(best, firsts, strict=True):
            if first > start or not parts:
                scores, rows = cosines[:, : first - start].topk(min(k, first - start, cosines.shape[1]), dim=1)
                parts.append((scores, rows + start))
    return [parts[0] if len(parts) == 1 else _merged(parts, k) for parts in best]


def _merged(parts: list[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    scores, rows = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    scores, order = scores.topk(min(k, scores.shape[1]), dim=1)
    return scores, rows.gather(1, order)


def _likely(index: Index, x: Tensor, query: Tensor, firsts: Sequence[int], k: int) -> Best:
    """Candidates, ranked by the memory's own vectors."""
    best = []
    for first in firsts:
        rows = index.candidates(query, k, first).to(query.device)
        cosines = torch.einsum("bd,bcd->bc", query, x[rows].float()).masked_fill(rows < 0, -torch.inf)
        scores, places = cosines.topk(min(k, cosines.shape[1]), dim=1)
        best.append((scores, rows.gather(1, places)))
    return best


def _elsewhere(memory: Memory, x: Remote, query: Tensor, firsts: Sequence[int], k: int) -> Best:
    """The first exemplars are those of the first classes there too."""
    best = []
    for first in firsts:
        below = int(memory.y[first]) if first < len(memory) else None
        rows, scores = (part.to(query.device) for part in x.nearest(query, k, below))
        best.append((scores, rows.masked_fill(rows >= first, -1)))  # a label there may be one that was never saved here
    return best


def _without(itself: Tensor, ids: Tensor, rows: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of what was found, rows (-1: none) and cosines.

    One with the query's own id does not count, a mere copy of it does: it is moved behind all others.
    """
    none = (rows < 0) | (ids[rows] == itself[:, None])
    if none.any():
        order = none.int().argsort(dim=1, stable=True)
        rows = rows.masked_fill(none, -1).gather(1, order)
        scores = scores.masked_fill(none, 0).gather(1, order)
    return rows[:, :k], scores[:, :k]

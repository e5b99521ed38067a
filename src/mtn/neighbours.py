"""Queries x memory -> neighbours: top-k by cosine, chunk by chunk, never the query itself.

How the nearest exemplars are found, exactly or approximately, here or in Milvus, is up to the memory's store
(mtn.search).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtn.memory import Memory
from mtn.runtime import distributed
from mtn.runtime.progress import Progress, silent
from mtn.samples import CHUNK, Samples
from mtn.search import InProcessStore, VectorStore


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
        if len(parts) == 1:
            return parts[0]
        return Neighbours(
            torch.cat([part.x for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat([part.similarity for part in parts]),
            torch.cat([part.mask for part in parts]),
            all(part.full for part in parts),
        )


@dataclass(frozen=True)
class Retrieval:
    """The neighbours of N queries as rows of a store: searched for once a task, read batch by batch."""

    store: VectorStore  # of M exemplars
    y: Tensor  # M
    index: Tensor  # N,K rows of the store, -1 where there is none
    similarity: Tensor  # N,K
    full: bool  # every query has all its k neighbours

    def of(self, queries: Tensor | slice) -> "Retrieval":
        """The neighbours of some of the queries, in the order given."""
        return replace(self, index=self.index[queries], similarity=self.similarity[queries])

    def __getitem__(self, queries: Tensor | slice) -> Neighbours:
        index = self.index[queries]
        rows = index.clamp(min=0).long()
        labels = self.y[rows].where(index >= 0, 0)  # a class every model knows
        return Neighbours(self.store.read(rows), labels, self.similarity[queries], index >= 0, self.full)


def capped(k: int, memory: Memory) -> int:
    """k, or the number of exemplars where there are fewer: padding costs attention as much as neighbours do."""
    return min(k, max(len(memory), 1))


def nearest(
    queries: Samples, memory: Memory, k: int, device: torch.device | str = "cpu", progress: Progress = silent
) -> Retrieval:
    """The k nearest exemplars of every query."""
    return nearest_within(queries, memory, k, (len(memory),), device, progress)[0]


def nearest_within(
    queries: Samples,
    memory: Memory,
    k: int,
    firsts: Sequence[int],
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> list[Retrieval]:
    """The k nearest of every query among the first n exemplars, for several n at the cost of one search.

    Exemplars are ordered by class in order of arrival, so the first ones are those of the classes an older model
    knows. Of several processes each searches for its share of the queries.
    """
    store, y, ids = memory.store.to(device), memory.y.to(device), memory.id.to(device)
    index = torch.full((len(firsts), len(queries), k), -1, dtype=torch.int32, device=device)
    similarity = torch.zeros(len(firsts), len(queries), k, device=device)
    everything = slice(0, len(queries))
    own = distributed.own_rows(everything)
    left = torch.arange(own.start, own.stop)
    if own == everything:
        left = left[~_kept(queries, memory, k, firsts, index, similarity)]
    for chunk in left.split(CHUNK) if len(left) else ():
        query, query_ids = queries.x(chunk).to(device), queries.id[chunk].to(device)
        for part, (scores, rows) in enumerate(store.search(query, k + 1, firsts)):
            rows, scores = _without_query(query_ids, ids, rows, scores, k)
            index[part, chunk, : rows.shape[1]] = rows.int()
            similarity[part, chunk, : rows.shape[1]] = scores
        progress("searching", int(chunk[-1]) + 1 - own.start, own.stop - own.start)
    if not len(memory):  # a row that padding points at
        y = y.new_zeros(1)
        store = InProcessStore(y, y, torch.zeros(1, *memory.sample_shape, device=device))
    parts = [
        [distributed.gather_rows(part[own], everything) for part in both]
        for both in zip(index, similarity, strict=True)
    ]
    return [Retrieval(store, y, index, similarity, bool((index >= 0).all())) for index, similarity in parts]


def _kept(queries: Samples, memory: Memory, k: int, firsts: Sequence[int], index: Tensor, similarity: Tensor) -> Tensor:
    """N: of which queries, exemplars all, the neighbours were kept; they are written into `index` and `similarity`."""
    known = torch.zeros(len(queries), dtype=torch.bool)
    may_be = index.is_cpu and bool((queries.id >= 0).any())  # a user's query has no id
    lists = memory.neighbour_lists(queries.id, k) if may_be else None
    if lists is None:
        return known
    for rows in torch.isin(queries.id, lists.id).nonzero().squeeze(1).split(CHUNK):
        found = {part: lists.nearest(queries.id[rows], memory.store, k, n) for part, n in enumerate(firsts) if n}
        enough = torch.stack([long for _, long in found.values()]).all(0)
        for part, ((scores, places), _) in found.items():
            index[part, rows[enough]] = places[enough].int()
            similarity[part, rows[enough]] = scores[enough]
        known[rows] = enough
    return known


def top_k(cosines: Tensor, query_ids: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows (-1: none) and cosines of the k nearest B,K, given the cosines B,M of all exemplars."""
    scores, rows = cosines.topk(min(k + 1, cosines.shape[1]), dim=1)
    return _without_query(query_ids, ids, rows, scores, k)


def _without_query(query_ids: Tensor, ids: Tensor, rows: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows (-1: none) and cosines of the k nearest, of k + 1 that were found.

    The exemplar with the query's own id is left out, by moving it behind all others; a copy with another id is not.
    """
    excluded = (rows < 0) | (ids[rows] == query_ids[:, None])
    if excluded.any():
        order = excluded.int().argsort(dim=1, stable=True)
        rows = rows.masked_fill(excluded, -1).gather(1, order)
        scores = scores.masked_fill(excluded, 0).gather(1, order)
    return rows[:, :k], scores[:, :k]

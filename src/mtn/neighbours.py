"""Queries x memory -> neighbours: exact top-k by cosine, chunk by chunk, never the query itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtn.memory import Memory
from mtn.progress import Progress, silent
from mtn.samples import Samples


@dataclass(frozen=True)
class Neighbours:
    """Nearest first. B queries, K neighbours, D features; where the mask is False there was no further exemplar."""

    x: Tensor  # B,K,D
    y: Tensor  # B,K
    similarity: Tensor  # B,K
    mask: Tensor  # B,K
    full: bool  # the mask is True everywhere, known without looking

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

    x: Tensor  # M,D
    y: Tensor  # M
    index: Tensor  # N,K rows of the memory, -1 where there is none
    similarity: Tensor  # N,K
    full: bool  # every query has all its k neighbours

    def first(self, count: int) -> "Retrieval":
        """Of the first queries only."""
        return replace(self, index=self.index[:count], similarity=self.similarity[:count])

    def __getitem__(self, rows: Tensor | slice) -> Neighbours:
        index = self.index[rows]
        real = index.clamp(min=0).long()
        labels = self.y[real].where(index >= 0, 0)  # a class every model knows
        return Neighbours(self.x[real], labels, self.similarity[rows], index >= 0, self.full)


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

    Exemplars stand by class in arrival order, so the first ones are those of the classes an older model knows.
    """
    x, y, ids = memory.x.to(device), memory.y.to(device), memory.id.to(device)
    columns = x.T if memory.columns is None else memory.columns.to(device)
    index = torch.full((len(firsts), len(queries), k), -1, dtype=torch.int32, device=device)
    similarity = torch.zeros(len(firsts), len(queries), k, device=device)
    for rows in queries.chunks():
        cosines = queries.x(rows).to(device) @ columns
        for place, first in enumerate(firsts):
            found, scores = top_k(cosines[:, :first], queries.id[rows].to(device), ids, k)
            index[place, rows, : found.shape[1]] = found.int()
            similarity[place, rows, : found.shape[1]] = scores
        say("searching", rows.stop, len(queries))
    if not len(memory):  # a row for padding to point at
        x, y = x.new_zeros(1, x.shape[1]), y.new_zeros(1)
    full = (index >= 0).flatten(1).all(1).tolist()
    return [Retrieval(x, y, index[place], similarity[place], full[place]) for place in range(len(firsts))]


def top_k(cosines: Tensor, query_ids: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows (-1: none) and cosines of the nearest. A row with the query's own id does not count, a mere copy of it does.

    One more than k is taken, and the query itself, if found, is moved behind all others.
    """
    similarity, index = cosines.topk(min(k + 1, cosines.shape[1]), dim=1)
    itself = ids[index] == query_ids[:, None]
    if itself.any():
        order = itself.int().argsort(dim=1, stable=True)
        index = index.masked_fill(itself, -1).gather(1, order)
        similarity = similarity.masked_fill(itself, 0).gather(1, order)
    return index[:, :k], similarity[:, :k]

"""Queries x memory -> neighbours: exact top-k by cosine, chunk by chunk, never the query itself."""

from dataclasses import dataclass

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

    def __getitem__(self, rows: Tensor | slice) -> Neighbours:
        index = self.index[rows]
        real = index.clamp(min=0).long()
        return Neighbours(self.x[real], self.y[real], self.similarity[rows], index >= 0, self.full)


def nearest(
    queries: Samples,
    memory: Memory,
    k: int,
    device: torch.device | str = "cpu",
    say: Progress = silent,
) -> Retrieval:
    """The k nearest exemplars of every query."""
    x, y, ids = memory.x.to(device), memory.y.to(device), memory.id.to(device)
    index = torch.full((len(queries), k), -1, dtype=torch.int32, device=device)
    similarity = torch.zeros(len(queries), k, device=device)
    for rows in queries.chunks():
        found, scores = top_k(queries.x(rows).to(device), queries.id[rows].to(device), x, ids, k)
        index[rows, : found.shape[1]] = found.int()
        similarity[rows, : found.shape[1]] = scores
        say("searching", rows.stop, len(queries))
    return Retrieval(x, y, index, similarity, full=bool((index >= 0).all()))


def top_k(queries: Tensor, query_ids: Tensor, x: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows (-1: none) and cosines of the nearest. A row with the query's own id does not count, a mere copy of it does.

    One more than k is searched, and the query itself, if found, is moved behind all others.
    """
    similarity, index = (queries @ x.T).topk(min(k + 1, len(x)), dim=1)
    itself = ids[index] == query_ids[:, None]
    if itself.any():
        order = itself.int().argsort(dim=1, stable=True)
        index = index.masked_fill(itself, -1).gather(1, order)
        similarity = similarity.masked_fill(itself, 0).gather(1, order)
    return index[:, :k], similarity[:, :k]

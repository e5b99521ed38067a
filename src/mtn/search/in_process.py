"""Vectors in this process, compared with every query: the exact search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mtn.errors import InputError
from mtn.search.byte_vectors import FEWEST, ByteVectors, has_byte_products
from mtn.search.store import Nearest, Rows, VectorStore

BLOCK = 65_536
"""Vectors that are compared with the queries at once: the cosines of millions would not fit into memory."""
TRANSPOSABLE = 50_000
"""Below so many vectors a transposed copy is kept for repeated queries; of more it would take too much memory."""


@dataclass(eq=False, repr=False)
class InProcessStore(VectorStore):
    """All vectors, or images, in one tensor."""

    x: Tensor  # N,D float32 or float16; of images N,H,W,3 uint8
    columns: Tensor | None = field(default=None, init=False)  # D,N contiguous, once prepared for queries
    in_bytes: ByteVectors | None = field(default=None, init=False)  # made at the first search

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    def take(self, rows: Tensor) -> Self:
        taken = replace(self, id=self.id[rows], y=self.y[rows], x=self.x[rows])
        taken.in_bytes = self.in_bytes and self.in_bytes.take(taken.x, rows)
        return taken

    def add(self, ids: Tensor, y: Tensor, read: Callable[[slice], Tensor], keep: Tensor | None = None) -> Self:
        keep = torch.arange(len(self)) if keep is None else keep
        x = self.x.new_empty(len(keep) + len(ids), *self.x.shape[1:])  # `cat` would copy millions twice
        torch.index_select(self.x, 0, keep, out=x[: len(keep)])
        x[len(keep) :] = read(slice(0, len(ids)))
        added = replace(self, id=torch.cat([self.id[keep], ids]), y=torch.cat([self.y[keep], y]), x=x)
        added.in_bytes = self.in_bytes and self.in_bytes.take(x[: len(keep)], keep).join(x)
        return added

    def read(self, rows: Rows) -> Tensor:
        if isinstance(rows, slice) or rows.dtype == torch.bool:
            return self.x[rows].float()
        chosen = self.x.index_select(0, rows.flatten())  # as x[rows], in a quarter of the time
        return chosen.view(*rows.shape, *self.x.shape[1:]).float()

    def matrix(self) -> np.ndarray:
        return self.x.numpy()

    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        if self._searches_bytes():
            self.in_bytes = self.in_bytes or ByteVectors.of(self.x)
            return self.in_bytes.search(query, k, firsts)
        columns = self.x.T if self.columns is None else self.columns
        parts: list[list[Nearest]] = [[] for _ in firsts]
        for start in range(0, max(*firsts, 1), BLOCK):
            cosines = query @ columns[:, start : start + BLOCK].to(query.dtype)
            for blocks, first in zip(parts, firsts, strict=True):
                if first > start or not blocks:
                    scores, rows = cosines[:, : first - start].topk(min(k, first - start, cosines.shape[1]), dim=1)
                    blocks.append((scores, rows + start))
        return [blocks[0] if len(blocks) == 1 else _merge(blocks, k) for blocks in parts]

    def _searches_bytes(self) -> bool:
        return self.x.is_cpu and len(self) >= FEWEST and has_byte_products()

    @property
    def query_multiple(self) -> int:
        return 1 if self._searches_bytes() else super().query_multiple

    def prepare_for_queries(self) -> None:
        """Bytes, or, as the product of a few queries with transposed vectors takes half the time, columns."""
        if self._searches_bytes():
            self.in_bytes = self.in_bytes or ByteVectors.of(self.x)
        elif self.columns is None and len(self) < TRANSPOSABLE:
            self.columns = self.x.T.contiguous()

    def to(self, device: torch.device | str) -> Self:
        x = self.x.to(device)
        return self if x is self.x else replace(self, x=x)

    def state(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y, "id": self.id}

    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        if "x" not in state:
            raise InputError("memory.store must stay what it was, milvus")
        return replace(self, id=state["id"], y=state["y"], x=state["x"])


def _merge(blocks: list[Nearest], k: int) -> Nearest:
    """The k nearest over all blocks."""
    scores, rows = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
    scores, order = scores.topk(min(k, scores.shape[1]), dim=1)
    return scores, rows.gather(1, order)

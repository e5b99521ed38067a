"""What flows through the package: feature vectors, or images, with a class and an identity each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1024
"""Samples handled at once wherever a whole split is walked: bounds memory, keeps matrix products large."""


class Matrix(Protocol):
    """N,D or N,H,W,3: an array, or the rows of several files as if they were one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Samples:
    """Some rows of a matrix that may lie on disk; vectors are read, widened and scaled only when asked for."""

    source: Matrix  # all rows, any real type, perhaps memory-mapped; of images bytes
    rows: np.ndarray  # N: which of them
    y: Tensor  # N: class
    id: Tensor  # N: travels with a sample for ever

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample: D, or H,W,3."""
        return self.source.shape[1:]

    @property
    def dimension(self) -> int:
        return int(self.source.shape[1])

    def x(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Unit-length float32 vectors (cosine is the metric everywhere: docs/design.md, choice 7); images in bytes."""
        rows = self.rows[index.numpy() if isinstance(index, Tensor) else index]
        found = self.source[rows]
        return torch.from_numpy(found) if len(self.shape) == 3 else unit(found)

    def select(self, index: np.ndarray | Tensor) -> "Samples":
        """The samples at `index` (positions or a mask)."""
        index = torch.as_tensor(index)
        return Samples(self.source, self.rows[index.numpy()], self.y[index], self.id[index])

    @staticmethod
    def join(parts: "list[Samples]") -> "Samples":
        """Several selections as one: of their common source, or with a source made of theirs."""
        source, rows = parts[0].source, np.concatenate([part.rows for part in parts])
        if any(part.source is not source for part in parts):
            source, rows = np.concatenate([part.source[part.rows] for part in parts]), np.arange(len(rows))
        return Samples(source, rows, torch.cat([p.y for p in parts]), torch.cat([p.id for p in parts]))

    def apart(self) -> "Samples":
        """The same samples, without the rows of the source that are not among them."""
        return Samples(self.source[self.rows], np.arange(len(self)), self.y, self.id)

    def chunks(self, size: int = CHUNK, within: slice = slice(None)) -> Iterator[slice]:
        first, stop, _ = within.indices(len(self))
        for start in range(first, stop, size):
            yield slice(start, min(start + size, stop))


@dataclass(frozen=True)
class Data:
    """A data set: its splits, with classes numbered by the place of their name in `names`."""

    train: Samples
    validation: Samples | None
    test: Samples
    names: list[str]

    def split(self, evaluate: str) -> tuple[Samples, Samples]:
        """Training samples, and the samples accuracy is measured on.

        Without a validation split of its own, a tenth of each class of the training samples serves as one.
        """
        if evaluate == "test":
            return self.train, self.test
        if self.validation is not None:
            return self.train, self.validation
        held_out = every_tenth(self.train.y)
        return self.train.select(~held_out), self.train.select(held_out)


def unit(x: np.ndarray) -> Tensor:
    """Rows at length 1, a row of zeros as it is. Divided by their largest entry first: squares of 1e30 overflow."""
    wide = torch.from_numpy(np.asarray(x, np.float64 if x.dtype.itemsize > 4 else np.float32))
    largest = wide.abs().amax(1, keepdim=True)
    return F.normalize((wide / largest.where(largest > 0, 1)).float(), dim=1)


def every_tenth(y: Tensor) -> Tensor:
    """A mask of every tenth sample of each class, from its second on: a class with one sample keeps it."""
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(y)
    place[order] = torch.arange(len(y)) - starts[y[order]]
    return place % 10 == 1

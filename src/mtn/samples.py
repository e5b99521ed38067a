"""Samples, which are feature vectors or images with a class and an id each, and data sets of them."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1024
"""Samples handled at once wherever a whole split is walked: bounds memory, keeps matrix products large."""

LENGTHS_COMPARED = 20_000
"""Vectors among which those that differ only in length are searched for."""
SAME = 1e-6
"""Largest difference of two numbers of unit vectors that are the same but for rounding."""


class Matrix(Protocol):
    """N,D or N,H,W,3: an array, or several files that are read as one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Samples:
    """Some rows of a matrix that may lie on disk; vectors are read, widened and scaled only when asked for."""

    source: Matrix  # all rows, any real type, perhaps memory-mapped; of images bytes
    rows: np.ndarray  # N: which of them
    y: Tensor  # N: class
    id: Tensor  # N: a sample keeps its id wherever it goes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample: D, or H,W,3."""
        return self.source.shape[1:]

    @property
    def dimension(self) -> int:
        """D, of vectors."""
        return int(self.source.shape[1])

    def x(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Unit-length float32 vectors (cosine everywhere: docs/explanation/design.md, choice 7); images in bytes."""
        rows = self.rows[index.numpy() if isinstance(index, Tensor) else index]
        values = self.source[rows]
        return torch.from_numpy(values) if len(self.shape) == 3 else unit(values)

    def select(self, index: np.ndarray | Tensor) -> "Samples":
        """The samples at `index` (positions or a mask)."""
        index = torch.as_tensor(index)
        return Samples(self.source, self.rows[index.numpy()], self.y[index], self.id[index])

    @staticmethod
    def join(parts: "list[Samples]") -> "Samples":
        """Several selections as one: of their common source, or else with a copy of all their rows."""
        source, rows = parts[0].source, np.concatenate([part.rows for part in parts])
        if any(part.source is not source for part in parts):
            source, rows = np.concatenate([part.source[part.rows] for part in parts]), np.arange(len(rows))
        return Samples(source, rows, torch.cat([p.y for p in parts]), torch.cat([p.id for p in parts]))

    def compact(self) -> "Samples":
        """The same samples, without the rows of the source that are not among them."""
        return Samples(self.source[self.rows], np.arange(len(self)), self.y, self.id)

    def chunks(self, size: int = CHUNK, within: slice = slice(None)) -> Iterator[slice]:
        """Slices of at most `size` samples."""
        first, stop, _ = within.indices(len(self))
        for start in range(first, stop, size):
            yield slice(start, min(start + size, stop))


@dataclass(frozen=True)
class Data:
    """A data set: its splits, with class indices into `names`."""

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
        held_out = every_nth(self.train.y, 10, first=1)  # a class with one sample keeps it
        return self.train.select(~held_out), self.train.select(held_out)


def unit(x: np.ndarray) -> Tensor:
    """Rows (N,D) at length 1, zero rows as they are. First divided by the largest entry: squares of 1e30 overflow."""
    wide = torch.from_numpy(np.asarray(x, np.float64 if x.dtype.itemsize > 4 else np.float32))
    largest = wide.abs().amax(1, keepdim=True)
    return F.normalize((wide / largest.where(largest > 0, 1)).float(), dim=1)


def warn_of_lengths(x: Matrix, y: np.ndarray, stacklevel: int = 3) -> None:
    """Warn if vectors (N,D) of different classes y (N) differ in nothing but their length, which cosine does not see.

    Of large sets the first `LENGTHS_COMPARED` are looked at. Rows of one direction have one projection on any vector,
    so only rows that are neighbours when sorted by a random projection are compared.
    """
    count = min(len(y), LENGTHS_COMPARED)
    if count < 2 or (y[:count] == y[0]).all():
        return
    wide = np.array(x[:count])  # a copy: torch warns of arrays that cannot be written
    directions = unit(wide).numpy()
    order = np.argsort(directions @ np.random.default_rng(0).standard_normal(directions.shape[1]), kind="stable")
    first, second = order[:-1], order[1:]
    pairs = y[first] != y[second]
    first, second = first[pairs], second[pairs]
    near = (np.abs(directions[first] - directions[second]) < SAME).all(1) & directions[first].any(1)
    first, second = first[near], second[near]
    lengths = [np.abs(wide[rows].astype(np.float64)).max(1) for rows in (first, second)]  # of parallel vectors
    if (np.abs(lengths[0] - lengths[1]) > 1e-4 * np.maximum(*lengths)).any():
        warnings.warn(
            "vectors of different classes differ only in length, which cosine, the measure here, takes no notice of: "
            "the classes cannot be told apart by them",
            UserWarning,
            stacklevel=stacklevel,
        )


def rank_within_class(y: Tensor) -> Tensor:
    """N: how many samples of the same class stand before each one; 0 for the first of its class."""
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return rank


def every_nth(y: Tensor, n: int, first: int) -> Tensor:
    """A mask of every n-th sample of each class, from the one with the rank `first` on: what a split holds out."""
    return rank_within_class(y) % n == first

"""The interface that every store of exemplars has, wherever its vectors are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from mtn.samples import Matrix

Rows = Tensor | slice
"""Row numbers in any shape, a mask, or a range of rows."""

Nearest = tuple[Tensor, Tensor]
"""Cosines B,K and rows B,K of the nearest exemplars of B queries, nearest first; row -1: there is no further one."""


class Location(NamedTuple):
    """A collection outside this process: the server or the local file, and the collection's name there."""

    uri: str
    name: str

    def __str__(self) -> str:
        return f"collection {self.name!r} at {self.uri}"


@dataclass(eq=False, repr=False)
class VectorStore(ABC):
    """N rows, each of an id, a label, and a vector or an image.

    A store does not change: `take`, `add`, `relabel` and `commit` return another one. So a memory can be copied by
    reference, and a failed update leaves the store that was there before.
    """

    id: Tensor  # N
    y: Tensor  # N

    def __len__(self) -> int:
        return len(self.id)

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """N,D; of images N,H,W,3."""

    @property
    def location(self) -> Location | None:
        """Where the vectors are, if not in this process."""
        return None

    @abstractmethod
    def take(self, rows: Tensor) -> Self:
        """These rows (a mask or row numbers) in this order; the others are deleted for good by `commit`."""

    def subset(self, rows: Tensor) -> Self:
        """These rows (a mask or row numbers) for a while: never committed, and this store keeps the others."""
        return self.take(rows)

    @abstractmethod
    def add(self, ids: Tensor, y: Tensor, read: Callable[[slice], Tensor], keep: Tensor | None = None) -> Self:
        """The rows `keep` (all by default), followed by new ones whose vectors `read` returns."""

    def relabel(self, row: int, label: int) -> Self:
        """The same rows, one of them with another label."""
        y = self.y.clone()
        y[row] = label
        return replace(self, y=y)

    @abstractmethod
    def read(self, rows: Rows) -> Tensor:
        """The vectors of rows as float32: the shape of `rows`, then D."""

    @abstractmethod
    def matrix(self) -> Matrix:
        """All rows as the source of `Samples`, in the type in which they are kept."""

    @abstractmethod
    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        """For each n of `firsts` the k nearest of the first n rows, for queries B,D of unit length.

        Rows stand by rising label, and each n is where a class ends.
        """

    @property
    def query_multiple(self) -> int:
        """Searched in multiples of so many, a query has the same answer whatever else is asked: matrix products of
        fewer rows round differently."""
        return 4

    def prepare_for_queries(self) -> None:  # noqa: B027 (nothing to prepare is a valid answer)
        """Do now what makes many searches for a few queries each faster."""

    def detached(self) -> Self:
        """The same rows, with a copy of whatever searches change in place."""
        return self

    def to(self, device: torch.device | str) -> Self:
        """With vectors that are in this process on a device."""
        return self

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What `load_state` needs, as named tensors."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> Self:
        """The store that had this state; connects to nothing."""

    def verified(self) -> Self:
        """This store, or an error if vectors outside this process are missing."""
        return self

    def commit(self) -> Self:
        """Delete the rows that are no longer taken; to be called once a state without them is on disk."""
        return self

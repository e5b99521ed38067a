"""Sequences whose items are packed, and made when they are asked for: as objects, millions would fill the memory."""

from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Column(Sequence[T]):
    """What the others have in common. Equal to any sequence of equal items."""

    @abstractmethod
    def at(self, row: int) -> T: ...

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> list[T]: ...
    def __getitem__(self, row: int | slice) -> T | list[T]:
        found = range(len(self))[row]
        return self.at(found) if isinstance(found, int) else [self.at(one) for one in found]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


class Texts(Column[str]):
    """Strings, end to end."""

    def __init__(self) -> None:
        self._text, self._ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        self._text += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, row: int) -> str:
        return self._text[self._ends[row] : self._ends[row + 1]].decode("utf-8", "surrogatepass")


class Coded(Column[H]):
    """Items of which many are equal: a number each."""

    def __init__(self) -> None:
        self._codes, self._code_of = array("i"), dict[H, int]()
        self.values: list[H] = []  # those that differ, as they came

    def append(self, value: H) -> None:
        code = self._code_of.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        self._codes.append(code)

    def __len__(self) -> int:
        return len(self._codes)

    def at(self, row: int) -> H:
        return self.values[self._codes[row]]

    def ranks(self, key: Callable[[H], Any]) -> np.ndarray:
        """The place of each item among the sorted values."""
        place = {value: place for place, value in enumerate(sorted(self.values, key=key))}
        return np.array([place[value] for value in self.values], np.int64)[np.array(self._codes)]

    def groups(self) -> dict[H, np.ndarray]:
        """The rows of each value."""
        codes = np.array(self._codes)
        ends = np.cumsum(np.bincount(codes, minlength=len(self.values)))
        return dict(zip(self.values, np.split(np.argsort(codes, kind="stable"), ends[:-1]), strict=False))


class Picked(Column[T]):
    """Items of another column, in another order."""

    def __init__(self, column: Column[T], rows: np.ndarray) -> None:
        self._column, self._rows = column, rows

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, row: int) -> T:
        return self._column.at(int(self._rows[row]))

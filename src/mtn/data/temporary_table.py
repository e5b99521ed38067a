"""A table in a temporary file: a listing of millions of items takes no more memory than one of ten."""

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from mtn.errors import InputError

T = TypeVar("T")
BATCH = 4096
"""Rows that are read at once where all are wanted."""


class TemporaryTable:
    """A table `item` in a temporary SQLite database, which SQLite deletes when the connection is closed."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        weakref.finalize(self, self._connection.close)
        with _sqlite_errors():
            self._connection.executescript("pragma journal_mode = off; pragma synchronous = off; begin")
            self._connection.execute(f"create table item ({', '.join(columns)})")
            self._connection.executemany(f"insert into item values ({', '.join('?' * len(columns))})", rows)

    def sort(self, by: str) -> None:
        """Sort the rows: afterwards their rowids are 1, 2, ... in that order, as `create table as` guarantees."""
        with _sqlite_errors():
            self._connection.execute(f"create table sorted as select * from item order by {by}")
            self._connection.execute("drop table item")
            self._connection.execute("alter table sorted rename to item")

    def index(self, column: str) -> None:
        """Make look-ups by this column fast."""
        with _sqlite_errors():
            self._connection.execute(f"create index by_{column} on item ({column})")

    def query(self, sql: str, *values: Any) -> list[Any]:
        """The rows of a result; of a single column, its values. Safe to call from any thread."""
        with self._lock, _sqlite_errors():
            rows = self._connection.execute(sql, values).fetchall()
        return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows

    def __len__(self) -> int:
        return int(self.query("select count(*) from item")[0])


class Column(Sequence[T], Generic[T]):
    """A column of a temporary table, read as a sequence; equal to any sequence of equal values."""

    def __init__(self, table: TemporaryTable, name: str, convert: Callable[[Any], T]) -> None:
        self._table, self._name, self._convert, self._length = table, name, convert, len(table)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), BATCH):
            yield from self[start : start + BATCH]

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> list[T]: ...
    def __getitem__(self, row: int | slice) -> T | list[T]:
        rows = range(len(self))[row]
        if isinstance(rows, int):
            return self._between(rows, rows)[0]
        if rows.step != 1:
            return [self[number] for number in rows]
        return self._between(rows.start, rows.stop - 1)

    def _between(self, first: int, last: int) -> list[T]:
        values = self._table.query(
            f"select {self._name} from item where rowid between ? and ? order by rowid", first + 1, last + 1
        )
        return [self._convert(value) for value in values]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    """SQLite's errors, as of a full disk, become an InputError."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"the list of items cannot be kept in a temporary file: {error}; "
            "make room, or name a folder that has some in the environment variable SQLITE_TMPDIR"
        ) from None

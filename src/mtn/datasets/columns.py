"""Columns of a table that is in a temporary file: a list of items takes as much memory for millions as for ten."""

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from mtn.errors import InputError

T = TypeVar("T")
AT_ONCE = 4096
"""Rows that are read at once where all are wanted."""


class Table:
    """A table of SQLite, which keeps the file where temporary files are and takes it away in the end."""

    def __init__(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        weakref.finalize(self, self._connection.close)
        with _told():
            self._connection.executescript("pragma journal_mode = off; pragma synchronous = off; begin")
            self._connection.execute(f"create table item ({', '.join(names)})")
            self._connection.executemany(f"insert into item values ({', '.join('?' * len(names))})", rows)

    def sort(self, by: str) -> None:
        """The first row has the number 1, the next ones those that follow: so `create table as` promises."""
        with _told():
            self._connection.execute(f"create table sorted as select * from item order by {by}")
            self._connection.execute("drop table item")
            self._connection.execute("alter table sorted rename to item")

    def index(self, by: str) -> None:
        with _told():
            self._connection.execute(f"create index by_{by} on item ({by})")

    def ask(self, question: str, *values: Any) -> list[Any]:
        """The rows of an answer; of one column, its values. Any thread may ask."""
        with self._lock, _told():
            rows = self._connection.execute(question, values).fetchall()
        return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows

    def __len__(self) -> int:
        return int(self.ask("select count(*) from item")[0])


class Column(Sequence[T], Generic[T]):
    """Equal to any sequence of equal items."""

    def __init__(self, table: Table, name: str, item: Callable[[Any], T]) -> None:
        self._table, self._name, self._item, self._length = table, name, item, len(table)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> list[T]: ...
    def __getitem__(self, row: int | slice) -> T | list[T]:
        found = range(len(self))[row]
        if isinstance(found, int):
            return self._between(found, found)[0]
        if found.step != 1:
            return [self[one] for one in found]
        return self._between(found.start, found.stop - 1)

    def _between(self, first: int, last: int) -> list[T]:
        values = self._table.ask(
            f"select {self._name} from item where rowid between ? and ? order by rowid", first + 1, last + 1
        )
        return [self._item(value) for value in values]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"the list of items cannot be kept in a temporary file: {error}; "
            "make room, or name a folder that has some in the environment variable SQLITE_TMPDIR"
        ) from None

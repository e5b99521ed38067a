"""Parquet files, measured before they are read: a few bytes may stand for any number of rows, or of letters in a cell.

What the file declares (rows, bytes) is compared with this machine's memory first; then it is read in portions, and
reading stops where there is more than was declared.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mtn.errors import InputError, install_line
from mtn.runtime.capacity import machine_memory
from mtn.storage.files import require_regular

BATCH = 4096
"""Rows that are read at once."""
TEXT = ("string", "large_string")
"""Types of columns of text, as pyarrow names them."""
COLUMNS = 64
"""Columns of numbers that are read at once."""
LONGEST_CELL = 131_072
"""Bytes of a cell of text, as of a CSV file."""
LARGEST_BATCH = 1 << 28
"""Bytes of all cells of text of a batch."""


class Schema(NamedTuple):
    """The columns of a file."""

    names: list[str]
    types: dict[str, str]  # by name


def read_schema(path: Path) -> Schema:
    """The names of the columns in order, and their types."""
    with _open(path) as file:
        schema = file.schema_arrow
        return Schema(list(schema.names), {field.name: str(field.type) for field in schema})


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The cells of the named columns of each row, as Python values."""
    text = [name for name, kind in read_schema(path).types.items() if name in columns and kind in TEXT]
    with _open(path, text) as file:
        left, room = file.metadata.num_rows, machine_memory() // 4
        for batch in file.iter_batches(BATCH, columns=list(columns), use_threads=False):
            left -= len(batch)
            room -= _text_bytes(batch, path)
            if left < 0 or room < 0:
                raise InputError(f"{path} holds more {'rows' if left < 0 else 'text'} than it may")
            yield from zip(*(_cells(batch.column(name)) for name in columns), strict=True)


def read_numbers(path: Path, columns: Sequence[str]) -> np.ndarray:
    """N,D: the named columns in double precision."""
    with _open(path) as file:
        count = file.metadata.num_rows
        _check_memory(8 * count * len(columns), f"{count} rows of {len(columns)} columns", path)
        x = np.empty((count, len(columns)))
        for first in range(0, len(columns), COLUMNS):
            block, start = list(columns[first : first + COLUMNS]), 0
            for batch in file.iter_batches(BATCH, columns=block, use_threads=False):
                stop = start + len(batch)
                if stop > count:
                    raise InputError(f"{path} holds more rows than it declares")
                for number, name in enumerate(block, first):
                    column = batch.column(name)
                    if column.null_count:
                        raise InputError(f"{path}: the column {name!r} has empty cells")
                    x[start:stop, number] = column.to_numpy(zero_copy_only=False)
                start = stop
            if start < count:
                raise InputError(f"{path} holds fewer rows than it declares")
    return x


def _cells(column: Any) -> list[Any]:
    """The cells of a column; those of a dictionary are made once, however often they come."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        cells: list[Any] = column.to_pylist()
        return cells
    values = column.dictionary.to_pylist()
    return [None if index is None else values[index] for index in column.indices.to_pylist()]


def _text_bytes(batch: Any, path: Path) -> int:
    """Bytes of the text of a batch, known before a cell of it becomes a Python string."""
    from pyarrow import compute, types

    total = 0
    for column in batch.columns:
        if types.is_dictionary(column.type) and str(column.type.value_type) in TEXT:
            lengths = compute.binary_length(column.dictionary).take(column.indices)
        elif str(column.type) in TEXT:
            lengths = compute.binary_length(column)
        elif types.is_nested(column.type) or types.is_binary(column.type) or types.is_large_binary(column.type):
            raise InputError(f"{path}: columns of labels, splits, ids, paths and texts hold text or numbers, "
                             f"got {str(column.type)[:40]}")  # fmt: skip
        else:
            continue
        if (compute.max(lengths).as_py() or 0) > LONGEST_CELL:
            raise InputError(f"{path} has a cell of more than {LONGEST_CELL} bytes")
        total += compute.sum(lengths).as_py() or 0
    if total > LARGEST_BATCH:
        raise InputError(f"{path} has rows of more text than can be read")
    return total


def _check_memory(size: int, what: str, path: Path) -> None:
    if size > machine_memory() // 2:
        raise InputError(f"{path} holds {what}, {size / 1e9:.3g} GB: more than half of this machine's memory")


@contextmanager
def _open(path: Path, text: Sequence[str] = ()) -> Iterator[Any]:
    """The file, its declared size checked; columns of text are read as dictionaries, as they lie in the file.

    Errors of pyarrow become an InputError of one line.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: {install_line('tables')}") from None
    try:
        require_regular(path)
        with parquet.ParquetFile(path, read_dictionary=list(text), pre_buffer=False, memory_map=True) as file:
            metadata = file.metadata
            size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            _check_memory(size, "much", path)
            yield file
    except InputError:
        raise
    except (OSError, pyarrow.ArrowException, ValueError, MemoryError, KeyError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} is not a readable Parquet file: {reason[:200]}") from None

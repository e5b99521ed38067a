"""CSV and Parquet files: their header and their rows."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtn.data import parquet_files
from mtn.errors import InputError
from mtn.storage.files import require_regular

SUFFIXES = (".csv", ".parquet", ".pq")


def is_table(path: Path) -> bool:
    """Whether the file's suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def is_parquet(path: Path) -> bool:
    """Whether the file's suffix is Parquet's."""
    return path.suffix.lower() in (".parquet", ".pq")


def read_header(path: Path) -> list[str]:
    """The names of a table's columns."""
    return parquet_files.read_schema(path).names if is_parquet(path) else next(csv_rows(path))[1]


def describe_columns(header: Sequence[str]) -> str:
    """The first columns, for an error message."""
    return f"its columns are {', '.join(header[:8]) or 'none'}"


def read_text_columns(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The named columns of each row as text without surrounding spaces; an empty cell is an empty string."""
    if is_parquet(path):
        for row in parquet_files.read_rows(path, columns):
            yield {name: "" if cell is None else str(cell).strip() for name, cell in zip(columns, row, strict=True)}
        return
    rows = csv_rows(path)
    header = next(rows)[1]
    positions = [(name, header.index(name)) for name in columns]
    for _, cells in rows:
        yield {name: cells[position].strip() for name, position in positions}


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of the header, then of each row, all equally long; empty lines are left out."""
    try:
        require_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            yield rows.line_num, header
            for cells in filter(None, rows):
                if len(cells) != len(header):
                    raise InputError(f"{path}, line {rows.line_num}: must have {len(header)} cells, got {len(cells)}")
                yield rows.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error, MemoryError) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}") from None

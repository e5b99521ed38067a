"""CSV and Parquet files: their header and their rows."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtn.data import parquet_files
from mtn.errors import InputError
from mtn.storage.files import require_regular

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
NAMES = ("path", "text", "label", "split", "id")
"""Columns that have a meaning."""
SYNONYMS = {"text": ("sentence", "utterance", "question"), "label": ("class", "category", "intent", "target")}
"""What other people call them: read where the name itself is not there and only one of these is."""
SEPARATORS = (",", ";", "\t")
"""Between the cells of a CSV file; of those in its first line the most frequent one."""
LONGEST_LINE = 1 << 20
"""Characters of the first line that are looked at for the separator."""
QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class Columns:
    """What a table calls its columns, as the user says; None: by their own names or a usual synonym, in any case."""

    text: str | None = None
    label: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.text is not None:
            raise InputError("--path and --text exclude each other: a table is of images or of sentences")

    def rename(self, header: Sequence[str], path: Path) -> list[str]:
        """The header with those of `NAMES` that are there; a column in whose place the user names another is not."""
        renamed, taken = list(header), set[int]()
        own, lowered = _positions(header), _positions([column.lower() for column in header])
        for name in NAMES:
            told = getattr(self, name, None)
            other = {"path": self.text, "text": self.path}.get(name)
            if other is not None:
                continue  # sentences are meant, or images
            # the exact name, else the same letters in any case
            positions = own.get(told or name) or lowered.get((told or name).lower(), [])
            if told is None and not positions and not (name == "text" and "path" in renamed):
                others = [row for synonym in SYNONYMS.get(name, ()) for row in lowered.get(synonym, [])]
                positions = [row for row in others if row not in taken] if len(others) == 1 else []
            if told is not None and not positions:
                raise InputError(f"{path} has no column {told!r} (--{name}); {describe_columns(header)}")
            for position in set(positions) - taken:
                renamed[position] = name
            taken.update(positions)
        unused = {row for row, name in enumerate(renamed) if name in NAMES} - taken
        return [f"{name} (not used)" if row in unused else name for row, name in enumerate(renamed)]


USUAL_COLUMNS = Columns()
"""Called by their own names."""


def _positions(header: Sequence[str]) -> dict[str, list[int]]:
    """The positions of the columns of each name, in one pass: a header may have 200 000 columns."""
    found: dict[str, list[int]] = {}
    for position, column in enumerate(header):
        found.setdefault(column, []).append(position)
    return found


def is_table(path: Path) -> bool:
    """Whether the file's suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def is_parquet(path: Path) -> bool:
    """Whether the file's suffix is Parquet's."""
    return path.suffix.lower() in (".parquet", ".pq")


def read_header(path: Path, columns: Columns = USUAL_COLUMNS) -> list[str]:
    """The names of a table's columns, those of `NAMES` as they are called there."""
    own = parquet_files.read_schema(path).names if is_parquet(path) else next(csv_rows(path))[1]
    return columns.rename(own, path)


def describe_columns(header: Sequence[str]) -> str:
    """The first columns, for an error message."""
    return f"its columns are {', '.join(header[:8]) or 'none'}"


def describe_lack(name: str, header: Sequence[str]) -> str:
    """What is missing, what is there, and how to say which one is meant."""
    wanted = "'label'" if name == "label" else "'path' (of images) or 'text'"
    how = "mtn learn, predict, evaluate and extract take --path NAME, --text NAME and --label NAME"
    return f"lacks the column {wanted}; {describe_columns(header)} ({how})"


def read_text_columns(path: Path, names: Sequence[str], columns: Columns = USUAL_COLUMNS) -> Iterator[dict[str, str]]:
    """The named columns of each row as text without surrounding spaces; an empty cell is an empty string."""
    if is_parquet(path):
        own = parquet_files.read_schema(path).names
        header = columns.rename(own, path)
        for row in parquet_files.read_rows(path, [own[header.index(name)] for name in names]):
            yield {name: "" if cell is None else str(cell).strip() for name, cell in zip(names, row, strict=True)}
        return
    rows = csv_rows(path)
    header = columns.rename(next(rows)[1], path)
    positions = [(name, header.index(name)) for name in names]
    for _, cells in rows:
        yield {name: cells[position].strip() for name, position in positions}


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of the header, then of each row, all equally long; empty lines are left out."""
    try:
        require_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = _separator(file.readline(LONGEST_LINE))
            file.seek(0)
            rows = csv.reader(file, strict=True, delimiter=separator)
            header = [name.strip() for name in next(rows, [])]
            yield rows.line_num, header
            for cells in filter(None, rows):
                if len(cells) != len(header):
                    raise InputError(f"{path}, line {rows.line_num}: must have {len(header)} cells, got {len(cells)}")
                yield rows.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error, MemoryError) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}") from None


def _separator(line: str) -> str:
    """What is between the cells of a header."""
    names = QUOTED.sub("", line)
    return max(SEPARATORS, key=names.count)

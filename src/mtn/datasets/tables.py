"""Lists of images or sentences that somebody wrote: CSV, Parquet, or JSON as CLINC150 has it."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mtn.datasets.listing import SPLITS, File, Listing, Row, Sentence, arrange
from mtn.errors import InputError
from mtn.progress import Progress, silent

COLUMNS = ("path", "text", "label", "split", "id")
BATCH = 4096
"""Rows of a Parquet file that are read at once."""

Cells = Mapping[str, str]
"""A row of a table: the columns that we know."""


def lists_items(path: Path) -> bool:
    """Whether a table lists images or sentences, instead of vectors."""
    return bool({"path", "text"} & set(header(path)))


def has_ids(path: Path) -> bool:
    return "id" in header(path)


def table(path: Path, say: Progress = silent, labelled: bool = True) -> Listing:
    """Columns path (from the table's folder) or text, and label; optional split and id. Others are not looked at."""
    needed = _needed(header(path), path, labelled)
    found = _read_parquet(path, needed) if _is_parquet(path) else _read_csv(path, needed)
    kind: Literal["image", "text"] = "image" if "path" in needed else "text"
    return arrange(_rows(_filled(found, path, labelled), path.parent), path, kind)


def sentences(path: Path, say: Progress = silent) -> Listing:
    """`{split: [[text, label], ...]}`."""
    try:
        splits = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(splits, dict):
        raise InputError(
            f"{path} must be an object of splits, each a list of [text, label], got a {type(splits).__name__}"
        )
    return arrange(_pairs(splits, path), path, "text")


def _pairs(splits: dict[str, Any], path: Path) -> Iterator[Row]:
    for split, pairs in splits.items():
        for number, pair in enumerate(pairs if isinstance(pairs, list) else [pairs]):
            if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) and one for one in pair)):
                raise InputError(f"{path}: {split}, number {number} must be [text, label], got {str(pair)[:80]}")
            yield SPLITS.get(split, split), pair[1], f"{split}/{number}", Sentence(pair[0])


def _filled(rows: Iterable[Cells], path: Path, labelled: bool) -> Iterator[Cells]:
    """Rows without empty cells, but for labels that nobody asks for."""
    for number, row in enumerate(rows):
        for name, cell in row.items():
            if not cell and (labelled or name != "label"):
                raise InputError(f"{path}: the column {name!r} is empty in row {number}")
        yield row


def _rows(rows: Iterable[Cells], folder: Path) -> Iterator[Row]:
    """An image's id is its path where the table gives none, a sentence's its split and its number there."""
    numbers: Counter[str] = Counter()
    for row in rows:
        written, label = row.get("split", "train"), row.get("label", "")
        split = SPLITS.get(written.lower(), written)
        if "path" in row:
            yield split, label, row.get("id", row["path"]), File(str(folder / row["path"]))
        else:
            yield split, label, row.get("id", f"{split}/{numbers[split]}"), Sentence(row["text"])
        numbers[split] += 1


def header(path: Path) -> list[str]:
    """The names of a table's columns."""
    if not _is_parquet(path):
        return [name.strip() for name in next(cells(path))]
    with opening(path) as parquet:
        return list(parquet.read_schema(path).names)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _read_csv(path: Path, needed: Sequence[str]) -> Iterator[Cells]:
    rows = cells(path)
    header = [name.strip() for name in next(rows)]
    places = [(name, header.index(name)) for name in needed]
    for row in rows:
        yield {name: row[place].strip() for name, place in places}


def cells(path: Path) -> Iterator[list[str]]:
    """The header of a CSV file and its rows, which are as long; empty lines are left out."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            yield header
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise InputError(f"{path}, line {rows.line_num}: must have {len(header)} cells, got {len(row)}")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}") from None


def _read_parquet(path: Path, needed: Sequence[str]) -> Iterator[Cells]:
    with opening(path) as parquet:
        for part in parquet.ParquetFile(path).iter_batches(BATCH, columns=needed):
            for row in part.to_pylist():
                yield {name: "" if row[name] is None else str(row[name]).strip() for name in needed}


@contextmanager
def opening(path: Path) -> Iterator[Any]:
    """pyarrow's Parquet module, whose errors become one line."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'mtn[tables]'") from None
    try:
        yield parquet
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from None


def _needed(header: Sequence[str], path: Path, labelled: bool) -> list[str]:
    """The columns that we know, or an error that names the one which is missing."""
    there = f"its columns are {', '.join(header[:8]) or 'none'}"
    if ("path" in header) == ("text" in header):
        how = "has both the columns" if "path" in header else "lacks the column"
        raise InputError(f"{path} {how} 'path' (of images) {'and' if 'path' in header else 'or'} 'text'; {there}")
    if labelled and "label" not in header:
        raise InputError(f"{path} lacks the column 'label'; {there}")
    twice = [name for name in COLUMNS if header.count(name) > 1]
    if twice:
        raise InputError(f"{path} has the column {twice[0]!r} twice")
    return [name for name in COLUMNS if name in header]

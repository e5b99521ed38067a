"""Lists of images or sentences that somebody wrote: CSV, Parquet, or JSON as CLINC150 has it."""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mtn.datasets.listing import SPLITS, File, Listing, Row, Sentence, arrange
from mtn.errors import InputError
from mtn.progress import Progress, silent

COLUMNS = ("path", "text", "label", "split", "id")

Columns = Mapping[str, Sequence[str]]


def lists_items(path: Path) -> bool:
    """Whether a table lists images or sentences, instead of vectors."""
    return bool({"path", "text"} & set(header(path)))


def has_ids(path: Path) -> bool:
    return "id" in header(path)


def table(path: Path, say: Progress = silent, labelled: bool = True) -> Listing:
    """Columns path (from the table's folder) or text, and label; optional split and id. Others are not looked at."""
    columns = dict(_read_parquet(path, labelled) if _is_parquet(path) else _read_csv(path, labelled))
    columns.setdefault("label", [""] * len(next(iter(columns.values()))))
    for name, values in columns.items():
        if "" in values and (labelled or name != "label"):
            raise InputError(f"{path}: the column {name!r} is empty in row {list(values).index('')}")
    kind: Literal["image", "text"] = "image" if "path" in columns else "text"
    return arrange(_rows(columns, path.parent), path, kind)


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


def _rows(columns: Columns, folder: Path) -> Iterator[Row]:
    """An image's id is its path where the table gives none, a sentence's its split and its number there."""
    numbers: Counter[str] = Counter()
    for row, label in enumerate(columns["label"]):
        written = columns["split"][row] if "split" in columns else "train"
        split = SPLITS.get(written.lower(), written)
        own = columns["id"][row] if "id" in columns else None
        if "path" in columns:
            path = columns["path"][row]
            yield split, label, own or path, File(str(folder / path))
        else:
            yield split, label, own or f"{split}/{numbers[split]}", Sentence(columns["text"][row])
        numbers[split] += 1


def header(path: Path) -> list[str]:
    """The names of a table's columns."""
    if not _is_parquet(path):
        return [name.strip() for name in next(cells(path))]
    with opening(path) as parquet:
        return list(parquet.read_schema(path).names)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _read_csv(path: Path, labelled: bool) -> Columns:
    rows = cells(path)
    header = [name.strip() for name in next(rows)]
    columns: dict[str, list[str]] = {name: [] for name in _needed(header, path, labelled)}
    places = [(header.index(name), column) for name, column in columns.items()]
    for row in rows:
        for place, column in places:
            column.append(row[place].strip())
    return columns


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


def _read_parquet(path: Path, labelled: bool) -> Columns:
    with opening(path) as parquet:
        needed = _needed(parquet.read_schema(path).names, path, labelled)
        read = parquet.read_table(path, columns=needed)
    return {name: ["" if one is None else str(one).strip() for one in read[name].to_pylist()] for name in needed}


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

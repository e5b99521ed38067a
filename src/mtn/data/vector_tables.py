"""A .csv or .parquet table of vectors: a row a sample, columns of numbers, and the columns label, split and id."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtn.data import parquet_files, table_files
from mtn.data.arrays import check_finite, check_labels
from mtn.data.class_names import label_array, text_array
from mtn.data.splits import data_from_splits, split_name
from mtn.data.table_files import USUAL_COLUMNS, Columns
from mtn.errors import InputError
from mtn.samples import Data

NOT_FEATURES = ("label", "split", "id")
"""Columns that are no numbers of the vectors."""


@dataclass(frozen=True)
class VectorTable:
    """N vectors of D numbers."""

    path: Path
    x: np.ndarray  # N,D
    columns: list[str]  # D: their names
    ids: list[Any] | None  # N, if there is such a column
    labels: np.ndarray | None  # N; None where labels are not asked for
    splits: np.ndarray  # N: train where no column says otherwise

    def data(self) -> Data:
        """The samples as a stream takes them."""
        assert self.labels is not None
        if not (self.splits == "train").any():
            raise InputError(f"{self.path} has no sample in the split 'train'")
        return data_from_splits(self.x, self.labels, self.splits, self.path)


def read_vector_table(path: Path, labelled: bool, columns: Columns = USUAL_COLUMNS) -> VectorTable:
    """Without `labelled`, labels may be missing: in some rows or in all."""
    header = table_files.read_header(path, columns)
    _check_header(header, path)
    if labelled and "label" not in header:
        raise InputError(f"{path} {table_files.describe_lack('label', header)}")
    read = _read_parquet if table_files.is_parquet(path) else _read_csv
    x, others, features = read(path, columns)
    if not len(x) or not features:
        raise InputError(f"{path} holds no {'rows' if features else 'columns of numbers'}")
    for name in NOT_FEATURES if labelled else ("id",):
        empty = [row for row, value in enumerate(others.get(name, ())) if value is None or value == ""]
        if empty:
            raise InputError(f"{path}: the column {name!r} is empty in row {empty[0]}")
    labels = label_array(others["label"], path) if labelled else _optional_labels(others.get("label", ()))
    if labelled and labels is not None:
        check_labels(labels, len(x), "the table", "the column 'label'", path)
    check_finite(x, "the table", path)
    splits = [split_name(str(split)) for split in others.get("split", ())]
    return VectorTable(path, x, features, others.get("id"), labels, text_array(splits or ["train"] * len(x), path))


def _optional_labels(labels: Sequence[Any]) -> np.ndarray | None:
    """N labels, None where there is none; None if there are none at all."""
    known = [None if label == "" else label for label in labels]
    return np.array(known, dtype=object) if any(label is not None for label in known) else None


def _read_csv(path: Path, columns: Columns) -> tuple[np.ndarray, dict[str, list[Any]], list[str]]:
    """The numbers (N,D), the columns of `NOT_FEATURES` that are there, and the names of the others (D)."""
    rows = table_files.csv_rows(path)
    header = columns.rename(next(rows)[1], path)
    others: dict[str, list[Any]] = {name: [] for name in NOT_FEATURES if name in header}
    numbers = array("d")
    for line, cells in rows:
        for name, cell in zip(header, cells, strict=True):
            if name in others:
                others[name].append(cell.strip())
            else:
                numbers.append(_number(cell, name, line, path))
    features = [name for name in header if name not in others]
    return np.frombuffer(numbers).reshape(-1, max(len(features), 1)), others, features


def _read_parquet(path: Path, columns: Columns) -> tuple[np.ndarray, dict[str, list[Any]], list[str]]:
    """As `_read_csv`."""
    schema = parquet_files.read_schema(path)
    own = dict(zip(columns.rename(schema.names, path), schema.names, strict=True))
    features = [name for name in own if name not in NOT_FEATURES]
    for name in (own[feature] for feature in features):
        if not schema.types[name].startswith(("int", "uint", "float", "double", "halffloat")):
            raise InputError(f"{path}: the column {name!r} must hold numbers, got {schema.types[name]}")
    x = parquet_files.read_numbers(path, [own[feature] for feature in features])  # first: it measures
    present = [name for name in NOT_FEATURES if name in own]
    others: dict[str, list[Any]] = {name: [] for name in present}
    if present:
        for cells in parquet_files.read_rows(path, [own[name] for name in present]):
            for name, cell in zip(present, cells, strict=True):
                others[name].append(cell)
    return x, others, features


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise InputError(f"{path} is empty")
    counts = Counter(header)
    repeated = [name for name in header if counts[name] > 1 or not name]
    if repeated or all(_is_number(name) for name in header):
        names = ", ".join((repeated or header)[:80])[:80]
        raise InputError(f"{path}: its columns must have names, all different, got {names!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(cell: str, name: str, line: int, path: Path) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(
            f"{path}, line {line}: the column {name!r} must hold numbers, got {cell[:80]!r}; "
            "a column of sentences is called 'text', or --text names it"
        ) from None

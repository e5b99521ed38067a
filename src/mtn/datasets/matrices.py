"""A table of vectors, .csv or .parquet -> its numbers, its columns label and id, the names of all others."""

import csv
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from mtn.datasets import tables
from mtn.errors import InputError

Columns = tuple[np.ndarray, dict[str, list[Any]], list[str]]
"""N,D; label and id, as far as there are any; D names."""


def read_csv(path: Path) -> Columns:
    numbers = array("d")
    texts: dict[str, list[Any]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_header(header, path)
            texts = {name: [] for name in ("label", "id") if name in header}
            for cells in rows:
                if not cells:  # an empty line
                    continue
                if len(cells) != len(header):
                    raise InputError(f"{path}, line {rows.line_num}: must have {len(header)} cells, got {len(cells)}")
                for name, cell in zip(header, cells, strict=True):
                    if name in texts:
                        texts[name].append(cell.strip())
                    else:
                        numbers.append(_number(cell, name, rows.line_num, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}") from None
    columns = [name for name in header if name not in texts]
    return np.frombuffer(numbers).reshape(-1, max(len(columns), 1)), texts, columns


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise InputError(f"{path} is empty")
    twice = [name for name in header if header.count(name) > 1 or not name]
    if twice or all(_is_number(name) for name in header):
        raise InputError(f"{path}: its columns must have names, all different, got {', '.join(twice or header)[:80]!r}")


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
        raise InputError(f"{path}, line {line}: the column {name!r} must hold numbers, got {cell!r}") from None


def read_parquet(path: Path) -> Columns:
    with tables.opening(path) as parquet:
        table = parquet.read_table(path)
    _check_header(table.column_names, path)
    texts = {name: table[name].to_pylist() for name in ("label", "id") if name in table.column_names}
    columns = [name for name in table.column_names if name not in texts]
    for name in columns:
        kind = str(table.schema.field(name).type)
        if not kind.startswith(("int", "uint", "float", "double", "halffloat")):
            raise InputError(f"{path}: the column {name!r} must hold numbers, got {kind}")
        if table[name].null_count:
            raise InputError(f"{path}: the column {name!r} has empty cells")
    parts = [table[name].to_numpy().astype(np.float64) for name in columns]
    return np.stack(parts, axis=1) if parts else np.zeros((table.num_rows, 0)), texts, columns

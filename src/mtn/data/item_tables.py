"""A .csv or .parquet table that lists images by their paths, or sentences -> a listing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from mtn.data import table_files
from mtn.data.listing import File, Listing, Row, Sentence, make_listing
from mtn.data.splits import split_name
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent

COLUMNS = ("path", "text", "label", "split", "id")
"""Those that are read; others are ignored."""


def lists_items(path: Path) -> bool:
    """Whether a table lists images or sentences, instead of vectors."""
    return bool({"path", "text"} & set(table_files.read_header(path)))


def lists_sentences(path: Path) -> bool:
    """Whether a table lists sentences."""
    return "text" in table_files.read_header(path)


def has_ids(path: Path) -> bool:
    """Whether a table gives each item an id."""
    return "id" in table_files.read_header(path)


def list_table(path: Path, progress: Progress = silent, labelled: bool = True) -> Listing:
    """Columns path (from the table's folder) or text, and label; optional split and id."""
    columns = _known_columns(table_files.read_header(path), path, labelled)
    rows = _without_empty_cells(table_files.read_text_columns(path, columns), path, labelled)
    kind: Literal["image", "text"] = "image" if "path" in columns else "text"
    return make_listing(_rows(rows, path.parent), path, kind)


def _known_columns(header: Sequence[str], path: Path, labelled: bool) -> list[str]:
    """Those of `COLUMNS` that are there, or an error that names the one which is missing."""
    present = table_files.describe_columns(header)
    if "path" in header and "text" in header:
        raise InputError(f"{path} has both the columns 'path' (of images) and 'text'; {present}")
    if "path" not in header and "text" not in header:
        raise InputError(f"{path} lacks the column 'path' (of images) or 'text'; {present}")
    if labelled and "label" not in header:
        raise InputError(f"{path} lacks the column 'label'; {present}")
    repeated = [name for name in COLUMNS if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has the column {repeated[0]!r} twice")
    return [name for name in COLUMNS if name in header]


def _without_empty_cells(rows: Iterable[dict[str, str]], path: Path, labelled: bool) -> Iterator[dict[str, str]]:
    """The rows; an empty cell is an error, but for a label that is not asked for."""
    for number, row in enumerate(rows):
        for name, cell in row.items():
            if not cell and (labelled or name != "label"):
                raise InputError(f"{path}: the column {name!r} is empty in row {number}")
        yield row


def _rows(rows: Iterable[dict[str, str]], folder: Path) -> Iterator[Row]:
    """Without a column id, an image's id is its path, a sentence's is its split and its number there."""
    counts: Counter[str] = Counter()
    for row in rows:
        split, label = split_name(row.get("split", "train")), row.get("label", "")
        if "path" in row:
            yield split, label, row.get("id", row["path"]), File(str(folder / row["path"]))
        else:
            yield split, label, row.get("id", f"{split}/{counts[split]}"), Sentence(row["text"])
        counts[split] += 1

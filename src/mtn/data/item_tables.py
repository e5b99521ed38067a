"""A .csv or .parquet table that lists images by their paths, or sentences -> a listing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from mtn.data import table_files
from mtn.data.listing import File, Listing, Row, Sentence, make_listing
from mtn.data.splits import split_name
from mtn.data.table_files import USUAL_COLUMNS, Columns
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent


def lists_items(path: Path, columns: Columns = USUAL_COLUMNS) -> bool:
    """Whether a table lists images or sentences, instead of vectors."""
    return bool({"path", "text"} & set(table_files.read_header(path, columns)))


def lists_sentences(path: Path, columns: Columns = USUAL_COLUMNS) -> bool:
    """Whether a table lists sentences."""
    return "text" in table_files.read_header(path, columns)


def has_ids(path: Path) -> bool:
    """Whether a table gives each item an id."""
    return "id" in table_files.read_header(path)


def list_table(
    path: Path, progress: Progress = silent, columns: Columns = USUAL_COLUMNS, queries: bool = False
) -> Listing:
    """Columns path (from the table's folder) or text, and label; optional split and id.

    Of `queries` the rows stay in their order, and labels may be missing.
    """
    present = _known_columns(table_files.read_header(path, columns), path, labelled=not queries)
    rows = _without_empty_cells(table_files.read_text_columns(path, present, columns), path, labelled=not queries)
    kind: Literal["image", "text"] = "image" if "path" in present else "text"
    return make_listing(_rows(rows, path, queries), path, kind, queries=queries)


def _known_columns(header: Sequence[str], path: Path, labelled: bool) -> list[str]:
    """Those that are read and are there, or an error that names the one which is missing; others are ignored."""
    if "path" in header and "text" in header:
        described = table_files.describe_columns(header)
        raise InputError(f"{path} has both the columns 'path' (of images) and 'text'; {described}")
    if "path" not in header and "text" not in header:
        raise InputError(f"{path} {table_files.describe_lack('text', header)}")
    if labelled and "label" not in header:
        raise InputError(f"{path} {table_files.describe_lack('label', header)}")
    repeated = [name for name in table_files.NAMES if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has the column {repeated[0]!r} twice")
    return [name for name in table_files.NAMES if name in header]


def _without_empty_cells(rows: Iterable[dict[str, str]], path: Path, labelled: bool) -> Iterator[dict[str, str]]:
    """The rows; an empty cell is an error, but for a label that is not asked for."""
    for number, row in enumerate(rows):
        for name, cell in row.items():
            if not cell and (labelled or name != "label"):
                raise InputError(f"{path}: the column {name!r} is empty in row {number}")
        yield row


def _rows(rows: Iterable[dict[str, str]], path: Path, queries: bool) -> Iterator[Row]:
    """Without a column id, an image's id is its path; a sentence's is its split and its number there, or of a query
    the table and its row."""
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows):
        split, label = split_name(row.get("split", "train")), row.get("label", "")
        if "path" in row:
            yield split, label, row.get("id", row["path"]), File(str(path.parent / row["path"]))
        else:
            own = f"{path}:{number}" if queries else f"{split}/{counts[split]}"
            yield split, label, row.get("id", own), Sentence(row["text"])
        counts[split] += 1

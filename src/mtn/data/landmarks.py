"""Landmarks-1K (Ahn et al., SS-IL): the 1 000 largest classes of Google Landmarks v2, by its train.csv.

The first 50 files of a class in the order of their paths are its test split. Classes of equal size, which the authors'
code leaves to chance, are taken by id.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from urllib.parse import unquote

from mtn.data.listing import File, Listing, Row, make_listing
from mtn.data.table_files import csv_rows
from mtn.data.temporary_table import Column, TemporaryTable
from mtn.data.trees import Tree
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent

IMAGES = 4_132_914
"""Rows of the real train.csv, for the progress bar."""


def is_landmarks(tree: Tree) -> bool:
    """Whether a folder is that of Google Landmarks v2."""
    table = tree.path / "train.csv"
    if not table.is_file():
        return False
    with table.open("rb") as file:
        return file.readline(100).strip() == b"id,url,landmark_id"


def list_landmarks(path: Path, progress: Progress = silent, classes: int = 1000, test: int = 50) -> Listing:
    """Files are not looked for: there are four million. The table is read twice; only the largest classes are kept."""
    largest = set(_largest_classes(path / "train.csv", classes, test, progress))
    pairs = ((label, image) for image, label in _images(path / "train.csv", progress) if label in largest)
    images = TemporaryTable(("label", "image"), pairs)
    images.sort("label, image")
    folder = "train/" if (path / "train").is_dir() else ""
    return make_listing(_rows(path, folder, images, test), path, names=_names(path / "train_label_to_category.csv"))


def _largest_classes(table: Path, classes: int, test: int, progress: Progress) -> list[str]:
    counts = Counter(label for _, label in _images(table, progress))
    largest = sorted(counts, key=lambda label: (-counts[label], int(label)))[:classes]
    if len(largest) < classes:
        raise InputError(f"{table} must name at least {classes} landmarks, got {len(largest)}")
    if counts[largest[-1]] <= test:
        raise InputError(f"{table}: a class needs more than {test} images, {largest[-1]} has {counts[largest[-1]]}")
    return largest


def _rows(path: Path, folder: str, images: TemporaryTable, test: int) -> Iterator[Row]:
    columns = (Column(images, name, str) for name in ("label", "image"))
    for label, pairs in groupby(zip(*columns, strict=True), key=itemgetter(0)):
        for rank, (_, image) in enumerate(pairs):
            file = f"{folder}{image[0]}/{image[1]}/{image[2]}/{image}.jpg"
            yield "test" if rank < test else "train", label, file, File(f"{path}/{file}")


def _images(table: Path, progress: Progress) -> Iterator[tuple[str, str]]:
    """Image id and landmark of each row."""
    rows = csv_rows(table)
    if next(rows)[1] != ["id", "url", "landmark_id"]:
        raise InputError(f"{table} must have the columns id, url, landmark_id, as that of Google Landmarks v2 has")
    for number, (_, (image, _, label)) in enumerate(rows):
        if len(image) < 3 or not label.isdecimal():
            raise InputError(f"{table}: must hold ids and numbers of landmarks, got {image!r} and {label!r}")
        if number % 100_000 == 0:
            progress(f"reading {table.name}", number, max(number, IMAGES))
        yield image, label


def _names(table: Path) -> dict[str, str]:
    """Landmark -> the last part of its category's address at Wikimedia."""
    rows = csv_rows(table) if table.is_file() else iter(())
    return {row[0]: unquote(row[1].rpartition("Category:")[2]).replace("_", " ") for _, row in rows if len(row) > 1}

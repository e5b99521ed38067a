"""Folders or zips of images with a folder a class, in folders of splits or not -> a listing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mtn.data.listing import Listing, Row, make_listing
from mtn.data.splits import SPLITS
from mtn.data.trees import Tree, open_tree, rows_by_class
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent


def list_image_folders(paths: Sequence[Path], progress: Progress = silent) -> Listing:
    """`split/class/...image`, or `class/...image`: all for training. With several roots, ids start with their names."""
    notes: list[str] = []
    return make_listing(_rows(paths, notes, progress), paths[0], notes=notes)


def _rows(paths: Sequence[Path], notes: list[str], progress: Progress) -> Iterator[Row]:
    for path in paths:
        tree, is_empty = open_tree(path), True
        prefix = f"{tree.name}/" if len(paths) > 1 else ""
        for split, label, id, location in _rows_of_tree(tree, notes, progress):
            is_empty = False
            yield split, label, f"{prefix}{id}", location
        if is_empty:
            reasons = "".join(f" ({note})" for note in notes)
            raise InputError(f"{path} has no folders with images, one a class{reasons}")


def _rows_of_tree(tree: Tree, notes: list[str], progress: Progress) -> Iterator[Row]:
    folders, _ = tree.entries()
    if folders and all(folder.lower() in SPLITS for folder in folders):
        for folder in folders:
            yield from rows_by_class(tree, SPLITS[folder.lower()], folder, notes, progress)
    else:
        yield from rows_by_class(tree, "train", "", notes, progress)

"""Tiny-ImageNet as it is downloaded, a folder or a zip -> a listing."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from mtn.data.listing import ItemLocation, Listing, Row, make_listing
from mtn.data.trees import Tree, class_names, open_tree, rows_by_class
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent


def is_tiny_imagenet(tree: Tree) -> bool:
    """Whether a folder or a zip is Tiny-ImageNet."""
    folders, files = tree.entries()
    return "wnids.txt" in files and {"train", "val"} <= set(folders)


def list_tiny_imagenet(path: Path, progress: Progress = silent) -> Listing:
    """Its val becomes the test split: the labels of its own test split are not published."""
    tree, notes = open_tree(path), list[str]()
    if not is_tiny_imagenet(tree):
        raise InputError(f"{path} lacks wnids.txt, train or val of Tiny-ImageNet")
    rows = chain(rows_by_class(tree, "train", "train", notes, progress), _validation_rows(tree))
    names = class_names(tree.lines("words.txt")) if "words.txt" in tree.entries()[1] else {}
    return make_listing(rows, path, names=names, notes=notes)


def _validation_rows(tree: Tree) -> Iterator[Row]:
    for line in tree.lines("val/val_annotations.txt"):
        image, label = [*line.split(), "", ""][:2]
        file = f"val/images/{image}"
        yield "test", label, file, _location(tree, file)


def _location(tree: Tree, file: str) -> ItemLocation:
    try:
        return tree.location(file)
    except KeyError:
        raise InputError(f"{tree.path}: val_annotations.txt names {file}, which is not there") from None

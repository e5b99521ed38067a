"""Images in folders, one a class, below folders of splits or not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mtn.datasets.listing import SPLITS, Listing, Row, arrange
from mtn.datasets.trees import Tree, by_class, opened
from mtn.errors import InputError
from mtn.progress import Progress, silent


def listing(paths: Sequence[Path], say: Progress = silent) -> Listing:
    """`split/class/...image`, or `class/...image`: all to train. Of several roots, each one's name leads its ids."""
    notes: list[str] = []
    return arrange(_of_all(paths, notes, say), paths[0], notes=notes)


def _of_all(paths: Sequence[Path], notes: list[str], say: Progress) -> Iterator[Row]:
    for path in paths:
        tree, found = opened(path), False
        lead = f"{tree.name}/" if len(paths) > 1 else ""
        for split, label, id, place in _of_one(tree, notes, say):
            found = True
            yield split, label, f"{lead}{id}", place
        if not found:
            raise InputError(
                f"{path} has no folders with images, one a class" + "".join(f" ({note})" for note in notes)
            )


def _of_one(tree: Tree, notes: list[str], say: Progress) -> Iterator[Row]:
    folders, _ = tree.entries()
    if folders and all(folder.lower() in SPLITS for folder in folders):
        for top in folders:
            yield from by_class(tree, SPLITS[top.lower()], top, notes, say)
    else:
        yield from by_class(tree, "train", "", notes, say)

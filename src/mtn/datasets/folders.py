"""Images in folders, one a class, below folders of splits or not."""

from collections.abc import Sequence
from pathlib import Path

from mtn.datasets.listing import SPLITS, Listing, Row, arrange
from mtn.datasets.trees import Tree, by_class, opened
from mtn.errors import InputError
from mtn.progress import Progress, silent


def listing(paths: Sequence[Path], say: Progress = silent) -> Listing:
    """`split/class/...image`, or `class/...image`: all to train. Of several roots, each one's name leads its ids."""
    notes: list[str] = []
    rows: list[Row] = []
    for path in paths:
        tree = opened(path)
        lead = f"{tree.name}/" if len(paths) > 1 else ""
        found = [(split, label, f"{lead}{id}", place) for split, label, id, place in _rows(tree, notes, say)]
        if not found:
            raise InputError(
                f"{path} has no folders with images, one a class" + "".join(f" ({note})" for note in notes)
            )
        rows += found
    return arrange(rows, paths[0], notes=notes)


def _rows(tree: Tree, notes: list[str], say: Progress) -> list[Row]:
    folders, _ = tree.entries()
    if folders and all(folder.lower() in SPLITS for folder in folders):
        return [row for top in folders for row in by_class(tree, SPLITS[top.lower()], top, notes, say)]
    return list(by_class(tree, "train", "", notes, say))

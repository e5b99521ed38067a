"""Omniglot as it is downloaded: one or several of its parts, folders or zips -> a listing."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtn.data.listing import ItemLocation, Listing, Row, make_listing
from mtn.data.trees import Tree, open_tree
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent

PARTS = ("images_background", "images_evaluation")
TRAIN_DRAWERS = 15
"""20 people drew every character: the drawings of the first 15 are the training split."""


def is_omniglot(tree: Tree) -> bool:
    """Whether a folder or a zip is a part of Omniglot, or holds one."""
    return any(name.startswith(PARTS) for name in (tree.name, *tree.entries()[0]))


def list_omniglot(paths: Sequence[Path], progress: Progress = silent) -> Listing:
    """The union of its parts, which overlap. A class is a character."""
    alphabets: dict[str, list[tuple[Tree, str]]] = defaultdict(list)  # an alphabet -> the folders that hold it
    for path in paths:
        tree = open_tree(path)
        for folder in [name for name in tree.entries()[0] if name.startswith(PARTS)] or [""]:
            for alphabet in tree.entries(folder)[0]:
                alphabets[alphabet].append((tree, folder))
    rows = (row for alphabet, folders in alphabets.items() for row in _alphabet_rows(alphabet, folders, paths[0]))
    return make_listing(rows, paths[0])


def _alphabet_rows(alphabet: str, folders: Sequence[tuple[Tree, str]], path: Path) -> Iterator[Row]:
    locations: dict[str, ItemLocation] = {}
    for tree, folder in folders:
        for image in tree.images(f"{folder}/{alphabet}".lstrip("/")):
            locations.setdefault(image.removeprefix(f"{folder}/"), tree.location(image))
    yield from (_row(id, location, path) for id, location in locations.items())


def _row(id: str, location: ItemLocation, path: Path) -> Row:
    label, _, file = id.rpartition("/")
    drawer = file.rpartition(".")[0][-2:]
    if label.count("/") != 1 or not drawer.isdecimal():
        raise InputError(f"{path}: must be alphabet/character/number_drawer.png, as Omniglot has it, got {id!r}")
    return "train" if int(drawer) <= TRAIN_DRAWERS else "test", label, id, location

"""CIFAR-100, Tiny-ImageNet and Omniglot as they are downloaded."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from mtn.datasets.listing import Listing, Pixels, Place, Row, arrange
from mtn.datasets.trees import Folder, Tree, by_class, opened, words
from mtn.errors import InputError
from mtn.progress import Progress, silent

# ---- CIFAR-100

BINARY, PICKLED = "cifar-100-binary", "cifar-100-python"
SIDE, LABELS = 32, 2
"""Of an image; bytes before its pixels: a coarse label and a fine one."""
RECORD = LABELS + 3 * SIDE**2


def is_cifar(tree: Tree) -> bool:
    folders, files = tree.entries()
    return bool({BINARY, PICKLED} & {tree.name, *folders}) or "fine_label_names.txt" in files


def cifar(path: Path, say: Progress = silent) -> Listing:
    """The binary version, by fine labels."""
    folder = path / BINARY if (path / BINARY).is_dir() else path
    if not (folder / "fine_label_names.txt").is_file():
        raise InputError(
            f"{path} is not CIFAR-100's binary version: get cifar-100-binary.tar.gz and give the folder that "
            "`tar xf` makes of it (the Python version is pickled, which is never opened)"
        )
    labels = [name for name in Folder(folder).lines("fine_label_names.txt") if name]
    rows = (row for split in ("train", "test") for row in _records(folder / f"{split}.bin", split, labels))
    return arrange(rows, path)


def _records(file: Path, split: str, labels: Sequence[str]) -> Iterator[Row]:
    try:
        content = np.memmap(file, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if len(content) % RECORD:
        raise InputError(f"{file} must be records of {RECORD} bytes, got {len(content)} bytes: unpack it again")
    fine, where = content.reshape(-1, RECORD)[:, 1].tolist(), str(file)
    if max(fine) >= len(labels):
        raise InputError(f"{file}: a label is {max(fine)}, fine_label_names.txt has {len(labels)}")
    for number, label in enumerate(fine):
        yield split, labels[label], f"{split}/{number:05}", Pixels(where, number * RECORD + LABELS, SIDE)


# ---- Tiny-ImageNet


def is_tiny(tree: Tree) -> bool:
    folders, files = tree.entries()
    return "wnids.txt" in files and {"train", "val"} <= set(folders)


def tiny(path: Path, say: Progress = silent) -> Listing:
    """val is the test split: nobody has the labels of the other one."""
    tree, notes = opened(path), list[str]()
    if not is_tiny(tree):
        raise InputError(f"{path} lacks wnids.txt, train or val of Tiny-ImageNet")
    rows = chain(by_class(tree, "train", "train", notes, say), _annotated(tree))
    names = words(tree.lines("words.txt")) if "words.txt" in tree.entries()[1] else {}
    return arrange(rows, path, names=names, notes=notes)


def _annotated(tree: Tree) -> Iterator[Row]:
    for line in tree.lines("val/val_annotations.txt"):
        image, label = [*line.split(), "", ""][:2]
        file = f"val/images/{image}"
        yield "test", label, file, _there(tree, file)


def _there(tree: Tree, file: str) -> Place:
    try:
        return tree.place(file)
    except KeyError:
        raise InputError(f"{tree.path}: val_annotations.txt names {file}, which is not there") from None


# ---- Omniglot

SETS = ("images_background", "images_evaluation")
DRAWERS = 15
"""Of the 20 who drew every character, those we train on."""


def is_omniglot(tree: Tree) -> bool:
    return any(name.startswith(SETS) for name in (tree.name, *tree.entries()[0]))


def omniglot(paths: Sequence[Path], say: Progress = silent) -> Listing:
    """The union of its parts, which overlap. A class is a character; the last drawers are its test split."""
    parts: dict[str, list[tuple[Tree, str]]] = defaultdict(list)  # an alphabet -> where it is
    for path in paths:
        tree = opened(path)
        for top in [name for name in tree.entries()[0] if name.startswith(SETS)] or [""]:
            for alphabet in tree.entries(top)[0]:
                parts[alphabet].append((tree, top))
    return arrange((row for alphabet in parts for row in _drawings(alphabet, parts[alphabet], paths[0])), paths[0])


def _drawings(alphabet: str, parts: Sequence[tuple[Tree, str]], where: Path) -> Iterator[Row]:
    places: dict[str, Place] = {}
    for tree, top in parts:
        for image in tree.images(f"{top}/{alphabet}".lstrip("/")):
            places.setdefault(image.removeprefix(f"{top}/"), tree.place(image))
    yield from (_drawing(id, place, where) for id, place in places.items())


def _drawing(id: str, place: Place, where: Path) -> Row:
    label, _, file = id.rpartition("/")
    drawer = file.rpartition(".")[0][-2:]
    if label.count("/") != 1 or not drawer.isdecimal():
        raise InputError(f"{where}: must be alphabet/character/number_drawer.png, as Omniglot has it, got {id!r}")
    return "train" if int(drawer) <= DRAWERS else "test", label, id, place

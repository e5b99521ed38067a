"""The layouts in which data sets of images or sentences come: how each is recognised, and what lists its items."""

import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from mtn.data import imagenet, item_tables, table_files
from mtn.data.cifar import is_cifar, list_cifar
from mtn.data.image_folders import list_image_folders
from mtn.data.landmarks import is_landmarks, list_landmarks
from mtn.data.listing import Listing
from mtn.data.omniglot import is_omniglot, list_omniglot
from mtn.data.sentences import list_sentences
from mtn.data.table_files import USUAL_COLUMNS, Columns
from mtn.data.tiny_imagenet import is_tiny_imagenet, list_tiny_imagenet
from mtn.data.trees import Tree, open_tree
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent


class Layout(NamedTuple):
    """How a data set lies on disk."""

    fits: Callable[[Tree], bool]  # whether a folder or a zip has it
    list_items: Callable[[Sequence[Path], Progress], Listing]


def _single(list_items: Callable[[Path, Progress], Listing]) -> Callable[[Sequence[Path], Progress], Listing]:
    """For a layout that has no parts: several paths are an error."""

    def checked(paths: Sequence[Path], progress: Progress) -> Listing:
        if len(paths) > 1:
            raise InputError(f"{paths[0]} is a data set of its own: leave out {', '.join(map(str, paths[1:]))}")
        return list_items(paths[0], progress)

    return checked


LAYOUTS = {
    "tiny-imagenet": Layout(is_tiny_imagenet, _single(list_tiny_imagenet)),  # first: imagenet-1k would fit, too
    "imagenet-1k": Layout(imagenet.is_imagenet, imagenet.list_imagenet),
    "landmarks-1k": Layout(is_landmarks, _single(list_landmarks)),
    "cifar-100": Layout(is_cifar, _single(list_cifar)),
    "omniglot": Layout(is_omniglot, list_omniglot),
    "folder": Layout(lambda tree: True, list_image_folders),
    "table": Layout(lambda tree: False, _single(item_tables.list_table)),
    "sentences": Layout(lambda tree: False, _single(list_sentences)),
}
"""Name -> layout. The first that fits a folder or a zip is taken; those of files are recognised by the suffix."""


def recognise_layout(path: Path) -> str | None:
    """The name of the layout of a path that exists; None if it has none."""
    if path.name in imagenet.TARS:
        return "imagenet-1k"
    if path.is_dir() or path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        tree = open_tree(path)
        return next(name for name, layout in LAYOUTS.items() if layout.fits(tree))
    if table_files.is_table(path):
        return "table"
    if path.suffix.lower() == ".json":
        return "sentences"
    if path.name.lower().endswith((".tar", ".tar.gz", ".tgz")):
        raise InputError(f"{path} cannot be read in place: give the folder that `tar xf {path}` makes of it")
    return None


def list_items(
    paths: Sequence[Path], layout: str, progress: Progress = silent, columns: Columns = USUAL_COLUMNS
) -> Listing:
    """The items of a data set; several paths are its parts."""
    if layout == "table":
        return _single(partial(item_tables.list_table, columns=columns))(paths, progress)
    return LAYOUTS[layout].list_items(paths, progress)


def item_kind(path: Path, layout: str, columns: Columns = USUAL_COLUMNS) -> Literal["image", "text"]:
    """What the items of a data set are."""
    sentences = layout == "sentences" or (layout == "table" and item_tables.lists_sentences(path, columns))
    return "text" if sentences else "image"

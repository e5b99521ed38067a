"""What a user points at -> its listing, by the layout that its files show or that the user names."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mtn.datasets import folders, imagenet, landmarks, small, tables
from mtn.datasets.listing import Listing
from mtn.datasets.trees import Tree, opened
from mtn.errors import InputError, closest
from mtn.progress import Progress, silent


class Layout(NamedTuple):
    fits: Callable[[Tree], bool]
    listing: Callable[[Sequence[Path], Progress], Listing]


def _of_one(listing: Callable[[Path, Progress], Listing]) -> Callable[[Sequence[Path], Progress], Listing]:
    def checked(paths: Sequence[Path], say: Progress) -> Listing:
        if len(paths) > 1:
            raise InputError(f"{paths[0]} is a data set of its own: leave out {', '.join(map(str, paths[1:]))}")
        return listing(paths[0], say)

    return checked


LAYOUTS = {
    "tiny-imagenet": Layout(small.is_tiny, _of_one(small.tiny)),  # before the one that it is made of
    "imagenet-1k": Layout(imagenet.fits, imagenet.listing),
    "landmarks-1k": Layout(landmarks.fits, _of_one(landmarks.listing)),
    "cifar-100": Layout(small.is_cifar, _of_one(small.cifar)),
    "omniglot": Layout(small.is_omniglot, small.omniglot),
    "folder": Layout(lambda tree: True, folders.listing),
    "table": Layout(lambda tree: False, _of_one(tables.table)),
    "sentences": Layout(lambda tree: False, _of_one(tables.sentences)),
}
"""The first that fits a folder or a zip is taken; files show theirs by their suffix."""

SUFFIXES = {".csv": "table", ".parquet": "table", ".pq": "table", ".json": "sentences"}


def find(data: Sequence[str], say: Progress = silent) -> Listing:
    """Paths as a user writes them: one may name its layout, as in imagenet-1k:FOLDER."""
    pairs = [one.partition(":") if one.partition(":")[0] in LAYOUTS else ("", "", one) for one in data]
    named = {layout for layout, _, _ in pairs if layout}
    if len(named) > 1:
        raise InputError(f"DATA must be of one layout, got {', '.join(sorted(named))}")
    for one in data:
        layout, colon, _ = one.partition(":")
        if colon and layout not in LAYOUTS and not Path(one).exists():
            raise InputError(f"DATA: no layout {layout!r}: {closest(layout, LAYOUTS)}")
    return listing([Path(path).expanduser() for _, _, path in pairs], named.pop() if named else None, say)


def listing(paths: Sequence[Path], layout: str | None = None, say: Progress = silent) -> Listing:
    """The data set at these paths: several are joined where the layout has parts."""
    for path in paths:
        if not path.exists():
            raise InputError(f"no file or folder {str(path)!r}")
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"no layout {layout!r}: {closest(layout, LAYOUTS)}")
    found = [layout] if layout else sorted({recognise(path) for path in paths})
    if len(found) > 1:
        raise InputError(f"{', '.join(map(str, paths))} are of different layouts: {', '.join(found)}")
    return LAYOUTS[found[0]].listing(paths, say)


def recognise(path: Path) -> str:
    """The name of the layout."""
    if path.name in imagenet.TARS:
        return "imagenet-1k"
    if path.is_dir() or path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        tree = opened(path)
        return next(name for name, layout in LAYOUTS.items() if layout.fits(tree))
    if path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()]
    if path.name.lower().endswith((".tar", ".tar.gz", ".tgz")):
        raise InputError(f"{path} cannot be read in place: give the folder that `tar xf {path}` makes of it")
    raise InputError(f"{path} must be a folder or a zip of images, or a {', '.join(SUFFIXES)} file")

"""CIFAR-100's binary version as it is downloaded -> a listing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mtn.data.listing import Listing, Pixels, Row, make_listing
from mtn.data.trees import Folder, Tree
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent
from mtn.storage.files import require_regular

BINARY, PICKLED = "cifar-100-binary", "cifar-100-python"
SIDE = 32
"""Of an image, in pixels."""
LABELS = 2
"""Bytes before an image's pixels: its coarse and its fine label."""
RECORD = LABELS + 3 * SIDE**2


def is_cifar(tree: Tree) -> bool:
    """Whether a folder is CIFAR-100's, or holds it."""
    folders, files = tree.entries()
    return bool({BINARY, PICKLED} & {tree.name, *folders}) or "fine_label_names.txt" in files


def list_cifar(path: Path, progress: Progress = silent) -> Listing:
    """By fine labels. The Python version is refused: nothing is unpickled."""
    folder = path / BINARY if (path / BINARY).is_dir() else path
    if not (folder / "fine_label_names.txt").is_file():
        raise InputError(
            f"{path} is not CIFAR-100's binary version: get cifar-100-binary.tar.gz and give the folder that "
            "`tar xf` makes of it (the Python version is pickled, which is never opened)"
        )
    labels = [name for name in Folder(folder).lines("fine_label_names.txt") if name]
    rows = (row for split in ("train", "test") for row in _rows(folder / f"{split}.bin", split, labels))
    return make_listing(rows, path)


def _rows(file: Path, split: str, labels: Sequence[str]) -> Iterator[Row]:
    try:
        require_regular(file)
        content = np.memmap(file, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if len(content) % RECORD:
        raise InputError(f"{file} must be records of {RECORD} bytes, got {len(content)} bytes: unpack it again")
    fine_labels = content.reshape(-1, RECORD)[:, 1].tolist()
    if max(fine_labels) >= len(labels):
        raise InputError(f"{file}: a label is {max(fine_labels)}, fine_label_names.txt has {len(labels)}")
    for number, label in enumerate(fine_labels):
        yield split, labels[label], f"{split}/{number:05}", Pixels(str(file), number * RECORD + LABELS, SIDE)

"""A listing of images -> one array of all of them at one size, decoded once, kept in the cache and memory-mapped.

The name of a cached folder is a checksum of the files it was made from: when one changes, all are decoded again.
"""

import hashlib
import json
import math
import multiprocessing
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image

from mtn.data import glyphs
from mtn.data.class_names import check_class_names
from mtn.data.listing import ItemLocation, Listing
from mtn.errors import InputError
from mtn.images import Unreadable, thumbnail
from mtn.runtime.cache import cache_folder
from mtn.runtime.cores import core_count
from mtn.runtime.progress import Progress, silent
from mtn.samples import Data, Samples
from mtn.storage import files

CHUNK = 256
"""Images that a worker process decodes at once."""
IMAGES_PER_PROCESS = 4000
"""Starting a worker process takes seconds: it must have at least so many images to decode."""
NAMED = 5
"""Unreadable files that a message names; all are in the cache's skipped.json."""


def load_images(listing: Listing, side: int, skip: bool, progress: Progress = silent) -> Data:
    """The images as S,S,3 bytes. Files without an image are left out with a warning if `skip`, otherwise an error."""
    if listing.kind != "image":
        raise InputError("stream.data holds sentences: leave out images.side, and give vectors")
    folder = decode_images(listing, side, progress)
    skipped = {int(item): why for item, why in files.read_json(folder / "skipped.json").items()}
    if skipped:
        _report_skipped([f"{listing.ids[item]}: {why}" for item, why in skipped.items()], folder, skip)
    pixels = np.load(folder / "images.npy", mmap_mode="r")
    items = np.array([item for item in range(len(listing)) if item not in skipped])
    splits, names = np.array(listing.splits)[items], sorted({listing.labels[item] for item in items})
    check_class_names(names, Path("stream.data"))
    class_index = {name: index for index, name in enumerate(names)}
    y = torch.tensor([class_index[listing.labels[item]] for item in items])

    def split(name: str) -> Samples | None:
        rows = np.flatnonzero(splits == name)
        return Samples(pixels, items[rows], y[rows], torch.from_numpy(items[rows])) if len(rows) else None

    train, test = split("train"), split("test")
    if train is None or test is None:
        raise InputError(f"stream.data has no images to {'train on' if train is None else 'test with'}")
    absent = set(names) - {names[label] for label in set(train.y.tolist())}
    if absent:
        raise InputError(f"stream.data has no image of {sorted(absent)[0]!r} to train on")
    return Data(train, split("val"), test, names)


def list_glyphs(folder: Path) -> Listing:
    """The images of a folder of the Glyphs data set."""
    names, rows = np.load(folder / "names.npy"), []
    for split in glyphs.COUNTS:
        y = np.load(folder / f"y_{split}.npy")
        path = str(folder / f"images_{split}.npy")
        rows += [(f"{split}/{row}", str(names[label]), split, Drawing(path, row)) for row, label in enumerate(y)]
    return Listing(*map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Drawing(ItemLocation):
    """A row of a file of grey images."""

    path: str
    row: int

    def load(self) -> Image.Image:
        return Image.fromarray(_memory_mapped(self.path)[self.row])


def decode_images(listing: Listing, side: int, progress: Progress = silent) -> Path:
    """The cached folder with images.npy (N,S,S,3 uint8, a row an item) and skipped.json; made if it is not there."""
    folder = cache_folder() / f"images-{side}-{_digest(listing)}"
    if not folder.is_dir():
        files.write_folder(folder, lambda scratch: _write(listing, side, scratch, progress))
    return folder


def _write(listing: Listing, side: int, folder: Path, progress: Progress) -> None:
    shape, skipped = (len(listing), side, side, 3), {}
    files.require_room(folder, math.prod(shape), "the images", ", or lower images.side")
    pixels = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    for start, decoded in _decode_all(listing.locations, side):
        for item, image in enumerate(decoded, start):
            if isinstance(image, str):
                skipped[item] = image
            else:
                pixels[item] = image
        progress("decoding images", start + len(decoded), len(listing))
    if len(skipped) == len(listing):
        raise InputError(f"none of {len(listing)} images can be read; {listing.ids[0]}: {skipped[0]}")
    pixels.flush()
    files.write_json(folder / "skipped.json", skipped)


def _decode_all(locations: Sequence[ItemLocation], side: int) -> Iterator[tuple[int, list[np.ndarray | str]]]:
    """The number of each chunk's first item, and its images; a string says why an item is no image."""
    starts = range(0, len(locations), CHUNK)
    chunks = [locations[start : start + CHUNK] for start in starts]
    processes = min(core_count(), len(locations) // IMAGES_PER_PROCESS)
    if processes < 2:
        yield from zip(starts, (_decode(chunk, side) for chunk in chunks), strict=True)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from zip(starts, pool.map(_decode, chunks, [side] * len(chunks)), strict=True)


def _decode(locations: Sequence[ItemLocation], side: int) -> list[np.ndarray | str]:
    decoded: list[np.ndarray | str] = []
    for location in locations:
        try:
            image = location.load()
            assert isinstance(image, Image.Image)
            decoded.append(thumbnail(image, side))
        except Unreadable as error:
            decoded.append(str(error))
    return decoded


def _digest(listing: Listing) -> str:
    """A checksum of every item's location, and of the size and time of every file."""
    digest = hashlib.sha256(PIL.__version__.encode())
    paths = set()
    for location in listing.locations:
        digest.update(repr(location).encode())
        paths.add(location.path)  # type: ignore[attr-defined]  # all locations of images on disk have one
    for file in sorted(paths):
        state = Path(file).stat()
        digest.update(json.dumps([file, state.st_size, state.st_mtime_ns]).encode())
    return digest.hexdigest()[:16]


def _report_skipped(lines: Sequence[str], folder: Path, skip: bool) -> None:
    rest = f" and {len(lines) - NAMED} more in {folder / 'skipped.json'}" if len(lines) > NAMED else ""
    named = "; ".join(lines[:NAMED]) + rest
    if not skip:
        raise InputError(f"{named} (images.unreadable = 'skip' goes on without)")
    warnings.warn(f"left out: {named}", UserWarning, stacklevel=2)


@lru_cache(maxsize=4)
def _memory_mapped(path: str) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r")
    return array

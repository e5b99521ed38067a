"""A listing of images -> the bytes of all of them at one size, decoded once and kept in the cache, memory-mapped.

A folder's name tells the files it was made from, so one that changed is decoded anew.
"""

import hashlib
import json
import math
import multiprocessing
import os
import shutil
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

from mtn import checkpoint
from mtn.datasets import glyphs
from mtn.datasets.listing import Listing, Place
from mtn.errors import InputError
from mtn.images import Unreadable, thumbnail
from mtn.progress import Progress, silent
from mtn.samples import Data, Samples

CHUNK = 256
"""Images that a process decodes before it hands them over."""
WORTH = 4000
"""Images that make it worth to start a process, which takes seconds."""
TOLD = 5
"""Unreadable files that are named; the others are in the cache's skipped.json."""


def load(listing: Listing, side: int, skip: bool, say: Progress = silent) -> Data:
    """`skip` says what becomes of a run in which some files hold no image."""
    if listing.kind != "image":
        raise InputError("stream.data holds sentences: leave out images.side, and give vectors")
    folder = prepare(listing, side, say)
    skipped = {int(item): why for item, why in checkpoint.read_json(folder / "skipped.json").items()}
    if skipped:
        _tell([f"{listing.ids[item]}: {why}" for item, why in skipped.items()], folder, skip)
    pixels = np.load(folder / "images.npy", mmap_mode="r")
    good = np.array([item for item in range(len(listing)) if item not in skipped])
    splits, names = np.array(listing.splits)[good], sorted({listing.labels[item] for item in good})
    places = {name: place for place, name in enumerate(names)}
    y = torch.tensor([places[listing.labels[item]] for item in good])

    def split(name: str) -> Samples | None:
        rows = np.flatnonzero(splits == name)
        return Samples(pixels, good[rows], y[rows], torch.from_numpy(good[rows])) if len(rows) else None

    train, test = split("train"), split("test")
    if train is None or test is None:
        raise InputError(f"stream.data has no images to {'train on' if train is None else 'test with'}")
    absent = set(names) - {names[label] for label in train.y.unique()}
    if absent:
        raise InputError(f"stream.data has no image of {sorted(absent)[0]!r} to train on")
    return Data(train, split("val"), test, names)


def drawn(folder: Path) -> Listing:
    """The images of a Glyphs folder."""
    names, rows = np.load(folder / "names.npy"), []
    for split in glyphs.COUNTS:
        y = np.load(folder / f"y_{split}.npy")
        path = str(folder / f"images_{split}.npy")
        rows += [(f"{split}/{row}", str(names[label]), split, Drawing(path, row)) for row, label in enumerate(y)]
    return Listing(*map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Drawing(Place):
    """A row of a file of grey images."""

    path: str
    row: int

    def load(self) -> Image.Image:
        return Image.fromarray(_mapped(self.path)[self.row])


def prepare(listing: Listing, side: int, say: Progress = silent) -> Path:
    """The folder with images.npy (N,S,S,3), a row an item, and skipped.json; made if it is not there."""
    folder = glyphs.default_cache() / f"images-{side}-{_digest(listing)}"
    if not folder.is_dir():
        checkpoint.write_folder(folder, lambda scratch: _write(listing, side, scratch, say))
    return folder


def _write(listing: Listing, side: int, folder: Path, say: Progress) -> None:
    shape, skipped = (len(listing), side, side, 3), {}
    needed, free = math.prod(shape) / 1e9, shutil.disk_usage(folder).free / 1e9
    if needed > free:  # a mapped file that outgrows the disk is the end of the process
        raise InputError(
            f"{glyphs.default_cache()} has {free:.1f} GB free, the images need {needed:.1f}: "
            "name a larger place in MTN_CACHE, or lower images.side"
        )
    pixels = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    for start, found in _decoded(listing.places, side):
        for item, one in enumerate(found, start):
            if isinstance(one, str):
                skipped[item] = one
            else:
                pixels[item] = one
        say("decoding images", start + len(found), len(listing))
    if len(skipped) == len(listing):
        raise InputError(f"none of {len(listing)} images can be read; {listing.ids[0]}: {skipped[0]}")
    pixels.flush()
    checkpoint.write_json(folder / "skipped.json", skipped)


def _decoded(places: Sequence[Place], side: int) -> Iterator[tuple[int, list[np.ndarray | str]]]:
    """Each chunk's first item with what its items are: a picture, or why there is none."""
    starts = range(0, len(places), CHUNK)
    chunks = [places[start : start + CHUNK] for start in starts]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(cores, len(places) // WORTH)
    if processes < 2:
        yield from zip(starts, (_decode(chunk, side) for chunk in chunks), strict=True)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from zip(starts, pool.map(_decode, chunks, [side] * len(chunks)), strict=True)


def _decode(places: Sequence[Place], side: int) -> list[np.ndarray | str]:
    found: list[np.ndarray | str] = []
    for place in places:
        try:
            image = place.load()
            assert isinstance(image, Image.Image)
            found.append(thumbnail(image, side))
        except Unreadable as error:
            found.append(str(error))
    return found


def _digest(listing: Listing) -> str:
    """Of where every item is, and of the size and time of every file."""
    digest = hashlib.sha256(PIL.__version__.encode())
    files = set()
    for place in listing.places:
        digest.update(repr(place).encode())
        files.add(place.path)  # type: ignore[attr-defined]
    for file in sorted(files):
        state = Path(file).stat()
        digest.update(json.dumps([file, state.st_size, state.st_mtime_ns]).encode())
    return digest.hexdigest()[:16]


def _tell(lines: Sequence[str], folder: Path, skip: bool) -> None:
    rest = f" and {len(lines) - TOLD} more in {folder / 'skipped.json'}" if len(lines) > TOLD else ""
    named = "; ".join(lines[:TOLD]) + rest
    if not skip:
        raise InputError(f"{named} (images.unreadable = 'skip' goes on without)")
    warnings.warn(f"left out: {named}", UserWarning, stacklevel=2)


@lru_cache(maxsize=4)
def _mapped(path: str) -> np.ndarray:
    mapped: np.ndarray = np.load(path, mmap_mode="r")
    return mapped

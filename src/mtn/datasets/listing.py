"""What a data set lists before anything is read: items with an id, a label and a split each, and where each one is."""

import threading
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from mtn import images
from mtn.errors import InputError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""What people call a split -> what we do."""


class Place(ABC):
    """Where an item is. Small: a data set has millions."""

    @abstractmethod
    def load(self) -> Image.Image | str:
        """The item, or `images.Unreadable`."""


@dataclass(frozen=True, slots=True)
class File(Place):
    path: str

    def load(self) -> Image.Image:
        return images.decode(Path(self.path))


@dataclass(frozen=True, slots=True)
class Slice(Place):
    """Bytes of a file: a member of a tar, without a copy."""

    path: str
    start: int
    size: int

    def read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                return file.read(self.size)
        except OSError as error:
            raise images.Unreadable(str(error.strerror)) from None

    def load(self) -> Image.Image:
        return images.decode(self.read())


@dataclass(frozen=True, slots=True)
class Member(Place):
    """A member of a zip file."""

    path: str
    name: str

    def load(self) -> Image.Image:
        try:
            return images.decode(_archive(self.path).read(self.name))
        except (zipfile.BadZipFile, KeyError, RuntimeError, *images.DAMAGE) as error:
            raise images.Unreadable(str(error)) from None


@dataclass(frozen=True, slots=True)
class Pixels(Place):
    """H,W,3 bytes of a file as they are, channel after channel (CIFAR)."""

    path: str
    start: int
    side: int

    def load(self) -> Image.Image:
        content = Slice(self.path, self.start, 3 * self.side**2).read()
        if len(content) < 3 * self.side**2:
            raise images.Unreadable("the file ends before it")
        return Image.fromarray(np.frombuffer(content, np.uint8).reshape(3, self.side, self.side).transpose(1, 2, 0))


@dataclass(frozen=True, slots=True)
class Sentence(Place):
    text: str

    def load(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Given(Place):
    """A picture that is in memory already."""

    image: Image.Image

    def load(self) -> Image.Image:
        return self.image


@dataclass(frozen=True)
class Listing:
    """N items, in an order that depends on nothing but the data set."""

    ids: Sequence[str]  # unique: paths from the data set's root, in the end
    labels: Sequence[str]
    splits: Sequence[str]  # train, val, test; others are kept and not learned from
    places: Sequence[Place]
    kind: Literal["image", "text"] = "image"
    names: dict[str, str] = field(default_factory=dict)  # label -> what people call it, where the data set says so
    notes: list[str] = field(default_factory=list)  # what was left out, a line each

    def __len__(self) -> int:
        return len(self.ids)


Row = tuple[str, str, str, Place]
"""Split, label, id, place: an item on its way into a listing."""


def arrange(
    rows: Iterable[Row],
    where: Path,
    kind: Literal["image", "text"] = "image",
    names: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Listing:
    """By split, label and id, so that no file system's order is left; sentences as they were written."""
    rank = {"train": 0, "val": 1, "test": 2}
    found = sorted(rows, key=lambda row: (rank.get(row[0], 3), row[0], row[1], row[2] if kind == "image" else ""))
    if not found:
        raise InputError(f"{where} holds no {'images' if kind == 'image' else 'sentences'}")
    splits, labels, ids, places = map(list, zip(*found, strict=True))
    _check_ids(ids, where)
    known = {label: names[label] for label in sorted(set(labels)) if label in names} if names else {}
    return Listing(ids, labels, splits, places, kind, known, list(notes))


def _check_ids(ids: Sequence[str], where: Path) -> None:
    odd = next((one for one in ids if not one.isascii() and one.encode("utf-8", "replace").decode() != one), None)
    if odd is not None:
        raise InputError(f"{where}: the name {odd!r} is not UTF-8: rename it")
    if len(set(ids)) < len(ids):
        raise InputError(f"{where}: the id {Counter(ids).most_common(1)[0][0]!r} stands for several items")


_open = threading.local()


def _archive(path: str) -> zipfile.ZipFile:
    """One a thread: reading moves its position. Kept open: a data set may be of several, in turns."""
    archives: dict[str, zipfile.ZipFile] = _open.__dict__.setdefault("archives", {})
    if path not in archives:
        archives[path] = zipfile.ZipFile(path)
    return archives[path]

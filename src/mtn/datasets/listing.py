"""What a data set lists before anything is read: items with an id, a label and a split each, and where each one is."""

import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np
from PIL import Image

from mtn import images
from mtn.datasets import zips
from mtn.datasets.columns import Coded, Column, Picked, Texts
from mtn.errors import InputError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""What people call a split -> what we do."""


class Place(ABC):
    """Where an item is: mostly a file and numbers."""

    __slots__: tuple[str, ...] = ()

    @abstractmethod
    def load(self) -> Image.Image | str:
        """The item, or `images.Unreadable`."""

    def parts(self) -> tuple[str, str]:
        """What it has in common with many others, and what is its own: a listing keeps the first once."""
        path, *numbers = (getattr(self, name) for name in self.__slots__)
        return path, " ".join(map(str, numbers))

    @classmethod
    def of_parts(cls, common: str, own: str) -> Self:
        return cls(common, *map(int, own.split()))  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class File(Place):
    path: str

    def load(self) -> Image.Image:
        return images.decode(Path(self.path))

    def parts(self) -> tuple[str, str]:
        folder, slash, name = self.path.rpartition("/")
        return folder + slash, name

    @classmethod
    def of_parts(cls, common: str, own: str) -> Self:
        return cls(common + own)


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
    """A member of a zip file: what the zip's directory says of it, so that nobody has to keep that."""

    path: str
    start: int
    packed: int
    size: int
    checksum: int
    method: int

    def read(self) -> bytes:
        return zips.content(self.path, self.start, self.packed, self.size, self.checksum, self.method)

    def load(self) -> Image.Image:
        try:
            content = self.read()
        except (zipfile.BadZipFile, OSError) as error:
            raise images.Unreadable(str(error)) from None
        return images.decode(content)


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

    def parts(self) -> tuple[str, str]:
        return "", self.text

    @classmethod
    def of_parts(cls, common: str, own: str) -> Self:
        return cls(own)


@dataclass(frozen=True, slots=True)
class Given(Place):
    """A picture that is in memory already."""

    image: Image.Image

    def load(self) -> Image.Image:
        return self.image


class Places(Column[Place]):
    """Each in two parts, a number and a few characters, and made anew when it is asked for."""

    def __init__(self) -> None:
        self._common, self._own = Coded[tuple[type[Place], str]](), Texts()

    def append(self, place: Place) -> None:
        common, own = place.parts()
        self._common.append((type(place), common))
        self._own.append(own)

    def __len__(self) -> int:
        return len(self._own)

    def at(self, row: int) -> Place:
        kind, common = self._common.at(row)
        return kind.of_parts(common, self._own.at(row))


@dataclass(frozen=True)
class Listing:
    """N items, in an order that depends on nothing but the data set. `arrange` packs them: there may be millions."""

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
    splits, labels, ids, places = Coded[str](), Coded[str](), Texts(), Places()
    for split, label, id, place in rows:
        if not id.isascii() and id.encode("utf-8", "replace").decode() != id:
            raise InputError(f"{where}: the name {id!r} is not UTF-8: rename it")
        splits.append(split)
        labels.append(label)
        ids.append(id)
        places.append(place)
    if not len(ids):
        raise InputError(f"{where} holds no {'images' if kind == 'image' else 'sentences'}")
    order = _order(splits, labels, ids if kind == "image" else None)
    found = Picked(ids, order)
    _check_ids(found, where)
    known = {label: names[label] for label in sorted(labels.values) if label in names} if names else {}
    return Listing(found, Picked(labels, order), Picked(splits, order), Picked(places, order), kind, known, list(notes))


def _order(splits: Coded[str], labels: Coded[str], ids: Texts | None) -> np.ndarray:
    """By split, label and id, if there are any. Ids are sorted class by class: all of them at once would be large."""
    rank = {"train": 0, "val": 1, "test": 2}
    by_split = splits.ranks(lambda split: (rank.get(split, 3), split))
    group = by_split * len(labels.values) + labels.ranks(lambda label: label)
    order = np.argsort(group, kind="stable")
    if ids is not None:
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        for start, end in pairwise([*starts.tolist(), len(order)]):
            order[start:end] = sorted(order[start:end].tolist(), key=ids.at)
    return order


def _check_ids(ids: Sequence[str], where: Path) -> None:
    """Of ids only those are compared whose hashes are equal: a set of all would be large."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    ordered = np.sort(hashes)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    alike = Counter(ids[row] for row in np.flatnonzero(np.isin(hashes, again)).tolist()) if len(again) else Counter()
    for id, times in alike.most_common(1):
        if times > 1:
            raise InputError(f"{where}: the id {id!r} stands for several items")

"""What a data set lists before anything is read: items with an id, a label and a split each, and where each one is."""

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from mtn import images
from mtn.datasets import zips
from mtn.datasets.columns import Column, Table
from mtn.errors import InputError

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""What people call a split -> what we do."""
ORDER = "case split when 'train' then 0 when 'val' then 1 when 'test' then 2 else 3 end"
"""Of the splits in a listing."""


class Place(ABC):
    """Where an item is: mostly a file and numbers."""

    __slots__: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True)
class Given(Place):
    """A picture that is in memory already."""

    image: Image.Image

    def load(self) -> Image.Image:
        return self.image


KINDS = {kind.__name__: kind for kind in (File, Slice, Member, Pixels, Sentence)}


def packed(place: Place) -> str:
    return json.dumps([type(place).__name__, *(getattr(place, name) for name in place.__slots__)])


def unpacked(written: str) -> Place:
    kind, *values = json.loads(written)
    return KINDS[kind](*values)


@dataclass(frozen=True)
class Listing:
    """N items, in an order that depends on nothing but the data set. `arrange` keeps them in a file."""

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
    table = Table(("split", "label", "id", "place"), _checked(rows, where))
    if not len(table):
        raise InputError(f"{where} holds no {'images' if kind == 'image' else 'sentences'}")
    for id, _ in table.ask("select id, count(*) from item group by id having count(*) > 1 limit 1"):
        raise InputError(f"{where}: the id {id!r} stands for several items")
    table.sort(f"{ORDER}, split, label, {'id' if kind == 'image' else 'rowid'}")
    ids, labels, splits = (Column(table, name, str) for name in ("id", "label", "split"))
    there = table.ask("select distinct label from item order by label") if names else []
    known = {label: names[label] for label in there if label in names} if names else {}
    return Listing(ids, labels, splits, Column(table, "place", unpacked), kind, known, list(notes))


def _checked(rows: Iterable[Row], where: Path) -> Iterator[tuple[str, str, str, str]]:
    for split, label, id, place in rows:
        for name in (split, label, id):
            if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
                raise InputError(f"{where}: the name {name!r} is not UTF-8: rename it")
        yield split, label, id, packed(place)

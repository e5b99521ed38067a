"""The items of a data set before any is read: each with an id, a label, a split, and its location on disk."""

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
from mtn.data import zips
from mtn.data.class_names import check_name
from mtn.data.temporary_table import Column, TemporaryTable
from mtn.errors import InputError
from mtn.storage import files

SPLIT_ORDER = "case split when 'train' then 0 when 'val' then 1 when 'test' then 2 else 3 end"
"""The order of the splits in a listing, in SQL."""


class ItemLocation(ABC):
    """Where an item is: mostly a path and offsets. Its `repr` is part of the key of the image cache."""

    __slots__: tuple[str, ...] = ()

    @abstractmethod
    def load(self) -> Image.Image | str:
        """The item; raises `images.Unreadable`."""


@dataclass(frozen=True, slots=True)
class File(ItemLocation):
    """An image file."""

    path: str

    def load(self) -> Image.Image:
        return images.decode(Path(self.path))


@dataclass(frozen=True, slots=True)
class Slice(ItemLocation):
    """An image in a part of a file: a member of a tar, read without unpacking it."""

    path: str
    start: int
    size: int

    def read(self) -> bytes:
        """The bytes of that part."""
        if self.size > images.MOST_BYTES:
            raise images.Unreadable(f"it has {self.size / 1e9:.1f} GB, more than any image")
        try:
            files.require_regular(Path(self.path))
            with open(self.path, "rb") as file:
                file.seek(self.start)
                return file.read(self.size)
        except InputError as error:
            raise images.Unreadable(str(error)) from None
        except OSError as error:
            raise images.Unreadable(str(error.strerror)) from None

    def load(self) -> Image.Image:
        return images.decode(self.read())


@dataclass(frozen=True, slots=True)
class Member(ItemLocation):
    """An image in a zip file, with its entry in the zip's directory, so that the directory need not be kept."""

    path: str
    start: int
    packed: int
    size: int
    checksum: int
    method: int

    def read(self) -> bytes:
        """The unpacked bytes."""
        return zips.read_member(self.path, self.start, self.packed, self.size, self.checksum, self.method)

    def load(self) -> Image.Image:
        try:
            content = self.read()
        except (zipfile.BadZipFile, OSError) as error:
            raise images.Unreadable(str(error)) from None
        return images.decode(content)


@dataclass(frozen=True, slots=True)
class Pixels(ItemLocation):
    """An uncompressed square image in a file, one channel after the other (CIFAR)."""

    path: str
    start: int
    side: int

    def load(self) -> Image.Image:
        content = Slice(self.path, self.start, 3 * self.side**2).read()
        if len(content) < 3 * self.side**2:
            raise images.Unreadable("the file ends before it")
        return Image.fromarray(np.frombuffer(content, np.uint8).reshape(3, self.side, self.side).transpose(1, 2, 0))


@dataclass(frozen=True, slots=True)
class Sentence(ItemLocation):
    """A sentence, which is its own location."""

    text: str

    def load(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class LoadedImage(ItemLocation):
    """An image that is in memory already."""

    image: Image.Image

    def load(self) -> Image.Image:
        return self.image


LOCATIONS = {location.__name__: location for location in (File, Slice, Member, Pixels, Sentence)}


def location_to_json(location: ItemLocation) -> str:
    """The class and its fields, for a temporary table."""
    return json.dumps([type(location).__name__, *(getattr(location, name) for name in location.__slots__)])


def location_from_json(text: str) -> ItemLocation:
    """What `location_to_json` wrote."""
    name, *fields = json.loads(text)
    return LOCATIONS[name](*fields)


@dataclass(frozen=True)
class Listing:
    """N items, in an order that depends on nothing but the data set. `make_listing` keeps them in a temporary file."""

    ids: Sequence[str]  # unique: mostly paths relative to the data set's root
    labels: Sequence[str]
    splits: Sequence[str]  # train, val, test; items of other splits are kept and not learned from
    locations: Sequence[ItemLocation]
    kind: Literal["image", "text"] = "image"
    names: dict[str, str] = field(default_factory=dict)  # label -> readable name, where the data set has one
    notes: list[str] = field(default_factory=list)  # what was left out, a line each

    def __len__(self) -> int:
        return len(self.ids)


Row = tuple[str, str, str, ItemLocation]
"""Split, label, id and location of an item."""


def make_listing(
    rows: Iterable[Row],
    path: Path,
    kind: Literal["image", "text"] = "image",
    names: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    queries: bool = False,
) -> Listing:
    """Images sorted by split, label and id, whatever the order of the file system; sentences by split and label.

    `queries` stay in the order of the rows: answers are read beside them. Their ids need not differ.
    """
    table = TemporaryTable(("split", "label", "id", "location"), _encodable(rows, path))
    if not len(table):
        raise InputError(f"{path} holds no {'images' if kind == 'image' else 'sentences'}")
    if not queries:
        for id, _ in table.query("select id, count(*) from item group by id having count(*) > 1 limit 1"):
            raise InputError(f"{path}: the id {id!r} stands for several items")
        table.sort(f"{SPLIT_ORDER}, split, label, {'id' if kind == 'image' else 'rowid'}")
    ids, labels, splits = (Column(table, name, str) for name in ("id", "label", "split"))
    classes = table.query("select distinct label from item order by label") if names else []
    known_names = {label: names[label] for label in classes if label in names} if names else {}
    return Listing(ids, labels, splits, Column(table, "location", location_from_json), kind, known_names, list(notes))


def _encodable(rows: Iterable[Row], path: Path) -> Iterator[tuple[str, str, str, str]]:
    """The rows as a table takes them; a name that is not UTF-8 is an error, and so is a label that cannot be seen."""
    checked: set[str] = set()
    for split, label, id, location in rows:
        for name in (split, label, id):
            if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
                raise InputError(f"{path}: the name {name!r} is not UTF-8: rename it")
        if label and label not in checked:  # queries have none
            check_name(label, f"{path}: a label")
            checked.add(label)
        yield split, label, id, location_to_json(location)

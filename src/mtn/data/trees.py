"""The files of a folder or of a zip file by their relative paths, without hidden ones. Nothing is unpacked."""

import os
import unicodedata
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mtn.data import zips
from mtn.data.class_names import check_distinct
from mtn.data.listing import File, ItemLocation, Member, Row, location_from_json, location_to_json
from mtn.data.splits import SPLITS
from mtn.data.temporary_table import TemporaryTable
from mtn.errors import InputError
from mtn.images import SUFFIXES
from mtn.runtime.progress import Progress
from mtn.storage import files

DEEPEST = 100
"""Folders within folders that are looked into."""
LARGEST_FILE = 1 << 28
"""Bytes of a file of class names that is read."""


class Tree(ABC):
    """A folder or a zip file."""

    path: Path
    name: str  # of the root folder

    @abstractmethod
    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the files directly in the folder `below`, sorted."""

    @abstractmethod
    def location(self, file: str) -> ItemLocation:
        """Where an image is."""

    @abstractmethod
    def read(self, file: str) -> bytes:
        """The content of a file."""

    def lines(self, file: str) -> list[str]:
        """The lines of a text file."""
        try:
            return self.read(file).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: {file} is not UTF-8 text: {error}") from None
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path}: {file} cannot be read: {error}") from None

    def images(self, below: str) -> Iterator[str]:
        """Paths of the images in the folder `below`, at any depth up to `DEEPEST`."""
        if below.count("/") > DEEPEST:
            raise InputError(f"{self.path}: {below[:80]}... is more than {DEEPEST} folders deep")
        folders, names = self.entries(below)
        lead = f"{below}/" if below else ""
        yield from (f"{lead}{file}" for file in names if file.lower().endswith(SUFFIXES))
        for folder in folders:
            yield from self.images(f"{lead}{folder}")


class Folder(Tree):
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.resolve().name
        self._root = str(path)

    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(os.path.join(self._root, below)) as entries:
                for entry in entries:
                    if not _hidden(entry.name):
                        (folders if entry.is_dir() and not _links_to_parent(entry) else names).append(entry.name)
        except OSError as error:
            raise InputError(f"{error.filename or self.path} cannot be read: {error.strerror}") from None
        return sorted(folders), sorted(names)

    def location(self, file: str) -> File:
        return File(f"{self._root}/{file}")

    def read(self, file: str) -> bytes:
        files.require_regular(self.path / file, LARGEST_FILE)
        return (self.path / file).read_bytes()


class Zip(Tree):
    """A zip file; a folder that holds everything else is taken for the root: zips are made with and without it."""

    def __init__(self, path: Path) -> None:
        self.path, self._root = path, ""
        self._folders: dict[str, set[str]] = defaultdict(set)  # a folder -> names of the folders in it
        try:
            self._table = TemporaryTable(("folder", "name", "location"), self._members())
        except (zipfile.BadZipFile, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a whole zip file: {error}") from None
        self._table.index("folder")
        self._last: tuple[str | None, dict[str, str]] = None, {}
        self._root = self._leading_folder()
        self.name = self._root or path.stem

    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        folder = self._from_top(below)
        return sorted(self._folders.get(folder, ())), sorted(self._files(folder))

    def location(self, file: str) -> Member:
        folder, _, name = self._from_top(file).rpartition("/")
        location = location_from_json(self._files(folder)[name])
        assert isinstance(location, Member)
        return location

    def read(self, file: str) -> bytes:
        return self.location(file).read()

    def _from_top(self, file: str) -> str:
        return f"{self._root}/{file}".strip("/")

    def _members(self) -> Iterator[tuple[str, str, str]]:
        """Folder, name and location of each file; fills `_folders` on the way."""
        for entry in zips.read_entries(self.path):
            if entry.flags & zips.ENCRYPTED:
                raise InputError(f"{self.path} is encrypted: unzip it and give the folder")
            *folders, file = _decoded_name(entry).split("/")  # the file of a folder's entry is ""
            folders = [name for name in folders if name]
            if any(_hidden(name) for name in (*folders, file)):
                continue
            if len(folders) > DEEPEST:
                raise zipfile.BadZipFile(f"a member is more than {DEEPEST} folders deep")
            folder = "/".join(folders)
            self._add_folder(folder)
            if file:
                member = Member(str(self.path), entry.start, entry.packed, entry.size, entry.checksum, entry.method)
                yield folder, file, location_to_json(member)

    def _add_folder(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if name and name not in self._folders[parent]:
            self._add_folder(parent)
            self._folders[parent].add(name)

    def _files(self, folder: str) -> dict[str, str]:
        """Name -> location (JSON) of the files in a folder; of two with one name the last. The last result is kept."""
        if self._last[0] != folder:
            rows = self._table.query("select name, location from item where folder = ? order by rowid", folder)
            self._last = folder, dict(rows)
        return self._last[1]

    def _leading_folder(self) -> str:
        folders, names = self.entries()
        if len(folders) != 1 or names or folders[0].lower() in SPLITS:
            return ""
        holds_images = any(file.lower().endswith(SUFFIXES) for file in self.entries(folders[0])[1])
        return "" if holds_images else folders[0]  # a folder of images is a class, not the root


def open_tree(path: Path) -> Tree:
    """The files of a folder or of a zip file."""
    return Folder(path) if path.is_dir() else Zip(path)


def rows_by_class(tree: Tree, split: str, below: str, notes: list[str], progress: Progress) -> Iterator[Row]:
    """The images in each folder of `below`, at any depth; the folder's name is their label.

    Folders without images and images outside of any class's folder are added to `notes`.
    """
    classes, names = tree.entries(below)
    check_distinct(classes, description=f"{tree.path / below}: names of folders")
    empty = []
    for done, name in enumerate(classes, 1):
        label = unicodedata.normalize("NFC", name)  # macOS decomposes accented letters
        images = list(tree.images(f"{below}/{name}".lstrip("/")))
        yield from ((split, label, image, tree.location(image)) for image in images)
        empty += [] if images else [name]
        progress("listing", done, len(classes))
    if empty:
        notes.append(f"{tree.path / below}: no images of {len(empty)} classes: {', '.join(empty[:8])}")
    loose = [file for file in names if file.lower().endswith(SUFFIXES)]
    if loose:
        notes.append(f"{tree.path / below}: {len(loose)} images are in no class's folder, e.g. {loose[0]}")


def class_names(lines: list[str]) -> dict[str, str]:
    """Class -> its readable name, from lines that hold both."""
    pairs = (line.split(maxsplit=1) for line in lines)
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _links_to_parent(entry: os.DirEntry[str]) -> bool:
    """Whether it is a link to a folder that contains it."""
    if not entry.is_symlink():
        return False
    return f"{os.path.realpath(os.path.dirname(entry.path))}/".startswith(f"{os.path.realpath(entry.path)}/")


def _decoded_name(entry: zips.Entry) -> str:
    """The name with slashes; where the zip does not give the encoding it is UTF-8, as mostly, or else cp437."""
    try:
        name = entry.name.decode()
    except UnicodeDecodeError:
        if entry.flags & zips.UTF8:
            raise
        name = entry.name.decode("cp437")
    return name.replace("\\", "/")

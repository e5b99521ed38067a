"""The files of a folder, or of a zip file, alike: by their paths from its root, nothing hidden. Nothing is unpacked."""

import os
import unicodedata
import zipfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mtn.datasets import zips
from mtn.datasets.columns import Table
from mtn.datasets.listing import SPLITS, File, Member, Place, Row, packed, unpacked
from mtn.errors import InputError
from mtn.images import SUFFIXES
from mtn.progress import Progress


class Tree(ABC):
    path: Path
    name: str  # of the root

    @abstractmethod
    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the files there, sorted."""

    @abstractmethod
    def place(self, file: str) -> Place: ...

    @abstractmethod
    def read(self, file: str) -> bytes: ...

    def lines(self, file: str) -> list[str]:
        try:
            return self.read(file).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: {file} is not UTF-8 text: {error}") from None
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path}: {file} cannot be read: {error}") from None

    def images(self, below: str) -> Iterator[str]:
        """At any depth."""
        folders, files = self.entries(below)
        lead = f"{below}/" if below else ""
        yield from (f"{lead}{file}" for file in files if file.lower().endswith(SUFFIXES))
        for folder in folders:
            yield from self.images(f"{lead}{folder}")


class Folder(Tree):
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.resolve().name
        self._root = str(path)

    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(os.path.join(self._root, below)) as found:
                for entry in found:
                    if not _hidden(entry.name):
                        (folders if entry.is_dir() and not _leads_back(entry) else files).append(entry.name)
        except OSError as error:
            raise InputError(f"{error.filename or self.path} cannot be read: {error.strerror}") from None
        return sorted(folders), sorted(files)

    def place(self, file: str) -> File:
        return File(f"{self._root}/{file}")

    def read(self, file: str) -> bytes:
        return (self.path / file).read_bytes()


class Zip(Tree):
    """A folder that holds all the others is taken for the root: zips are made with and without it."""

    def __init__(self, path: Path) -> None:
        self.path, self._root = path, ""
        self._folders: dict[str, set[str]] = defaultdict(set)  # a folder -> names of those in it, if there are any
        try:
            self._table = Table(("folder", "name", "place"), self._members())
        except (zipfile.BadZipFile, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a whole zip file: {error}") from None
        self._table.index("folder")
        self._last: tuple[str | None, dict[str, str]] = None, {}
        self._root = self._leading_folder()
        self.name = self._root or path.stem

    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        folder = self._from_top(below)
        return sorted(self._folders.get(folder, ())), sorted(self._files(folder))

    def place(self, file: str) -> Member:
        folder, _, name = self._from_top(file).rpartition("/")
        return unpacked(self._files(folder)[name])  # type: ignore[return-value]

    def read(self, file: str) -> bytes:
        return self.place(file).read()

    def _from_top(self, file: str) -> str:
        return f"{self._root}/{file}".strip("/")

    def _members(self) -> Iterator[tuple[str, str, str]]:
        """Folder, name and place of each file; the folders are noted on the way."""
        for entry in zips.entries(self.path):
            if entry.flags & zips.ENCRYPTED:
                raise InputError(f"{self.path} is encrypted: unzip it and give the folder")
            *folders, file = _readable(entry).split("/")  # of a folder, the file is ""
            folders = [name for name in folders if name]
            if any(_hidden(name) for name in (*folders, file)):
                continue
            folder = "/".join(folders)
            self._add_folder(folder)
            if file:
                place = Member(str(self.path), entry.start, entry.packed, entry.size, entry.checksum, entry.method)
                yield folder, file, packed(place)

    def _add_folder(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        if name and name not in self._folders[above]:
            self._add_folder(above)
            self._folders[above].add(name)

    def _files(self, folder: str) -> dict[str, str]:
        """Names of the files in a folder, and their places; of two of one name the last. Kept of one folder."""
        if self._last[0] != folder:
            found = self._table.ask("select name, place from item where folder = ? order by rowid", folder)
            self._last = folder, dict(found)
        return self._last[1]

    def _leading_folder(self) -> str:
        folders, files = self.entries()
        if len(folders) != 1 or files or folders[0].lower() in SPLITS:
            return ""
        holds_images = any(file.lower().endswith(SUFFIXES) for file in self.entries(folders[0])[1])
        return "" if holds_images else folders[0]  # a class, or the root


def opened(path: Path) -> Tree:
    return Folder(path) if path.is_dir() else Zip(path)


def by_class(tree: Tree, split: str, below: str, notes: list[str], say: Progress) -> Iterator[Row]:
    """The images of each folder there, at any depth: its name is their label. What has none is noted."""
    classes, stray = tree.entries(below)
    empty = []
    for done, name in enumerate(classes, 1):
        label = unicodedata.normalize("NFC", name)  # macOS spells accents apart
        images = list(tree.images(f"{below}/{name}".lstrip("/")))
        yield from ((split, label, image, tree.place(image)) for image in images)
        empty += [] if images else [name]
        say("listing", done, len(classes))
    if empty:
        notes.append(f"{tree.path / below}: no images of {len(empty)} classes: {', '.join(empty[:8])}")
    loose = [file for file in stray if file.lower().endswith(SUFFIXES)]
    if loose:
        notes.append(f"{tree.path / below}: {len(loose)} images are in no class's folder, e.g. {loose[0]}")


def words(lines: list[str]) -> dict[str, str]:
    """A class and what people call it, on each line."""
    pairs = (line.split(maxsplit=1) for line in lines)
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """A link to a folder that it is in."""
    if not entry.is_symlink():
        return False
    return f"{os.path.realpath(os.path.dirname(entry.path))}/".startswith(f"{os.path.realpath(entry.path)}/")


def _readable(entry: zips.Entry) -> str:
    """Its name with slashes, and in the UTF-8 that it mostly is where the zip does not say so."""
    try:
        name = entry.name.decode()
    except UnicodeDecodeError:
        if entry.flags & zips.UTF8:
            raise
        name = entry.name.decode("cp437")
    return name.replace("\\", "/")

"""The files of a folder, or of a zip file, alike: by their paths from its root, nothing hidden. Nothing is unpacked."""

import os
import unicodedata
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from mtn.datasets.listing import SPLITS, File, Member, Place, Row
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
        self._spelt: dict[str, str] = {}  # a file -> its name in the zip, which may be mangled
        self._entries: dict[str, tuple[set[str], set[str]]] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, OSError, NotImplementedError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a whole zip file: {error}") from None
        self._folder("")
        for member in members:
            self._add(member)
        self._root = self._leading_folder()
        self.name = self._root or path.stem

    def entries(self, below: str = "") -> tuple[list[str], list[str]]:
        folders, files = self._entries.get(self._from_top(below), ((), ()))
        return sorted(folders), sorted(files)

    def place(self, file: str) -> Member:
        return Member(str(self.path), self._spelt[self._from_top(file)])

    def read(self, file: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(self._spelt[self._from_top(file)])

    def _from_top(self, file: str) -> str:
        return f"{self._root}/{file}".strip("/")

    def _add(self, member: zipfile.ZipInfo) -> None:
        if member.flag_bits & 1:
            raise InputError(f"{self.path} is encrypted: unzip it and give the folder")
        name = _readable(member)
        if any(_hidden(part) for part in name.split("/")):
            return
        if member.is_dir():
            self._folder(name)
        else:
            folder, _, file = name.rpartition("/")
            self._folder(folder)[1].add(file)
            self._spelt[name] = member.filename

    def _folder(self, path: str) -> tuple[set[str], set[str]]:
        if path not in self._entries:
            self._entries[path] = set(), set()
            if path:
                above, _, name = path.rpartition("/")
                self._folder(above)[0].add(name)
        return self._entries[path]

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


def _readable(member: zipfile.ZipInfo) -> str:
    """Its name with slashes, and in the UTF-8 that it mostly is where the zip does not say so."""
    name = member.filename.replace("\\", "/").strip("/")
    if member.flag_bits & 0x800 or name.isascii():
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name

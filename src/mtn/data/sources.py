"""A name or a path -> what it is. Every command recognises its data here: run, learn, predict, extract, reproduce.

| given                                                          | format       | holds             |
|----------------------------------------------------------------|--------------|-------------------|
| glyphs-200, glyphs-1k, glyphs-1k-hard, glyphs-200x25 ...       | DATASET      | vectors, images   |
| a folder that `mtn extract` made                               | STORE        | vectors           |
| an .npz file, a folder of .npy files                           | ARRAYS       | vectors           |
| an .npy file                                                   | ARRAY        | vectors, unlabelled |
| a .csv or .parquet table without a column path or text         | VECTOR_TABLE | vectors           |
| LAYOUT:PATH, or what `mtn.data.layouts` recognises: a folder or zip of images, tar files of ImageNet, a table of paths or sentences, a .json file of sentences | ITEMS | images, sentences |
| an image file                                                  | IMAGE        | an image          |
| a .txt file                                                    | TEXT         | sentences         |
"""  # noqa: E501 (a table)

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Literal, NoReturn

from mtn.data import arrays, glyphs, item_tables, layouts, table_files, zips
from mtn.data.feature_store import is_feature_store, load_feature_store
from mtn.data.image_arrays import list_glyphs
from mtn.data.listing import Listing
from mtn.data.table_files import USUAL_COLUMNS, Columns
from mtn.data.trees import open_tree
from mtn.data.vector_tables import read_vector_table
from mtn.encoders.base import PLURAL
from mtn.errors import InputError, closest
from mtn.images import SUFFIXES
from mtn.runtime.progress import Progress, silent
from mtn.samples import Data
from mtn.storage import files

DATASETS = ("glyphs-200", "glyphs-1k", "glyphs-1k-hard")
"""Data sets that come with the package, by name; `glyphs.find_set` knows the others of their kind."""

LABELLED = (
    "an .npz, .csv or .parquet file, a folder of .npy files, a store written by mtn extract, "
    "a folder or zip of images with one sub-folder per class, a .json file of sentences, "
    f"or the name of a data set ({', '.join(DATASETS)})"
)
"""What samples with labels are read from, for messages and help."""
UNLABELLED = (
    "an image, a sentence, an .npy, .npz, .csv, .parquet or .txt file, a folder of .npy files, "
    "a store written by mtn extract, or a folder of images"
)
"""What queries are read from, for messages and help."""

FILE_SUFFIXES = (*SUFFIXES, *table_files.SUFFIXES, ".npz", ".npy", ".txt", ".json", ".zip", ".tar", ".gz", ".tgz")
"""Of files that are read, or that people expect to be."""
ARRAY_NAMES = ("x", "y", *arrays.REQUIRED, *arrays.OPTIONAL[:2])
"""Arrays that make a folder or a zip one of arrays."""
MEMBERS = 20
"""Members of a zip that are looked at to tell arrays from images."""


class Format(Enum):
    """What a name or a path is; the value is what messages call it."""

    DATASET = "a data set that comes with mtn"
    STORE = "a store written by mtn extract"
    ARRAYS = "an .npz file or a folder of .npy files"
    ARRAY = "an .npy file"
    VECTOR_TABLE = "a table of vectors"
    ITEMS = "images or sentences"
    IMAGE = "an image"
    TEXT = "a text file"


@dataclass(frozen=True)
class DataSource:
    """What somebody pointed at, recognised and not yet read."""

    format: Format
    paths: tuple[Path, ...]  # several where a data set has parts; of a DATASET its name
    parameter: str  # what errors call it
    layout: str | None = None  # of ITEMS
    columns: Columns = USUAL_COLUMNS  # of a table

    @property
    def path(self) -> Path:
        """The first path: the only one, but for data sets of several parts."""
        return self.paths[0]

    @property
    def holds_vectors(self) -> bool:
        """Whether there are vectors, which need no encoder."""
        return self.format not in (Format.ITEMS, Format.IMAGE, Format.TEXT)

    @property
    def kind(self) -> Literal["image", "text"]:
        """What the items are, where there are items."""
        if self.format is Format.ITEMS:
            assert self.layout is not None
            return layouts.item_kind(self.path, self.layout, self.columns)
        return "text" if self.format is Format.TEXT else "image"

    def arrays_path(self, progress: Progress = silent) -> Path | None:
        """The .npz file or the folder of .npy files, of a DATASET made if it is not there; None for other formats."""
        if self.format is Format.DATASET:
            return self._prepare_glyphs(progress)
        return self.path if self.format is Format.ARRAYS else None

    def load_vectors(self, progress: Progress = silent) -> Data:
        """The vectors of all splits, for a run."""
        path = self.arrays_path(progress)
        if path is not None:
            return arrays.load_arrays(path)
        if self.format is Format.STORE:
            return load_feature_store(self.path, progress).data()
        if self.format is Format.VECTOR_TABLE:
            return read_vector_table(self.path, labelled=True, columns=self.columns).data()
        if self.format is Format.ITEMS:
            self._refuse_items()
        self.refuse(LABELLED)

    def list_items(self, progress: Progress = silent) -> Listing:
        """The images or sentences with their labels and splits, for an encoder."""
        if self.format is Format.DATASET:
            return list_glyphs(self._prepare_glyphs(progress, images=True))
        if self.format is Format.ITEMS:
            assert self.layout is not None
            return layouts.list_items(self.paths, self.layout, progress, self.columns)
        if self.format is Format.VECTOR_TABLE:
            header = table_files.read_header(self.path, self.columns)
            self._refuse_vectors(f", as it {table_files.describe_lack('text', header)}")
        if self.holds_vectors:
            self._refuse_vectors("")
        self.refuse(LABELLED)

    def _prepare_glyphs(self, progress: Progress, images: bool = False) -> Path:
        wanted = glyphs.find_set(self.path.name)
        assert wanted is not None  # it was recognised by its name
        if images and not wanted.keeps_images:
            raise InputError(f"{self.parameter}: {self.path} keeps vectors alone, which need no encoder")
        return glyphs.prepare(wanted.classes, wanted.images, wanted.hard, progress=progress)

    def refuse(self, expected: str) -> NoReturn:
        """Raise the error that names what is expected instead."""
        raise InputError(f"{self.parameter} must be {expected}, got {str(self.path)!r}")

    def _refuse_items(self) -> NoReturn:
        if self.layout == "folder" and next(open_tree(self.path).images(""), None) is None:
            raise InputError(f"{self.path} holds neither vectors nor images: {self.parameter} must be {LABELLED}")
        or_learn = " (or set images.side, to learn features from the images)" if self.kind == "image" else ""
        raise InputError(
            f"{self.parameter}: {self.path} holds {PLURAL[self.kind]}, of which an encoder makes vectors: run "
            f"`mtn extract {self.path} --encoder NAME --out STORE`, then set stream.data=STORE{or_learn}"
        )

    def _refuse_vectors(self, reason: str) -> NoReturn:
        raise InputError(
            f"{self.parameter}: {self.path} is {self.format.value}{reason}: "
            "vectors need no encoder, mtn run and mtn learn take them as they are"
        )


def open_source(
    data: str | Path | Sequence[str | Path], parameter: str = "DATA", columns: Columns = USUAL_COLUMNS
) -> DataSource:
    """Recognise a data set's name, a path, LAYOUT:PATH, or the paths of a data set's parts. A `Path` is only a path."""
    parts = [data] if isinstance(data, str | Path) else list(data)
    if len(parts) == 1 and isinstance(parts[0], str) and glyphs.find_set(parts[0]):
        return DataSource(Format.DATASET, (Path(parts[0]),), parameter)
    pairs = [split_layout(part) for part in parts]
    named = sorted({layout for layout, _ in pairs if layout})
    if len(named) > 1:
        raise InputError(f"{parameter} must be of one layout, got {', '.join(named)}")
    paths = tuple(path for _, path in pairs)
    for part, path in zip(parts, paths, strict=True):
        if not exists(path):
            raise InputError(f"{parameter}: no file or folder {str(path)!r}{_hint(part)}")
        files.require_regular(path)  # before anything opens it
    if named:
        return DataSource(Format.ITEMS, paths, parameter, named[0], columns)
    sources = [_recognise(path, parameter, columns) for path in paths]
    if len(sources) == 1:
        return sources[0]
    for source in sources:
        if source.format is not Format.ITEMS:
            raise InputError(f"{parameter}: {source.path} is {source.format.value}, which cannot be a part of several")
    recognised = sorted({str(source.layout) for source in sources})
    if len(recognised) > 1:
        raise InputError(f"{', '.join(map(str, paths))} are of different layouts: {', '.join(recognised)}")
    return DataSource(Format.ITEMS, paths, parameter, recognised[0], columns)


def split_layout(data: str | Path) -> tuple[str | None, Path]:
    """The layout, if there is one in front of a colon, and the path."""
    layout, colon, path = data.partition(":") if isinstance(data, str) else ("", "", "")
    if colon and layout in layouts.LAYOUTS:
        return layout, _expand(path)
    return None, _expand(data)


def _expand(path: str | Path) -> Path:
    """The path with ~ replaced by a home folder, if there is such a user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_sentence(query: str) -> bool:
    """Whether text is to be read as a sentence: no file has that name, and it does not look like the path of one."""
    if exists(split_layout(query)[1]):
        return False
    return not ("/" in query or os.sep in query or query.lower().endswith(FILE_SUFFIXES))


def exists(path: Path) -> bool:
    """Whether there is a file or folder; also for text that cannot be a path, as it is too long or has a null byte."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _recognise(path: Path, parameter: str, columns: Columns) -> DataSource:
    suffix = path.suffix.lower()
    if is_feature_store(path):
        format = Format.STORE
    elif suffix == ".npz" or _holds_arrays(path):
        format = Format.ARRAYS
    elif suffix == ".npy":
        format = Format.ARRAY
    elif suffix in SUFFIXES and path.is_file():
        format = Format.IMAGE
    elif suffix == ".txt":
        format = Format.TEXT
    elif table_files.is_table(path) and not item_tables.lists_items(path, columns):
        format = Format.VECTOR_TABLE
    else:
        layout = layouts.recognise_layout(path)
        if layout is None:
            expected = UNLABELLED if parameter == "INPUT" else LABELLED
            raise InputError(f"{parameter} must be {expected}, got {str(path)!r}")
        return DataSource(Format.ITEMS, (path,), parameter, layout, columns)
    return DataSource(format, (path,), parameter, columns=columns)


def _holds_arrays(path: Path) -> bool:
    """Whether a folder, or a zip of any name, has one of the arrays of a data set of vectors."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in ARRAY_NAMES)
    if not zipfile.is_zipfile(path):
        return False
    try:
        members = [entry.name.decode(errors="replace") for entry in islice(zips.read_entries(path), MEMBERS)]
    except (zipfile.BadZipFile, OSError):
        return False
    return any(f"{name}.npy" in members for name in ARRAY_NAMES)


def _hint(data: str | Path) -> str:
    """What else was perhaps meant by a path that is not there."""
    if not isinstance(data, str):
        return ""
    layout, colon, _ = data.partition(":")
    if colon and layout not in layouts.LAYOUTS:
        return f", and no layout {layout!r}: {closest(layout, layouts.LAYOUTS)}"
    if colon or "/" in data or Path(data).suffix:
        return ""
    return f", nor is it a data set: {closest(data, DATASETS)}"

"""What a user points at -> vectors, labels, ids, thumbnails: arrays, tables, stores; images and sentences, encoded."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from mtn import encoders, extract
from mtn.datasets import arrays, matrices, shards, sources, tables
from mtn.datasets.listing import File, Given, Listing, Place, Sentence
from mtn.datasets.trees import Folder
from mtn.encoders.base import PLURAL, Encoder, difference
from mtn.errors import InputError
from mtn.images import SUFFIXES
from mtn.progress import Progress, silent

TEACHING = (
    "an .npz, .csv or .parquet file, a folder of .npy files, a store of mtn extract, "
    "a folder or zip of images with a sub-folder a class, or a .json file of sentences"
)
ASKING = (
    "an image, a sentence, an .npy, .npz, .csv, .parquet or .txt file, a folder of .npy files, "
    "a store of mtn extract, or a folder of images"
)
DEFAULTS = {"image": "glyph", "text": "hashing"}
"""Encoders that come with the package."""

Named = str | Callable[..., Any] | Encoder
"""What tells an encoder: its name, a path, a function, or the encoder itself."""


@dataclass(frozen=True)
class Inputs:
    """N samples. `source` tells how their vectors were made: {encoder, kind} or the {columns} of a table."""

    x: Any  # N,D
    ids: list[Any] | None = None  # None: nothing but their order tells them apart
    labels: np.ndarray | None = None  # N
    thumbnails: np.ndarray | None = None  # N,S,S or N,S,S,3 uint8
    source: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # what could not be read, and why

    def __len__(self) -> int:
        return len(self.x)

    @staticmethod
    def join(parts: "Sequence[Inputs]") -> "Inputs":
        """Of one model's kind: all with thumbnails, or none."""
        images = [part.thumbnails for part in parts if part.thumbnails is not None]
        return Inputs(
            np.concatenate([part.x for part in parts]),
            [one for part in parts for one in part.ids or range(len(part))],
            thumbnails=np.concatenate(images) if images else None,
            source=parts[0].source,
            skipped=[line for part in parts for line in part.skipped],
        )


@dataclass(frozen=True)
class Reader:
    """What a model takes: vectors, or items that an encoder makes vectors of.

    `encoder` is the one asked for, `source` what the model was taught with, as far as either is known.
    """

    encoder: Named | None = None
    source: dict[str, Any] = field(default_factory=dict)
    width: int | None = None

    @property
    def kind(self) -> Literal["image", "text"] | None:
        """Of its items: image or text; None for a model of vectors, or of anything still."""
        if self.source.get("encoder"):
            return "text" if self.source["kind"] == "text" else "image"
        return None if self.encoder is None else _load(self.encoder).kind

    def load(self, kind: str) -> Encoder:
        """The encoder of items of this kind."""
        recorded = self.source.get("encoder")
        if self.width is not None and not recorded and self.encoder is None:
            raise InputError(f"this model was taught vectors, got {PLURAL[kind]}")
        chosen = _load(self.encoder or (_trusted(recorded) if recorded else DEFAULTS[kind]))
        if chosen.kind != kind:
            raise InputError(f"this model takes {PLURAL[chosen.kind]}, got {PLURAL[kind]}")
        if recorded and (apart := difference(recorded, chosen.identity())):
            raise InputError(f"encoder: this is not the one that the model was taught with, but {apart}")
        return chosen

    def any(self) -> Encoder:
        """The encoder that was asked for."""
        assert self.encoder is not None
        return _load(self.encoder)

    def to_learn(self, path: Path, say: Progress = silent) -> Inputs:
        """Samples with labels: of a data set, the training split."""
        _must_exist(path, "DATA")
        found = _vectors(path, True, say)
        if found is None:
            if path.is_file() and path.suffix.lower() not in (".csv", ".parquet", ".pq", ".json", ".zip"):
                raise InputError(f"DATA must be {TEACHING}, got {str(path)!r}")
            found = self._encode(_split(_apart(sources.listing([path], say=say), path), "train"), say)
        return self.suit(found, str(path))

    def to_ask(self, asked: str, say: Progress = silent) -> Inputs:
        """Samples whose labels, if there are any, are not looked at. Each has an id: its own, its path, or file:row."""
        path = Path(asked)
        if self.kind == "text" and not _exists(path):
            return self._encode(_unlabelled([asked], [Sentence(asked)], "text"), say)
        _must_exist(path, "INPUT")
        found = _vectors(path, False, say)
        if found is None:
            found = self._encode(_items(path, say), say)
        ids = found.ids or [f"{path}:{row}" for row in range(len(found))]
        return self.suit(replace(found, labels=None, ids=ids), asked)

    def given(self, X: Any) -> Inputs | None:
        """Items in memory, or paths of images; None where X is no such thing."""
        if self.kind is None:
            return None
        places = _places(X, self.kind)
        if places is None:
            return None
        numbers = [str(one.path) if isinstance(one, File) else str(row) for row, one in enumerate(places)]
        found = self._encode(_unlabelled(numbers, places, self.kind), silent)
        if found.skipped:
            raise InputError(f"X: {found.skipped[0]}")
        return replace(found, labels=None, ids=numbers if isinstance(places[0], File) else None)

    def suit(self, found: Inputs, where: str) -> Inputs:
        """The samples as the model takes them, or an error."""
        if self.width is None and not self.source:
            return found  # a new model takes anything
        encoder, columns = self.source.get("encoder"), self.source.get("columns")
        made: dict[str, Any] | None = found.source.get("encoder")
        if bool(made) != bool(encoder):
            takes, got = (PLURAL[one.get("kind", "vector")] for one in (self.source, found.source))
            raise InputError(f"{where}: this model was taught {takes}, got {got}")
        if made and encoder and (apart := difference(encoder, made)):
            raise InputError(f"{where}: made by another encoder than the model's, {apart}")
        named = found.source.get("columns")
        if columns and named and columns != named:
            strange = sorted(set(columns) ^ set(named))
            if strange:
                what = "lacks" if strange[0] in columns else "must not have"
                raise InputError(f"{where} {what} the column {strange[0]!r}: columns must be those the model knows")
            found = replace(found, x=found.x[:, [named.index(column) for column in columns]])
        if self.width not in (None, found.x.shape[1]):
            raise InputError(
                f"{where}: vectors must have {self.width} numbers, as the model's have, got {found.x.shape[1]}"
            )
        return found

    def _encode(self, listing: Listing, say: Progress) -> Inputs:
        encoder, done = self.load(listing.kind), 0

        def count(items: int) -> None:
            nonlocal done
            done += items
            say(f"encoding {PLURAL[listing.kind]}", done, len(listing))

        whole, pictures = [range(len(listing))], listing.kind == "image"
        (found,) = extract.encode(listing, encoder, whole, pictures, count)
        skipped = [f"{listing.ids[item]}: {why}" for item, why in found.skipped]
        if not len(found.x):
            raise InputError(f"none of {len(listing)} {PLURAL[listing.kind]} can be read: {skipped[0]}")
        return Inputs(
            found.x,
            [listing.ids[row] for row in found.rows],
            np.array([listing.labels[row] for row in found.rows]),
            np.stack(found.thumbnails) if found.thumbnails else None,
            {"encoder": encoder.identity(), "kind": encoder.kind},
            [*listing.notes, *skipped],
        )


@cache
def _load(encoder: Named) -> Encoder:
    return encoder if isinstance(encoder, Encoder) else encoders.load(encoder)


def _trusted(recorded: dict[str, Any]) -> str:
    """The recorded name: nothing is imported because a file says so."""
    name = str(recorded["name"])
    module = name.partition(":")[0]
    if encoders.FUNCTION.fullmatch(name) and module not in sys.modules:
        raise InputError(f"the model's encoder is a function, {name!r}: import {module} first, or give the encoder")
    return name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a path
        return False


def _must_exist(path: Path, what: str) -> None:
    if not _exists(path):
        raise InputError(f"{what}: no file or folder {str(path)!r}")


# ---- items


def _apart(listing: Listing, path: Path) -> Listing:
    """Ids that other folders and files do not have, unless they are the user's own."""
    if path.suffix.lower() in (".csv", ".parquet", ".pq") and tables.has_ids(path):
        return listing
    return replace(listing, ids=[f"{path.resolve().name}/{one}" for one in listing.ids])


def _split(listing: Listing, split: str) -> Listing:
    """Its items of one split."""
    rows = [row for row, one in enumerate(listing.splits) if one == split]
    if not rows:
        raise InputError(f"nothing is in the split {split!r}; there are {', '.join(sorted(set(listing.splits)))}")
    ids, labels, splits = ([column[row] for row in rows] for column in (listing.ids, listing.labels, listing.splits))
    return replace(listing, ids=ids, labels=labels, splits=splits, places=[listing.places[row] for row in rows])


def _items(path: Path, say: Progress) -> Listing:
    """What is asked about: one picture, those of a folder, the lines of a text, the test split of a data set."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        files = [f"{path}/{file}" for file in Folder(path).images("")] if path.is_dir() else [str(path)]
        if not files:
            raise InputError(f"{path} holds no images ({', '.join(SUFFIXES)})")
        return _unlabelled(files, [File(file) for file in files])
    if suffix == ".txt":
        lines = [line for line in _text(path).splitlines() if line.strip()]
        if not lines:
            raise InputError(f"{path} holds no sentences")
        ids = [f"{path}:{row}" for row in range(len(lines))]
        return _unlabelled(ids, [Sentence(line) for line in lines], "text")
    if suffix in (".csv", ".parquet", ".pq"):
        return tables.table(path, say, labelled=False)
    if suffix in (".json", ".zip"):
        listed = sources.listing([path], say=say)
        return _split(listed, "test") if "test" in listed.splits else listed
    raise InputError(f"INPUT must be {ASKING}, got {str(path)!r}")


def _unlabelled(ids: list[str], places: Sequence[Place], kind: Literal["image", "text"] = "image") -> Listing:
    nothing = [""] * len(ids)
    return Listing(ids, nothing, nothing, places, kind)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not readable UTF-8 text: {error}") from None


def _places(X: Any, kind: str) -> list[Place] | None:
    """Where each of some items in memory is; None for vectors."""
    if isinstance(X, np.ndarray) and not (X.dtype == np.uint8 and X.ndim in (3, 4)):
        X = X.tolist() if X.ndim == 1 else None
    elif hasattr(X, "tolist") and getattr(X, "ndim", 1) == 1:  # a column of a table
        X = X.tolist()
    if not isinstance(X, Sequence | np.ndarray) or not len(X):
        return None
    places = [_place(one, kind) for one in X]
    strange = [row for row, place in enumerate(places) if place is None]
    if len(strange) == len(places):
        return None
    if strange:
        got = type(X[strange[0]]).__name__
        raise InputError(f"X must be all {PLURAL[kind]}, or all vectors; number {strange[0]} is of type {got}")
    return [place for place in places if place is not None]


def _place(one: Any, kind: str) -> Place | None:
    if kind == "text":
        return Sentence(one) if isinstance(one, str) else None
    if isinstance(one, str | Path):
        return File(str(one))
    if isinstance(one, np.ndarray) and one.dtype == np.uint8 and one.ndim in (2, 3):
        one = Image.fromarray(one)
    return Given(one) if isinstance(one, Image.Image) else None


# ---- vectors


def _vectors(path: Path, labelled: bool, say: Progress) -> Inputs | None:
    """None where there are items instead."""
    suffix = path.suffix.lower()
    if shards.is_store(path):
        return _from_store(shards.load(path, say), labelled)
    if suffix == ".npz" or (path.is_dir() and any((path / f"{name}.npy").is_file() for name in ("x", "x_train"))):
        return _from_arrays(path, labelled)
    if suffix == ".npy" and not labelled:
        x = arrays.read_npy(path)
        arrays.check_matrix(x, "the array", path)
        return Inputs(_finite(x, "the array", path))
    if suffix == ".csv" and not tables.lists_items(path):
        return _from_table(path, *matrices.read_csv(path), labelled)
    if suffix in (".parquet", ".pq") and not tables.lists_items(path):
        return _from_table(path, *matrices.read_parquet(path), labelled)
    return None


def _from_store(store: shards.Store, labelled: bool) -> Inputs:
    """To learn, its training split; to ask, its test split, or all it has."""
    rows = store.rows("train" if labelled else "test")
    if not len(rows):
        if labelled:
            raise InputError(f"{store.folder} has no sample in the split 'train'")
        rows = np.arange(len(store.ids))
    source = {"encoder": store.facts["encoder"], "kind": store.facts["kind"]}
    return Inputs(store.x[rows].astype(np.float32), store.ids[rows].tolist(), store.labels[rows], source=source)


def _finite(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    arrays.check_finite(x, name, path)
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32 if x.dtype == np.float16 else np.float64)


# ---- arrays


def _from_arrays(path: Path, labelled: bool) -> Inputs:
    """x and y, or those of a data set: to learn its training split, to ask its test split."""
    order = (("x", "y"), ("x_train", "y_train")) if labelled else (("x", "y"), ("x_test", "y_test"), ("x_train", "y"))
    found = arrays.read(path, ("x", "y", "x_train", "y_train", "x_test", "y_test", "names"))
    pair = next((pair for pair in order if pair[0] in found), None)
    if pair is None:
        raise InputError(f"{path} lacks {' and '.join(order[0] if labelled else ['x'])}")
    x = found[pair[0]]
    arrays.check_matrix(x, pair[0], path)
    if not labelled:
        return Inputs(_finite(x, pair[0], path))
    if pair[1] not in found:
        raise InputError(f"{path} lacks {pair[1]}, the label of each row of {pair[0]}")
    y = arrays.text(found[pair[1]], pair[1], path)
    arrays.check_labels(y, len(x), *pair, path)
    if "names" in found:
        names = arrays.text(found["names"], "names", path)
        if y.dtype.kind not in "iu" or names.ndim != 1 or y.min() < 0 or y.max() >= len(names):
            raise InputError(f"{path}: with names, labels must be integers from 0 to {names.size - 1} (the last name)")
        y = names.astype(str)[y]
    return Inputs(_finite(x, pair[0], path), labels=y)


# ---- tables


def _from_table(path: Path, x: np.ndarray, texts: dict[str, list[Any]], columns: list[str], labelled: bool) -> Inputs:
    """`texts` are the columns label and id, as far as there are any."""
    if not len(x) or not columns:
        raise InputError(f"{path} holds no {'rows' if columns else 'columns of numbers'}")
    if labelled and "label" not in texts:
        raise InputError(f"{path} lacks the column 'label'; its columns are {', '.join(columns[:8])}")
    for name, values in texts.items():
        empty = [row for row, value in enumerate(values) if value is None or value == ""]
        if empty:
            raise InputError(f"{path}: the column {name!r} is empty in row {empty[0]}")
    labels = np.array(texts["label"]) if labelled else None
    if labels is not None:
        arrays.check_labels(labels, len(x), "the table", "the column 'label'", path)
    return Inputs(_finite(x, "the table", path), texts.get("id"), labels, source={"columns": columns})

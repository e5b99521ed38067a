"""What a model is given -> vectors that fit it: arrays, tables, stores as they are; images and sentences encoded."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from mtn.data import extraction, item_tables, table_files
from mtn.data.choice import choose_encoder, refuse_colour
from mtn.data.class_names import text_array
from mtn.data.inputs import Inputs, read_labelled_vectors, read_query_vectors
from mtn.data.listing import File, ItemLocation, Listing, LoadedImage, Sentence
from mtn.data.sentences import list_sentences
from mtn.data.sources import LABELLED, DataSource, Format, exists, is_sentence, open_source, split_layout
from mtn.data.table_files import USUAL_COLUMNS, Columns
from mtn.data.trees import Folder
from mtn.encoders import load_encoder
from mtn.encoders.base import PLURAL, Encoder, difference
from mtn.encoders.trust import trusted_encoder
from mtn.errors import InputError
from mtn.images import SUFFIXES
from mtn.runtime.progress import Progress, silent
from mtn.storage import files
from mtn.storage.recorded import Recorded

EncoderSpec = str | Callable[..., Any] | Encoder
"""What specifies an encoder: its name, a path, a function, or the encoder itself."""


@dataclass(frozen=True)
class Reader:
    """Reads samples for a model, which takes vectors, or items that an encoder makes vectors of.

    `encoder` is the one asked for, None or "auto" where the items decide; `source` is how the vectors that the model
    was taught were made (`Inputs.source`), and `width` is their length. All are empty for a new model that takes
    anything.
    """

    encoder: EncoderSpec | None = None
    source: dict[str, Any] = field(default_factory=dict)
    width: int | None = None

    @property
    def kind(self) -> Literal["image", "text"] | None:
        """The kind of items the model takes; None for a model of vectors, or one that takes anything still."""
        if self.source.get("encoder"):
            return "text" if self.source["kind"] == "text" else "image"
        return self.requested_encoder().kind if self.names_encoder else None

    @property
    def names_encoder(self) -> bool:
        """Whether the user or what the model was taught says which encoder it is."""
        return trusted_encoder(self.encoder, self.source.get("encoder")) is not None

    def encoder_for(self, kind: str) -> Encoder:
        """The encoder of items of this kind, which must be the one the model was taught with."""
        encoder, recorded = self.requested_encoder(), self.source.get("encoder")
        if encoder.kind != kind:
            raise InputError(f"this model takes {PLURAL[encoder.kind]}, got {PLURAL[kind]}")
        if recorded and (change := difference(recorded, encoder.identity())):
            raise InputError(f"encoder: this is not the one that the model was taught with, but {change}")
        return encoder

    def requested_encoder(self) -> Encoder:
        """The encoder that was asked for."""
        encoder = trusted_encoder(self.encoder, self.source.get("encoder"))
        if encoder is None:
            raise InputError(
                "the model names no encoder: teach it (mtn learn), or name one (--encoder photos, minilm, glyph ...)"
            )
        return _load_cached(encoder)

    def to_learn(
        self,
        data: str | Path,
        progress: Progress = silent,
        columns: Columns = USUAL_COLUMNS,
        announce: Callable[[str], None] = lambda line: None,
    ) -> Inputs:
        """Samples with labels: of a data set, the training split. `announce` is told which encoder was chosen."""
        source = open_source(data, "DATA", columns)
        if source.holds_vectors:
            samples = read_labelled_vectors(source, progress)
        elif source.format is Format.ITEMS:
            self._load_named(source.kind)  # what it lacks is said before anything is read
            listing = _select_split(_with_own_ids(source.list_items(progress), source.path), "train")
            if self._is_recorded("glyph"):
                refuse_colour(listing)
            samples = self._encode(listing, progress, announce)
        else:
            source.refuse(LABELLED)
        return self.adapt(samples, str(source.path))

    def to_ask(self, query: str | Path, progress: Progress = silent, columns: Columns = USUAL_COLUMNS) -> Inputs:
        """Queries in the order of their file, with labels where there are any; of a data set, the test split.

        Each has an id: its own, its path, or file:row.
        """
        if not str(query).strip():
            raise InputError("INPUT must not be empty")
        if self.kind == "text" and isinstance(query, str):
            if is_sentence(query):
                return self.encode_sentences([query], [query], progress)
            if not exists(split_layout(query)[1]):
                raise InputError(
                    f"INPUT: no file or folder {query!r}; to ask it as a sentence, give it on standard input "
                    "(mtn predict MODEL -), or in Python as a list"
                )
        return self._read_queries(query, "INPUT", progress, columns, whole_table=True)

    def to_evaluate(self, data: str | Path, progress: Progress = silent, columns: Columns = USUAL_COLUMNS) -> Inputs:
        """Samples with labels to compare answers with: of a data set or a table with splits, the test split."""
        samples = self._read_queries(data, "DATA", progress, columns, whole_table=False)
        if samples.labels is None:
            raise InputError(f"DATA: {data} has no labels to compare answers with: it must be {LABELLED}")
        ids = samples.ids or []
        labelled = [row for row, label in enumerate(samples.labels) if label is not None]
        unlabelled = [f"{ids[row]}: it has no label" for row, label in enumerate(samples.labels) if label is None]
        return replace(samples.select(labelled), skipped=[*samples.skipped, *unlabelled])

    def encode_sentences(self, ids: list[str], sentences: Sequence[str], progress: Progress = silent) -> Inputs:
        """Queries from sentences in memory."""
        listing = _unlabelled(ids, [Sentence(sentence) for sentence in sentences], "text")
        return self._encode(listing, progress)

    def _read_queries(
        self, query: str | Path, parameter: str, progress: Progress, columns: Columns, *, whole_table: bool
    ) -> Inputs:
        source = open_source(query, parameter, columns)
        if source.holds_vectors:
            samples = read_query_vectors(source, progress, whole_table=whole_table)
        else:
            self._load_named(source.kind)  # what it lacks is said before anything is read
            listing = _list_queries(source, progress)
            if not whole_table and "test" in listing.splits:
                listing = _select_split(listing, "test")
            samples = self._encode(listing, progress)
        name = Path(query)
        ids = samples.ids or [f"{name}:{row}" for row in range(len(samples))]
        return self.adapt(replace(samples, ids=ids), str(query))

    def encode_items(self, X: Any) -> Inputs | None:
        """Samples from items in memory, or from paths of images; None where X is vectors."""
        kind = self.kind or _recognise_kind(X)
        locations = _locate(X, kind) if kind else None
        if kind is None or locations is None:
            return None
        ids = [str(item.path) if isinstance(item, File) else str(row) for row, item in enumerate(locations)]
        samples = self._encode(_unlabelled(ids, locations, kind), silent)
        if samples.skipped:
            raise InputError(f"X: {samples.skipped[0]}")
        return replace(samples, ids=ids if isinstance(locations[0], File) else None)

    def adapt(self, samples: Inputs, name: str) -> Inputs:
        """The samples with columns in the model's order, or an error if the model does not take them."""
        if self.width is None and not self.source:
            return samples  # a new model takes anything
        recorded, made = self.source.get("encoder"), samples.source.get("encoder")
        if bool(made) != bool(recorded):
            takes, got = (PLURAL[source.get("kind", "vector")] for source in (self.source, samples.source))
            raise InputError(f"{name}: this model was taught {takes}, got {got}")
        if made and recorded and (change := difference(recorded, made)):
            raise InputError(f"{name}: made by another encoder than the model's, {change}")
        expected, columns = self.source.get("columns"), samples.source.get("columns")
        if expected and columns and expected != columns:
            differing = sorted(set(expected) ^ set(columns))
            if differing:
                problem = "lacks" if differing[0] in expected else "must not have"
                raise InputError(f"{name} {problem} the column {differing[0]!r}: columns must be those the model knows")
            position = {column: index for index, column in enumerate(columns)}
            samples = replace(samples, x=samples.x[:, [position[column] for column in expected]])
        if self.width not in (None, samples.x.shape[1]):
            raise InputError(
                f"{name}: vectors must have {self.width} numbers, as the model's have, got {samples.x.shape[1]}"
            )
        return samples

    def _is_recorded(self, name: str) -> bool:
        """Whether the model was taught with this encoder, and the user does not name it now."""
        named = trusted_encoder(self.encoder, None)
        return (self.source.get("encoder") or {}).get("name") == name and isinstance(named, Recorded | None)

    def _load_named(self, kind: str) -> Encoder | None:
        """The encoder, if it is known which one it is."""
        return self.encoder_for(kind) if self.names_encoder else None

    def _encoder_of(self, listing: Listing, announce: Callable[[str], None]) -> Encoder:
        """The encoder of these items: the model's, or for a new one what suits them."""
        named = self._load_named(listing.kind)
        if named is not None:
            return named
        if self.width is not None:
            raise InputError(f"this model was taught vectors, got {PLURAL[listing.kind]}")
        choice = choose_encoder(listing)
        announce(str(choice))
        return _load_cached(choice.name)

    def _encode(
        self, listing: Listing, progress: Progress, announce: Callable[[str], None] = lambda line: None
    ) -> Inputs:
        encoder, done = self._encoder_of(listing, announce), 0

        def count(items: int) -> None:
            nonlocal done
            done += items
            progress(f"encoding {PLURAL[listing.kind]}", done, len(listing))

        blocks, thumbnails = [range(len(listing))], listing.kind == "image"
        (encoded,) = extraction.encode(listing, encoder, blocks, thumbnails, count)
        skipped = [f"{listing.ids[item]}: {why}" for item, why in encoded.skipped]
        if not len(encoded.x):
            raise InputError(f"none of {len(listing)} {PLURAL[listing.kind]} can be read: {skipped[0]}")
        return Inputs(
            encoded.x,
            [listing.ids[row] for row in encoded.rows],
            _labels([listing.labels[row] for row in encoded.rows]),
            np.stack(encoded.thumbnails) if encoded.thumbnails else None,
            {"encoder": encoder.identity(), "kind": encoder.kind},
            [*listing.notes, *skipped],
            [str(listing.locations[row].load()) for row in encoded.rows] if listing.kind == "text" else None,
        )


def _labels(labels: list[str]) -> np.ndarray | None:
    """N labels; of queries None where one is missing, and no array where all are."""
    if all(labels):
        return text_array(labels, Path("DATA"))
    return np.array([label or None for label in labels], dtype=object) if any(labels) else None


@lru_cache(maxsize=None, typed=True)  # typed: `Recorded` names are looked up in fewer places
def _load_cached(encoder: EncoderSpec) -> Encoder:
    return encoder if isinstance(encoder, Encoder) else load_encoder(encoder)


# ---- listings


def _with_own_ids(listing: Listing, path: Path) -> Listing:
    """Ids with the folder's or file's name in front, so that those of several differ; the user's own ids stay."""
    if table_files.is_table(path) and item_tables.has_ids(path):
        return listing
    return replace(listing, ids=[f"{path.resolve().name}/{id}" for id in listing.ids])


def _select_split(listing: Listing, split: str) -> Listing:
    """The items of one split."""
    rows = [row for row, name in enumerate(listing.splits) if name == split]
    if not rows:
        raise InputError(f"nothing is in the split {split!r}; there are {', '.join(sorted(set(listing.splits)))}")
    ids, labels, splits = ([column[row] for row in rows] for column in (listing.ids, listing.labels, listing.splits))
    locations = [listing.locations[row] for row in rows]
    return replace(listing, ids=ids, labels=labels, splits=splits, locations=locations)


def _list_queries(source: DataSource, progress: Progress) -> Listing:
    """An image, the images of a folder, the lines of a text, the rows of a table, the test split of a data set."""
    path = source.path
    if source.format is Format.IMAGE:
        return _unlabelled([str(path)], [File(str(path))])
    if source.format is Format.TEXT:
        ids, lines = number_lines(read_text(path), str(path))
        if not lines:
            raise InputError(f"{path} holds no sentences")
        return _unlabelled(ids, [Sentence(line) for line in lines], "text")
    if path.is_dir():
        return _list_folder(source, progress)
    if source.layout == "table":
        return item_tables.list_table(path, progress, source.columns, queries=True)
    listing = list_sentences(path, progress, True) if source.layout == "sentences" else source.list_items(progress)
    return _select_split(listing, "test") if "test" in listing.splits else listing


def _list_folder(source: DataSource, progress: Progress) -> Listing:
    """The images of a folder in the order of their paths, with labels where they are in folders of classes."""
    paths = [f"{source.path}/{file}" for file in Folder(source.path).images("")]
    if not paths:
        raise InputError(f"{source.path} holds no images ({', '.join(SUFFIXES)})")
    known: dict[ItemLocation, tuple[str, str]] = {}
    with suppress(InputError):  # there are no folders of classes
        listing = source.list_items(progress)
        known = dict(zip(listing.locations, zip(listing.labels, listing.splits, strict=True), strict=True))
    locations = [File(path) for path in paths]
    labels, splits = zip(*(known.get(location, ("", "")) for location in locations), strict=True)
    return Listing(paths, labels, splits, locations)


def number_lines(text: str, name: str) -> tuple[list[str], list[str]]:
    """The lines of a text that are not empty, with name:line as the id of each, counted from 1."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [f"{name}:{number}" for number, _ in lines], [line for _, line in lines]


def _unlabelled(ids: list[str], locations: Sequence[ItemLocation], kind: Literal["image", "text"] = "image") -> Listing:
    empty = [""] * len(ids)
    return Listing(ids, empty, empty, locations, kind)


def read_text(path: Path) -> str:
    """A text of the user's in UTF-8."""
    try:
        return files.read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not readable UTF-8 text: {error}") from None


# ---- items in memory


def _recognise_kind(X: Any) -> Literal["image", "text"] | None:
    """What items are that nobody named an encoder for: images, paths of images, sentences; None for vectors."""
    items = _listed(X)
    if items is None:
        return None
    first = items[0]
    if isinstance(first, str) and Path(first).suffix.lower() not in SUFFIXES:
        return "text"
    return None if _locate_item(first, "image") is None else "image"


def _locate(X: Any, kind: str) -> list[ItemLocation] | None:
    """The locations of items that are given as images, arrays, paths or sentences; None for vectors."""
    items = _listed(X)
    if items is None:
        return None
    locations = [_locate_item(item, kind) for item in items]
    others = [row for row, location in enumerate(locations) if location is None]
    if len(others) == len(locations):
        return None
    if others:
        got = type(items[others[0]]).__name__
        raise InputError(f"X must be all {PLURAL[kind]}, or all vectors; number {others[0]} is of type {got}")
    return [location for location in locations if location is not None]


def _listed(X: Any) -> Sequence[Any] | np.ndarray | None:
    """X as a list of items, or as an array of images; None for an array of vectors, and where there is nothing."""
    if isinstance(X, np.ndarray) and not (X.dtype == np.uint8 and X.ndim in (3, 4)):
        X = X.tolist() if X.ndim == 1 else None
    elif hasattr(X, "tolist") and getattr(X, "ndim", 1) == 1:  # a column of a data frame
        X = X.tolist()
    return X if isinstance(X, Sequence | np.ndarray) and len(X) else None


def _locate_item(item: Any, kind: str) -> ItemLocation | None:
    if kind == "text":
        return Sentence(item) if isinstance(item, str) else None
    if isinstance(item, str | Path):
        return File(str(item))
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3):
        item = Image.fromarray(item)
    return LoadedImage(item) if isinstance(item, Image.Image) else None

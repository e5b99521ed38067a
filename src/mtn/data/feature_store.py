"""A feature store: vectors on disk with an id, a label and a split each, and what made them; memory-mapped.

plan.json       the items, the encoder, the versions; written first, and a resumed extraction has to agree with it
x-00000.npy     float16 vectors of the first 4 096 items, x-00001.npy of the next
x-00000.json    their number and SHA-256, and the items that could not be read; once it is there, its shard is done
samples.csv     id, label and split of each vector
manifest.json   checksums of all files and what is in plan.json; written last
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtn.data import array_files
from mtn.data.class_names import label_array, text_array
from mtn.data.splits import data_from_splits
from mtn.data.table_files import csv_rows
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent
from mtn.samples import Data
from mtn.storage import files

FORMAT = 1


class ShardFacts(BaseModel):
    """What the manifest says of a shard."""

    model_config = ConfigDict(strict=True)

    rows: Annotated[int, Field(ge=0)]
    sha256: str


class EncoderFacts(BaseModel):
    """What the manifest says of the encoder; all of it must agree before vectors are mixed."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str


class Manifest(BaseModel):
    """What manifest.json must say."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: int
    kind: Literal["image", "text"]
    encoder: EncoderFacts
    shards: list[ShardFacts]
    samples: str


class Shards:
    """The rows of several memory-mapped arrays as one matrix."""

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self.starts[-1]), parts[0].shape[1])
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        wanted = np.arange(len(self))[rows]
        x = np.empty((len(wanted), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.starts, wanted, side="right") - 1
        for number in np.unique(shard):
            inside = shard == number
            x[inside] = self.parts[number][wanted[inside] - self.starts[number]]
        return x

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


@dataclass(frozen=True)
class FeatureStore:
    """The vectors of N items and what is known of each."""

    x: Shards  # N,D
    ids: np.ndarray  # N
    labels: np.ndarray  # N
    splits: np.ndarray  # N
    facts: dict[str, Any]  # the manifest
    folder: Path

    def rows(self, split: str) -> np.ndarray:
        """Which rows are in a split."""
        return np.flatnonzero(self.splits == split)

    def data(self) -> Data:
        """The samples as a stream takes them."""
        return data_from_splits(self.x, self.labels, self.splits, self.folder)


def is_feature_store(path: Path) -> bool:
    """Whether a folder is a store, perhaps an unfinished one."""
    return (path / "plan.json").is_file()


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"x-{number:05d}.npy"


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_feature_store(folder: Path, progress: Progress = silent) -> FeatureStore:
    """Open a store memory-mapped, after checking every byte against the manifest."""
    facts = _read_manifest(folder)
    shards = [shard_path(folder, number) for number in range(len(facts["shards"]))]
    digests = [*(shard["sha256"] for shard in facts["shards"]), facts["samples"]]
    for done, (file, sha256) in enumerate(zip([*shards, folder / "samples.csv"], digests, strict=True), 1):
        if not file.is_file() or file_digest(file) != sha256:
            problem = "is damaged: it is not the file that was written" if file.is_file() else "is missing"
            raise InputError(f"{file} {problem}; the mtn extract command that made {folder} makes it again")
        progress("checking vectors", done, len(digests))
    parts = [array_files.read_npy(file) for file, shard in zip(shards, facts["shards"], strict=True) if shard["rows"]]
    _, *rows = csv_rows(folder / "samples.csv")
    if not rows or sum(map(len, parts)) != len(rows):
        raise InputError(f"{folder / 'manifest.json'} is damaged: samples.csv has {len(rows)} rows, the shards do not")
    ids, labels, splits = zip(*(cells for _, cells in rows), strict=True)
    known_labels = label_array(labels, folder / "samples.csv")
    texts = [text_array(column, folder / "samples.csv") for column in (ids, splits)]
    return FeatureStore(Shards(parts), texts[0], known_labels, texts[1], facts, folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        raise InputError(f"{folder} is not complete: run the same mtn extract command again, it goes on where it was")
    facts: dict[str, Any] = files.read_json(path)
    try:
        Manifest.model_validate(facts)
    except ValidationError:
        raise InputError(f"{path} is damaged: it is not the manifest of a store") from None
    if facts["format"] > FORMAT:
        raise InputError(
            f"{folder} has format {facts['format']}, this version of mtn reads up to {FORMAT}: upgrade mtn"
        )
    return facts

"""A store: vectors on disk with an id, a label and a split each, and what made them; read as it is needed.

plan.json       what is extracted from what, by what; written first, and what a resumed run has to agree with
x-00000.npy     float16 vectors of the first 4 096 items, x-00001.npy of the next
x-00000.json    their number and SHA-256, and the items that could not be read; once it is there, its shard is done
samples.csv     id, label and split of each vector
manifest.json   all of this in one; written last
"""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtn import checkpoint
from mtn.datasets import arrays
from mtn.errors import InputError
from mtn.progress import Progress, silent
from mtn.samples import Data, Samples

FORMAT = 1


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
        found = np.empty((len(wanted), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.starts, wanted, side="right") - 1
        for number in np.unique(shard):
            here = shard == number
            found[here] = self.parts[number][wanted[here] - self.starts[number]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


@dataclass(frozen=True)
class Store:
    x: Shards
    ids: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    facts: dict[str, Any]
    folder: Path

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == split)

    def data(self) -> Data:
        """As a stream takes it. Where nothing is for test, every fifth sample of each class is."""
        splits = self.splits if (self.splits == "test").any() else _every_fifth(self.labels, self.splits)
        names, parts = np.unique(self.labels[splits == "train"]), {}
        for split in ("train", "val", "test"):
            rows = np.flatnonzero(splits == split)
            strange = rows[~np.isin(self.labels[rows], names)]
            if len(strange):
                label = self.labels[strange[0]]
                raise InputError(
                    f"{self.folder}: the split {split!r} has the label {label!s}, of which 'train' has no sample"
                )
            y = torch.from_numpy(np.searchsorted(names, self.labels[rows]).astype(np.int64))
            parts[split] = Samples(self.x, rows, y, torch.from_numpy(rows))
        return Data(parts["train"], parts["val"] if len(parts["val"]) else None, parts["test"], names.tolist())


def is_store(path: Path) -> bool:
    return (path / "plan.json").is_file()


def path(folder: Path, number: int) -> Path:
    return folder / f"x-{number:05d}.npy"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(folder: Path, say: Progress = silent) -> Store:
    """Memory-mapped, once every byte is checked."""
    facts = _manifest(folder)
    files = [path(folder, number) for number in range(len(facts["shards"]))]
    expected = [*(shard["sha256"] for shard in facts["shards"]), facts["samples"]]
    for place, (file, sha256) in enumerate(zip([*files, folder / "samples.csv"], expected, strict=True), 1):
        if not file.is_file() or digest(file) != sha256:
            what = "is damaged: it is not the file that was written" if file.is_file() else "is missing"
            raise InputError(f"{file} {what}; the mtn extract command that made {folder} makes it again")
        say("checking vectors", place, len(expected))
    parts = [arrays.read_npy(file) for file, shard in zip(files, facts["shards"], strict=True) if shard["rows"]]
    with (folder / "samples.csv").open(newline="", encoding="utf-8") as lines:
        ids, labels, splits = (np.array(column) for column in zip(*list(csv.reader(lines))[1:], strict=True))
    return Store(Shards(parts), ids, labels, splits, facts, folder)


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / "manifest.json"
    if not file.is_file():
        raise InputError(f"{folder} is not complete: run the same mtn extract command again, it goes on where it was")
    facts = checkpoint.read_json(file)
    if not isinstance(facts, dict) or not {"format", "shards", "samples", "encoder"} <= facts.keys():
        raise InputError(f"{file} is damaged: it is not the manifest of a store")
    if facts["format"] > FORMAT:
        raise InputError(
            f"{folder} has format {facts['format']}, this version of mtn reads up to {FORMAT}: upgrade mtn"
        )
    return facts


def _every_fifth(labels: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """The second of each class for test, the seventh, and so on: a class with one sample keeps it."""
    splits, seen = splits.copy(), dict.fromkeys(labels.tolist(), 0)
    for row, label in enumerate(labels.tolist()):
        seen[label] += splits[row] == "train"
        if splits[row] == "train" and seen[label] % 5 == 2:
            splits[row] = "test"
    return splits

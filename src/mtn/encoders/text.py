"""Sentences -> vectors: by hashing, which needs no weights, or by a model of the sentence-transformers library."""

import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtn.encoders import hub
from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import digest

SIZES = range(2, 5)
"""Of the character n-grams."""
SPREAD = 4
"""Places of the vector that an n-gram is added to, or taken from."""
READ = (".json", ".txt", ".safetensors", ".bin", ".model")
"""What the library may read in a model's folder."""


class Hashing(Encoder):
    """x = P c / |P c|: c the square roots of the counts of words and n-grams, P a fixed sparse matrix of random signs.

    P is never there as a whole: the column of an n-gram comes from its checksum.
    """

    kind = "text"
    dimension = 512

    def identity(self) -> dict[str, Any]:
        return {"name": "hashing", "version": 1, "dimension": self.dimension}

    def prepare(self, item: Item) -> str:
        assert isinstance(item, str)
        return item

    def encode(self, batch: Sequence[str]) -> np.ndarray:
        return np.stack([self._vector(text) for text in batch]).astype(np.float32)

    def _vector(self, text: str) -> np.ndarray:
        counts = _grams(text)
        checksums = np.array([zlib.crc32(gram.encode("utf-8", "replace")) for gram in counts], np.uint64)
        random = _mix(checksums[:, None] * np.uint64(SPREAD) + np.arange(SPREAD, dtype=np.uint64))
        weights = np.sqrt(np.fromiter(counts.values(), np.float64))[:, None] * np.where(random >> np.uint64(63), 1, -1)
        places = (random % np.uint64(self.dimension)).astype(np.int64)
        x = np.bincount(places.ravel(), weights.ravel(), self.dimension)
        return x / max(float(np.linalg.norm(x)), 1e-12)


class SentenceModel(Encoder):
    """A folder of sentence-transformers: its own tokens, pooling and normalisation."""

    kind = "text"

    def __init__(self, folder: Path, name: str, device: torch.device, revision: str | None = None) -> None:
        self.folder, self.name, self.revision = folder, name, revision
        library = hub.need("sentence_transformers")
        with hub.quiet(name, folder):
            options = {"model_kwargs": {"dtype": torch.float32}, **hub.LOCAL}
            self.model = library.SentenceTransformer(str(folder), device=str(device), **options)
            self.dimension = self.encode([name]).shape[1]

    def identity(self) -> dict[str, Any]:
        read = sorted(file for file in self.folder.rglob("*") if file.suffix in READ and file.is_file())
        return {"name": self.name, "files": digest(read), "revision": self.revision}

    def prepare(self, item: Item) -> str:
        assert isinstance(item, str)
        return item

    def encode(self, batch: Sequence[str]) -> np.ndarray:
        found = self.model.encode(list(batch), batch_size=len(batch), show_progress_bar=False)
        return np.asarray(found, np.float32)


def _grams(text: str) -> Counter[str]:
    """Whole words, and n-grams that reach across words; a space begins and ends the text. Of nothing: an empty word."""
    words = unicodedata.normalize("NFKC", text).lower().split() or [""]
    padded = f" {' '.join(words)} "
    grams = Counter(f"\0{word}" for word in words)  # a word is not the n-gram of the same letters
    for size in SIZES:
        grams.update(padded[start : start + size] for start in range(len(padded) - size + 1))
    return grams


def _mix(x: np.ndarray) -> np.ndarray:
    """Each number -> 64 bits that look random, the same on any machine: the finaliser of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

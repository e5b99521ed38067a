"""Encoders of sentences: by hashing, which needs no weights, or by a model of sentence-transformers."""

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
from mtn.encoders.common import files_digest
from mtn.encoders.packaged import model_files
from mtn.storage.repositories import require

NGRAM_SIZES = range(2, 5)
"""Lengths of the character n-grams."""
POSITIONS = 4
"""Positions of the vector to which an n-gram adds its weight with a random sign."""
STEP = 64
"""Sentences that a model computes at once."""


class HashingEncoder(Encoder):
    """x = P c / |P c|: c the square roots of the counts of words and n-grams, P a fixed sparse matrix of random signs.

    P is not stored: the column of an n-gram is computed from its checksum.
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
        counts = _count_ngrams(text)
        checksums = np.array([zlib.crc32(ngram.encode("utf-8", "replace")) for ngram in counts], np.uint64)
        random = _mix(checksums[:, None] * np.uint64(POSITIONS) + np.arange(POSITIONS, dtype=np.uint64))
        weights = np.sqrt(np.fromiter(counts.values(), np.float64))[:, None] * np.where(random >> np.uint64(63), 1, -1)
        positions = (random % np.uint64(self.dimension)).astype(np.int64)
        x = np.bincount(positions.ravel(), weights.ravel(), self.dimension)
        return x / max(float(np.linalg.norm(x)), 1e-12)


class SentenceModel(Encoder):
    """A folder of sentence-transformers: its own tokens, pooling and normalisation."""

    kind = "text"
    batch = 1024  # the library sorts them by length, so that little is padded, and takes `STEP` at a time

    def __init__(self, folder: Path, name: str, device: torch.device, revision: str | None = None) -> None:
        self.folder, self.name, self.revision = folder, name, revision
        library = require("sentence_transformers")
        with hub.quiet(name, folder):
            options = {"model_kwargs": {"dtype": torch.float32}, **hub.LOCAL}
            self.model = library.SentenceTransformer(str(folder), device=str(device), **options)
            self.dimension = self.encode([name]).shape[1]

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "files": files_digest(model_files(self.folder)), "revision": self.revision}

    def prepare(self, item: Item) -> str:
        assert isinstance(item, str)
        return item

    def encode(self, batch: Sequence[str]) -> np.ndarray:
        x = self.model.encode(list(batch), batch_size=STEP, show_progress_bar=False)
        return np.asarray(x, np.float32)


def _count_ngrams(text: str) -> Counter[str]:
    """Whole words, and n-grams also across words, with a space before and after the text. No text is an empty word."""
    words = unicodedata.normalize("NFKC", text).lower().split() or [""]
    padded = f" {' '.join(words)} "
    counts = Counter(f"\0{word}" for word in words)  # \0: a word differs from the n-gram of the same letters
    for size in NGRAM_SIZES:
        counts.update(padded[start : start + size] for start in range(len(padded) - size + 1))
    return counts


def _mix(x: np.ndarray) -> np.ndarray:
    """Pseudo-random 64 bits of each number, the same on any machine: the finaliser of SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))

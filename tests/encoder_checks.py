"""What every encoder is checked with."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mtn.encoders.base import Encoder
from mtn.errors import InputError

EXTRA = "the extra 'encoders' is not there"


def noise(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


PICTURES = [noise(seed, 60 + 7 * seed) for seed in range(5)]


def encode(encoder: Encoder, items: list[Any]) -> np.ndarray:
    """One by one, which must equal all at once."""
    ready = [encoder.prepare(item) for item in items]
    whole = encoder.encode(ready)
    assert whole.shape == (len(items), encoder.dimension) and whole.dtype == np.float32
    np.testing.assert_allclose(np.concatenate([encoder.encode([one]) for one in ready]), whole, rtol=1e-4, atol=1e-5)
    identity = encoder.identity()
    assert json.loads(json.dumps(identity)) == identity  # plain
    return whole


def refused(match: str) -> Any:
    return pytest.raises(InputError, match=match)


class Loud:
    """Unpickled, it runs a command that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)

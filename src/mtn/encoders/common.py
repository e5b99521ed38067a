"""What several encoders need: checksums of files, and a look at the vectors before anybody relies on them."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mtn import images
from mtn.encoders.base import Encoder, Item
from mtn.errors import InputError

MOST_LONG = 50
"""How many times longer than wide a picture may be: by its short side it is enlarged, which otherwise has no bound."""


def checked(item: Item) -> Image.Image:
    assert isinstance(item, Image.Image)
    if max(item.size) > MOST_LONG * min(item.size):
        raise images.Unreadable(
            f"{item.width} x {item.height} pixels: it is more than {MOST_LONG} times longer than wide"
        )
    return item


def picture(item: Item) -> Image.Image:
    """RGB."""
    return images.coloured(checked(item))


def digest(files: Iterable[Path]) -> str:
    """SHA-256 of the files' bytes one after another; of a single file, what `sha256sum` says."""
    return _digest(tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@cache
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, _, _ in files:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                total.update(part)
    return total.hexdigest()


def one_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def probe(encoder: Encoder, name: str) -> int:
    """D, from the vector of a picture of noise: numbers that come out the same when asked again."""
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    batch = [encoder.prepare(Image.fromarray(noise))]
    first, again = encoder.encode(batch), encoder.encode(batch)
    if not np.isfinite(first).all():
        raise InputError(f"encoder {name!r} must give numbers, got a NaN or infinite value for a picture of noise")
    if not np.allclose(first, again, rtol=1e-3, atol=1e-4):
        raise InputError(f"encoder {name!r} must give a picture the same vector each time: switch off what is random")
    return int(first.shape[1])


def vectors(found: Any, count: int, name: str) -> np.ndarray:
    """N,D float32, or an error."""
    x = np.asarray(found)
    if x.ndim != 2 or len(x) != count or not x.shape[1] or x.dtype.kind not in "fiu":
        raise InputError(f"encoder {name!r} must give numbers of shape N,D, here {count},D; got {x.dtype} {x.shape}")
    return x.astype(np.float32, copy=False)

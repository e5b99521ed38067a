"""What several encoders need: images in RGB, checksums of files, checks of the vectors."""

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
"""Times longer than wide that an image may be: it is resized by its short side, so its area would have no bound."""


def checked_image(item: Item) -> Image.Image:
    """The item, which must be an image that is not extremely long."""
    assert isinstance(item, Image.Image)
    if max(item.size) > MOST_LONG * min(item.size):
        raise images.Unreadable(
            f"{item.width} x {item.height} pixels: it is more than {MOST_LONG} times longer than wide"
        )
    return item


def as_rgb(item: Item) -> Image.Image:
    """The image in RGB."""
    return images.as_rgb(checked_image(item))


def centre_crop(image: Image.Image, size: int, height: int, width: int) -> Image.Image:
    """The middle, height x width, of the image resized (bicubic) so that its short side is `size`."""
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def files_digest(files: Iterable[Path]) -> str:
    """SHA-256 of the concatenated files; of a single file that of `sha256sum`."""
    return _cached_digest(tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@cache
def _cached_digest(files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for path, _, _ in files:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                total.update(part)
    return total.hexdigest()


def one_line(error: Exception) -> str:
    """The first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def probe(encoder: Encoder, name: str) -> int:
    """D, from the vector of a noise image, which must be finite and the same twice."""
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    batch = [encoder.prepare(Image.fromarray(noise))]
    first, again = encoder.encode(batch), encoder.encode(batch)
    if not np.isfinite(first).all():
        raise InputError(f"encoder {name!r} must give numbers, got a NaN or infinite value for a picture of noise")
    if not np.allclose(first, again, rtol=1e-3, atol=1e-4):
        raise InputError(f"encoder {name!r} must give a picture the same vector each time: switch off what is random")
    return int(first.shape[1])


def check_vectors(output: Any, count: int, name: str) -> np.ndarray:
    """What an encoder gave as N,D float32, or an error."""
    x = np.asarray(output)
    if x.ndim != 2 or len(x) != count or not x.shape[1] or x.dtype.kind not in "fiu":
        raise InputError(f"encoder {name!r} must give numbers of shape N,D, here {count},D; got {x.dtype} {x.shape}")
    return x.astype(np.float32, copy=False)

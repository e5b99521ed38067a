"""Images: decoding files safely, RGB, thumbnails."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mtn.errors import InputError
from mtn.storage import files

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""All that Pillow may try: for some of its other formats it starts external programs."""
MOST_PIXELS = 100_000_000
"""Largest image that is decoded: its size is known before anything is unpacked."""
MOST_BYTES = 1 << 30
"""Of an image's file: some formats are read whole before anything is known of them."""
TOO_LARGE = "it has more than {:,} pixels: shrink it first"
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, OverflowError, MemoryError,
          RecursionError, struct.error, zlib.error)  # fmt: skip
"""What Pillow raises on a broken file."""

# Warnings of odd metadata and of sizes, which are limited here. For good: threads cannot suspend warnings.
warnings.filterwarnings("ignore", module=r"PIL\.")


class Unreadable(Exception):
    """Why a file holds no image, in one line without the path."""


def decode(source: Path | bytes, most_pixels: int | None = None) -> Image.Image:
    """The image, unpacked and upright, in its own mode; raises `Unreadable`."""
    most = MOST_PIXELS if most_pixels is None else most_pixels
    try:
        if isinstance(source, Path):
            files.require_regular(source, MOST_BYTES)
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > most:
                raise Unreadable(TOO_LARGE.format(most))
            return ImageOps.exif_transpose(image)
    except UnidentifiedImageError:
        raise Unreadable(f"it is not an image ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:  # a limit of Pillow's own
        raise Unreadable(TOO_LARGE.format(most)) from None
    except InputError as error:
        raise Unreadable(f"it {str(error).removeprefix(f'{source!s} ')}") from None
    except DAMAGE as error:
        raise Unreadable(f"it is damaged ({(str(error).splitlines() or [type(error).__name__])[0]})") from None


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, transparent parts white."""
    return (to_eight_bits(image) if image.mode.startswith("I") else on_white(image)).convert("RGB")


def to_eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits scaled to 8: Pillow would cut values off."""
    return Image.fromarray((np.asarray(image, np.float32) / 257).clip(0, 255).round().astype(np.uint8))


def on_white(image: Image.Image) -> Image.Image:
    """The image on a white background where it is transparent, otherwise as it is."""
    if not image.has_transparency_data:
        return image
    transparent = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)


def are_pixels(array: np.ndarray) -> bool:
    """Whether an array is N,H,W or N,H,W,3 uint8: images."""
    return array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3))


def thumbnail(image: Image.Image, side: int = 64) -> np.ndarray:
    """S,S,3 uint8: the middle square of the image."""
    return np.asarray(ImageOps.fit(as_rgb(image), (side, side)))

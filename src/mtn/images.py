"""A file, or its bytes, -> a picture, or one line why not."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""All that Pillow may try: it also knows formats that start other programs."""
MOST_PIXELS = 100_000_000
"""Of a picture: its size is told before anything is unpacked, and beyond this nothing is."""
TOO_LARGE = "it has more than {:,} pixels: shrink it first"
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error)
"""What Pillow raises on a broken file."""

# Of odd metadata, and of sizes that we limit ourselves. For good: threads cannot change warnings for a while.
warnings.filterwarnings("ignore", module=r"PIL\.")


class Unreadable(Exception):
    """Says in one line why there is no picture; who knows the path adds it."""


def decode(source: Path | bytes, most_pixels: int | None = None) -> Image.Image:
    """The picture, unpacked and upright, in the mode it came in."""
    most = MOST_PIXELS if most_pixels is None else most_pixels
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > most:
                raise Unreadable(TOO_LARGE.format(most))
            return ImageOps.exif_transpose(image)
    except Image.UnidentifiedImageError:
        raise Unreadable(f"it is not an image ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:  # beyond a limit of Pillow's own
        raise Unreadable(TOO_LARGE.format(most)) from None
    except DAMAGE as error:
        raise Unreadable((str(error).splitlines() or [type(error).__name__])[0]) from None


def coloured(image: Image.Image) -> Image.Image:
    """RGB: what is clear becomes white, 16 bits become 8."""
    if image.mode.startswith("I"):  # Pillow would cut off instead of scale
        return Image.fromarray((np.asarray(image, np.float32) / 257).clip(0, 255).round().astype(np.uint8)).convert(
            "RGB"
        )
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image.convert("RGB")


def are_pixels(array: np.ndarray) -> bool:
    """N,H,W or N,H,W,3 of uint8."""
    return array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3))


def thumbnail(image: Image.Image, side: int = 64) -> np.ndarray:
    """S,S,3 uint8: the middle of the picture."""
    return np.asarray(ImageOps.fit(coloured(image), (side, side)))

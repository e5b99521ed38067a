"""What a user points at -> vectors, labels, ids, thumbnails: arrays, a table, or images."""

import csv
import struct
import warnings
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mtn.datasets import arrays
from mtn.encoders import glyph
from mtn.errors import InputError
from mtn.progress import Progress, silent

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""All that Pillow may try: it also knows formats that start other programs."""
SIDE = 32
"""Of the images that the encoder takes."""
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error)
"""What Pillow raises on a broken file."""

TEACHING = "an .npz, .csv or .parquet file, a folder of .npy files, or a folder of images with a sub-folder a class"
ASKING = "an image, an .npy, .npz, .csv or .parquet file, a folder of .npy files, or a folder of images"


@dataclass(frozen=True)
class Inputs:
    """N samples. `source` tells how their vectors were made: by an encoder, or from the columns of a table."""

    x: np.ndarray  # N,D
    ids: list[Any] | None = None  # None: nothing but their order tells them apart
    labels: np.ndarray | None = None  # N
    thumbnails: np.ndarray | None = None  # N,32,32 uint8
    source: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # images that could not be read, and why

    def __len__(self) -> int:
        return len(self.x)

    @staticmethod
    def join(parts: "Sequence[Inputs]") -> "Inputs":
        """Of one model's kind: all with thumbnails, or none."""
        images = [part.thumbnails for part in parts if part.thumbnails is not None]
        return Inputs(
            np.concatenate([part.x for part in parts]),
            [one for part in parts for one in part.ids or range(len(part))],
            thumbnails=np.concatenate(images) if images else None,
            source=parts[0].source,
            skipped=[line for part in parts for line in part.skipped],
        )


def to_learn(path: Path, say: Progress = silent) -> Inputs:
    """Samples with labels."""
    found = _read(path, "DATA", TEACHING, True, say)
    if found.labels is None:
        raise InputError(f"DATA must have labels, got {path}; it may be {TEACHING}")
    return found


def to_ask(path: Path, say: Progress = silent) -> Inputs:
    """Samples whose labels, if there are any, are not looked at. Each has an id: its own, its path, or file:row."""
    found = _read(path, "INPUT", ASKING, False, say)
    return replace(found, labels=None, ids=found.ids or [f"{path}:{row}" for row in range(len(found))])


def suit(found: Inputs, path: Path, width: int, source: dict[str, Any]) -> Inputs:
    """The samples as a model takes them whose vectors have this width and came from that source, or an error."""
    encoder, columns = source.get("encoder"), source.get("columns")
    if found.source.get("encoder") != encoder:
        takes = "images" if encoder else f"vectors of {width} numbers"
        raise InputError(f"{path}: this model was taught {takes}, got {'vectors' if encoder else 'images'}")
    named = found.source.get("columns")
    if columns and named and columns != named:
        strange = sorted(set(columns) ^ set(named))
        if strange:
            what = "lacks" if strange[0] in columns else "must not have"
            raise InputError(f"{path} {what} the column {strange[0]!r}: columns must be those the model was taught")
        found = replace(found, x=found.x[:, [named.index(column) for column in columns]])
    if found.x.shape[1] != width:
        raise InputError(f"{path}: vectors must have {width} numbers, as the model's have, got {found.x.shape[1]}")
    return found


def _read(path: Path, what: str, kinds: str, labelled: bool, say: Progress) -> Inputs:
    suffix = path.suffix.lower()
    if not path.exists():
        raise InputError(f"{what}: no file or folder {str(path)!r}")
    if suffix == ".npz" or (path.is_dir() and any((path / f"{name}.npy").is_file() for name in ("x", "x_train"))):
        return _from_arrays(path, labelled)
    if path.is_dir():
        return _from_classes(path, say) if labelled else _from_images(_images(path), [], path, say)
    if suffix == ".npy" and not labelled:
        x = arrays.read_npy(path)
        arrays.check_matrix(x, "the array", path)
        return Inputs(_finite(x, "the array", path))
    if suffix == ".csv":
        return _from_table(path, *_read_csv(path), labelled)
    if suffix in (".parquet", ".pq"):
        return _from_table(path, *_read_parquet(path), labelled)
    if suffix in SUFFIXES and not labelled:
        return _from_images([path], [], path.parent, say)
    raise InputError(f"{what} must be {kinds}, got {str(path)!r}")


def _finite(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    arrays.check_finite(x, name, path)
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32 if x.dtype == np.float16 else np.float64)


# ---- arrays


def _from_arrays(path: Path, labelled: bool) -> Inputs:
    """x and y, or those of a data set: to learn its training split, to ask its test split."""
    order = (("x", "y"), ("x_train", "y_train")) if labelled else (("x", "y"), ("x_test", "y_test"), ("x_train", "y"))
    found = arrays.read(path, ("x", "y", "x_train", "y_train", "x_test", "y_test", "names"))
    pair = next((pair for pair in order if pair[0] in found), None)
    if pair is None:
        raise InputError(f"{path} lacks {' and '.join(order[0] if labelled else ['x'])}")
    x = found[pair[0]]
    arrays.check_matrix(x, pair[0], path)
    if not labelled:
        return Inputs(_finite(x, pair[0], path))
    if pair[1] not in found:
        raise InputError(f"{path} lacks {pair[1]}, the label of each row of {pair[0]}")
    y = arrays.text(found[pair[1]], pair[1], path)
    arrays.check_labels(y, len(x), *pair, path)
    if "names" in found:
        names = arrays.text(found["names"], "names", path)
        if y.dtype.kind not in "iu" or names.ndim != 1 or y.min() < 0 or y.max() >= len(names):
            raise InputError(f"{path}: with names, labels must be integers from 0 to {names.size - 1} (the last name)")
        y = names.astype(str)[y]
    return Inputs(_finite(x, pair[0], path), labels=y)


# ---- tables


def _from_table(path: Path, x: np.ndarray, texts: dict[str, list[Any]], columns: list[str], labelled: bool) -> Inputs:
    """`texts` are the columns label and id, as far as there are any."""
    if not len(x) or not columns:
        raise InputError(f"{path} holds no {'rows' if columns else 'columns of numbers'}")
    if labelled and "label" not in texts:
        raise InputError(f"{path} lacks the column 'label'; its columns are {', '.join(columns[:8])}")
    for name, values in texts.items():
        empty = [row for row, value in enumerate(values) if value is None or value == ""]
        if empty:
            raise InputError(f"{path}: the column {name!r} is empty in row {empty[0]}")
    labels = np.array(texts["label"]) if labelled else None
    if labels is not None:
        arrays.check_labels(labels, len(x), "the table", "the column 'label'", path)
    return Inputs(_finite(x, "the table", path), texts.get("id"), labels, source={"columns": columns})


def _read_csv(path: Path) -> tuple[np.ndarray, dict[str, list[Any]], list[str]]:
    numbers = array("d")
    texts: dict[str, list[Any]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_header(header, path)
            texts = {name: [] for name in ("label", "id") if name in header}
            for cells in rows:
                if not cells:  # an empty line
                    continue
                if len(cells) != len(header):
                    raise InputError(f"{path}, line {rows.line_num}: must have {len(header)} cells, got {len(cells)}")
                for name, cell in zip(header, cells, strict=True):
                    if name in texts:
                        texts[name].append(cell.strip())
                    else:
                        numbers.append(_number(cell, name, rows.line_num, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a readable CSV file: {error}") from None
    columns = [name for name in header if name not in texts]
    return np.frombuffer(numbers).reshape(-1, max(len(columns), 1)), texts, columns


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise InputError(f"{path} is empty")
    twice = [name for name in header if header.count(name) > 1 or not name]
    if twice or all(_is_number(name) for name in header):
        raise InputError(f"{path}: its columns must have names, all different, got {', '.join(twice or header)[:80]!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(cell: str, name: str, line: int, path: Path) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{path}, line {line}: the column {name!r} must hold numbers, got {cell!r}") from None


def _read_parquet(path: Path) -> tuple[np.ndarray, dict[str, list[Any]], list[str]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'mtn[tables]'") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from None
    _check_header(table.column_names, path)
    texts = {name: table[name].to_pylist() for name in ("label", "id") if name in table.column_names}
    columns = [name for name in table.column_names if name not in texts]
    for name in columns:
        kind = table.schema.field(name).type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            raise InputError(f"{path}: the column {name!r} must hold numbers, got {kind}")
        if table[name].null_count:
            raise InputError(f"{path}: the column {name!r} has empty cells")
    parts = [table[name].to_numpy().astype(np.float64) for name in columns]
    return np.stack(parts, axis=1) if parts else np.zeros((table.num_rows, 0)), texts, columns


# ---- images


def _images(folder: Path) -> list[Path]:
    """Sorted; nothing hidden."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _from_classes(folder: Path, say: Progress) -> Inputs:
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    pairs = [(image, one.name) for one in classes for image in _images(one)]
    if not pairs:
        raise InputError(f"DATA: {folder} has no sub-folders with images, one a class, and no x.npy")
    found = _from_images([image for image, _ in pairs], [label for _, label in pairs], folder, say)
    # Two folders may hold files of the same names: the folder's own name tells them apart.
    above, ids = folder.resolve().parent, found.ids or []
    return replace(found, ids=[(folder.resolve() / one).relative_to(above).as_posix() for one in ids])


def _from_images(files: Sequence[Path], labels: Sequence[str], folder: Path, say: Progress) -> Inputs:
    """Ids are paths: below `folder` with labels, as the user wrote them without."""
    if not files:
        raise InputError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    images, good, skipped = [], [], []
    for place, file in enumerate(files):
        try:
            images.append(picture(file))
            good.append(place)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise InputError(f"{file} is refused: {error}") from None
        except DAMAGE as error:
            skipped.append(f"{file}: {_one_line(error)}")
        say("reading images", place + 1, len(files))
    if not images:
        raise InputError(f"no image can be read: {skipped[0]}")
    pixels = np.stack(images)
    ids = [file.relative_to(folder).as_posix() if labels else str(file) for file in files]
    return Inputs(
        _encoder().encode(pixels, on_batch=partial(say, "encoding")),
        _at(ids, good),
        np.array(_at(labels, good)) if labels else None,
        pixels,
        {"encoder": "glyph"},
        skipped,
    )


def picture(path: Path) -> np.ndarray:
    """32,32 uint8 as the encoder was trained on: grey, whole, the ground dark."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning)  # of odd metadata
        with Image.open(path, formats=FORMATS) as image:
            grey = ImageOps.contain(_grey(ImageOps.exif_transpose(image)), (SIDE, SIDE))
    pixels = np.asarray(grey)
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    ground = int(np.median(edge))
    whole = np.full((SIDE, SIDE), ground, np.uint8)
    top, left = (SIDE - pixels.shape[0]) // 2, (SIDE - pixels.shape[1]) // 2
    whole[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return 255 - whole if ground > 127 else whole


def _grey(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off instead of scale
        return Image.fromarray((np.asarray(image, np.float32) / 257).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image.convert("L")


@cache
def _encoder() -> glyph.GlyphEncoder:
    return glyph.load()


def _at(values: Sequence[Any], places: Iterable[int]) -> list[Any]:
    return [values[place] for place in places]


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

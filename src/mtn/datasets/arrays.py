"""Vectors of one's own: an .npz file, or a folder of .npy files of the same names, which is memory-mapped.

Arrays: x_train, y_train, x_test, y_test; optional x_val, y_val, and names (then y counts into names).
"""

import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mtn.errors import InputError
from mtn.samples import CHUNK, Data, Samples

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("x_val", "y_val", "names")

DAMAGE = (ValueError, OSError, EOFError, SyntaxError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
"""What NumPy and zipfile raise on files with a flipped bit."""


def load(path: Path) -> Data:
    arrays = read(path, REQUIRED + OPTIONAL)
    _complete(arrays, path)
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise InputError(f"{path} has one of x_val and y_val without the other")
    splits = [split for split in ("train", "val", "test") if f"x_{split}" in arrays]
    for split in splits:
        _check(arrays[f"x_{split}"], arrays[f"y_{split}"], split, arrays["x_train"], path)
    names, numbered = _classes({name: text(array, name, path) for name, array in arrays.items()}, splits, path)
    samples, first_id = {}, 0
    for split in splits:
        x = arrays[f"x_{split}"]
        ids = torch.arange(first_id, first_id + len(x))
        samples[split] = Samples(x, np.arange(len(x)), torch.from_numpy(numbered[split]), ids)
        first_id += len(x)
    return Data(samples["train"], samples.get("val"), samples["test"], names)


def read(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file or a folder of .npy files has."""
    return _read_folder(path, names) if path.is_dir() else _read_npz(path, names)


def unpack(npz: Path, folder: Path) -> None:
    """The arrays of an .npz as .npy files, streamed: neither memory nor NumPy is needed for their size."""
    if folder.exists():
        raise InputError(f"{folder} exists already")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    with _open_zip(npz) as archive:
        _complete([name.removesuffix(".npy") for name in archive.namelist()], npz)
        temporary.mkdir(parents=True)
        try:
            for name in REQUIRED + OPTIONAL:
                if f"{name}.npy" in archive.namelist():
                    with archive.open(f"{name}.npy") as source, (temporary / f"{name}.npy").open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 22)
            temporary.rename(folder)
        except DAMAGE as error:
            raise InputError(f"{npz} cannot be unpacked: {error}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _complete(names: Iterable[str], path: Path) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; an .npz or a folder of .npy needs {', '.join(REQUIRED)}")


def _read_folder(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    files = {name: path / f"{name}.npy" for name in names}
    present = {name: file for name, file in files.items() if file.is_file()}

    def mapped(name: str) -> np.ndarray:
        return np.load(present[name], mmap_mode="r" if name.startswith("x") else None, allow_pickle=False)

    return {name: _array(mapped, name, str(file)) for name, file in present.items()}


def read_npy(path: Path) -> np.ndarray:
    """One array, memory-mapped."""
    return _array(lambda name: np.load(name, mmap_mode="r", allow_pickle=False), str(path), str(path))


def _read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    with _open_zip(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    half_of_ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if size > half_of_ram:
        raise InputError(
            f"{path} holds {size / 1e9:.1f} GB, more than half of this machine's memory; "
            f"make it a folder, which is memory-mapped: mtn convert {path} {path.with_suffix('')}"
        )
    with _opened(path) as file:
        present = [name for name in names if name in file.files]
        return {name: _array(file.__getitem__, name, f"{path}: {name}") for name in present}


def _opened(path: Path) -> np.lib.npyio.NpzFile:
    try:
        file: np.lib.npyio.NpzFile = np.load(path, allow_pickle=False)
    except DAMAGE as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return file


def _array(read: Callable[[str], np.ndarray], name: str, where: str) -> np.ndarray:
    try:
        array = read(name)
    except DAMAGE as error:
        raise InputError(f"{where} cannot be read: {_why(error)}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{where} is not an array")
    return array


def text(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Bytes as the text they are."""
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {name} is not UTF-8 text: {error}") from None


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is not an .npz file: {error}") from None


def _why(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it holds Python objects; save labels and names as plain arrays, e.g. np.asarray(labels, dtype=str)"
    return str(error)


def _check(x: np.ndarray, y: np.ndarray, split: str, train: np.ndarray, path: Path) -> None:
    check_matrix(x, f"x_{split}", path)
    check_labels(y, len(x), f"x_{split}", f"y_{split}", path)
    if x.shape[1] != train.shape[1]:
        raise InputError(f"{path}: x_{split} must be as wide as x_train ({train.shape[1]}), got {x.shape[1]}")
    check_finite(x, f"x_{split}", path)


def check_matrix(x: np.ndarray, name: str, path: Path) -> None:
    if x.ndim != 2 or x.dtype.kind not in "fiu" or 0 in x.shape:
        raise InputError(f"{path}: {name} must be a matrix of numbers, got shape {x.shape} of {x.dtype}")


def check_labels(y: np.ndarray, count: int, name_x: str, name_y: str, path: Path) -> None:
    if y.ndim != 1 or y.dtype.kind not in "iuUS":
        raise InputError(f"{path}: {name_y} must be a list of integers or strings, got shape {y.shape} of {y.dtype}")
    if count != len(y):
        raise InputError(f"{path}: {name_x} and {name_y} must be equally long, got {count} and {len(y)}")


def check_finite(x: np.ndarray, name: str, path: Path) -> None:
    for start in range(0, len(x), 16 * CHUNK):
        bad = ~np.isfinite(x[start : start + 16 * CHUNK]).all(axis=1)
        if bad.any():
            raise InputError(f"{path}: {name} has a NaN or infinite value in row {start + int(bad.argmax())}")


def _classes(
    arrays: Mapping[str, np.ndarray], splits: list[str], path: Path
) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of the classes that have training samples, and each split's labels as places in that list."""
    known = np.unique(arrays["y_train"])
    numbered = {}
    for split in splits:
        y = arrays[f"y_{split}"]
        place = np.searchsorted(known, y).clip(max=len(known) - 1)
        strange = known[place] != y
        if strange.any():
            label = y[strange][0]
            raise InputError(f"{path}: y_{split} has the label {label!s}, of which x_train has no sample")
        numbered[split] = place.astype(np.int64)
    if "names" not in arrays:
        return [str(label) for label in known.tolist()], numbered
    names = arrays["names"]
    if known.dtype.kind not in "iu" or names.ndim != 1 or known.min() < 0 or known.max() >= len(names):
        raise InputError(f"{path}: with names, labels must be integers from 0 to {names.size - 1} (the last name)")
    listed = [str(names[label]) for label in known]
    if len(set(listed)) < len(listed):
        raise InputError(f"{path}: names must differ from each other")
    return listed, numbered

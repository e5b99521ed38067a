"""Vectors in an .npz file, or in a folder of .npy files of the same names, which are memory-mapped.

Arrays: x_train, y_train, x_test, y_test; optional x_val, y_val, and names (then y counts into names).
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mtn.data import array_files
from mtn.data.class_names import check_class_names
from mtn.errors import InputError
from mtn.samples import CHUNK, Data, Samples

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("x_val", "y_val", "names")


def load_arrays(path: Path) -> Data:
    """All splits of a data set, checked."""
    arrays = read_arrays(path, REQUIRED + OPTIONAL)
    _check_complete(arrays, path)
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise InputError(f"{path} has one of x_val and y_val without the other")
    splits = [split for split in ("train", "val", "test") if f"x_{split}" in arrays]
    for split in splits:
        _check_split(arrays[f"x_{split}"], arrays[f"y_{split}"], split, arrays["x_train"], path)
    names, labels = _number_classes(
        {name: decode_text(array, name, path) for name, array in arrays.items()}, splits, path
    )
    check_class_names(names, path)
    samples, first_id = {}, 0
    for split in splits:
        x = arrays[f"x_{split}"]
        ids = torch.arange(first_id, first_id + len(x))
        samples[split] = Samples(x, np.arange(len(x)), torch.from_numpy(labels[split]), ids)
        first_id += len(x)
    return Data(samples["train"], samples.get("val"), samples["test"], names)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file or a folder of .npy files has."""
    if not path.is_dir():
        return array_files.read_npz(path, names)
    paths = {name: path / f"{name}.npy" for name in names}
    present = {name: file for name, file in paths.items() if file.is_file()}
    return {name: array_files.read_npy(file, mapped=name.startswith("x")) for name, file in present.items()}


def unpack(npz: Path, folder: Path) -> None:
    """Write the arrays of an .npz as .npy files, copying in blocks: they need not fit into memory."""
    if folder.exists():
        raise InputError(f"{folder} exists already")
    _check_complete(array_files.npz_names(npz), npz)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        array_files.unpack_npz(npz, temporary, REQUIRED + OPTIONAL)
        temporary.rename(folder)
    except InputError:
        raise
    except array_files.DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise InputError(f"{folder} cannot be written: {error.strerror}") from None
        raise InputError(f"{npz} cannot be unpacked: {array_files.reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_complete(names: Iterable[str], path: Path) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; an .npz or a folder of .npy needs {', '.join(REQUIRED)}")


def decode_text(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """An array of bytes as text; others as they are."""
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {name} is not UTF-8 text: {error}") from None


def _check_split(x: np.ndarray, y: np.ndarray, split: str, train: np.ndarray, path: Path) -> None:
    check_matrix(x, f"x_{split}", path)
    check_labels(y, len(x), f"x_{split}", f"y_{split}", path)
    if x.shape[1] != train.shape[1]:
        raise InputError(f"{path}: x_{split} must be as wide as x_train ({train.shape[1]}), got {x.shape[1]}")
    check_finite(x, f"x_{split}", path)


def check_matrix(x: np.ndarray, name: str, path: Path) -> None:
    """Raise unless x is N,D numbers, and not empty."""
    if x.ndim != 2 or x.dtype.kind not in "fiu" or 0 in x.shape:
        raise InputError(f"{path}: {name} must be a matrix of numbers, got shape {x.shape} of {x.dtype}")


def check_labels(y: np.ndarray, count: int, name_x: str, name_y: str, path: Path) -> None:
    """Raise unless y is a list of `count` integers or strings."""
    if y.ndim != 1 or y.dtype.kind not in "iuUS":
        raise InputError(f"{path}: {name_y} must be a list of integers or strings, got shape {y.shape} of {y.dtype}")
    if count != len(y):
        raise InputError(f"{path}: {name_x} and {name_y} must be equally long, got {count} and {len(y)}")


def check_finite(x: np.ndarray, name: str, path: Path) -> None:
    """Raise if a row of x (N,D) has a NaN or an infinite value."""
    for start in range(0, len(x), 16 * CHUNK):
        bad = ~np.isfinite(x[start : start + 16 * CHUNK]).all(axis=1)
        if bad.any():
            raise InputError(f"{path}: {name} has a NaN or infinite value in row {start + int(bad.argmax())}")


def label_names(y: np.ndarray, names: np.ndarray, path: Path) -> np.ndarray:
    """The name of each label, where labels y are indices into `names`."""
    if y.dtype.kind not in "iu" or names.ndim != 1 or y.min() < 0 or y.max() >= len(names):
        raise InputError(f"{path}: with names, labels must be integers from 0 to {names.size - 1} (the last name)")
    used: list[str] = names[np.unique(y)].astype(str).tolist()
    if len(set(used)) < len(used):
        raise InputError(f"{path}: names must differ from each other")
    return np.asarray(names.astype(str)[y])


def _number_classes(
    arrays: Mapping[str, np.ndarray], splits: list[str], path: Path
) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of the classes that have training samples, and each split's labels as indices into that list."""
    classes = np.unique(arrays["y_train"])
    indices = {}
    for split in splits:
        y = arrays[f"y_{split}"]
        index = np.searchsorted(classes, y).clip(max=len(classes) - 1)
        unknown = classes[index] != y
        if unknown.any():
            label = y[unknown][0]
            raise InputError(f"{path}: y_{split} has the label {label!s}, of which x_train has no sample")
        indices[split] = index.astype(np.int64)
    if "names" not in arrays:
        return [str(label) for label in classes.tolist()], indices
    names: list[str] = label_names(classes, arrays["names"], path).tolist()
    return names, indices

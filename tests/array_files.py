"""Arrays of a small data set, in the two forms in which they are read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtn.data import arrays
from mtn.errors import InputError
from mtn.samples import Data

RNG = np.random.default_rng(0)


GOOD = {
    "x_train": RNG.normal(size=(6, 4)).astype(np.float32),
    "y_train": np.array([2, 0, 1, 0, 1, 2]),
    "x_val": RNG.normal(size=(3, 4)).astype(np.float32),
    "y_val": np.array([1, 1, 0]),
    "x_test": RNG.normal(size=(4, 4)).astype(np.float32),
    "y_test": np.array([0, 2, 2, 1]),
}


def as_npz(parent: Path, content: dict) -> Path:
    """An .npz of the arrays."""
    np.savez(parent / "data.npz", **content)
    return parent / "data.npz"


def as_folder(parent: Path, content: dict) -> Path:
    """A folder with an .npy file per array."""
    folder = parent / "data"
    folder.mkdir(exist_ok=True)
    for name, array in content.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def splits(data: Data) -> list:
    """The splits that a data set has."""
    return [split for split in (data.train, data.validation, data.test) if split is not None]


def same(one: Data, other: Data) -> None:
    """Assert that two data sets have the same names, vectors, labels and ids."""
    assert one.names == other.names
    assert len(splits(one)) == len(splits(other))
    for a, b in zip(splits(one), splits(other), strict=True):
        assert torch.equal(a.x(), b.x()) and torch.equal(a.y, b.y) and torch.equal(a.id, b.id)


def refused(path: Path, *words: str) -> str:
    """The error on loading a path: one line that names the path and the words."""
    with pytest.raises(InputError) as caught:
        arrays.load_arrays(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in (str(path), *words):
        assert word in text
    return text

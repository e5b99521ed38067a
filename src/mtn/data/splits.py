"""Train, validation and test: what people call them, what is held out where there is no test split, rows -> `Data`."""

from pathlib import Path

import numpy as np
import torch

from mtn.data.class_names import check_class_names
from mtn.errors import InputError
from mtn.samples import Data, Matrix, Samples, every_nth

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""A split's name in lower case, as data sets have it -> its name here."""


def split_name(text: str) -> str:
    """The name of a split as it is called here; other names are kept as they are."""
    return SPLITS.get(text.lower(), text)


def data_from_splits(x: Matrix, labels: np.ndarray, splits: np.ndarray, path: Path) -> Data:
    """Rows of one matrix (N,D) with a label and a split each. Rows of other splits than those of `Data` are left out.

    Without a test split, every fifth training sample of each class is held out for it.
    """
    if not (splits == "test").any():
        splits = _hold_out_fifths(labels, splits)
    classes, samples = np.unique(labels[splits == "train"]), {}
    for split in ("train", "val", "test"):
        rows = np.flatnonzero(splits == split)
        unknown = rows[~np.isin(labels[rows], classes)]
        if len(unknown):
            label = labels[unknown[0]]
            raise InputError(f"{path}: the split {split!r} has the label {label!s}, of which 'train' has no sample")
        y = torch.from_numpy(np.searchsorted(classes, labels[rows]).astype(np.int64))
        samples[split] = Samples(x, rows, y, torch.from_numpy(rows))
    names = [str(label) for label in classes.tolist()]
    check_class_names(names, path)
    return Data(samples["train"], samples["val"] if len(samples["val"]) else None, samples["test"], names)


def _hold_out_fifths(labels: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """The 2nd, 7th, 12th, ... training sample of each class becomes a test sample: a class with one sample keeps it."""
    train = np.flatnonzero(splits == "train")
    _, y = np.unique(labels[train], return_inverse=True)
    held_out = every_nth(torch.from_numpy(y.astype(np.int64)), 5, first=1).numpy()
    splits = splits.copy()
    splits[train[held_out]] = "test"
    return splits

"""Small real data that every test can use, and one thread, so that tests measure nothing but what they say."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtn.config import Config, parse

torch.set_num_threads(1)

CLASSES, DIMENSION = 12, 16


def cluster_arrays(
    train: int = 30, test: int = 10, noise: float = 0.8, classes: int = CLASSES
) -> dict[str, np.ndarray]:
    """A direction a class with noise around it: easy, but not trivial."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((classes, DIMENSION))
    arrays = {}
    for split, count in (("train", train), ("val", test), ("test", test)):
        y = np.repeat(np.arange(classes), count)
        x = centres[y] + noise * rng.standard_normal((len(y), DIMENSION))
        arrays |= {f"x_{split}": x.astype(np.float32), f"y_{split}": y}
    return arrays


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 12 classes."""
    path = tmp_path_factory.mktemp("data") / "clusters.npz"
    np.savez(path, **cluster_arrays())
    return path


@pytest.fixture(scope="session")
def configure(clusters: Path) -> Callable[..., Config]:
    """A small configuration on the clusters, 6 + 3 x 2 classes, with sections changed as given."""

    def make(**sections: Any) -> Config:
        values: dict[str, Any] = {
            "stream": {"data": str(clusters), "first": 6, "step": 2},
            "memory": {"total": 60},
            "method": {"k": 5, "size": "small"},
            "train": {"epochs": 3, "batch": 32, "replay": 8},
        }
        for name, change in sections.items():
            values[name] = values[name] | change if isinstance(change, dict) else change
        return parse(values, "test")

    return make

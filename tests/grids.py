"""A small grid of the paper's tables and figures, and what its files hold."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cluster_data import cluster_arrays
from mtn.experiments.paper import grid
from mtn.experiments.paper import reproduce as reproduction
from mtn.experiments.paper.targets import TARGETS
from mtn.recipes import with_changes

CLASSES = 20
QUICK, SIZE_METHODS = ("slda", "joint"), {"MTN": "mtn", "SS-IL": "ssil"}
"""Methods of the grid that do not take long."""
FILES = {"table.md", "table.csv", "data.csv", "figure.png", "figure.svg"}


def write_twenty_classes(folder: Path) -> Path:
    """A folder of 20 classes with long names, and an image beside each vector."""
    folder.mkdir()
    arrays = cluster_arrays(classes=CLASSES, noise=1.1)
    for split in ("train", "val", "test"):
        y = arrays[f"y_{split}"]
        arrays[f"images_{split}"] = np.broadcast_to((y * 12).astype(np.uint8)[:, None, None], (len(y), 8, 8)).copy()
    arrays["names"] = np.array([f"a class of many words {label}" for label in range(CLASSES)])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def brief(data: Path, seeds: tuple[int, ...] = (0,)) -> grid.GridSetup:
    """A grid of few steps; the small transformer everywhere but where its size is varied."""
    found = grid.grid_setup(str(data), seeds, fast=True)
    quick = with_changes(found.config, train={"epochs": 0.2, "min_steps": 3}, memory={"total": 100}, device="cpu")
    return dataclasses.replace(found, config=quick)


def make(setting: grid.GridSetup, targets: list[str], out: Path, **options: object) -> list[str]:
    """Lines about cells that were run."""
    told: list[str] = []
    report_on = reproduction.ReportOptions(out, lambda target: f"mtn reproduce {target} --data <x>")
    reproduction.reproduce(setting, targets, report_on, jobs=1, on_line=told.append, **options)  # type: ignore[arg-type]
    return told


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write_whole_report(data: Path, out: Path) -> Path:
    """Every target, without the methods that take longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "QUICK", QUICK)
        patch.setattr(grid, "SIZE_METHODS", SIZE_METHODS)
        make(dataclasses.replace(brief(data), steps=(2, 5)), list(TARGETS), out, limit=1e6)
    return out

"""Images of stripes, and learners on them: small enough to learn features in seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mtn.config import Config
from mtn.data import load_data
from mtn.methods.learned import Learned
from mtn.recipes import parse
from mtn.stream import Task, split
from mtn.training import Learner

CLASSES, TRAIN, TEST, SIDE = 8, 12, 5, 16


def move_backbone(method: Learned) -> None:
    """Add noise to the first layer, so that features change."""
    weight = method.backbone.conv1.weight
    with torch.no_grad():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))


def stripes(label: int, rng: np.random.Generator) -> np.ndarray:
    """A class is the angle and the colour of stripes; where they begin is chance."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    angle = np.pi * (label // 2) / 4
    wave = np.sin(0.9 * (rows * np.cos(angle) + columns * np.sin(angle)) + rng.uniform(0, 2 * np.pi))
    colour = np.array([1.0, 0.4, 0.1]) if label % 2 else np.array([0.1, 0.4, 1.0])
    noise = rng.normal(0, 12, (SIDE, SIDE, 3))
    return (110 + 90 * wave[:, :, None] * colour + noise).clip(0, 255).astype(np.uint8)


def write_stripes(root: Path) -> Path:
    """A folder of images, CLASSES x TRAIN and CLASSES x TEST."""
    rng = np.random.default_rng(0)
    for split_name, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            (root / split_name / f"c{label}").mkdir(parents=True)
            for number in range(count):
                Image.fromarray(stripes(label, rng)).save(root / split_name / f"c{label}" / f"{number}.png")
    return root


def striped_configuration(folder: Path, name: str, **sections: Any) -> Config:
    """4 + 2 x 2 classes, a network of a few thousand weights."""
    values: dict[str, Any] = {
        "stream": {"data": str(folder), "first": 4, "step": 2},
        "images": {"side": SIDE, "network": "resnet10", "stem": "large", "width": 8, "crop": 0.6, "flip": False},
        "memory": {"total": 32},
        "method": {"name": name, "k": 3, "size": "small"},
        "train": {"epochs": 10, "batch": 16, "replay": 8},
    }
    for key, change in sections.items():
        values[key] = values[key] | change
    return parse(values, "test")


def learner(config: Config) -> tuple[Learner, list[Task]]:
    tasks = split(load_data(config), config.stream)
    return Learner(config, *tasks[0].train.shape), tasks

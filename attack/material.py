"""Small data and models that are attacked. They learn in no time."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mtn import MTNClassifier

CLASSES, DIMENSION, EACH = 8, 8, 12
QUICK = {"method.size": "small", "train.epochs": 1}
RECIPE = """
[stream]
data = {data}
first = 4
step = 2

[memory]
total = 24

[method]
name = "{method}"
k = 3
size = "small"

[train]
epochs = 2
batch = 16
replay = 4
"""


def _clusters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((CLASSES, DIMENSION))
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", EACH), ("test", 5)):
        y = np.repeat(np.arange(CLASSES), count)
        x = centres[y] + 0.5 * rng.standard_normal((len(y), DIMENSION))
        arrays |= {f"x_{split}": x.astype(np.float32), f"y_{split}": y}
    return arrays


ARRAYS = _clusters()
X, TEST = ARRAYS["x_train"], ARRAYS["x_test"]
LABELS = np.array([f"class {label}" for label in ARRAYS["y_train"]])
KNOWN = 4 * EACH
"""Rows of the classes that a model is taught first."""
SENTENCES = [
    ["turn the lamp on", "light"],
    ["switch on the light please", "light"],
    ["make it brighter", "light"],
    ["what is my balance", "money"],
    ["how much money do I have", "money"],
    ["show me my account", "money"],
    ["play some jazz", "music"],
    ["put on a song", "music"],
    ["I want to hear music", "music"],
]


def write_arrays(path: Path) -> Path:
    """A data set as an .npz file."""
    np.savez(path, **ARRAYS)  # type: ignore[arg-type]  # NumPy's stubs take the names for those of its own options
    return path


def write_recipe(path: Path, data: Path, method: str = "mtn") -> Path:
    """A run of a few steps."""
    path.write_text(RECIPE.format(data=json.dumps(str(data)), method=method))
    return path


def write_model(folder: Path, method: str = "mtn", steps: int = 1, memory: int = 200) -> Path:
    """A model of vectors that knows four classes."""
    settings: dict[str, Any] = QUICK | {"train.min_steps": steps}
    MTNClassifier(method, memory=memory, k=3, settings=settings).fit(X[:KNOWN], LABELS[:KNOWN]).save(folder)
    return folder


def write_text_model(folder: Path) -> Path:
    """A model of sentences."""
    texts, labels = zip(*SENTENCES, strict=True)
    settings: dict[str, Any] = QUICK | {"train.min_steps": 1}
    MTNClassifier("mtn", memory=50, k=3, settings=settings, encoder="hashing").fit(list(texts), list(labels)).save(
        folder
    )
    return folder


def write_image_model(folder: Path) -> Path:
    """A model of images."""
    drawings = [drawing(shape, seed) for shape in ("box", "line") for seed in range(4)]
    settings: dict[str, Any] = QUICK | {"train.min_steps": 1}
    classifier = MTNClassifier("mtn", memory=50, k=3, settings=settings, encoder="glyph")
    classifier.fit(drawings, ["box"] * 4 + ["line"] * 4).save(folder)
    return folder


def write_sentences(path: Path, copies: int = 1) -> Path:
    """Sentences in a JSON file, with a split for training and one for tests."""
    train = [[f"{text} {copy}".removesuffix(" 0"), label] for copy in range(copies) for text, label in SENTENCES]
    path.write_text(json.dumps({"train": train, "test": SENTENCES[::3]}))
    return path


def write_table(path: Path) -> Path:
    """Vectors in a CSV or a Parquet file."""
    columns: dict[str, list[Any]] = {f"f{column}": X[:KNOWN, column].tolist() for column in range(DIMENSION)}
    columns["label"] = LABELS[:KNOWN].tolist()
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def drawing(shape: str, seed: int) -> Image.Image:
    """A box or a line in noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 50, (24, 24), dtype=np.uint8)
    top, left = rng.integers(2, 6, 2)
    pixels[top : top + 14, left : left + (14 if shape == "box" else 3)] = 230
    return Image.fromarray(pixels)


def picture(kind: str, seed: int = 0) -> bytes:
    """A drawing as a file of a format of Pillow's."""
    file = io.BytesIO()
    drawing("box", seed).convert("RGB").save(file, kind)
    return file.getvalue()


def write_image_zip(path: Path) -> Path:
    """Images in a zip, a folder a class."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for shape in ("box", "line"):
            for seed in range(3):
                file = io.BytesIO()
                drawing(shape, seed).save(file, "PNG")
                archive.writestr(f"{shape}/{seed}.png", file.getvalue())
    return path

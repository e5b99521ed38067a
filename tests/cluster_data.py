"""Vectors of twelve classes, small enough to learn in a second."""

import numpy as np

CLASSES, DIMENSION = 12, 16


def cluster_arrays(
    train: int = 30, test: int = 10, noise: float = 0.8, classes: int = CLASSES
) -> dict[str, np.ndarray]:
    """One random direction per class with Gaussian noise around it: easy, but not trivial."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((classes, DIMENSION))
    arrays = {}
    for split, count in (("train", train), ("val", test), ("test", test)):
        y = np.repeat(np.arange(classes), count)
        x = centres[y] + noise * rng.standard_normal((len(y), DIMENSION))
        arrays |= {f"x_{split}": x.astype(np.float32), f"y_{split}": y}
    return arrays


ARRAYS = cluster_arrays()
TRAIN, LABELS = ARRAYS["x_train"], np.array([f"class {label:02}" for label in ARRAYS["y_train"]])
TEST, TRUE = ARRAYS["x_test"], np.array([f"class {label:02}" for label in ARRAYS["y_test"]])

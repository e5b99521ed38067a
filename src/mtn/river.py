"""MTNClassifier as an estimator of river, which learns and answers one sample at a time."""

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from mtn.classifier import MTNClassifier
from mtn.errors import InputError, install_line

try:
    from river import base
    from river.base.typing import ClfTarget
except ImportError:
    raise InputError(f"mtn.river needs river: {install_line('river')}") from None


class RiverClassifier(base.Classifier):
    """A river classifier that keeps learning new classes.

    Samples wait until there are `batch` of them, and are then learned together: a lesson takes longer than a sample is
    worth. Until then their labels are known, with probability 0, and answers are those of the samples before.

    A sample is a dict of numbers. The names in the first batch are the features; a missing one is 0, others are
    ignored. Neighbours are found by cosine: put river's StandardScaler before it.

    Parameters
    ----------
    method : str
        Name of a method (docs/methods).
    memory : int
        Exemplars remembered over all classes.
    batch : int
        Samples learned at once.
    seed : int or None
    """

    def __init__(self, method: str = "practical", memory: int = 20000, batch: int = 100, seed: int | None = 0) -> None:
        self.method = method
        self.memory = memory
        self.batch = batch
        self.seed = seed
        self.classifier = MTNClassifier(method, memory=memory, random_state=seed)
        """What has been learned; its labels count in the order in which river's came."""
        self._labels: dict[ClfTarget, int] = {}
        self._features: list[Hashable] = []
        self._waiting: list[tuple[dict[Hashable, Any], int]] = []

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """For river's own checks: a method that learns in no time."""
        yield {"method": "knn", "memory": 100, "batch": 50}

    def learn_one(self, x: dict[Hashable, Any], y: ClfTarget, **_: Any) -> None:
        """Take a labelled sample; the last of a batch teaches all of it."""
        self._waiting.append((dict(x), self._labels.setdefault(y, len(self._labels))))
        if len(self._waiting) < self.batch:
            return
        if not self._features:
            self._features = sorted({name for sample, _ in self._waiting for name in sample}, key=str)
        rows = np.stack([self._row(sample) for sample, _ in self._waiting])
        self.classifier.partial_fit(rows, [label for _, label in self._waiting])
        self._waiting = []

    def predict_proba_one(self, x: dict[Hashable, Any], **_: Any) -> dict[ClfTarget, float]:
        """The probability of each label so far; empty before the first sample."""
        if not self._features:
            return dict.fromkeys(self._labels, 1 / max(1, len(self._labels)))
        (shares,) = self.classifier.predict_proba(self._row(x)[None])
        known = dict(zip(self.classifier.classes_.tolist(), shares.tolist(), strict=True))
        return {label: known.get(number, 0.0) for label, number in self._labels.items()}

    def _row(self, x: dict[Hashable, Any]) -> np.ndarray:
        """D numbers in the order of the features."""
        return np.array([float(x.get(name, 0.0)) for name in self._features], np.float32)

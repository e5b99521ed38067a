"""Metrics of class-incremental learning, in per cent (docs/reference/metrics.md names who defines them otherwise).

R[i][j]: accuracy on the classes of task j after task i, over all classes seen by then.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def summarise(correct: list[np.ndarray], total: np.ndarray, sizes: list[int]) -> dict[str, Any]:
    """Every metric of a run.

    correct[i]: for each class seen after task i, the test samples classified correctly; total: test samples of each
    class; sizes: classes of each task.
    """
    stops = np.cumsum(sizes)
    spans = [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
    matrix = [[_percent(row[span], total[span]) for span in spans[: i + 1]] for i, row in enumerate(correct)]
    accuracy = [_percent(row, total[: len(row)]) for row in correct]
    old = [_percent(row[: stops[i - 1]], total[: stops[i - 1]]) if i else None for i, row in enumerate(correct)]
    return {
        "classes_per_task": list(sizes),
        "accuracy": accuracy,
        "average_incremental_accuracy": _mean(accuracy),
        "average_without_base": _mean(accuracy[1:]),
        "last_accuracy": accuracy[-1],
        "matrix": [row + [None] * (len(sizes) - len(row)) for row in matrix],
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "newest_accuracy": [row[-1] for row in matrix],
        "old_accuracy": old,
        "balanced_accuracy": balanced(correct[-1], total),
    }


def forgetting(matrix: list[list[float | None]]) -> float | None:
    """mean over j < T of (max over j <= l < T of R[l][j]) - R[T][j] (Chaudhry et al. 2018); below 0 if tasks gain."""
    last = len(matrix) - 1
    best = [max(_known(matrix[i][j] for i in range(j, last)), default=None) for j in range(last)]
    return _mean([_minus(best[j], matrix[last][j]) for j in range(last)])


def backward_transfer(matrix: list[list[float | None]]) -> float | None:
    """mean over j < T of R[T][j] - R[j][j] (Lopez-Paz & Ranzato 2017)."""
    last = len(matrix) - 1
    return _mean([_minus(matrix[last][j], matrix[j][j]) for j in range(last)])


def balanced(correct: np.ndarray, total: np.ndarray) -> float | None:
    """Mean over classes of their accuracy after the last task, whatever their numbers of test samples."""
    tested = total[: len(correct)] > 0
    return _mean((100 * correct[tested] / total[: len(correct)][tested]).tolist())


def average_balanced_accuracy(correct: list[np.ndarray], total: np.ndarray, sizes: list[int]) -> float | None:
    """Mean over tasks of the mean over classes of their accuracy: rare classes count as much as frequent ones."""
    return _mean([balanced(row, total) for row in correct])


def harmonic_accuracy(correct: list[np.ndarray], total: np.ndarray, sizes: list[int]) -> float | None:
    """2 a b / (a + b) after the last task: a on the classes of the first task, b on all later ones (few-shot)."""
    base, later = (_percent(correct[-1][part], total[part]) for part in (slice(sizes[0]), slice(sizes[0], None)))
    if base is None or later is None:
        return None
    return 2 * base * later / (base + later) if base + later else 0.0


EXTRA: dict[str, Callable[[list[np.ndarray], np.ndarray, list[int]], float | None]] = {
    "average_balanced_accuracy": average_balanced_accuracy,
    "harmonic_accuracy": harmonic_accuracy,
}
"""Metrics that some kinds of streams ask for (`Protocol.metrics`); arguments as those of `summarise`."""


CALIBRATION_BINS = 15
"""Of confidence, each with as many answers as another; fewer where there are fewer than two answers for each."""
CHANCE = 1.645
"""Standard deviations that a normal variable exceeds in one case of twenty."""


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Root mean square calibration error, debiased (Kumar et al. 2019), 0 to 1; N answers, N whether each is right.

    Of the answers of a bin, n of N, let a be the share that is right and c the mean confidence. The mean of (a - c)^2
    over the answers is too large by the variance of a; a (1 - a) / (n - 1), which estimates it, is taken off each.
    So the expected square is 0 where confidence has no fault, however few answers there are. A square below 0 is 0.
    """
    counts, (a, c, _) = _bin_means(confidence, right)
    squared = (counts * ((a - c) ** 2 - a * (1 - a) / (counts - 1))).sum() / len(confidence)
    return float(np.sqrt(max(squared, 0.0)))


def calibration_chance(confidence: np.ndarray) -> float:
    """The calibration error that confidence (N) without fault exceeds in one case of twenty, because answers are few.

    The squared error then has the mean 0 and the variance 2 sum_k (n_k v_k / N)^2, v_k = mean of c (1 - c) / n_k.
    """
    _, (_, _, spread) = _bin_means(confidence, confidence)
    return float(np.sqrt(CHANCE * np.sqrt(2 * (spread**2).sum()) / len(confidence)))


def _bin_means(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K counts and 3,K means of right, c and c (1 - c) over bins of equally many answers.

    Equal confidences are in one bin, so that the order of the answers does not matter. A bin of one is left out.
    """
    number = max(1, min(CALIBRATION_BINS, len(confidence) // 2))
    last = np.ceil(np.arange(1, number) * len(confidence) / number).astype(int) - 1
    index = np.searchsorted(np.sort(confidence)[last], confidence)
    counts = np.bincount(index, minlength=number)
    sums = np.stack([np.bincount(index, one, number) for one in (right, confidence, confidence * (1 - confidence))])
    return counts[counts > 1], sums[:, counts > 1] / counts[counts > 1]


def _percent(correct: np.ndarray, total: np.ndarray) -> float | None:
    return 100 * float(correct.sum()) / float(total.sum()) if total.sum() else None


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Any) -> float | None:
    values = _known(values)
    return float(np.mean(values)) if values else None

"""Differences between methods where they saw the same number of images: what `mtn reproduce size` is about."""

from collections.abc import Sequence

from mtn.experiments.paper.grid import PointResults
from mtn.experiments.report import COLUMNS, MeanStd, mean_std

DIFFERENCES = {
    "MTN - SS-IL": ("MTN", "SS-IL"),
    "practical - slda": ("practical", "slda"),
    "practical - SS-IL": ("practical", "SS-IL"),
}
"""Name of a difference -> the two methods."""


def differences(points: Sequence[PointResults], column: str = "average") -> dict[str, dict[str, dict[int, MeanStd]]]:
    """Difficulty -> difference -> images a class -> mean and deviation over the seeds that both methods were run with.

    What has not been run is left out.
    """
    runs = {(one.point.block, one.point.series, one.point.value): _by_seed(one, column) for one in points}
    found: dict[str, dict[str, dict[int, MeanStd]]] = {}
    for block in dict.fromkeys(one.point.block for one in points):
        for name, (first, second) in DIFFERENCES.items():
            for value in sorted({one.point.value for one in points}):
                ahead, behind = runs.get((block, first, value), {}), runs.get((block, second, value), {})
                paired = [ahead[seed] - behind[seed] for seed in ahead if seed in behind]
                if paired:
                    found.setdefault(block, {}).setdefault(name, {})[value] = mean_std([*paired], with_std=True)
    return found


def _by_seed(point: PointResults, column: str) -> dict[int, float]:
    values = {result["seed"]: COLUMNS[column](result) for result in point.results}
    return {seed: value for seed, value in values.items() if value is not None}

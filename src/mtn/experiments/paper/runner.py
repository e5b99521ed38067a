"""Runs of a grid, each in a folder of its own. One that is finished, in its folder or packed, is never repeated."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mtn.config import Config
from mtn.data import load_data
from mtn.errors import InputError
from mtn.experiments.compare import run_all
from mtn.experiments.paper.grid import GridPoint, GridSetup, PointResults
from mtn.experiments.paper.packing import FIRST_TASKS, PACKED, RUNS, read_packed
from mtn.experiments.paper.timing import RemainingTime, RuntimeEstimator, format_seconds
from mtn.experiments.run import read_result
from mtn.experiments.values import Result
from mtn.runtime.progress import Progress, silent


@dataclass
class GridRunner:
    """Does every run of a grid once, however many targets share it."""

    out: Path
    setup: GridSetup
    threads: int
    progress: Progress = silent
    todo: dict[Path, Config] = field(default_factory=dict)
    results: dict[Path, Result] = field(default_factory=dict)
    reasons: dict[Path, str] = field(default_factory=dict)  # why there is no result
    expected: dict[Path, float] = field(default_factory=dict)  # seconds

    def __post_init__(self) -> None:
        data = load_data(self.setup.config, self.progress)
        self.estimator = RuntimeEstimator(self.out / "times.json", data, self.threads)
        self.packed = read_packed(self.out)

    def folder(self, config: Config) -> Path:
        """The folder of a run."""
        return self.out / RUNS / f"{config.method.name.replace(':', '.')}-seed{config.seed}-{config.digest()}"

    def add(self, config: Config, limit: float) -> None:
        """Add a run, unless it is finished, or expected to take more than `limit` seconds."""
        folder = self.folder(config)
        if folder in self.results or folder in self.todo:
            return
        result = read_result(folder, config) or self._packed_result(folder, config)
        if result is not None:
            self.results[folder] = result
            return
        seconds = self.expected[folder] = self.estimator.seconds(config)
        if seconds <= limit:
            self.todo[folder] = config
            self.reasons.pop(folder, None)
        else:
            self.reasons[folder] = f"about {format_seconds(seconds)} a run"

    def _packed_result(self, folder: Path, config: Config) -> Result | None:
        result = self.packed.get(folder.name)
        if result is not None and result.get("config") != config.model_dump():
            raise InputError(f"{self.out / PACKED} is damaged: {folder.name} is of another configuration")
        return result

    def is_waiting(self, config: Config) -> bool:
        """Whether a run is still to be done."""
        return self.folder(config) in self.todo

    def run(self, jobs: int) -> Iterator[str]:
        """Do what is left; yield a line about each run when it is finished."""
        total = len(self.todo)
        expected = {folder: self.expected[folder] for folder in self.todo}
        remaining = RemainingTime(expected, jobs, time.monotonic())
        work = [(config, folder) for folder, config in self.todo.items()]
        self.progress("whole grid", 0, total)
        for folder, outcome in run_all(work, jobs, self.progress, self.out / FIRST_TASKS):
            del self.todo[folder]
            seconds = remaining.finish(folder, time.monotonic())
            if isinstance(outcome, InputError):
                self.reasons[folder] = text = str(outcome)
            else:
                self.results[folder] = outcome
                text = f"average {outcome['average_incremental_accuracy']:.1f} %"
            done = total - len(self.todo)
            self.progress("whole grid", done, total)
            left = f"; about {format_seconds(seconds)} left" if self.todo else ""
            yield f"{done} of {total} cells, {folder.name}: {text}{left}"

    def point_results(self, point: GridPoint) -> PointResults:
        """The results of a point's runs, and why there are not more."""
        folders = [self.folder(config) for config in point.runs]
        results = [self.results[folder] for folder in folders if folder in self.results]
        reasons = dict.fromkeys(self.reasons[folder] for folder in folders if folder in self.reasons)
        return PointResults(point, results, "; ".join(reasons))

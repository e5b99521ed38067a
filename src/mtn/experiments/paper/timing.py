"""How long runs take: estimated before they are started, corrected by what earlier ones took."""

import itertools
import time
from pathlib import Path

import torch

from mtn.batches import steps_and_size
from mtn.config import Config
from mtn.methods import Batch, make
from mtn.methods.mtn import TransformerOptions
from mtn.neighbours import Neighbours
from mtn.samples import Data
from mtn.storage import files
from mtn.stream import Task, split
from mtn.training import make_optimiser, minimise

TOKENS = 500
"""Tokens of a step that is timed: enough to outweigh its overhead, few enough for the largest transformer."""
WITHOUT_TRANSFORMER, LEARNED_FEATURES = 5.0, 180.0
"""Seconds assumed for a run of a method without a transformer, and for one that learns features."""


class RuntimeEstimator:
    """Estimates the seconds of a run: samples trained on and tested, times what one takes in a training step.

    Steps that were timed are kept in a file.
    """

    def __init__(self, path: Path, data: Data, threads: int) -> None:
        self.path, self.data, self.threads = path, data, threads
        self.sample_seconds: dict[str, float] = files.read_json(path) if path.exists() else {}
        self.streams: dict[str, list[Task]] = {}

    def seconds(self, config: Config) -> float:
        """Seconds of a run; testing a sample counts as a third of training on it, as it has no backward pass."""
        if config.images.side is not None:
            return LEARNED_FEATURES
        if config.method.name != "mtn":
            return WITHOUT_TRANSFORMER
        tasks, train = self._tasks(config), config.train
        trained = tested = 0.0
        for task in tasks:
            steps, size = steps_and_size(task.train, task, train)
            trained += steps * (size + (train.replay if task.index else 0))
            tested += sum(len(seen.test) for seen in tasks[: task.index + 1])
        return (trained + tested / 3) * self._seconds_a_sample(config, tasks[0])

    def _tasks(self, config: Config) -> list[Task]:
        key = config.stream.model_dump_json()
        if key not in self.streams:
            self.streams[key] = split(self.data, config.stream)
        return self.streams[key]

    def _seconds_a_sample(self, config: Config, base: Task) -> float:
        options = config.method
        assert isinstance(options, TransformerOptions)  # it is asked of mtn alone
        key = f"{options.size}, k = {options.k}"
        if key not in self.sample_seconds:
            self.sample_seconds[key] = time_training_step(config, base, self.threads)
            files.write_json(self.path, self.sample_seconds)
        return self.sample_seconds[key]


def time_training_step(config: Config, base: Task, threads: int) -> float:
    """Seconds a sample of the faster of two steps on random numbers, after a first one that warms up.

    Measured in processor time: which runs are left out should not depend on what else the machine does.
    """
    k, width = config.method.k, base.train.dimension
    count, threads_before = max(1, TOKENS // (k + 1)), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        method = make(width, config)
        method.begin_task(base)
        method.begin_stage()
        ones = torch.ones(count, k)
        neighbours = Neighbours(torch.randn(count, k, width), ones.long() * 0, ones, ones.bool(), full=True)
        prior = torch.full((base.seen,), 1 / base.seen)
        batch = Batch(torch.randn(count, width), torch.arange(count) % base.seen, count, neighbours, None, prior)
        torch.set_num_threads(threads)
        optimiser, times = make_optimiser(method, config.train), []
        for _ in minimise(lambda step: method.loss(batch, base), optimiser, config.train, 3):
            times.append(time.process_time() / threads)
        torch.set_num_threads(threads_before)
    return min(times[1] - times[0], times[2] - times[1]) / count


class RemainingTime:
    """Estimates the time left from what finished runs took and were expected to take. Runs start in their order."""

    def __init__(self, expected: dict[Path, float], jobs: int, now: float) -> None:
        self.expected, self.jobs, self.waiting = expected, jobs, iter(list(expected))
        self.started = dict.fromkeys(itertools.islice(self.waiting, jobs), now)
        self.taken = self.taken_expected = 0.0

    def finish(self, folder: Path, now: float) -> float:
        """Note that a run is finished; return the seconds until the last one is.

        These are the seconds left of all runs over the number of processes, but no less than the longest run needs.
        """
        self.taken += now - self.started.pop(folder, now)
        self.taken_expected += self.expected.pop(folder)
        self.started |= dict.fromkeys(itertools.islice(self.waiting, 1), now)
        ratio = self.taken / self.taken_expected
        left = [max(0.0, ratio * one - (now - self.started.get(path, now))) for path, one in self.expected.items()]
        return max(sum(left) / self.jobs, max(left, default=0.0))


def format_seconds(seconds: float) -> str:
    """Seconds, minutes or hours, rounded."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""The runs of a grid -> results -> a report. Every cell has a folder of its own; a finished one is never repeated."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import torch

from mtn import checkpoint, datasets, encoders, page, qualitative
from mtn.compare import cores, run_all
from mtn.config import Config
from mtn.datasets import sources
from mtn.errors import InputError, closest
from mtn.extract import extract
from mtn.grid import ALIASES, TARGETS, Measured, Point, Setting
from mtn.learn import make_optimiser, minimise
from mtn.methods import Batch, make
from mtn.neighbours import Neighbours
from mtn.progress import Progress, silent
from mtn.report import Result
from mtn.run import look
from mtn.samples import Data
from mtn.stream import Task, split

MARK = "reproduce.json"
LIMIT = 3600.0
"""Seconds a cell may be expected to take; above, it is left out unless asked for by name."""
TOKENS = 500
"""What a step is timed on: enough to be worth its overhead, few enough for the largest transformer."""
BRIEF, LONG = 5.0, 180.0
"""Seconds of a cell without a transformer, and of one that learns features, as far as the time left is concerned."""


@dataclass(frozen=True)
class Report:
    """What is to come of a grid, and where."""

    out: Path
    command: Callable[[str], str]  # target -> what makes it
    looks: qualitative.Looks | None = None  # of the samples; unset: images that lie beside the vectors
    data: str | None = None  # what the page calls them; unset: as the vectors


def reproduce(
    setting: Setting,
    targets: Sequence[str],
    report: Report,
    *,
    limit: float = LIMIT,
    also: Sequence[str] = (),
    jobs: int | None = None,
    say: Progress = silent,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Run what the targets need and is not there yet, report each as soon as its cells are done, return the page.

    A cell expected to take more than `limit` seconds is left out, unless a pattern of `also` fits its name, as in
    neighbours/large/10 or, with a seed, neighbours/large/10/0.
    """
    grid = {name: TARGETS[name].points(setting) for name in targets}
    runs = [
        (f"{target}/{point.series}/{point.at}/{config.seed}", config)
        for target, points in grid.items()
        for point in points
        for config in point.runs
    ]
    wanted = {name for name, _ in runs for one in also if _fits(name, one)}
    for one in also:
        if not any(_fits(name, one) for name in wanted):
            names = {name.rpartition("/")[0] for name, _ in runs}
            raise InputError(f"--also: no run is called {one!r}: {closest(one, names)}")
    _claim(report.out, setting)
    jobs = jobs or cores(setting.config)
    cells = Cells(report.out, setting, max(1, torch.get_num_threads() // jobs), say)
    for name, config in runs:
        cells.add(config, math.inf if name in wanted else limit)
    waiting = dict(grid)
    _report_ready(waiting, cells, report, setting)
    for line in cells.run(jobs, say):
        tell(line)
        _report_ready(waiting, cells, report, setting)
    return page.index(report.out, setting, report.data)


def _fits(name: str, pattern: str) -> bool:
    """A name without its seed stands for all seeds."""
    return fnmatch(name, pattern) or fnmatch(name.rpartition("/")[0], pattern)


class Source(NamedTuple):
    """What a grid is run on."""

    vectors: str  # as stream.data takes them
    images: str | None = None  # what they were made of, if features can be learned from it
    looks: qualitative.Looks | None = None  # of the samples, where the vectors' own file does not tell


def encoded(data: str, encoder: str | None, out: Path, say: Progress = silent) -> Source:
    """`data` itself, or vectors that the encoder makes of it in `out`."""
    if encoder is None:
        return Source(data, data if data in (*ALIASES, *datasets.DATASETS) else None)
    listing, store = sources.find([data], say), out / "features"
    extract(listing, encoders.load(encoder), store, say)
    images = data if listing.kind == "image" else None
    return Source(str(store), images, qualitative.of_listing(listing, store))


def _claim(out: Path, setting: Setting) -> None:
    """Refuse a folder of something else: a page is about one data set."""
    mine = {"data": setting.config.stream.data, "fast": setting.fast}
    if (out / MARK).exists():
        found = checkpoint.read_json(out / MARK)
        if found != mine:
            raise InputError(f"{out} is a report on {found}, not on {mine}; give another --out")
    elif out.exists() and (not out.is_dir() or {file.name for file in out.iterdir()} - {"features"}):
        raise InputError(f"{out} is not an empty folder and not a report of mtn; give another --out")
    checkpoint.make_folder(out / "cells")
    checkpoint.write_json(out / MARK, mine)


def _report_ready(waiting: dict[str, list[Point]], cells: "Cells", report: Report, setting: Setting) -> None:
    """Write the sections whose cells are all settled, and the page with them."""
    ready = [name for name, points in waiting.items() if not any(cells.open(run) for one in points for run in one.runs)]
    for name in ready:
        measured = [cells.measured(point) for point in waiting.pop(name)]
        page.write(_section(name, measured, cells, report), report.out)
        page.index(report.out, setting, report.data)


def _section(name: str, measured: list[Measured], cells: "Cells", report: Report) -> page.Section:
    if name == "qualitative" and measured[0].results:
        (run,) = measured[0].point.runs
        found = qualitative.find(run, cells.folder(run), report.looks)
        return page.examples_section(found, measured, report.command(name))
    return page.measured_section(name, measured, report.command(name))


@dataclass
class Cells:
    """Every run of the grid once, however many targets share it."""

    out: Path
    setting: Setting
    threads: int
    say: Progress = silent
    todo: dict[Path, Config] = field(default_factory=dict)
    results: dict[Path, Result] = field(default_factory=dict)
    reasons: dict[Path, str] = field(default_factory=dict)  # why there is no result
    expected: dict[Path, float] = field(default_factory=dict)  # seconds

    def __post_init__(self) -> None:
        self.pace = Pace(self.out / "times.json", datasets.of(self.setting.config, self.say), self.threads)

    def folder(self, config: Config) -> Path:
        return self.out / "cells" / f"{config.method.name.replace(':', '.')}-seed{config.seed}-{config.digest()}"

    def add(self, config: Config, limit: float) -> None:
        folder = self.folder(config)
        if folder in self.results or folder in self.todo:
            return
        finished = look(folder, config)
        if finished is not None:
            self.results[folder] = finished
            return
        seconds = self.expected[folder] = self.pace.seconds(config)
        if seconds <= limit:
            self.todo[folder] = config
            self.reasons.pop(folder, None)
        else:
            self.reasons[folder] = f"about {_time(seconds)} a run"

    def open(self, config: Config) -> bool:
        return self.folder(config) in self.todo

    def run(self, jobs: int, say: Progress) -> Iterator[str]:
        """Do what is left; a line about each cell when it is done."""
        of, clock = len(self.todo), TimeLeft({one: self.expected[one] for one in self.todo}, jobs, time.monotonic())
        work = [(config, folder) for folder, config in self.todo.items()]
        say("whole grid", 0, of)
        for folder, answer in run_all(work, jobs, say):
            del self.todo[folder]
            rest = clock.done(folder, time.monotonic())
            if isinstance(answer, InputError):
                self.reasons[folder] = said = str(answer)
            else:
                self.results[folder] = answer
                said = f"average {answer['average_incremental_accuracy']:.1f} %"
            say("whole grid", of - len(self.todo), of)
            left = f"; about {_time(rest)} left" if self.todo else ""
            yield f"{of - len(self.todo)} of {of} cells, {folder.name}: {said}{left}"

    def measured(self, point: Point) -> Measured:
        folders = [self.folder(config) for config in point.runs]
        results = [self.results[one] for one in folders if one in self.results]
        why = dict.fromkeys(self.reasons[one] for one in folders if one in self.reasons)
        return Measured(point, results, "; ".join(why))


class TimeLeft:
    """What cells took, against what they were expected to -> how long the rest takes. They begin in their order."""

    def __init__(self, expected: dict[Path, float], jobs: int, now: float) -> None:
        self.expected, self.jobs, self.waiting = expected, jobs, iter(list(expected))
        self.begun = dict.fromkeys(itertools.islice(self.waiting, jobs), now)
        self.took = self.should_have = 0.0

    def done(self, cell: Path, now: float) -> float:
        """Seconds until the last one: of what is left, a share a process, but no less than the longest takes."""
        self.took += now - self.begun.pop(cell, now)
        self.should_have += self.expected.pop(cell)
        self.begun |= dict.fromkeys(itertools.islice(self.waiting, 1), now)
        pace = self.took / self.should_have
        rest = [max(0.0, pace * one - (now - self.begun.get(cell, now))) for cell, one in self.expected.items()]
        return max(sum(rest) / self.jobs, max(rest, default=0.0))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Pace:
    """How long runs of mtn take: samples trained on and asked, times what one step took. The steps timed are kept."""

    def __init__(self, path: Path, data: Data, threads: int) -> None:
        self.path, self.data, self.threads = path, data, threads
        self.times: dict[str, float] = checkpoint.read_json(path) if path.exists() else {}
        self.streams: dict[str, list[Task]] = {}

    def seconds(self, config: Config) -> float:
        """Answering a query is a third of training on one: there is no way back."""
        if config.images.side is not None:
            return LONG
        if config.method.name != "mtn":
            return BRIEF
        tasks, train = self._tasks(config), config.train
        trained = asked = 0.0
        for task in tasks:
            size = min(train.batch, len(task.train))
            steps = max(math.ceil(train.epochs * len(task.train) / size), train.min_steps)
            trained += steps * (size + (train.replay if task.index else 0))
            asked += sum(len(seen.test) for seen in tasks[: task.index + 1])
        return (trained + asked / 3) * self._sample(config, tasks[0])

    def _tasks(self, config: Config) -> list[Task]:
        key = config.stream.model_dump_json()
        if key not in self.streams:
            self.streams[key] = split(self.data, config.stream)
        return self.streams[key]

    def _sample(self, config: Config, base: Task) -> float:
        """Seconds of a sample in a training step."""
        key = f"{config.method.size}, k = {config.method.k}"
        if key not in self.times:
            self.times[key] = timed(config, base, self.threads)
            checkpoint.write_json(self.path, self.times)
        return self.times[key]


def timed(config: Config, base: Task, threads: int) -> float:
    """Seconds a sample of the faster of two steps on random numbers, after a first one that warms up.

    Of the processor, not of the clock: what is left out should not depend on what else the machine does.
    """
    k, width = config.method.k, base.train.dimension
    count, before = max(1, TOKENS // (k + 1)), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        method = make(width, config)
        method.begin_task(base)
        ones = torch.ones(count, k)
        near = Neighbours(torch.randn(count, k, width), ones.long() * 0, ones, ones.bool(), full=True)
        share = torch.full((base.seen,), 1 / base.seen)
        batch = Batch(torch.randn(count, width), torch.arange(count) % base.seen, count, near, None, share)
        torch.set_num_threads(threads)
        optimiser, marks = make_optimiser(method, config.train), []
        for _ in minimise(lambda step: method.loss(batch, base), optimiser, config.train, 3):
            marks.append(time.process_time() / threads)
        torch.set_num_threads(before)
    return min(marks[1] - marks[0], marks[2] - marks[1]) / count

"""A table or a figure of the paper -> the runs it is made of, at the size of the data at hand. Nothing is run here."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mtn import datasets
from mtn.compare import cell
from mtn.config import Config, parse, recipe
from mtn.errors import InputError
from mtn.methods import METHODS
from mtn.progress import Progress, silent

LEARNED, FROZEN, OTHERS = "learned features", "frozen features", "frozen features, not in the paper"

BLOCKS: dict[str, dict[str, str]] = {
    LEARNED: {"PODNet": "podnet", "CCIL": "ccil", "SS-IL": "ssil", "MTN on SS-IL": "mtn"},
    FROZEN: {"mem. k-NN": "knn", "BiC": "bic", "iCaRL": "icarl", "LUCIR": "lucir", "SS-IL": "ssil", "MTN": "mtn"},
    OTHERS: {
        name: name
        for name in METHODS
        if name not in ("knn", "bic", "icarl", "lucir", "ssil", "mtn", "mtn-unlocked")  # the last is mtn on vectors
    },
}
"""Table 1: name in the table -> method."""
QUICK = ("practical", "slda", "ranpac", "joint")
"""Of those not in the paper, what a fast grid has."""


def paper() -> dict[str, dict[str, dict[str, str]]]:
    """Block -> data, features -> method -> Table 1 as the paper prints it, for L = 50 / 100 / 250 of 1 000 classes."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    with resources.files("mtn").joinpath("paper.csv").open(encoding="utf-8") as lines:
        for block, data, method, *numbers in list(csv.reader(lines))[1:]:
            printed = " / ".join(number or "–" for number in numbers)
            found.setdefault(block, {}).setdefault(data, {})[method] = printed
    return found


ALIASES = {"glyphs": "glyphs-200"}
RECIPES = ("demo", "glyphs-1k", "clinc150", "flowers102")
"""Where the sizes of a stream come from, by the name of its data."""
PICTURES = ("learned/omniglot", "learned/tiny-imagenet-40")
"""How features are learned: by the name of the data, else as in the first."""


@dataclass(frozen=True)
class Setting:
    """What every target starts from."""

    config: Config
    steps: tuple[int, ...]  # classes a task, rising (the paper's L)
    middle: int  # of them, where something else is varied
    classes: int
    samples: int  # of training a class, in the mean
    seeds: tuple[int, ...]
    fast: bool
    learned: Config | None = None  # where features are learned; None: there are no images, or it would take too long


@dataclass(frozen=True)
class Point:
    """Runs that differ in their seed alone, and where they stand: on which line of a table, at which place of it."""

    series: str
    at: int
    runs: tuple[Config, ...] = ()  # none: there are no images to learn features from
    block: str = ""


@dataclass(frozen=True)
class Measured:
    """What came of them."""

    point: Point
    results: list[dict[str, Any]]
    note: str = ""  # why there is none, or fewer than were asked for


@dataclass(frozen=True)
class Target:
    """A table or a figure."""

    title: str
    series: str  # what the lines are
    at: str  # what varies along a line
    points: Callable[[Setting], list[Point]]
    about: str


def setting(
    data: str, seeds: Sequence[int], fast: bool = False, images: str | None = None, say: Progress = silent
) -> Setting:
    """Sizes by the recipe of the data if there is one, else as the paper's: half of the classes first, M = 20 a class.

    All else are the paper's values. `images` are those that the vectors were made of: features are learned from them,
    with a slim network as in the recipes that do so.
    """
    data = ALIASES.get(data, data)
    loaded = datasets.load(data, say)
    classes = len(loaded.names)
    known = {Path(one.stream.paths[0]).name: one for one in map(recipe, RECIPES)}
    given = known.get(Path(data).name)
    first = given.stream.first if given and given.stream.first else (classes + 1) // 2
    if first >= classes:
        raise InputError(
            f"--data {data} has {classes} classes, {first} of them in the first task: none is left to come"
        )
    middle = given.stream.step if given and isinstance(given.stream.step, int) else None
    steps = tasks_of(classes - first, middle)
    values = {
        "stream": {"data": data, "first": first},
        "memory": {"total": given.memory.total if given else 20 * classes},
    }
    config = parse(values, f"--data {data}")
    learned = None if fast or images is None else _learned(config, ALIASES.get(images, images))
    if fast:
        config = config.replace(train={"epochs": 2, "min_steps": 60}, method={"size": "small"})
    samples = max(1, len(loaded.train) // classes)
    return Setting(config, steps, middle or steps[len(steps) // 2], classes, samples, tuple(seeds), fast, learned)


def _learned(config: Config, images: str) -> Config:
    """The same stream of images."""
    recipes = [recipe(name) for name in PICTURES]
    named = [one for one in recipes if Path(images).name in {Path(path).name for path in one.stream.paths}]
    stream = {"data": images, "first": config.stream.first}
    return (named or recipes)[0].replace(stream=stream, memory={"total": config.memory.total})


def tasks_of(rest: int, middle: int | None = None) -> tuple[int, ...]:
    """Classes a task: what divides `rest` and is nearest to a tenth, a fifth and a half of it (50, 100, 250 of 500)."""
    fitting = [size for size in range(1, rest + 1) if rest % size == 0]
    middle = middle or min(fitting[1:-1] or fitting, key=lambda size: abs(size - rest / 5))
    low = min((size for size in fitting if size < middle), key=lambda size: abs(size - rest / 10), default=middle)
    high = min((size for size in fitting if size > middle), key=lambda size: abs(size - rest / 2), default=middle)
    return tuple(sorted({low, middle, high}))


def _point(s: Setting, series: str, at: int, kind: str = "mtn", block: str = "", **changes: dict[str, Any]) -> Point:
    config = s.learned if block == LEARNED else s.config
    if config is None:
        return Point(series, at, block=block)
    base = config.replace(stream={"step": s.middle} | changes.pop("stream", {}))
    runs = (cell(base, kind, seed, base.stream.order).replace(**changes) for seed in s.seeds)
    return Point(series, at, tuple(runs), block)


def _table1(s: Setting) -> list[Point]:
    return [
        _point(s, name, step, method, block, stream={"step": step})
        for block, rows in BLOCKS.items()
        for name, method in rows.items()
        if not s.fast or block != OTHERS or name in QUICK
        for step in s.steps
    ]


def _tasks(s: Setting) -> list[Point]:
    shown = {"MTN": "mtn", "SS-IL": "ssil", "mem. k-NN": "knn"}
    return [_point(s, name, step, method, stream={"step": step}) for name, method in shown.items() for step in s.steps]


def _neighbours(s: Setting) -> list[Point]:
    """No k above M: there is no further exemplar to find."""
    sizes = ("small", "medium") if s.fast else ("small", "medium", "large")
    counts = (1, 10, 20) if s.fast else (1, 5, 10, 20, 50, 100, 500)
    within = [k for k in counts if k <= (s.config.memory.total or k)]
    return [_point(s, size, k, method={"size": size, "k": k}) for size in sizes for k in within]


def _memory(s: Setting) -> list[Point]:
    """So many exemplars a class, and what the recipe has; never more than half of what there is."""
    counts = (1, 5) if s.fast else (1, 2, 5, 10, 20, 50)
    totals = {n * s.classes for n in counts if 2 * n <= s.samples} | {s.config.memory.total or s.classes}
    return [
        _point(s, name, total, method, memory={"total": total})
        for name, method in {"MTN": "mtn", "SS-IL": "ssil"}.items()
        for total in sorted(totals)
    ]


def _rank(s: Setting) -> list[Point]:
    return [_point(s, name, s.middle, method={"rank": on}) for name, on in {"rank": True, "no rank": False}.items()]


def _labels(s: Setting) -> list[Point]:
    names = {"no labels": False, "labels": True}
    return [_point(s, name, s.middle, method={"labels": on}) for name, on in names.items()]


def _readout(s: Setting) -> list[Point]:
    return [_point(s, name, s.middle, method={"readout": name}) for name in ("cls", "nn", "mix")]


def _schedule(s: Setting) -> list[Point]:
    """Fewer epochs than the paper's ten, ten, and more steps than ten epochs have."""
    train = s.config.train

    def steps(epochs: float) -> int:
        return max(1, math.ceil(epochs * s.samples * s.middle / min(train.batch, s.samples * s.middle)))

    floors = () if s.fast else (400, 1600)
    ways = {steps(count): {"epochs": count, "min_steps": 0} for count in (2, 5, 10)}
    ways |= {floor: {"epochs": 10, "min_steps": floor} for floor in floors if floor >= 1.5 * steps(10)}
    return [
        _point(s, name, at, method, train=way)
        for name, method in {"MTN": "mtn", "SS-IL": "ssil"}.items()
        for at, way in ways.items()
    ]


def _qualitative(s: Setting) -> list[Point]:
    point = _point(s, "MTN", s.middle)
    return [Point(point.series, point.at, point.runs[:1])]


TARGETS = {
    "table1": Target(
        "Table 1: comparison with existing works",
        "method",
        "L",
        _table1,
        "Average incremental accuracy (%) at L classes a task after the base.",
    ),
    "tasks": Target(
        "Accuracy after each task",
        "method",
        "L",
        _tasks,
        "Accuracy over all classes seen so far, a panel a value of L.",
    ),
    "neighbours": Target(
        "Neighbours and transformer size",
        "transformer",
        "k",
        _neighbours,
        "Average incremental accuracy of MTN with k nearest exemplars as input.",
    ),
    "memory": Target(
        "Memory size", "method", "M", _memory, "Average incremental accuracy with M exemplars over all classes."
    ),
    "rank": Target("Rank encoding", "variant", "L", _rank, "MTN with and without an embedding of a neighbour's rank."),
    "labels": Target(
        "Label embedding",
        "variant",
        "L",
        _labels,
        "MTN with and without an embedding of a neighbour's class: not in the paper.",
    ),
    "readout": Target(
        "Read-out",
        "variant",
        "L",
        _readout,
        "cls: a linear head on the adapted query; nn: votes of the adapted neighbours, mix: both, not in the paper.",
    ),
    "schedule": Target(
        "Training length",
        "method",
        "steps a task",
        _schedule,
        "Where the separated softmax starts to work: new and old classes against optimisation steps of a task.",
    ),
    "qualitative": Target(
        "What k-NN gets wrong and MTN right",
        "method",
        "L",
        _qualitative,
        "Test queries, their five nearest exemplars, and the similarity to each before and after the transformer.",
    ),
}

"""The runs that a table or a figure of the paper is made of, at the size of the data at hand. Nothing is run here."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mtn.config import Config
from mtn.data import glyphs, load_vectors
from mtn.errors import InputError
from mtn.methods import METHODS
from mtn.recipes import for_method, parse, recipe, with_changes
from mtn.runtime.progress import Progress, silent

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
CURVES = {"MTN": "mtn", "SS-IL": "ssil", "mem. k-NN": "knn"}
"""Methods that figures compare: name in the figure -> method."""
SIZE_METHODS = {"MTN": "mtn", "SS-IL": "ssil", "practical": "practical", "slda": "slda"}
"""Methods that `size` compares: name in the table -> method."""
QUICK = ("practical", "slda", "ranpac", "joint")
"""Methods that are not in the paper and that a fast grid has."""


def paper_table1() -> dict[str, dict[str, dict[str, str]]]:
    """Block -> data and features -> method -> numbers as the paper prints them, for L = 50 / 100 / 250."""
    table: dict[str, dict[str, dict[str, str]]] = {}
    with resources.files("mtn.experiments.paper").joinpath("paper.csv").open(encoding="utf-8") as lines:
        for block, data, method, *numbers in list(csv.reader(lines))[1:]:
            printed = " / ".join(number or "–" for number in numbers)
            table.setdefault(block, {}).setdefault(data, {})[method] = printed
    return table


ALIASES = {"glyphs": "glyphs-200"}
RECIPES = ("demo", "glyphs-1k", "glyphs-1k-hard", "clinc150", "flowers102")
"""Recipes that give the sizes of a stream, by the name of their data."""
IMAGE_RECIPES = ("learned/omniglot", "learned/tiny-imagenet-40")
"""Recipes that learn features: the one of the data if there is one, else the first."""


@dataclass(frozen=True)
class GridSetup:
    """The base configuration of a grid and the sizes of its data."""

    config: Config
    steps: tuple[int, ...]  # classes a task, rising (the paper's L)
    middle: int  # the L of runs that vary something else
    classes: int
    samples: int  # training samples a class, on average
    seeds: tuple[int, ...]
    fast: bool
    learned: Config | None = None  # with learned features; None: there are no images, or it would take too long


@dataclass(frozen=True)
class GridPoint:
    """Runs that differ only in their seed: one number of a table, or one point of a figure."""

    series: str  # the row or the line
    value: int  # of what is varied along it
    runs: tuple[Config, ...] = ()  # none: there are no images to learn features from
    block: str = ""  # of Table 1


@dataclass(frozen=True)
class PointResults:
    """The results of a grid point's runs."""

    point: GridPoint
    results: list[dict[str, Any]]
    note: str = ""  # why there is none, or fewer than were asked for


def grid_setup(
    data: str,
    seeds: Sequence[int],
    fast: bool = False,
    images: str | None = None,
    progress: Progress = silent,
    precision: str = "float32",
) -> GridSetup:
    """Sizes of the recipe of the data if there is one, else as the paper's: half of the classes first, M = 20 a class.

    All other values are the paper's but for the precision of training (`train.precision`). `images` are those that the
    vectors were made of: features are learned from them, with a slim network as in the recipes that do so.
    """
    data = ALIASES.get(data, data)
    loaded = load_vectors(data, progress)
    classes = len(loaded.names)
    recipes = {Path(known.stream.paths[0]).name: known for known in map(recipe, RECIPES)}
    given = recipes.get(Path(data).name)
    first = given.stream.first if given and given.stream.first else (classes + 1) // 2
    if first >= classes:
        raise InputError(
            f"--data {data} has {classes} classes, {first} of them in the first task: none is left to come"
        )
    middle = given.stream.step if given and isinstance(given.stream.step, int) else None
    steps = task_sizes(classes - first, middle)
    values = {
        "stream": {"data": data, "first": first},
        "memory": {"total": given.memory.total if given else 20 * classes},
        "train": {"precision": precision},
    }
    config = parse(values, f"--data {data}")
    learned = None if fast or images is None else _learned_features(config, ALIASES.get(images, images))
    if fast:
        config = with_changes(config, train={"epochs": 2, "min_steps": 60}, method={"size": "small"})
    samples = max(1, len(loaded.train) // classes)
    return GridSetup(config, steps, middle or steps[len(steps) // 2], classes, samples, tuple(seeds), fast, learned)


def _learned_features(config: Config, images: str) -> Config:
    """The same stream, of images instead of vectors."""
    recipes = [recipe(name) for name in IMAGE_RECIPES]
    own = [known for known in recipes if Path(images).name in {Path(path).name for path in known.stream.paths}]
    stream = {"data": images, "first": config.stream.first}
    return with_changes((own or recipes)[0], stream=stream, memory={"total": config.memory.total})


def task_sizes(rest: int, middle: int | None = None) -> tuple[int, ...]:
    """Classes a task: the divisors of `rest` nearest to a tenth, a fifth and a half of it (50, 100, 250 of 500)."""
    divisors = [size for size in range(1, rest + 1) if rest % size == 0]
    middle = middle or min(divisors[1:-1] or divisors, key=lambda size: abs(size - rest / 5))
    low = min((size for size in divisors if size < middle), key=lambda size: abs(size - rest / 10), default=middle)
    high = min((size for size in divisors if size > middle), key=lambda size: abs(size - rest / 2), default=middle)
    return tuple(sorted({low, middle, high}))


def _point(
    s: GridSetup, series: str, value: int, method_name: str = "mtn", block: str = "", **changes: dict[str, Any]
) -> GridPoint:
    config = s.learned if block == LEARNED else s.config
    if config is None:
        return GridPoint(series, value, block=block)
    base = with_changes(config, stream={"step": s.middle} | changes.pop("stream", {}))
    own = with_changes(for_method(base, method_name), **changes)
    runs = (with_changes(own, seed=seed) for seed in s.seeds)
    return GridPoint(series, value, tuple(runs), block)


def _table1(s: GridSetup) -> list[GridPoint]:
    return [
        _point(s, name, step, method, block, stream={"step": step})
        for block, rows in BLOCKS.items()
        for name, method in rows.items()
        if not s.fast or block != OTHERS or name in QUICK
        for step in s.steps
    ]


def _tasks(s: GridSetup) -> list[GridPoint]:
    return [_point(s, name, step, method, stream={"step": step}) for name, method in CURVES.items() for step in s.steps]


def _neighbours(s: GridSetup) -> list[GridPoint]:
    """k goes up to M at most: there are no more exemplars."""
    sizes = ("small", "medium") if s.fast else ("small", "medium", "large")
    counts = (1, 10, 20) if s.fast else (1, 5, 10, 20, 50, 100, 500)
    within = [k for k in counts if k <= (s.config.memory.total or k)]
    return [_point(s, size, k, method={"size": size, "k": k}) for size in sizes for k in within]


def _memory(s: GridSetup) -> list[GridPoint]:
    """The recipe's M, and 1 to 50 exemplars a class, but never more than half of the training samples."""
    counts = (1, 5) if s.fast else (1, 2, 5, 10, 20, 50)
    totals = {n * s.classes for n in counts if 2 * n <= s.samples} | {s.config.memory.total or s.classes}
    return [
        _point(s, name, total, CURVES[name], memory={"total": total})
        for name in ("MTN", "SS-IL")
        for total in sorted(totals)
    ]


def _size(s: GridSetup) -> list[GridPoint]:
    """Up to the number of images that there are; the fewest first. A Glyphs set comes easy and hard."""
    data = s.config.stream.paths[0]
    own = glyphs.find_set(data)
    blocks = {"": data}
    if own is not None and not s.fast:
        twin = own.twin.name
        blocks = {"easy": twin, "hard": data} if own.hard else {"easy": data, "hard": twin}
    counts = [n for n in ((25,) if s.fast else (25, 100, 400, 1280)) if n < s.samples]
    return [
        _point(s, name, count or s.samples, method, block, stream={"data": source, "per_class": count})
        for count in (*counts, None)
        for block, source in blocks.items()
        for name, method in SIZE_METHODS.items()
    ]


def _rank(s: GridSetup) -> list[GridPoint]:
    return [_point(s, name, s.middle, method={"rank": on}) for name, on in {"rank": True, "no rank": False}.items()]


def _labels(s: GridSetup) -> list[GridPoint]:
    names = {"no labels": False, "labels": True}
    return [_point(s, name, s.middle, method={"labels": on}) for name, on in names.items()]


def _readout(s: GridSetup) -> list[GridPoint]:
    return [_point(s, name, s.middle, method={"readout": name}) for name in ("cls", "nn", "mix")]


def _schedule(s: GridSetup) -> list[GridPoint]:
    """Two, five and ten epochs (the paper's), then more steps than ten epochs have."""
    train = s.config.train

    def steps(epochs: float) -> int:
        return max(1, math.ceil(epochs * s.samples * s.middle / min(train.batch, s.samples * s.middle)))

    floors = () if s.fast else (400, 1600)
    lengths = {steps(count): {"epochs": count, "min_steps": 0} for count in (2, 5, 10)}
    lengths |= {floor: {"epochs": 10, "min_steps": floor} for floor in floors if floor >= 1.5 * steps(10)}
    return [
        _point(s, name, count, CURVES[name], train=length)
        for name in ("MTN", "SS-IL")
        for count, length in lengths.items()
    ]


def _qualitative(s: GridSetup) -> list[GridPoint]:
    point = _point(s, "MTN", s.middle)
    return [GridPoint(point.series, point.value, point.runs[:1])]


_POINTS: dict[str, Callable[[GridSetup], list[GridPoint]]] = {
    "table1": _table1,
    "tasks": _tasks,
    "neighbours": _neighbours,
    "memory": _memory,
    "size": _size,
    "rank": _rank,
    "labels": _labels,
    "readout": _readout,
    "schedule": _schedule,
    "qualitative": _qualitative,
}


def grid_points(target: str, setup: GridSetup) -> list[GridPoint]:
    """The points that a target (of targets.TARGETS) is made of."""
    return _POINTS[target](setup)

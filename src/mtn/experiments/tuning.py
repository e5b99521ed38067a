"""A search over the few values that a method declares (`Method.knobs`), on data of the first task alone.

The classes of the first task are split like a stream of their own: half of them, then the rest in five tasks, with the
share of the memory that they have. So what is found is found without a sample of any later class, and without the
test split.
"""

import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtn.config import Config
from mtn.data import load_data
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.experiments.stream_ranks import metric_of
from mtn.methods import check, find
from mtn.recipes import recipe_text, with_changes
from mtn.runtime.progress import Progress, silent
from mtn.samples import Data, Samples
from mtn.storage import files
from mtn.stream import first_classes, split

FEWEST = 4
"""Classes of a first task that can be split again."""

Values = dict[str, Any]
"""Dotted key -> value."""


@dataclass(frozen=True)
class Trial:
    """Values that were tried, and the accuracy with them."""

    values: Values
    accuracy: float


def tune(
    config: Config, progress: Progress = silent, on_trial: Callable[[Trial], None] = lambda trial: None
) -> list[Trial]:
    """Try every combination of a method's values, the best first; of equal ones that which is tried first.

    The values that it has in `config` are always among them.
    """
    check(config)
    method = config.method.name
    if not find(method).knobs:
        raise InputError(f"method {method!r} declares nothing to search for (Method.knobs)")
    pilot, data = pilot_stream(config, load_data(config, progress))
    tasks = split(data, pilot.stream)
    trials = []
    for values in combinations(config):
        sections: dict[str, Values] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        with tempfile.TemporaryDirectory() as folder:
            result = run(with_changes(pilot, **sections), Path(folder) / "run", progress, tasks=tasks)
        trials.append(Trial(values, result[metric_of(config.stream.kind)]))
        on_trial(trials[-1])
    return sorted(trials, key=lambda trial: -trial.accuracy)


def combinations(config: Config) -> list[Values]:
    """Every combination of the values that the method of a configuration declares."""
    grid = {}
    for key, declared in find(config.method.name).knobs.items():
        section, _, name = key.partition(".")
        now = getattr(getattr(config, section), name)
        grid[key] = list(dict.fromkeys([now, *declared]))
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def pilot_stream(config: Config, data: Data) -> tuple[Config, Data]:
    """The classes of the first task as data of their own, tested on their validation split, and a stream of them."""
    base = first_classes(data.names, config.stream)
    if len(base) < FEWEST:
        raise InputError(f"a search needs at least {FEWEST} classes in the first task, got {len(base)}")
    train, validation = (_of_classes(samples, base) for samples in data.split("validation"))
    stream: Values = {"first": None, "step": None, "tasks": None, "evaluate": "test"}
    if isinstance(config.stream.order, str):  # a file, of all classes
        stream["order"] = 1993
    memory = {}
    if config.memory.total is not None:
        memory["total"] = max(1, round(config.memory.total * len(base) / len(data.names)))
    names = [data.names[label] for label in base]
    return with_changes(config, stream=stream, memory=memory), Data(train, None, validation, names)


def _of_classes(samples: Samples, classes: list[int]) -> Samples:
    """The samples of some classes, which are counted anew in that order."""
    number = torch.full((int(samples.y.max()) + 1,), -1)
    known = [label for label in classes if label < len(number)]
    number[known] = torch.arange(len(known))
    part = samples.select(number[samples.y] >= 0)
    return Samples(part.source, part.rows, number[part.y], part.id)


def write_recipe(recipe: str, method: str, values: Values, out: Path) -> None:
    """Write the recipe with a section [tuned.METHOD] at its end; `out` may be the recipe's own file."""
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    text = "\n".join([recipe_text(recipe).rstrip(), "", f"[tuned.{json.dumps(method)}]", *lines, ""])
    files.make_folder(out.parent)
    files.write_text(out, text)

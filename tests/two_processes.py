"""What tests/test_ranks.py starts with torchrun: what processes share out is compared with what one does alone."""

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mtn import datasets, ranks
from mtn.config import Config, recipe
from mtn.errors import InputError
from mtn.learn import Learner
from mtn.memory import Memory
from mtn.methods import METHODS
from mtn.neighbours import nearest_within
from mtn.run import run
from mtn.stream import Task, split

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": {"name": name}} for name in METHODS},
    "mtn nn": {"method": {"readout": "nn", "labels": True}},
    "mtn mix": {"method": {"readout": "mix"}},
    "mtn ccil": {"train": {"loss": "ccil"}},
    "mtn balanced": {"train": {"loss": "balanced"}},
}
STEPS = 3  # what is data-parallel arranges itself after the first
RUNS = ("mtn", "ssil", "practical")


@contextmanager
def alone() -> Iterator[None]:
    with mock.patch.multiple(ranks, _rank=0, _count=1):
        yield


def largest(shared: dict[str, torch.Tensor | None], whole: dict[str, torch.Tensor | None]) -> float:
    """Difference, relative to the largest number of each, or to 1."""
    assert shared.keys() == whole.keys()
    worst = 0.0
    for name, one in shared.items():
        other = whole[name]
        assert (one is None) == (other is None), name
        if one is not None and other is not None and one.numel():
            worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp(min=1)))
    return worst


def slopes(method: torch.nn.Module, *given: Any) -> dict[str, torch.Tensor | None]:
    method.zero_grad(set_to_none=True)
    sum(method(*given).values()).backward()
    return {name.removeprefix("module."): parameter.grad for name, parameter in method.named_parameters()}


def gradients(config: Config) -> dict[str, float]:
    """Of every stage of the second task, at several steps; and the lesson that is made before."""
    data = datasets.of(config)
    tasks = split(data, config.stream)
    it, apart = Learner(config, data.train.dimension), {}
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    for index, stage in enumerate(it.method.stages(tasks[1])):
        plan = it.prepare(tasks[1], stage)
        with alone():
            own = it.prepare(tasks[1], stage)
        for mine, ours in zip(own.portions, plan.portions, strict=True):
            if mine.found is not None and ours.found is not None:
                assert torch.equal(mine.found.index, ours.found.index)
            apart[f"{index}.before.{mine.key}"] = largest({"": ours.before}, {"": mine.before})
        twin = copy.deepcopy(it.method).train()
        parallel = ranks.data_parallel(it.method.train())
        for step in range(STEPS):
            chance = torch.get_rng_state()
            shared = slopes(parallel, stage, plan.batch(step), tasks[1])
            torch.set_rng_state(chance)
            with alone():
                whole = slopes(twin, stage, own.batch(step), tasks[1])
            apart[f"{index}.{step}"] = largest(shared, whole)
        it.method.eval()
    return apart


def one_sample(config: Config) -> None:
    """Fewer rows than processes."""
    data = datasets.of(config)
    one = data.train.select(data.train.y == 0).select(torch.tensor([0]))
    it = Learner(config, data.train.dimension)
    it.learn_task(Task(0, (slice(0, 1),), ("0",), one, one))
    assert all(parameter.isfinite().all() for parameter in it.method.parameters())


def search(config: Config) -> float:
    train, memory = datasets.of(config).train, Memory(config.memory, 16)
    memory.add(train, torch.Generator().manual_seed(0))
    worst = 0.0
    for count in (0, 1, 2, 31, len(train)):
        asked = train.select(torch.arange(count))
        shared = nearest_within(asked, memory, 5, (len(memory), 3, 0))
        with alone():
            whole = nearest_within(asked, memory, 5, (len(memory), 3, 0))
        for one, other in zip(shared, whole, strict=True):
            assert torch.equal(one.index, other.index) and one.full == other.full
            worst = max(worst, largest({"": one.similarity}, {"": other.similarity}))
    return worst


def main(path: str, out: str) -> None:
    config, folder = recipe(path), Path(out)
    small = config.replace(train={"min_steps": 0, "epochs": 1})
    told: dict[str, Any] = {"gradients": {}}
    for name, change in VARIANTS.items():
        told["gradients"][name] = gradients(small.replace(**change))
        one_sample(small.replace(**change))
    told["search"] = search(config)
    for name in RUNS:
        run(config.replace(method={"name": name}), folder / name)
    try:
        run(config.replace(images={"side": 16}), folder / "images")
    except InputError as error:
        told["images"] = str(error)
    (folder / f"told-{ranks.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    ranks.start(timedelta(minutes=5))
    main(*sys.argv[1:])
    ranks.stop()
    ranks.end(0)

"""What test_distributed.py starts with torchrun: results of two processes are compared with those of one."""

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

from mtn.config import Config
from mtn.data import load_data
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.memory import Memory
from mtn.methods import METHODS
from mtn.methods.analytic import Analytic
from mtn.neighbours import nearest_within
from mtn.recipes import recipe, with_changes
from mtn.runtime import distributed
from mtn.stream import Task, split
from mtn.training import Learner

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": {"name": name}} for name, method in METHODS.items() if not issubclass(method, Analytic)},
    "mtn nn": {"method": {"readout": "nn", "labels": True}},
    "mtn mix": {"method": {"readout": "mix"}},
    "mtn ccil": {"train": {"loss": "ccil"}},
    "mtn balanced": {"train": {"loss": "balanced"}},
}
STEPS = 3  # what is data-parallel arranges itself after the first
RUNS = ("mtn", "ssil", "practical")
SGD = (
    "train.optimizer=sgd",
    "train.lr=0.1",
    "train.weight_decay=1e-4",
    "train.replay=8",
    "train.precision=float32",
)
"""AdamW divides a gradient by its size, so that differences of rounding grow: weights are compared with SGD. And in
float32, as which rows a process computes changes the rounding of products in bfloat16."""


@contextmanager
def alone() -> Iterator[None]:
    """As if this were the only process."""
    with mock.patch.multiple(distributed, _rank=0, _world_size=1):
        yield


def largest(shared: dict[str, torch.Tensor | None], whole: dict[str, torch.Tensor | None]) -> float:
    """The largest difference, relative to the largest number of each tensor, or to 1."""
    assert shared.keys() == whole.keys()
    worst = 0.0
    for name, tensor in shared.items():
        expected = whole[name]
        assert (tensor is None) == (expected is None), name
        if tensor is not None and expected is not None and tensor.numel():
            worst = max(worst, float((tensor - expected).abs().max() / expected.abs().max().clamp(min=1)))
    return worst


def parameter_gradients(method: torch.nn.Module, *inputs: Any) -> dict[str, torch.Tensor | None]:
    """The gradient of the sum of the loss terms, by name of the parameter."""
    method.zero_grad(set_to_none=True)
    sum(method(*inputs).values()).backward()
    return {name.removeprefix("module."): parameter.grad for name, parameter in method.named_parameters()}


def gradients(config: Config) -> dict[str, float]:
    """Differences of gradients and teacher logits in every stage of the second task, at several steps."""
    data = load_data(config)
    tasks = split(data, config.stream)
    learner, differences = Learner(config, data.train.dimension), {}
    learner.learn_task(tasks[0])
    learner.begin(tasks[1])
    for index, stage in enumerate(learner.method.stages(tasks[1])):
        learner.method.begin_stage()
        shared_batches = learner.prepare(tasks[1], stage)
        with alone():
            whole_batches = learner.prepare(tasks[1], stage)
        for shared, whole in zip(shared_batches.samplers, whole_batches.samplers, strict=True):
            if shared.neighbours is not None and whole.neighbours is not None:
                assert torch.equal(shared.neighbours.index, whole.neighbours.index)
            name = f"{index}.before.{whole.key}"
            differences[name] = largest({"": shared.teacher_logits}, {"": whole.teacher_logits})
        twin = copy.deepcopy(learner.method).train()
        twin_stage = twin.stages(tasks[1])[index]  # a stage's loss is bound to its method
        parallel = distributed.data_parallel(learner.method.train())
        for step in range(min(STEPS, shared_batches.steps)):
            state = torch.get_rng_state()
            shared_gradients = parameter_gradients(parallel, stage, shared_batches.batch(step), tasks[1])
            torch.set_rng_state(state)
            with alone():
                whole_gradients = parameter_gradients(twin, twin_stage, whole_batches.batch(step), tasks[1])
            differences[f"{index}.{step}"] = largest(shared_gradients, whole_gradients)
        learner.method.eval()
    return differences


def one_sample(config: Config) -> None:
    """A task of one sample, which is fewer rows than processes, can be learned."""
    data = load_data(config)
    sample = data.train.select(data.train.y == 0).select(torch.tensor([0]))
    learner = Learner(config, data.train.dimension)
    learner.learn_task(Task(0, (slice(0, 1),), ("0",), sample, sample))
    assert all(parameter.isfinite().all() for parameter in learner.method.parameters())


def search(config: Config) -> float:
    """The largest difference of similarities; the neighbours are the same."""
    train, memory = load_data(config).train, Memory(config.memory, 16)
    memory.add(train, torch.Generator().manual_seed(0))
    worst = 0.0
    for count in (0, 1, 2, 31, len(train)):
        queries = train.select(torch.arange(count))
        shared = nearest_within(queries, memory, 5, (len(memory), 3, 0))
        with alone():
            whole = nearest_within(queries, memory, 5, (len(memory), 3, 0))
        for found, expected in zip(shared, whole, strict=True):
            assert torch.equal(found.index, expected.index) and found.full == expected.full
            worst = max(worst, largest({"": found.similarity}, {"": expected.similarity}))
    return worst


def main(path: str, out: str) -> None:
    config, folder = recipe(path), Path(out)
    report: dict[str, Any] = {"gradients": {}}
    for name, change in VARIANTS.items():
        own = recipe(path, [f"method.name={change.get('method', {}).get('name', 'mtn')}", *SGD])
        small = with_changes(own, train={"min_steps": 0, "epochs": 1})
        report["gradients"][name] = gradients(with_changes(small, **change))
        one_sample(with_changes(small, **change))
    report["search"] = search(config)
    for name in RUNS:
        run(recipe(path, [f"method.name={name}", *SGD]), folder / name)
    try:
        run(with_changes(config, images={"side": 16}), folder / "images")
    except InputError as error:
        report["images"] = str(error)
    (folder / f"report-{distributed.rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    distributed.init_process_group(timedelta(minutes=5))
    main(*sys.argv[1:])
    distributed.barrier()
    distributed.exit_process(0)

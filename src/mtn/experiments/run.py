"""Train and evaluate a method on a stream of tasks and write result.json. A run that was killed resumes."""

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtn import inference
from mtn.config import Config, complete
from mtn.data import load_data
from mtn.errors import InputError
from mtn.experiments import log, metrics
from mtn.memory import Memory
from mtn.methods import check, find
from mtn.protocols import Protocol
from mtn.runtime import distributed
from mtn.runtime.capacity import check_fits
from mtn.runtime.device import peak_memory_mb, reset_peak_memory, versions
from mtn.runtime.progress import Progress, silent
from mtn.search import Location, VectorStore, make_store, new_location
from mtn.storage import files
from mtn.storage.tensors import load_tensors, save_tensors
from mtn.stream import Task, split
from mtn.training import Effort, Learner, check_memory

STATE = "state.safetensors"
"""The file of a run from which it resumes."""
SAVE_EVERY = 30.0
"""Seconds of training between two saves within a task."""
FINGERPRINTED = 64 * 2**20
"""Bytes of vectors that the fingerprint of the data is made from: of more, evenly spaced rows."""


def run(
    config: Config,
    out: Path,
    progress: Progress = silent,
    *,
    save_every: float = SAVE_EVERY,
    tasks: list[Task] | None = None,
    first_tasks: Path | None = None,
) -> dict[str, Any]:
    """Do the run that `config` describes in the folder `out`, or what is left of it, and return its result.

    Nothing is written before the configuration, the folder and the data have been checked. `tasks` are those of the
    configuration's stream, for a caller that has them already. Runs that differ in nothing before the second task learn
    the first one once, in the folder `first_tasks`. Of several processes only the first reads and writes.
    """
    finished = distributed.broadcast_from_first(lambda: read_result(out, config))
    if finished is not None:
        return finished
    _check_one_process(config)
    if tasks is None:
        tasks = split(load_data(config, progress), config.stream)
    check(config)
    check_tasks_fit(config, tasks)
    _check_budget(config, tasks)
    with _locked_folder(out, config), torch.random.fork_rng(devices=[]):
        state = out / STATE
        shared = None if state.exists() else _first_task(config, tasks, first_tasks, progress, save_every)
        trainer = StreamTrainer(config, tasks, state, progress, save_every, shared)
        with closing(log.open_log(out, config, trainer.done, trainer.learner.effort.steps)) as trainer.log:
            trainer.learn()
        result = trainer.result()
        if distributed.rank() == 0:
            files.write_json(out / "result.json", result)
    return result


def _first_task(
    config: Config, tasks: list[Task], folder: Path | None, progress: Progress, save_every: float
) -> Path | None:
    """The state after the first task, learned below `folder` unless it is there; None where it is not shared.

    It depends on the classes of the first task, not on how the others are split. Runs of several processes and runs
    with exemplars in Milvus do not share it.
    """
    stream, alone = config.stream, distributed.world_size() == 1 and config.memory.store != "milvus"
    if folder is None or isinstance(stream, Protocol) or stream.tasks is not None or not alone:
        return None
    first = stream.model_copy(update={"first": len(tasks[0].names), "step": None})
    own = folder / config.model_copy(update={"stream": first}).digest()
    files.make_folder(own)
    with files.lock(own, wait=True):
        trainer = StreamTrainer(config, tasks[:1], own / STATE, progress, save_every)
        with closing(log.open_log(own, config, trainer.done, trainer.learner.effort.steps)) as trainer.log:
            trainer.learn()
    return own / STATE


def _check_one_process(config: Config) -> None:
    """Refuse several processes where they would compute something else than one."""
    if distributed.world_size() == 1:
        return
    if config.images.side is not None:  # batch normalisation looks at all rows together
        raise InputError("features that are learned (images.side) need one process: leave torchrun out")
    if config.memory.store == "milvus":
        raise InputError('memory.store = "milvus" needs one process: leave torchrun out')


def _check_budget(config: Config, tasks: list[Task]) -> None:
    """Refuse a memory that leaves a class fewer exemplars than the method needs.

    Reservoir sampling gives no class a quota, so there is nothing to check.
    """
    if len(tasks) > 1 and config.memory.select != "reservoir":
        available = torch.bincount(torch.cat([task.train.y for task in tasks]))
        names = [name for task in tasks for name in task.names]
        quota = Memory(config.memory, 0).quota(available)
        check_memory(config, quota, lambda label: f"{names[label]!r} {quota[label]} of its {available[label]}")


def check_tasks_fit(config: Config, tasks: list[Task]) -> None:
    """Refuse numbers of a configuration that need more memory than there is."""
    samples = max(len(task.train) for task in tasks)
    uses_neighbours = find(config.method.name).needs.neighbours
    check_fits(config, math.prod(tasks[0].train.shape), tasks[-1].seen, samples, uses_neighbours=uses_neighbours)


@contextmanager
def _locked_folder(out: Path, config: Config) -> Iterator[None]:
    """Make the folder with its config.json, and keep other processes from writing in it."""
    if distributed.rank():
        yield
        return
    files.make_folder(out)
    with files.lock(out), files.named_errors(out):
        files.write_json(out / "config.json", config.model_dump())
        yield


def read_result(out: Path, config: Config) -> dict[str, Any] | None:
    """The result in `out` if this run is finished there, None if it is not, an error if `out` belongs to another."""
    expected = complete(config.model_dump())
    if (out / "config.json").exists():
        begun = _completed(files.read_json(out / "config.json"))
        if begun != expected:
            difference = _difference(_flat(begun), _flat(expected))
            raise InputError(f"{out} was begun with another configuration ({difference}); give another --out")
    elif not files.is_unused(out):
        raise InputError(f"{out} is not an empty folder and not a run of mtn; give another --out")
    if not (out / "result.json").exists():
        return None
    result = files.read_json(out / "result.json")
    if not isinstance(result, dict) or _completed(result.get("config")) != expected:
        raise InputError(f"{out / 'result.json'} is damaged: it is not the result of the run in {out}")
    return result


def _completed(written: Any) -> Any:
    """A configuration as it was written, with the options that version 0.1 wrote for every method."""
    try:
        return complete(written)
    except (TypeError, KeyError):
        return written


class StreamTrainer:
    """Trains and evaluates a learner task by task. A checkpoint is saved after each task and within long ones.

    It goes on from `state`; where that is not there yet, from `shared`, the state of a run of the first task alone.
    """

    def __init__(
        self,
        config: Config,
        tasks: list[Task],
        state: Path,
        progress: Progress,
        save_every: float,
        shared: Path | None = None,
    ) -> None:
        self.config, self.tasks, self.path = config, tasks, state
        self.progress, self.save_every = progress, save_every
        shape = tasks[0].train.shape
        self.learner = Learner(config, *shape, store=_store(config, state.parent, shape))
        self.correct: list[list[int]] = []  # after each task: right answers of each class seen
        self.done = 0  # tasks learned
        self.log: log.MetricLog | None = None
        self.data = fingerprint(tasks)
        self.saved = time.monotonic()
        begun = state if shared is None else shared
        saved = distributed.broadcast_from_first(lambda: load_tensors(begun) if begun.exists() else None)
        if saved is not None:
            self._load(*saved, data=self.data if shared is None else fingerprint(tasks[:1]))

    def learn(self) -> None:
        """Train and evaluate on all tasks that are left."""
        reset_peak_memory()
        self.learner.memory.commit()  # in case the run was killed between saving the state and this
        seconds = self.learner.effort.seconds
        for task in self.tasks[self.done :]:
            self.saved = time.monotonic()
            self.learner.learn_task(task, self._task_progress(task), self._between_steps)
            start = time.perf_counter()
            self.correct.append(self.evaluate(task).tolist())
            spent, queries = time.perf_counter() - start, sum(len(seen.test) for seen in self.tasks[: task.index + 1])
            seconds["evaluation"] += spent
            seconds["per_1000_queries"] = 1000 * spent / max(queries, 1)  # in the end that of the last task
            current = self._metrics()
            self._log({name: current[name][-1] for name in ("accuracy", "newest_accuracy", "old_accuracy")})
            self.done = task.index + 1
            self._save()

    def evaluate(self, task: Task) -> np.ndarray:
        """Count the test samples classified correctly, for each class seen so far: (classes,)."""
        correct = np.zeros(task.seen, dtype=np.int64)
        learner, progress = self.learner, self._task_progress(task)
        memory = inference.featurised_memory(learner.memory, learner.method)
        for seen in self.tasks[: task.index + 1]:
            for rows, logits in inference.predictions(learner.method, seen.test, memory, self.config.method.k):
                y = seen.test.y[rows]
                correct += np.bincount(y[logits.argmax(1).cpu() == y], minlength=task.seen)
            progress("testing", seen.index + 1, task.index + 1)
        return correct

    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        seconds, trained = self.learner.effort.seconds, self.learner.effort.trained_samples
        return {
            "method": self.config.method.name,
            "data": self.config.stream.paths[0],
            "seed": self.config.seed,
            **self._metrics(),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            "processor_seconds": round(self.learner.effort.processor_seconds, 4),
            **self.learner.method.measured(),
            "kept": self.learner.kept(),
            "train_samples_per_second": round(trained / seconds["training"], 1) if trained else None,
            "peak_memory_mb": peak_memory_mb(),
            "config": self.config.model_dump(),
            "versions": versions(),
        }

    def _metrics(self) -> dict[str, Any]:
        """Every metric over the tasks so far."""
        tasks, correct = self.tasks[: len(self.correct)], [np.array(row) for row in self.correct]
        total = np.concatenate([np.bincount(task.test.y, minlength=task.seen)[task.old :] for task in tasks])
        sizes = [len(task.names) for task in tasks]
        extra = getattr(self.config.stream, "metrics", ())
        return metrics.summarise(correct, total, sizes) | {
            name: metrics.EXTRA[name](correct, total, sizes) for name in extra
        }

    def _log(self, numbers: log.Numbers) -> None:
        if self.log is not None:
            self.log.write(self.done + 1, self.learner.effort.steps, numbers)

    def _task_progress(self, task: Task) -> Progress:
        return lambda what, done, of: self.progress(f"task {task.index + 1}/{len(self.tasks)}: {what}", done, of)

    def _between_steps(self) -> None:
        learner = self.learner
        if learner.effort.steps % log.LOG_EVERY == 0 and learner.optimiser is not None:
            terms = {f"loss/{name}": term.item() for name, term in learner.terms.items()}
            self._log({"lr": learner.optimiser.param_groups[0]["lr"], **terms})
        if time.monotonic() - self.saved > self.save_every:
            self._save()
            self.saved = time.monotonic()

    def _save(self) -> None:
        if distributed.rank():
            return
        learner = self.learner
        tensors = learner.state() | {"rng": torch.get_rng_state()}
        position = {"task": self.done, "stage": learner.stage, "step": learner.step, "data": self.data}
        save_tensors(self.path, tensors, position | {"history": {"correct": self.correct, **vars(learner.effort)}})
        learner.memory.commit()

    def _load(self, tensors: dict[str, Tensor], facts: dict[str, Any], data: str) -> None:
        if facts.get("data", data) != data:  # runs of version 0.1 have none
            raise InputError(f"{self.config.stream.paths[0]} has changed since this run was begun; give another --out")
        learner, history = self.learner, facts["history"]
        learner.load_state(tensors)
        self.done, learner.stage, learner.step = facts["task"], facts["stage"], facts["step"]
        self.correct = history.pop("correct")
        learner.effort = Effort(**history)
        if learner.method.needs.memory == "everything":
            learner.past = [task.train for task in self.tasks[: self.done]]
        torch.set_rng_state(tensors["rng"])


def fingerprint(tasks: list[Task]) -> str:
    """Of labels, ids and vectors, so that a run goes on with the data that it was begun with; of images, no pixels."""
    parts = [samples for task in tasks for samples in (task.train, task.test)]
    size = sum(len(part) for part in parts) * math.prod(parts[0].shape) * 4
    step = -(-size // FINGERPRINTED) or 1
    total = hashlib.sha256()
    for part in parts:
        total.update(np.stack([part.y.numpy(), part.id.numpy()]).tobytes())
        if len(part.shape) == 1:
            total.update(np.ascontiguousarray(part.source[part.rows[::step]]).tobytes())
    return total.hexdigest()[:16]


def _store(config: Config, folder: Path, shape: tuple[int, ...]) -> VectorStore:
    """Of the run in a folder. A collection's name is on disk before the collection is, so that none is left unknown."""
    uri, file = config.memory.uri, folder / "collection"
    if uri is None:
        return make_store(config.memory, shape)
    if not file.exists():
        files.write_text(file, new_location(uri).name)
    return make_store(config.memory, shape, Location(uri, file.read_text("utf-8")))


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {key: value for name in values for key, value in _flat(values[name], f"{prefix}{name}.").items()}


def _difference(begun: dict[str, Any], expected: dict[str, Any]) -> str:
    changed = [key for key in begun | expected if begun.get(key) != expected.get(key)]
    return "; ".join(f"{key} was {begun.get(key)!r}, is now {expected.get(key)!r}" for key in changed[:3])

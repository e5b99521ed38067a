"""A configuration -> its stream, learned task by task in a folder -> result.json. Killed at any time, it resumes."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtn import checkpoint, datasets, lesson, log, metrics, milvus, ranks
from mtn.config import Config
from mtn.errors import InputError
from mtn.learn import Effort, Learner, check_memory
from mtn.machine import peak_memory_mb, reset_peak_memory, versions
from mtn.memory import Memory
from mtn.methods import check
from mtn.progress import Progress, silent
from mtn.stream import Task, split

SAVE_EVERY = 30.0
"""Seconds of training between two saves within a task."""


def run(
    config: Config,
    out: Path,
    say: Progress = silent,
    *,
    save_every: float = SAVE_EVERY,
    tasks: list[Task] | None = None,
) -> dict[str, Any]:
    """Do the run that `config` describes in the folder `out`, or what is left of it; return its result.

    Nothing is written before the configuration, the folder and the data have been found good. `tasks` are those of
    the configuration's stream, for a caller that has them already. Of several processes the first reads and writes.
    """
    finished = ranks.first(lambda: look(out, config))
    if finished is not None:
        return finished
    if ranks.count() > 1 and config.images.side is not None:  # batch normalisation looks at all rows together
        raise InputError("features that are learned (images.side) need one process: leave torchrun out")
    if ranks.count() > 1 and config.memory.store == "milvus":
        raise InputError('memory.store = "milvus" needs one process: leave torchrun out')
    if tasks is None:
        tasks = split(datasets.of(config, say), config.stream)
    check(config)
    if len(tasks) > 1 and config.memory.select != "reservoir":  # whose classes get what chance gives them
        available = torch.bincount(torch.cat([task.train.y for task in tasks]))
        names = [name for task in tasks for name in task.names]
        left = Memory(config.memory, 0).quota(available)
        check_memory(config, left, lambda place: f"{names[place]!r} {left[place]} of its {available[place]}")
    with _begun(out, config), torch.random.fork_rng(devices=[]):
        whole = Run(config, tasks, out / "state.safetensors", say, save_every)
        with closing(log.start(out, config, whole.done, whole.learner.effort.steps)) as whole.log:
            whole.learn()
        result = whole.result()
        if ranks.rank() == 0:
            checkpoint.write_json(out / "result.json", result)
    return result


@contextmanager
def _begun(out: Path, config: Config) -> Iterator[None]:
    """The folder is there, and nobody else writes in it."""
    if ranks.rank():
        yield
        return
    checkpoint.make_folder(out)
    with checkpoint.lock(out):
        checkpoint.write_json(out / "config.json", config.model_dump())
        yield


def look(out: Path, config: Config) -> dict[str, Any] | None:
    """The result in `out` if this run is finished there, None if it is not, an error if `out` belongs to another."""
    wanted = config.model_dump()
    if (out / "config.json").exists():
        begun = checkpoint.read_json(out / "config.json")
        if begun != wanted:
            difference = _difference(_flat(begun), _flat(wanted))
            raise InputError(f"{out} was begun with another configuration ({difference}); give another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder and not a run of mtn; give another --out")
    if not (out / "result.json").exists():
        return None
    result = checkpoint.read_json(out / "result.json")
    if not isinstance(result, dict) or result.get("config") != wanted:
        raise InputError(f"{out / 'result.json'} is damaged: it is not the result of the run in {out}")
    return result


class Run:
    """A learner on its way through a list of tasks. Its state is whole on disk after each and within long ones."""

    def __init__(self, config: Config, tasks: list[Task], state: Path, say: Progress, save_every: float) -> None:
        self.config, self.tasks, self.path, self.say, self.save_every = config, tasks, state, say, save_every
        shape = tasks[0].train.shape
        self.learner = Learner(config, *shape, collection=_collection(config, state.parent, shape[0]))
        self.correct: list[list[int]] = []  # after each task, of each class seen
        self.done = 0  # tasks
        self.log: log.Log | None = None
        self.saved = time.monotonic()
        saved = ranks.first(lambda: checkpoint.load(state) if state.exists() else None)
        if saved is not None:
            self._load(*saved)

    def learn(self) -> None:
        """All tasks that are left."""
        reset_peak_memory()
        self.learner.memory.settle()  # if a kill came between saving and this
        seconds = self.learner.effort.seconds
        for task in self.tasks[self.done :]:
            self.saved = time.monotonic()
            self.learner.learn_task(task, self._say(task), self._between_steps)
            start = time.perf_counter()
            self.correct.append(self.evaluate(task).tolist())
            spent, asked = time.perf_counter() - start, sum(len(seen.test) for seen in self.tasks[: task.index + 1])
            seconds["evaluation"] += spent
            seconds["per_1000_queries"] = 1000 * spent / max(asked, 1)  # of the last task in the end
            now = self._metrics()
            self._note({name: now[name][-1] for name in ("accuracy", "newest_accuracy", "old_accuracy")})
            self.done = task.index + 1
            self._save()

    def evaluate(self, task: Task) -> np.ndarray:
        """Test samples answered rightly, of each class seen so far."""
        correct = np.zeros(task.seen, dtype=np.int64)
        learner, say = self.learner, self._say(task)
        memory = lesson.recall(learner.memory, learner.method)
        for seen in self.tasks[: task.index + 1]:
            for rows, z in lesson.predictions(learner.method, seen.test, memory, self.config.method.k):
                y = seen.test.y[rows]
                correct += np.bincount(y[z.argmax(1).cpu() == y], minlength=task.seen)
            say("testing", seen.index + 1, task.index + 1)
        return correct

    def result(self) -> dict[str, Any]:
        """What goes into result.json."""
        seconds, trained = self.learner.effort.seconds, self.learner.effort.trained_samples
        return {
            "method": self.config.method.name,
            "data": self.config.stream.paths[0],
            "seed": self.config.seed,
            **self._metrics(),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            **self.learner.method.measured(),
            "kept": self.learner.kept(),
            "train_samples_per_second": round(trained / seconds["training"], 1) if trained else None,
            "peak_memory_mb": peak_memory_mb(),
            "config": self.config.model_dump(),
            "versions": versions(),
        }

    def _metrics(self) -> dict[str, Any]:
        """Of the tasks so far."""
        tasks, correct = self.tasks[: len(self.correct)], [np.array(row) for row in self.correct]
        total = np.concatenate([np.bincount(task.test.y, minlength=task.seen)[task.old :] for task in tasks])
        return metrics.summarise(correct, total, [len(task.names) for task in tasks])

    def _note(self, numbers: log.Numbers) -> None:
        if self.log is not None:
            self.log.write(self.done + 1, self.learner.effort.steps, numbers)

    def _say(self, task: Task) -> Progress:
        return lambda what, done, of: self.say(f"task {task.index + 1}/{len(self.tasks)}: {what}", done, of)

    def _between_steps(self) -> None:
        learner = self.learner
        if learner.effort.steps % log.EVERY == 0 and learner.optimiser is not None:
            terms = {f"loss/{name}": term.item() for name, term in learner.terms.items()}
            self._note({"lr": learner.optimiser.param_groups[0]["lr"], **terms})
        if time.monotonic() - self.saved > self.save_every:
            self._save()
            self.saved = time.monotonic()

    def _save(self) -> None:
        if ranks.rank():
            return
        learner = self.learner
        tensors = learner.state() | {"rng": torch.get_rng_state()}
        position = {"task": self.done, "stage": learner.stage, "step": learner.step}
        checkpoint.save(self.path, tensors, position | {"history": {"correct": self.correct, **vars(learner.effort)}})
        learner.memory.settle()

    def _load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        learner, history = self.learner, facts["history"]
        learner.load_state(tensors)
        self.done, learner.stage, learner.step = facts["task"], facts["stage"], facts["step"]
        self.correct = history.pop("correct")
        learner.effort = Effort(**history)
        if learner.method.remembers == "everything":
            learner.past = [task.train for task in self.tasks[: self.done]]
        torch.set_rng_state(tensors["rng"])


def _collection(config: Config, folder: Path, dimension: int) -> milvus.Collection | None:
    """Of the run in a folder: its name is there before it is, so that no attempt leaves one that nobody knows."""
    if config.memory.store == "exact":
        return None
    file = folder / "collection"
    if not file.exists():
        checkpoint.write_text(file, milvus.fresh_name())
    return milvus.collection(config.memory, dimension, file.read_text("utf-8"))


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {key: value for name in values for key, value in _flat(values[name], f"{prefix}{name}.").items()}


def _difference(begun: dict[str, Any], wanted: dict[str, Any]) -> str:
    changed = [key for key in begun | wanted if begun.get(key) != wanted.get(key)]
    return "; ".join(f"{key} was {begun.get(key)!r}, is now {wanted.get(key)!r}" for key in changed[:3])

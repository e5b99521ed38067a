"""The one loop: tasks -> memory -> lesson -> steps -> accuracies. The only backward() of the package is here."""

import copy
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtn import checkpoint, datasets, lesson, log, metrics, milvus, ranks
from mtn.config import Config, Train
from mtn.errors import InputError
from mtn.memory import Memory
from mtn.methods import Method, Stage, check, find, make
from mtn.progress import Progress, silent
from mtn.samples import Samples
from mtn.stream import Task, split
from mtn.version import __version__

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
        _check_memory(config, left, lambda place: f"{names[place]!r} {left[place]} of its {available[place]}")
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
    make_folder(out)
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


def _check_memory(config: Config, counts: Tensor, called: Callable[[int], str] | None = None) -> None:
    """Refuse a memory that leaves a class fewer exemplars (C) than the method needs."""
    fewest, needs = int(counts.argmin()), find(config.method.name).needs
    if counts[fewest] < needs:
        key = "total" if config.memory.total is not None else "per_class"
        left = f"number {fewest} in order of arrival {counts[fewest]}" if called is None else called(fewest)
        raise InputError(
            f"method {config.method.name!r} needs {needs} exemplars of each class; "
            f"memory.{key} = {getattr(config.memory, key)} leaves class {left}"
        )


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None


def minimise(
    loss: Callable[[int], dict[str, Tensor]],
    optimiser: torch.optim.Optimizer,
    train: Train,
    steps: int,
    *,
    first: int = 0,
    task: int = 0,
) -> Iterator[int]:
    """Take the steps from `first` on; yields the number of steps done after each."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = train.lr * rate(train.schedule, step / steps, task)
        total = torch.stack(list(loss(step).values())).sum()
        if not total.isfinite():
            raise InputError(f"training diverged at step {step} (loss {total.item()}): lower train.lr, now {train.lr}")
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        if train.clip:
            nn.utils.clip_grad_norm_(parameters, train.clip)
        optimiser.step()
        yield step + 1


def rate(schedule: str, progress: float, task: int) -> float:
    """Share of the learning rate at `progress` (0 to 1) through a task."""
    if schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if schedule == "step":  # SS-IL's official one
        return (1.0 if progress < 0.4 else 0.1 if progress < 0.8 else 0.01) / (task + 1)
    return 1.0


def make_optimiser(method: Method, train: Train, only: str = "") -> torch.optim.Optimizer:
    """A fresh one for each stage: parameters grow with the classes."""
    named = [(name, parameter) for name, parameter in method.named_parameters() if name.startswith(only)]
    parameters = [parameter for _, parameter in named if parameter.requires_grad and parameter.numel()]
    if train.optimizer == "sgd":
        return torch.optim.SGD(parameters, train.lr, momentum=0.9, weight_decay=train.weight_decay)
    return torch.optim.AdamW(parameters, train.lr, weight_decay=train.weight_decay)


@dataclass
class Effort:
    """What learning has cost so far."""

    seconds: dict[str, float] = field(default_factory=lambda: {"retrieval": 0.0, "training": 0.0, "evaluation": 0.0})
    trained_samples: int = 0
    steps: int = 0

    @contextmanager
    def clock(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


class Learner:
    """A method, its memory, and how far into a task they are: fed one task after the other, none of them announced."""

    def __init__(self, config: Config, *shape: int, collection: milvus.Collection | None = None) -> None:
        """`shape` is that of a sample: of a vector, or of an image."""
        self.config = config
        torch.manual_seed(config.seed)
        self.method = make(shape[0], config).to(find_device(config.device)).eval()
        self.memory = Memory(config.memory, *shape, collection=collection)
        self.past: list[Samples] = []  # all samples so far, for a method that remembers everything
        self.before: Method | None = None
        self.stage, self.step = 0, 0  # stages done of the task, steps done of the next one
        self.optimiser: torch.optim.Optimizer | None = None
        self.optimiser_state: dict[str, Tensor] = {}
        self.terms: dict[str, Tensor] = {}  # of the loss, at the latest step
        self.effort = Effort()

    def learn_task(self, task: Task, say: Progress = silent, pause: Callable[[], None] = lambda: None) -> None:
        """What is left of the task. It may bring samples of known classes, beside new classes or instead of them.

        `pause` is called between two steps, where `state` is whole.
        """
        if not (self.stage or self.step):
            self.begin(task)
        stages = self.method.stages(task)
        for index in range(self.stage, len(stages)):
            self.stage = index
            if stages[index].itself and not self.step:
                self.before = self._frozen()
            with self.effort.clock("retrieval"):
                plan = self.prepare(task, stages[index], say)
            self.train(task, stages[index], plan, say, pause)
        with self.effort.clock("training"):
            self.method.end_task(task, self.memory)
        if self.method.remembers == "everything":
            self.past.append(task.train)
        self.stage, self.before = 0, None

    def begin(self, task: Task) -> None:
        """The memory is filled before training and stays as it is within the task (docs/design.md, choice 5)."""
        torch.manual_seed(lesson.generator(self.config.seed, task.index, "initialise").initial_seed())
        if self.method.remembers == "exemplars":
            self.memory.add(task.train, lesson.generator(self.config.seed, task.index, "memory"), self.method.view)
            if task.old:  # the base alone needs none
                counts = torch.bincount(self.memory.y, minlength=task.seen)
                counts[sorted(self.method.forgotten)] = len(self.memory)
                _check_memory(self.config, counts)
        if self.method.distils and task.index:
            self.before = self._frozen()
        self.method.begin_task(task)

    def _frozen(self) -> Method:
        return copy.deepcopy(self.method).requires_grad_(False)

    def prepare(self, task: Task, stage: Stage, say: Progress = silent) -> lesson.Lesson:
        return lesson.prepare(task, stage, self.method, self.before, self.memory, self.config, say, self.past)

    def train(
        self,
        task: Task,
        stage: Stage,
        plan: lesson.Lesson,
        say: Progress = silent,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        train = self.config.train.model_copy(update={"lr": self.config.train.lr * stage.lr})
        self.optimiser = make_optimiser(self.method, train, stage.only)
        _load_optimiser(self.optimiser, self.optimiser_state)
        method = ranks.data_parallel(self.method)
        mark = time.perf_counter()

        def loss(step: int) -> dict[str, Tensor]:
            terms = method(stage, plan.batch(step), task)
            self.terms = {name: term.detach() for name, term in terms.items()}
            return terms

        self.method.train()
        for step in minimise(loss, self.optimiser, train, plan.steps, first=self.step, task=task.index):
            self.step = step
            self.effort.seconds["training"] += time.perf_counter() - mark
            self.effort.trained_samples += plan.size
            self.effort.steps += 1
            say("training", self.step, plan.steps)
            if self.step < plan.steps:
                pause()
            mark = time.perf_counter()
        self.method.eval()
        self.step, self.optimiser, self.optimiser_state = 0, None, {}

    def forget(self, label: int) -> None:
        """Nothing of the class is kept: no row, no exemplar, no sample."""
        self.method.forget(label)
        self.memory.remove(self.memory.y == label)
        self.past = [part.select(part.y != label).apart() for part in self.past]

    def copy(self) -> "Learner":
        """One that learns on by itself. Only what learning changes in place is copied: exemplars are not."""
        twin = copy.copy(self)
        twin.method, twin.memory = copy.deepcopy(self.method), copy.copy(self.memory)
        twin.past, twin.effort = list(self.past), copy.deepcopy(self.effort)
        return twin

    def kept(self) -> dict[str, float]:
        """Numbers kept between tasks: vectors that are remembered (four bytes of an image are one number), weights,
        statistics."""
        remembered = len(self.memory) + sum(map(len, self.past))
        shape = self.memory.x.shape[1:]
        numbers = shape.numel() // (4 if len(shape) == 3 else 1)
        weights = dict(self.method.named_parameters())
        statistics = [buffer for name, buffer in self.method.state_dict().items() if name not in weights]
        floats = {
            "exemplars": remembered * numbers,
            "weights": sum(parameter.numel() for parameter in weights.values()),
            "statistics": sum(buffer.numel() for buffer in statistics if buffer.is_floating_point()),
        }
        size = sum(t.numel() * t.element_size() for t in self.method.state_dict().values()) + 4 * floats["exemplars"]
        return floats | {"total": sum(floats.values()), "mb": round(size / 1e6, 2)}

    def state(self) -> dict[str, Tensor]:
        """All but `past`, which whoever feeds the tasks has: it can be as large as the data."""
        optimiser = {} if self.optimiser is None else _optimiser_tensors(self.optimiser)
        parts = {"method": self.method.state_dict(), "memory": self.memory.state(), "optimiser": optimiser}
        if self.before is not None:
            parts["before"] = self.before.state_dict()
        return {f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        checkpoint.restore(self.method, checkpoint.take(tensors, "method."))
        self.memory.load_state(checkpoint.take(tensors, "memory."))
        self.optimiser_state = checkpoint.take(tensors, "optimiser.")
        before = checkpoint.take(tensors, "before.")
        if before:
            self.before = self._frozen()
            checkpoint.restore(self.before, before)


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


def find_device(name: str) -> torch.device:
    alone = ranks.count() == 1  # processes cannot exchange what lies on mps
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available() and alone, "cpu": True}
    if name == "auto":
        name = next(device for device in present if present[device])
    if not present.get(name):
        raise InputError(f"device = {name!r} is not there; present: {', '.join(d for d in present if present[d])}")
    return torch.device(name)


def versions() -> dict[str, str]:
    python = platform.python_version()
    return {"mtn": __version__, "torch": torch.__version__, "numpy": np.__version__, "python": python}


def reset_peak_memory() -> None:
    """Let the peak count from here, so that runs in one process do not share it (Linux only)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_mb() -> float | None:
    """Largest resident size since the reset."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return round(int(status.split("VmHWM:")[1].split()[0]) / 1024, 1)


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": value for index, entry in state.items() for name, value in entry.items()}


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = checkpoint.lay_out(value, parameters[int(index)])
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    return {key: value for name in values for key, value in _flat(values[name], f"{prefix}{name}.").items()}


def _difference(begun: dict[str, Any], wanted: dict[str, Any]) -> str:
    changed = [key for key in begun | wanted if begun.get(key) != wanted.get(key)]
    return "; ".join(f"{key} was {begun.get(key)!r}, is now {wanted.get(key)!r}" for key in changed[:3])

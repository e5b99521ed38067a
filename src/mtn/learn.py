"""The one loop: task -> memory -> lesson -> steps. The only backward() of the package is here."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mtn import checkpoint, lesson, milvus, ranks
from mtn.config import Config, Train
from mtn.errors import InputError
from mtn.machine import find_device
from mtn.memory import Memory
from mtn.methods import Method, Stage, find, make
from mtn.progress import Progress, silent
from mtn.samples import Samples
from mtn.stream import Task


def check_memory(config: Config, counts: Tensor, called: Callable[[int], str] | None = None) -> None:
    """Refuse a memory that leaves a class fewer exemplars (C) than the method needs."""
    fewest, needs = int(counts.argmin()), find(config.method.name).needs
    if counts[fewest] < needs:
        key = "total" if config.memory.total is not None else "per_class"
        left = f"number {fewest} in order of arrival {counts[fewest]}" if called is None else called(fewest)
        raise InputError(
            f"method {config.method.name!r} needs {needs} exemplars of each class; "
            f"memory.{key} = {getattr(config.memory, key)} leaves class {left}"
        )


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
                check_memory(self.config, counts)
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

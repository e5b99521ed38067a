"""The one loop: task -> memory -> batches -> steps. The only backward() of the package is here."""

import copy
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from mtn.batches import StageBatches, prepare
from mtn.config import Config, Train
from mtn.errors import InputError
from mtn.memory import Memory
from mtn.methods import Judged, Method, Stage, find, make
from mtn.runtime import distributed, rng
from mtn.runtime.device import find_device
from mtn.runtime.progress import Progress, silent
from mtn.runtime.threads import limited_threads
from mtn.samples import Samples
from mtn.search import VectorStore
from mtn.storage.tensors import lay_out, restore_module, strip_prefix
from mtn.stream import Task


def check_memory(config: Config, counts: Tensor, called: Callable[[int], str] | None = None) -> None:
    """Refuse a memory that leaves a class fewer exemplars (C) than the method needs."""
    fewest, needed = int(counts.argmin()), find(config.method.name).needs.exemplars_per_class
    if counts[fewest] < needed:
        key = "total" if config.memory.total is not None else "per_class"
        left = f"number {fewest} in order of arrival {counts[fewest]}" if called is None else called(fewest)
        raise InputError(
            f"method {config.method.name!r} needs {needed} exemplars of each class; "
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


def make_optimiser(method: Method, train: Train, prefix: str = "") -> torch.optim.Optimizer:
    """A new one for each stage, as parameters grow with the classes; over those whose names begin with `prefix`."""
    named = [(name, parameter) for name, parameter in method.named_parameters() if name.startswith(prefix)]
    parameters = [parameter for _, parameter in named if parameter.requires_grad and parameter.numel()]
    kind: Any = torch.optim.AdamW
    options: dict[str, Any] = {"fused": True}
    if train.optimizer == "sgd":
        kind, options = torch.optim.SGD, {"momentum": 0.9}
    optimiser: torch.optim.Optimizer = without_compiler(kind)(
        parameters, train.lr, weight_decay=train.weight_decay, **options
    )
    return optimiser


@cache
def without_compiler(kind: Any) -> Any:
    """The same optimiser, but at its first use it does not import torch's compiler, which takes longer than torch."""
    own = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "step")}
    return type(kind.__name__, (kind,), own | {"step": torch.no_grad()(own["step"])})


@dataclass
class Effort:
    """What learning has cost so far."""

    seconds: dict[str, float] = field(default_factory=lambda: {"retrieval": 0.0, "training": 0.0, "evaluation": 0.0})
    processor_seconds: float = 0.0
    """Of this process, all threads together, in retrieval and training: what other programs use does not count."""
    trained_samples: int = 0
    steps: int = 0

    @contextmanager
    def clock(self, what: str) -> Iterator[None]:
        """Count the seconds of a block under a name."""
        start = _now()
        yield
        self.count(what, start)

    def count(self, what: str, start: tuple[float, float]) -> None:
        """Count the seconds since `start` under a name."""
        wall, processor = _now()
        self.seconds[what] += wall - start[0]
        self.processor_seconds += processor - start[1]


def _now() -> tuple[float, float]:
    """Wall and processor seconds."""
    return time.perf_counter(), time.process_time()


class Learner:
    """A method, its memory, and how far into a task they are: fed one task after the other, none of them announced."""

    def __init__(self, config: Config, *shape: int, store: VectorStore | None = None) -> None:
        """`shape` is that of a sample, a vector or an image; `store` keeps the exemplars, by default a new one."""
        self.config = config
        torch.manual_seed(config.seed)
        self.method = make(shape[0], config).to(find_device(config.device)).eval()
        self.memory = Memory(config.memory, *shape, store=store)
        self.past: list[Samples] = []  # all samples so far, for a method that remembers everything
        self.teacher: Method | None = None  # the model before the task
        self.stage, self.step = 0, 0  # stages done of the task, steps done of the next one
        self.optimiser: torch.optim.Optimizer | None = None
        self.optimiser_state: dict[str, Tensor] = {}
        self.terms: dict[str, Tensor] = {}  # of the loss, at the latest step
        self.limit_threads = False  # small steps take one thread; a run does not, as rounding depends on it
        self.effort = Effort()
        self.judged: Judged | None = None  # exemplars that the latest task's training has not seen, and their scores

    def learn_task(self, task: Task, progress: Progress = silent, pause: Callable[[], None] = lambda: None) -> None:
        """Learn what is left of the task, which may bring new classes, more samples of known ones, or both.

        `pause` is called between two steps, where `state` can be saved.
        """
        if not (self.stage or self.step):
            self.begin(task)
        stages = self.method.stages(task)
        for index in range(self.stage, len(stages)):
            self.stage = index
            if stages[index].self_distil and not self.step:
                self.teacher = self._frozen()
            with self.effort.clock("retrieval"):
                batches = self.prepare(task, stages[index], progress)
            self.train(task, stages[index], batches, progress, pause)
        with self.effort.clock("training"):
            self.judged = self.method.end_task(task, self.memory)
        if self.method.needs.memory == "everything":
            self.past.append(task.train)
        self.stage, self.teacher = 0, None

    def answer_untrained(self, task: Task) -> None:
        """Know a task's classes at once by what needs no training, to answer until a copy has learned the task."""
        self.begin(task)
        self.teacher = None
        if not self.method.answer_untrained(task, self.memory):
            name = self.config.method.name
            raise InputError(f"polish = False: method {name!r} knows a class by training alone; 'practical' does not")

    def begin(self, task: Task) -> None:
        """The memory is filled before training and stays so within the task (docs/explanation/design.md, choice 5)."""
        torch.manual_seed(rng.generator(self.config.seed, task.index, "initialise").initial_seed())
        if self.method.needs.teacher and task.index:
            self.teacher = self._frozen()
        self.method.begin_task(task)
        if self.method.needs.memory == "exemplars":
            drawn = rng.generator(self.config.seed, task.index, "memory")
            self.memory.add(task.train, drawn, self.method.featurise, self.method.trust)
            if task.old:  # the base alone needs none
                counts = torch.bincount(self.memory.y, minlength=task.seen)
                forgotten = self.method.forgotten.cpu()
                counts[: len(forgotten)][forgotten] = len(self.memory)
                check_memory(self.config, counts)

    def _frozen(self) -> Method:
        return copy.deepcopy(self.method).requires_grad_(False)

    def prepare(self, task: Task, stage: Stage, progress: Progress = silent) -> StageBatches:
        """The batches of a stage."""
        return prepare(task, stage, self.method, self.teacher, self.memory, self.config, progress, self.past)

    def train(
        self,
        task: Task,
        stage: Stage,
        batches: StageBatches,
        progress: Progress = silent,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the steps of a stage that are left."""
        train = self.config.train.model_copy(update={"lr": self.config.train.lr * stage.lr})
        self.method.begin_stage()
        self.optimiser = make_optimiser(self.method, train, stage.parameters)
        _load_optimiser(self.optimiser, self.optimiser_state)
        method = distributed.data_parallel(self.method)
        mark = _now()

        def loss(step: int) -> dict[str, Tensor]:
            terms: dict[str, Tensor] = method(stage, batches.batch(step), task)
            self.terms = {name: term.detach() for name, term in terms.items()}
            return terms

        self.method.train()
        with limited_threads(self._multiplications(batches.size)) if self.limit_threads else nullcontext():
            for step in minimise(loss, self.optimiser, train, batches.steps, first=self.step, task=task.index):
                self.step = step
                self.effort.count("training", mark)
                self.effort.trained_samples += batches.size
                self.effort.steps += 1
                progress("training", self.step, batches.steps)
                if self.step < batches.steps:
                    pause()
                mark = _now()
        self.method.eval()
        self.step, self.optimiser, self.optimiser_state = 0, None, {}

    def _multiplications(self, samples: int) -> int:
        """Of a step's forward pass, about: every weight times every token."""
        tokens = 1 + min(self.config.method.k, len(self.memory)) if self.method.needs.neighbours else 1
        return samples * tokens * sum(parameter.numel() for parameter in self.method.parameters())

    def forget(self, label: int) -> None:
        """Nothing of the class is kept: no row, no exemplar, no sample."""
        self.method.forget(label)
        self.memory.remove(self.memory.y == label)
        self.past = [part.select(part.y != label).compact() for part in self.past]
        self.refresh()

    def refresh(self) -> None:
        """Let the method follow a memory whose exemplars were removed or relabelled."""
        self.method.refresh(self.memory)
        self.method.derive()

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
        shape = self.memory.sample_shape
        numbers = shape.numel() // (4 if len(shape) == 3 else 1)
        weights = dict(self.method.named_parameters())
        statistics = [buffer for name, buffer in self.method.state_dict().items() if name not in weights]
        floats = {
            "exemplars": remembered * numbers,
            "weights": sum(parameter.numel() for parameter in weights.values()),
            "statistics": sum(buffer.numel() for buffer in statistics if buffer.is_floating_point()),
        }
        state = {name: t for name, t in self.method.state_dict().items() if not name.endswith("forgotten")}
        size = sum(t.numel() * t.element_size() for t in state.values()) + 4 * floats["exemplars"]
        return floats | {"total": sum(floats.values()), "mb": round(size / 1e6, 2)}

    def state(self) -> dict[str, Tensor]:
        """All but `past`, which whoever feeds the tasks has: it can be as large as the data."""
        optimiser = {} if self.optimiser is None else _optimiser_tensors(self.optimiser)
        parts = {"method": self.method.state_dict(), "memory": self.memory.state(), "optimiser": optimiser}
        if self.teacher is not None:
            parts["before"] = self.teacher.state_dict()
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.restore(strip_prefix(tensors, "method."))
        self.memory.load_state(strip_prefix(tensors, "memory."))
        self.memory.verify()
        self.optimiser_state = strip_prefix(tensors, "optimiser.")
        teacher = strip_prefix(tensors, "before.")
        if teacher:
            self.teacher = self._frozen()
            restore_method(self.teacher, teacher)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put a saved state of the method into it."""
        restore_method(self.method, tensors)


def restore_method(method: Method, tensors: Mapping[str, Tensor]) -> None:
    """Put a saved state into a method.

    Early states say neither which classes were forgotten nor any doubt: none. They have no sums of random features.
    """
    missing = {
        f"{name.removesuffix('seen')}forgotten": torch.zeros(int(seen), dtype=torch.bool)
        for name, seen in tensors.items()
        if name.rpartition(".")[2] == "seen"
    }
    method.make_room(tensors)
    later = re.compile(r"(^|\.)(doubt$|fourier\.)")
    missing |= {name: value for name, value in method.state_dict().items() if later.search(name)}
    restore_module(method, missing | dict(tensors))
    method.derive()


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
        if value.dim() and value.shape != parameters[int(index)].shape:
            return  # of an earlier version, which had rows of other classes in it: it begins anew
        state.setdefault(int(index), {})[name] = lay_out(value, parameters[int(index)])
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})

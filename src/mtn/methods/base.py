"""What a method is to the loop: what it needs, trains, scores and keeps. The loop itself is in mtn.training."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.config import Config, MethodOptions
from mtn.encoders.backbone import Features
from mtn.errors import InputError
from mtn.evidence import QUERY, WITH_NEIGHBOURS
from mtn.memory import Memory
from mtn.model import Head, rescale
from mtn.neighbours import Neighbours
from mtn.runtime import distributed
from mtn.samples import Samples
from mtn.stream import Task


@dataclass(frozen=True)
class Batch:
    """The samples of a training step: first those the stage is about, then the replayed ones."""

    x: Tensor  # B,D, or images in bytes: B,H,W,3
    y: Tensor  # B
    new_count: int  # the first so many are not replayed
    neighbours: Neighbours | None  # for methods that need them
    teacher_logits: Tensor | None  # B,n of the model before the task, for methods that distil
    class_frequency: Tensor  # C share of each class among the samples that are drawn
    id: Tensor | None = None  # B
    teacher: "Method | None" = None  # with images: the model before the task, which sees them as they are augmented
    memory: Memory | None = None  # with images: whose features are the neighbours
    precision: torch.dtype = torch.float32  # of the products

    def rowwise(self, function: Callable[[Tensor, Neighbours | None], Tensor]) -> Tensor:
        """function(x, neighbours) of the whole batch in float32, computed row by row: several processes share the rows.

        Its products are in `precision`, and so are those of its gradient; weights stay in float32.
        """
        rows = slice(0, len(self.x))
        own = distributed.own_rows(rows)
        neighbours = None if self.neighbours is None else self.neighbours[own]
        with self.products():
            computed = function(self.x[own], neighbours)
        return distributed.gather_rows(computed.float(), rows)

    def products(self) -> torch.autocast:
        """Within it, and in its gradient, matrix products are in `precision`."""
        return torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16)


class Judged(NamedTuple):
    """Exemplars that were held out of training, and their scores (N,C), each without its share in the statistics."""

    samples: Samples
    scores: Tensor


Loss = Callable[[Batch, Task], dict[str, Tensor]]
"""Named terms of a loss; the loop minimises their sum."""


@dataclass(frozen=True)
class Stage:
    """One training within a task. By default: the task's samples, old exemplars replayed, all parameters train."""

    loss: Loss
    name: str = "loss"  # random draws depend on it, so renaming a stage changes results
    samples: Literal["task", "all", "memory", "held out"] = "task"
    replay: Literal["nothing", "old", "all"] = "old"  # exemplars of old classes, or of new ones too
    equal_replay: bool = False  # as many replayed as new samples in a step, whatever train.replay says
    epochs: float = 1.0  # times train.epochs
    lr: float = 1.0  # times train.lr
    parameters: str = ""  # only those whose names begin so are trained
    freeze_backbone: bool = False  # with images: features are computed once
    self_distil: bool = False  # the teacher is the model as it is when the stage begins


@dataclass(frozen=True)
class Needs:
    """What a method needs of the loop, declared once in its class."""

    neighbours: bool = False  # the k nearest exemplars of every sample
    teacher: bool = False  # the logits of the model before the task
    memory: Literal["exemplars", "nothing", "everything"] = "exemplars"
    exemplars_per_class: int = 0  # at the least, once there are old classes
    # With images:
    backbone: Literal["own", "borrowed", "none"] = "own"  # trained by it, or by method.features, or of no use to it
    feature_distillation: bool = False  # the teacher's features, for `feature_distillation`
    signed_features: bool = False  # features that may be negative: no last ReLU
    features_at_end: bool = False  # the task's features as they are after training, for `end_task`
    reinitialise: bool = False  # a new backbone for each task
    grows: Literal["", "networks", "branches"] = ""  # one more backbone a task, or a second branch after the base
    images: bool = False  # images at all: on vectors it is the method that it inherits from


TRAINING_KNOBS: dict[str, tuple[Any, ...]] = {"train.lr": (0.01, 0.03, 0.1, 0.3), "train.min_steps": (0, 400)}
"""Of a method that trains: its rate, and how many steps a small task has at the least."""


class Method(nn.Module):
    """A class-incremental learner over feature vectors. A subclass states only what its paper changes.

    Anything it keeps between tasks is a parameter (a weight) or a buffer (a statistic): that is saved, and counted.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions  # what the section [method] of a recipe may have
    defaults: ClassVar[Mapping[str, Any]] = {}  # its own values of dotted keys of [train] and [method]
    knobs: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # such keys that `mtn tune` searches, and the values it tries
    needs: Needs = Needs()
    losses: ClassVar[tuple[str, ...]] = ()  # what train.loss may be, the default first
    class_rows: ClassVar[tuple[str, ...] | None] = None  # the state with one row per class, for `forget`

    seen: Tensor
    forgotten: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__()
        self.dimension = dimension
        self.config = config
        self.register_buffer("seen", torch.tensor(0))  # number of classes
        self.register_buffer("forgotten", torch.zeros(0, dtype=torch.bool))  # C

    @property
    def options(self) -> Any:
        """The section [method], of the type that the class declares as `Options`."""
        return self.config.method

    def begin_task(self, task: Task) -> None:
        """Make room for the new classes."""
        self.seen.fill_(task.seen)
        self.forgotten = F.pad(self.forgotten, (0, task.seen - len(self.forgotten)))

    def begin_stage(self) -> None:
        """Have all parameters that train: before each training, also one that goes on in its middle."""

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """x B,D -> B,C: the higher the likelier, over all classes seen so far."""
        raise NotImplementedError

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """x B,D -> named parts of the scores, B,C each, that sum to them: for `explain`, after training."""
        return {WITH_NEIGHBOURS if self.needs.neighbours else QUERY: self.scores(x, neighbours)}

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        """B,C: the scores of exemplars that were held out, without their share in the statistics of their classes y."""
        return self.scores(x, neighbours)

    def class_sums(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Sums over all samples seen: of x (C,D) and 1 (C) by class, of x x^T (D,D); None: it keeps none."""
        return None

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """What is trained, one after the other; empty for a method that trains nothing."""
        return (Stage(self.loss),)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """M mask of exemplars that no stage trains on or retrieves, but one that asks for what is held out."""
        return torch.zeros(len(memory), dtype=torch.bool)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        """Named terms of the main stage's loss; the loop minimises their sum."""
        raise NotImplementedError

    def forward(self, stage: Stage, batch: Batch, task: Task) -> dict[str, Tensor]:
        """The terms of the stage's loss. Through here, so that DistributedDataParallel sees the pass."""
        return stage.loss(batch, task)

    def logits(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """B,C: what is distilled from this method when it is the teacher."""
        return self.scores(x, neighbours)

    def feature_distillation(self, now: Features, before: Features, task: Task) -> dict[str, Tensor]:
        """Terms that keep features near those of the model before the task; with frozen features they would be zero."""
        return {}

    def backbone_terms(self, terms: Mapping[str, Tensor], batch: Batch, weights: nn.Parameter) -> dict[str, Tensor]:
        """Terms for the weights that mix two branches, given those for all others and the step's features."""
        return {}

    def featurise(self, samples: Samples) -> Samples:
        """Samples as the vectors that `scores` takes."""
        return samples

    def trust(self, samples: Samples) -> Tensor | None:
        """N: how probably each label is right, once the task of the samples has begun; None: all are taken as right."""
        return None

    def measured(self) -> dict[str, float]:
        """Further numbers for the result of a run."""
        return {}

    def answer_untrained(self, task: Task, memory: Memory) -> bool:
        """Answer for the classes of a task that has begun, without any training; False: this takes training."""
        if self.stages(task):
            return False
        self.end_task(task, memory)
        return True

    def end_task(self, task: Task, memory: Memory) -> Judged | None:
        """What is fitted after training, in closed form. Returns what it was fitted on, to be calibrated on too."""
        return None

    def refresh(self, memory: Memory) -> None:
        """Follow exemplars that were removed or relabelled between two tasks."""

    def make_room(self, names: Iterable[str]) -> None:
        """Have every module that tensors with these names belong to, before they are put into it."""

    def derive(self) -> None:
        """Compute what follows from parameters and statistics, such as a closed-form solution.

        It goes into buffers that are not persistent. `begin_task` and `end_task` leave them up to date; whoever changes
        the state in another way (`forget`, `refresh`, loading) calls `derive` after it.
        """

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        """B,K cosines of adapted query and neighbours, B,K attention of the query on them; None: no transformer."""
        return None

    @torch.no_grad()
    def forget(self, label: int) -> None:
        """Zero the rows of a class. Its index is never used again, and what it scores means nothing."""
        if self.class_rows is None:
            name = type(self).__name__
            raise InputError(f"{name} cannot forget: it does not say in `class_rows` what it keeps of a class")
        state = self.state_dict()
        for name in self.class_rows:
            if name in state:  # some depend on options
                state[name][label : label + 1].zero_()
        self.forgotten[label] = True


def class_means(task: Task) -> Tensor:
    """m,D: the mean of each new class's unit vectors."""
    new = task.train.select(task.train.y >= task.old)
    total, classes = torch.zeros(task.new, new.dimension), new.y - task.old
    for rows in new.chunks():
        total.index_add_(0, classes[rows], new.x(rows))
    return total / torch.bincount(classes, minlength=len(total))[:, None]


def unit_rows(weight: Tensor) -> Tensor:
    """Rows at length 1; those of forgotten classes stay 0 and get no gradient, which at 0 would be of any size."""
    return F.normalize(torch.where(weight.any(-1, keepdim=True), weight, weight.detach()), dim=-1)


class LinearHead(Method):
    """embed -> linear head. On frozen features `embed` only rescales."""

    knobs = TRAINING_KNOBS
    class_rows: ClassVar[tuple[str, ...]] = ("head.weight", "head.bias")

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.head = Head(self.width)

    @property
    def width(self) -> int:
        """Of what the head takes."""
        return self.dimension

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.head.grow(task.seen)

    def embed(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """x B,D -> B,width."""
        return rescale(x)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        logits: Tensor = self.head(self.embed(x, neighbours))
        return logits

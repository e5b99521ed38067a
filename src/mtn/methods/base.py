"""What a method is to the loop: what it embeds, scores and minimises. The loop itself is in mtn.learn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import ranks
from mtn.backbone import Features
from mtn.config import Config
from mtn.errors import InputError
from mtn.memory import Memory
from mtn.model import Head, spread
from mtn.neighbours import Neighbours
from mtn.samples import Samples
from mtn.stream import Task


@dataclass(frozen=True)
class Batch:
    """What a step sees: first what the stage is about, then what is replayed."""

    x: Tensor  # B,D, or images in bytes: B,H,W,3
    y: Tensor  # B
    fresh: int  # how many of them are not replayed
    neighbours: Neighbours | None  # for methods that ask for them
    before: Tensor | None  # B,n logits of the model before the task, for methods that distil
    share: Tensor  # C how often the loop draws each class
    id: Tensor | None = None  # B
    teacher: "Method | None" = None  # of images: the model before the task, which sees them as they are augmented
    memory: Memory | None = None  # of images: whose features are the neighbours

    def rowwise(self, function: Callable[[Tensor, Neighbours | None], Tensor]) -> Tensor:
        """function(x, neighbours) of the whole batch, a function of each row alone: processes share its rows out."""
        rows = slice(0, len(self.x))
        own = ranks.own(rows)
        return ranks.gather(function(self.x[own], None if self.neighbours is None else self.neighbours[own]), rows)


@dataclass(frozen=True)
class Stage:
    """One training within a task. As it stands: new samples, old exemplars beside them, everything moves."""

    loss: str = "loss"  # the function of the method that gives the terms
    sees: Literal["task", "all", "memory", "held out"] = "task"
    replays: Literal["nothing", "old", "all"] = "old"  # exemplars of old classes, or of new ones too
    evenly: bool = False  # as many replayed as new samples in a step, whatever train.replay says
    epochs: float = 1.0  # times train.epochs
    lr: float = 1.0  # times train.lr
    only: str = ""  # the beginning of the names of the parameters that move
    rests: bool = False  # the backbone, where there is one: features are computed once
    itself: bool = False  # its teacher is the model as the stage finds it


class Method(nn.Module):
    """A class-incremental learner over feature vectors. A subclass states only what its paper changes.

    Anything it keeps between tasks is a parameter (a weight) or a buffer (a statistic): that is saved, and counted.
    """

    uses_neighbours: bool = False  # wants the k nearest exemplars of every sample
    distils: bool = False  # wants the logits of the model before the task
    remembers: Literal["exemplars", "nothing", "everything"] = "exemplars"
    needs: ClassVar[int] = 0  # exemplars that every class must have once there are old ones
    losses: ClassVar[tuple[str, ...]] = ()  # what train.loss may be, the default first
    rows: ClassVar[tuple[str, ...] | None] = None  # the state that has one row a class, for `forget`

    # Of images:
    backbone_by: ClassVar[Literal["itself", "another", "nobody"]] = "itself"  # who trains the backbone
    holds: ClassVar[bool] = False  # wants `hold`
    signed: ClassVar[bool] = False  # wants features that may be negative: no last ReLU
    afresh: ClassVar[bool] = False  # starts each task from new weights

    seen: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__()
        self.dimension = dimension
        self.config = config
        self.register_buffer("seen", torch.tensor(0))  # classes
        self.forgotten: set[int] = set()

    def begin_task(self, task: Task) -> None:
        """Make room for the new classes."""
        self.seen.fill_(task.seen)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """B,C: the higher the likelier, over all classes seen so far."""
        raise NotImplementedError

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """What is trained, one after the other; empty for a method that trains nothing."""
        return (Stage(),)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """M: exemplars no stage sees, nor finds as neighbours, but one that asks for what is held out."""
        return torch.zeros(len(memory), dtype=torch.bool)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        """Named terms; the loop minimises their sum."""
        raise NotImplementedError

    def forward(self, stage: Stage, batch: Batch, task: Task) -> dict[str, Tensor]:
        """What the loop asks for: the terms of the loss that the stage names."""
        found: dict[str, Tensor] = getattr(self, stage.loss)(batch, task)
        return found

    def logits(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """What is distilled from it."""
        return self.scores(x, neighbours)

    def hold(self, now: Features, before: Features, task: Task) -> dict[str, Tensor]:
        """Terms that hold features near those of the model before the task; on vectors they would be zero."""
        return {}

    def view(self, samples: Samples) -> Samples:
        """Samples as the vectors that `scores` takes."""
        return samples

    def measured(self) -> dict[str, float]:
        """What the result should tell beside accuracies."""
        return {}

    def end_task(self, task: Task, memory: Memory) -> None:
        """What is fitted after training, in closed form."""

    def recall(self, memory: Memory) -> None:
        """Follow exemplars that were taken out or relabelled between two tasks."""

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        """B,K cosine of query and neighbours once adapted, B,K attention of the query on them; None: no transformer."""
        return None

    @torch.no_grad()
    def forget(self, label: int) -> None:
        """Zero the rows of a class. Its index is never used again, and what it scores means nothing."""
        if self.rows is None:
            raise InputError(f"{type(self).__name__} cannot forget: it does not say in `rows` what it keeps of a class")
        state = self.state_dict()
        for name in self.rows:
            if name in state:  # some depend on options
                state[name][label : label + 1].zero_()
        self.forgotten.add(label)


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
    """embed -> linear head. On frozen features `embed` is the identity."""

    rows: ClassVar[tuple[str, ...]] = ("head.weight", "head.bias")

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.head = Head(self.width)

    @property
    def width(self) -> int:
        return self.dimension

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.head.grow(task.seen)

    def embed(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return spread(x)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.head(self.embed(x, neighbours))

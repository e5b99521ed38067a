"""What a method is to the loop: what it embeds, scores and minimises. The loop itself is in mtn.learn."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mtn.config import Config
from mtn.memory import Memory
from mtn.model import Head, spread
from mtn.neighbours import Neighbours
from mtn.stream import Task


@dataclass(frozen=True)
class Batch:
    """What a step sees: new samples first, then replayed ones."""

    x: Tensor  # B,D
    y: Tensor  # B
    neighbours: Neighbours | None  # for methods that ask for them
    before: Tensor | None  # B,n logits of the model before the task, for methods that distil
    share: Tensor  # C how often the loop draws each class


class Method(nn.Module):
    """A class-incremental learner over feature vectors. A subclass states only what its paper changes.

    Anything it keeps between tasks is a parameter or a buffer: that is what is saved.
    """

    trains: ClassVar[bool] = True  # has parameters the loop minimises over
    uses_neighbours: ClassVar[bool] = False  # wants the k nearest exemplars of every sample
    replays: ClassVar[bool] = True  # old exemplars join each step
    distils: ClassVar[bool] = False  # wants the logits of the model before the task
    sees_all: ClassVar[bool] = False  # trains on the data of all tasks so far: an upper bound, not a method
    losses: ClassVar[tuple[str, ...]] = ()  # what train.loss may be, the default first

    seen: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__()
        self.dimension = dimension
        self.config = config
        self.register_buffer("seen", torch.tensor(0))  # classes

    def begin_task(self, task: Task) -> None:
        """Make room for the new classes."""
        self.seen.fill_(task.seen)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """B,C: the higher the likelier, over all classes seen so far."""
        raise NotImplementedError

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        """Named terms; the loop minimises their sum."""
        raise NotImplementedError

    def end_task(self, task: Task, memory: Memory) -> None:
        """What is fitted after training."""


class LinearHead(Method):
    """embed -> linear head. On frozen features `embed` is the identity."""

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

"""iCaRL: nearest mean of exemplars (Rebuffi et al., CVPR 2017).

Faithful: where features are learned, sigmoid cross-entropy of every class with the old model's answers as the targets
of old classes, for exemplars too. Where they are frozen its answers do not depend on that, so nothing is trained.
Departs: the loss is summed over classes, not averaged with a rate of 2; exemplars are chosen as the recipe says, for
the same memory in every row of a table; herding, the paper's own, is memory.select = "herding".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn import losses
from mtn.config import Config
from mtn.evidence import PROTOTYPE
from mtn.memory import Memory
from mtn.methods.base import Batch, Method, Needs, Stage
from mtn.model import Head, rescale
from mtn.neighbours import Neighbours
from mtn.stream import Task


class ICaRL(Method):
    """argmax_c <q, mu_c>, mu_c the mean of class c's exemplars at unit length."""

    class_rows = ("means", "head.weight", "head.bias")
    means: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("means", torch.zeros(0, dimension))
        self.head = Head(dimension) if config.images.side else None  # trains features, and does not answer
        self.needs = Needs(teacher=self.head is not None)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if self.head is not None:
            self.head.grow(task.seen)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return () if self.head is None else (Stage(self.loss),)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"binary": losses.binary_distillation(self.logits(batch.x, None), batch.y, batch.teacher_logits)}

    def logits(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert self.head is not None
        z: Tensor = self.head(rescale(x))
        return z

    def end_task(self, task: Task, memory: Memory) -> None:
        self.refresh(memory)

    def refresh(self, memory: Memory) -> None:
        total = torch.zeros(int(self.seen), self.dimension)
        for rows in memory.samples().chunks():
            total.index_add_(0, memory.y[rows], memory.vectors(rows))
        self.means = F.normalize(total, dim=1).to(self.means.device)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        absent = ~self.means.any(1)  # a class without exemplars is never the answer
        return (x @ self.means.T).masked_fill(absent, -2.0)

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {PROTOTYPE: self.scores(x, neighbours)}

"""SS-IL: separated softmax + task-wise distillation on a linear head.

Ahn et al., "SS-IL: Separated Softmax for Incremental Learning", ICCV 2021. Faithful: the two terms, T = 2 with T^2,
32 replayed samples beside 128 new ones in every step, the sum divided by all of them. Departs: features are frozen,
the rate falls by a cosine within each task unless train.schedule = "step" asks for the official shape.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from mtn import losses
from mtn.methods.base import Batch, LinearHead, Needs
from mtn.stream import Task

CLASSIFICATION: dict[str, Callable[[Tensor, Batch, Task], Tensor]] = {
    "ss": lambda z, batch, task: losses.separated_softmax(z, batch.y, task.old),
    "ce": lambda z, batch, task: losses.cross_entropy(z, batch.y),
    "balanced": lambda z, batch, task: losses.balanced_cross_entropy(z, batch.y, batch.class_frequency),
}


class SSIL(LinearHead):
    """L = L_SS (Eq. 1) + L_TKD (Eq. 2)."""

    needs = Needs(teacher=True)
    losses: ClassVar[tuple[str, ...]] = ("ss",)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.scores)
        name = self.config.train.loss or type(self).losses[0]
        terms = {"classification": CLASSIFICATION[name](z, batch, task)}
        if batch.teacher_logits is not None:
            temperature = self.config.train.temperature
            terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, task.spans[:-1], temperature)
        return terms

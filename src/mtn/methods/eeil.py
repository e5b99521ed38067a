"""EEIL: distillation task by task, then a balanced fine-tuning (Castro et al., ECCV 2018).

Faithful: cross-entropy over all classes plus a distillation term (T = 2) for each earlier task's classes; then, on as
many samples of each class as the memory has, three quarters as long and at a tenth of the rate, the same loss. Departs:
the distillation has the factor T^2, as everywhere here; without the second teacher, which holds the new classes during
the fine-tuning, and without the augmentation of images and the noise on gradients.
"""

from torch import Tensor

from mtn import losses
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.stream import Task

TEMPERATURE = 2.0


class EEIL(LinearHead):
    """L = CE + sum over earlier tasks of T^2 KL, on new and replayed samples, then on the memory alone."""

    needs = Needs(teacher=True)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        balanced = Stage(self.loss, "balanced_loss", samples="memory", replay="nothing", epochs=0.75, lr=0.1)
        return (Stage(self.loss), balanced) if task.old else (Stage(self.loss),)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.scores)
        terms = {"classification": losses.cross_entropy(z, batch.y)}
        if batch.teacher_logits is not None:
            spans = task.spans[:-1]
            terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, spans, TEMPERATURE)
        return terms

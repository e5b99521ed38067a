"""Learning without forgetting: no exemplars, distillation on the old outputs (Li & Hoiem, 2017).

Faithful: softmax among the new classes for the new task, as with a head of its own; old outputs held with T = 2.
Departs: the old heads are one, as always when a single head is asked over all classes; T^2 keeps the two terms in
proportion.
"""

from torch import Tensor

from mtn import losses
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.stream import Task


class LwF(LinearHead):
    """L = CE among new classes + T^2 KL(old outputs before || now)."""

    needs = Needs(teacher=True, memory="nothing")

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="nothing"),)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.scores)
        terms = {"classification": losses.separated_softmax(z, batch.y, task.old)}
        if batch.teacher_logits is not None:
            spans, temperature = [slice(0, task.old)], self.config.train.temperature
            terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, spans, temperature)
        return terms

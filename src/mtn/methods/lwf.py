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
        return lwf_terms(batch.rowwise(self.scores), batch, task, self.config.train.temperature)


def lwf_terms(z: Tensor, batch: Batch, task: Task, temperature: float) -> dict[str, Tensor]:
    """Softmax among the new classes, and distillation of all old ones together."""
    terms = {"classification": losses.separated_softmax(z, batch.y, task.old)}
    if batch.teacher_logits is not None:
        spans = [slice(0, task.old)]
        terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, spans, temperature)
    return terms

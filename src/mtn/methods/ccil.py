"""CCIL: an intra-task and an inter-task loss, each on a stream of its own (Mittal et al., CVPR workshops 2021).

Faithful: as many exemplars as new samples in a step, exemplars of new classes among them; softmax among new classes
for the new stream, over all for the exemplars; distillation of all old logits together, T = 2, mean over elements,
weighted 10 w (s/m)^0.66; a tenth of the rate after the base. Departs: w = 10, the script's value for 100 classes (60
is for 1 000); without the base-task regularisers, which train features, but one: `ccil-sd` lets a backbone distil
itself after the base, half as long again at a tenth of the rate.
"""

from dataclasses import replace

from torch import Tensor

from mtn import losses
from mtn.methods.base import Batch, LinearHead, Method, Needs, Stage
from mtn.stream import Task

WEIGHT, POWER, TEMPERATURE = 10.0 * 10.0, 0.66, 2.0


class CCIL(LinearHead):
    """A linear head with an intra-task and an inter-task loss."""

    needs = Needs(teacher=True)
    losses = ("ccil",)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return ccil_stages(self, task)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return ccil_terms(batch.rowwise(self.scores), batch, task)


class CCILSD(CCIL):
    """One generation of self-distillation: cross-entropy + T^2 KL(p of the model as it was || p).

    On vectors it is CCIL.
    """

    needs = replace(CCIL.needs, images=True)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        again = Stage(self.again_loss, "again_loss", replay="nothing", epochs=0.5, lr=0.1, self_distil=True)
        return (Stage(self.loss), again) if self.config.images.side and not task.old else super().stages(task)

    def again_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.scores)
        assert batch.teacher_logits is not None
        kd = losses.taskwise_distillation(z, batch.teacher_logits, task.spans, TEMPERATURE)
        return {"classification": losses.cross_entropy(z, batch.y), "distillation": kd}


def ccil_stages(method: Method, task: Task) -> tuple[Stage, ...]:
    """The training of CCIL, for its linear head and for any other embedding."""
    if not task.old:
        return (Stage(method.loss),)
    return (Stage(method.loss, replay="all", equal_replay=True, lr=0.1),)


def ccil_terms(z: Tensor, batch: Batch, task: Task) -> dict[str, Tensor]:
    """The losses of CCIL, for its linear head and for any other embedding."""
    if not task.old:
        return {"classification": losses.cross_entropy(z, batch.y)}
    new, exemplars = slice(0, batch.new_count), slice(batch.new_count, None)
    terms = {
        "intra": losses.separated_softmax(z[new], batch.y[new], task.old),
        "inter": losses.cross_entropy(z[exemplars], batch.y[exemplars]),
    }
    if batch.teacher_logits is not None:
        weight = WEIGHT * (task.seen / max(task.new, 1)) ** POWER / task.old  # mean over elements: / n
        for name, part in (("new", new), ("exemplars", exemplars)):
            kd = losses.taskwise_distillation(z[part], batch.teacher_logits[part], [slice(0, task.old)], TEMPERATURE)
            terms[f"distillation_{name}"] = weight * kd
    return terms

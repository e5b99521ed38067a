"""BiC: a scale and a shift for the newest classes, fitted on held-out exemplars (Wu et al., CVPR 2019).

Faithful: lambda L_d + (1 - lambda) L_c with lambda = n / (n + m) and T = 2 without T^2; the old model answers with
its own correction applied; the second stage moves scale and shift alone, on a balanced split no other stage sees,
twice as long, with 0.1 x 1/2 shift^2; only the latest correction is kept, for the latest classes. Departs: the split
is max(1, 10 %) of the smallest class's exemplars, from every class; weight decay and schedule are the recipe's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.neighbours import Neighbours
from mtn.samples import rank_within_class
from mtn.stream import Task

TEMPERATURE = 2.0


class Correction(nn.Module):
    """z_k <- scale z_k + shift for the classes from `start` on."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))
        self.register_buffer("start", torch.tensor(0))

    def reset(self, start: int) -> None:
        """The identity, for the classes from `start` on."""
        with torch.no_grad():
            self.scale.fill_(1.0)
            self.shift.fill_(0.0)
            self.start.fill_(start)

    def forward(self, z: Tensor) -> Tensor:
        """B,C logits -> B,C corrected logits."""
        start = int(self.start)
        return torch.cat([z[:, :start], self.scale * z[:, start:] + self.shift], dim=1)


def distilled_terms(z: Tensor, batch: Batch, task: Task) -> dict[str, Tensor]:
    """(1 - lambda) CE + lambda distillation of all old classes together, lambda = n / (n + m); z: B,C logits."""
    if batch.teacher_logits is None:
        return {"classification": losses.cross_entropy(z, batch.y)}
    old = task.old / (task.old + max(task.new, 1))  # a task without new classes counts as one with one
    return {
        "classification": (1 - old) * losses.cross_entropy(z, batch.y),
        "distillation": old * losses.soft_cross_entropy(z[:, : task.old], batch.teacher_logits, TEMPERATURE),
    }


class BiC(LinearHead):
    """A linear head whose newest logits are corrected by a scale and a shift."""

    needs = Needs(teacher=True, exemplars_per_class=2)  # one of them is held out

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.correction = Correction()

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.correction.reset(task.old)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        train = Stage(self.loss)
        correct = Stage(
            self.correction_loss,
            "correction_loss",
            samples="held out",
            replay="nothing",
            epochs=2.0,
            parameters="correction.",
            freeze_backbone=True,
        )
        return (train, correct) if task.old and task.new else (train,)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """The same number of every class, the last in the memory's order."""
        counts = torch.bincount(memory.y, minlength=task.seen)
        if not task.old:
            return super().held_out(task, memory)
        fewest = int(counts[~self.forgotten.cpu()].min())
        return rank_within_class(memory.y) >= counts[memory.y] - max(1, fewest // 10)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        corrected: Tensor = self.correction(super().scores(x, neighbours))
        return corrected

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return distilled_terms(batch.rowwise(super().scores), batch, task)  # not corrected

    def correction_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        with torch.no_grad():
            z = batch.rowwise(super().scores)
        penalty = 0.1 * 0.5 * self.correction.shift.square()
        return {"classification": F.cross_entropy(self.correction(z), batch.y), "penalty": penalty}

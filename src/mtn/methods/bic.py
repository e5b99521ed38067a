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
from mtn.methods.base import Batch, LinearHead, Stage
from mtn.neighbours import Neighbours
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
        with torch.no_grad():
            self.scale.fill_(1.0)
            self.shift.fill_(0.0)
            self.start.fill_(start)

    def forward(self, z: Tensor) -> Tensor:
        start = int(self.start)
        return torch.cat([z[:, :start], self.scale * z[:, start:] + self.shift], dim=1)


class BiC(LinearHead):
    distils = True
    needs = 2  # one of them is held out

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.correction = Correction()

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.correction.reset(task.old)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        correct = Stage(
            "correction_loss", sees="held out", replays="nothing", epochs=2.0, only="correction.", rests=True
        )
        return (Stage(), correct) if task.old and task.new else (Stage(),)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """The same number of every class, the last in the memory's order."""
        counts = torch.bincount(memory.y, minlength=task.seen)
        if not task.old:
            return super().held_out(task, memory)
        fewest = int(min(counts[label] for label in range(task.seen) if label not in self.forgotten))
        place = torch.arange(len(memory)) - (counts.cumsum(0) - counts)[memory.y]
        return place >= counts[memory.y] - max(1, fewest // 10)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        corrected: Tensor = self.correction(super().scores(x, neighbours))
        return corrected

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(super().scores)  # not corrected
        if batch.before is None:
            return {"classification": losses.cross_entropy(z, batch.y)}
        old = task.old / (task.old + max(task.new, 1))  # without a new class as with one: something is to be learned
        return {
            "classification": (1 - old) * losses.cross_entropy(z, batch.y),
            "distillation": old * losses.soft_cross_entropy(z[:, : task.old], batch.before, TEMPERATURE),
        }

    def correction_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        with torch.no_grad():
            z = batch.rowwise(super().scores)
        penalty = 0.1 * 0.5 * self.correction.shift.square()
        return {"classification": F.cross_entropy(self.correction(z), batch.y), "penalty": penalty}

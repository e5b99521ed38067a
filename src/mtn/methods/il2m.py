"""IL2M: probabilities of old classes rectified by what they were when the class was learned.

Belouadah & Popescu, ICCV 2019.

Faithful: trained as `er`; a class's mean probability on its own samples is kept from the task it came in, and so is the
task's mean confidence; where a new class would be answered, p_c of an old class is multiplied by
(mean p_c then / mean p_c now) x (mean confidence now / mean confidence then). Departs: features are frozen; what is
"now" of an old class is measured on its exemplars, which is all there is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn import losses
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.base import Batch, LinearHead, Needs
from mtn.neighbours import Neighbours
from mtn.samples import Samples
from mtn.stream import Task


class IL2M(LinearHead):
    """Replay, and two numbers kept of each class."""

    needs = Needs(backbone="none")
    losses = ("ce",)
    class_rows = (*LinearHead.class_rows, "then", "now", "confidence_then")
    then: Tensor
    now: Tensor
    confidence_then: Tensor
    confidence: Tensor
    newest: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        for name in ("then", "now", "confidence_then"):
            self.register_buffer(name, torch.zeros(0))  # C
        self.register_buffer("confidence", torch.tensor(1.0))
        self.register_buffer("newest", torch.tensor(0))  # the first of the latest task's new classes

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.newest.fill_(task.old)
        more = (0, task.seen - len(self.now))
        self.then, self.now = F.pad(self.then, more, value=1.0), F.pad(self.now, more, value=1.0)
        self.confidence_then = F.pad(self.confidence_then, more, value=1.0)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": losses.cross_entropy(batch.rowwise(super().scores), batch.y)}

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        """Measure p_c of old classes on exemplars, of new ones on all their samples."""
        exemplars = memory.samples()
        for samples in (exemplars.select(exemplars.y < task.old), task.train.select(task.train.y >= task.old)):
            if len(samples):
                present, own, confidence = self.measure(samples)
                self.now[present] = own
        if task.new:  # what was measured last are the new classes
            self.confidence.fill_(confidence)
            self.then[present], self.confidence_then[present] = own, confidence

    def measure(self, samples: Samples) -> tuple[Tensor, Tensor, float]:
        """The classes of some samples, their mean probability on their own samples, the mean of the largest ones."""
        total, confidence = torch.zeros_like(self.now), 0.0
        y = samples.y.to(total.device)
        for rows in samples.chunks():
            p = super().scores(samples.x(rows).to(total.device), None).softmax(1)
            total.index_add_(0, y[rows], p.gather(1, y[rows, None]).squeeze(1))
            confidence += float(p.amax(1).sum())
        counts = torch.bincount(y, minlength=len(total))
        present = counts > 0
        return present, total[present] / counts[present], confidence / len(y)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        p, newest = super().scores(x, neighbours).softmax(1), int(self.newest)
        factor = (self.then / self.now.clamp(min=1e-6)) * (self.confidence / self.confidence_then.clamp(min=1e-6))
        factor = torch.where(torch.arange(len(factor)).to(p.device) < newest, factor, 1.0)
        return torch.where((p.argmax(1) >= newest)[:, None], p * factor, p)

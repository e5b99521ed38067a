"""WA: the rows of new classes are scaled down to the length of old ones (Zhao et al., CVPR 2020).

Faithful: lambda L_d + (1 - lambda) L_c with lambda = n / (n + m) and T = 2 as in BiC's first stage; after training
w_new <- gamma w_new with gamma = mean |w_old| / mean |w_new|. Departs: biases are as they were trained; weights are not
clipped to positive values, which the paper does for features behind a ReLU.
"""

import torch
from torch import Tensor

from mtn.memory import Memory
from mtn.methods.base import Batch, LinearHead, Needs
from mtn.methods.bic import distilled_terms
from mtn.stream import Task


class WA(LinearHead):
    """Distillation, then aligned weights."""

    needs = Needs(teacher=True)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return distilled_terms(batch.rowwise(self.scores), batch, task)

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        norms = self.head.weight.norm(dim=1)
        old = norms[: task.old][~self.forgotten[: task.old]]
        if len(old) and task.new:
            self.head.weight[task.old :] *= old.mean() / norms[task.old :].mean()

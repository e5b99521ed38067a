"""GEM and A-GEM: the step is projected so that no loss on the memory rises.

Lopez-Paz & Ranzato, NeurIPS 2017; Chaudhry et al., ICLR 2019. Faithful: min |g' - g|^2 with <g', g_t> >= 0 for the
gradient g_t of every earlier task's memory (GEM), or for the one of the whole memory (A-GEM). Departs: gradients of the
memory are of the samples that are replayed in the step, 256 of them, where GEM takes all there are; no margin; one head
over all classes, where the papers know the task of a query, which is what they were made for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mtn.losses import cross_entropy
from mtn.methods.base import Batch, LinearHead, Needs
from mtn.stream import Task

SWEEPS = 100
"""Of coordinate descent over the constraints: there is one a task."""


class AGEM(LinearHead):
    """Cross-entropy on new samples; the gradient is made not to raise that of replayed samples."""

    needs = Needs(backbone="none")
    losses = ("ce",)
    defaults = {"train.replay": 256}  # noqa: RUF012 (of the class, and never changed)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        parameters, new = list(self.parameters()), torch.arange(len(batch.y)).to(batch.y.device) < batch.new_count
        value, gradient = self.gradient(batch, new, parameters)
        groups = [group for group in self.groups(batch, task, ~new) if group.any()]
        if groups:
            gradient = project(gradient, torch.stack([self.gradient(batch, group, parameters)[1] for group in groups]))
        return {"classification": with_gradient(value, parameters, gradient)}

    def groups(self, batch: Batch, task: Task, replayed: Tensor) -> Sequence[Tensor]:
        """B masks of the samples whose loss must not rise, one a constraint."""
        return [replayed]

    def gradient(self, batch: Batch, rows: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """The mean loss of some rows, and its gradient as one vector."""
        value = cross_entropy(self.scores(batch.x[rows], None), batch.y[rows])
        parts = torch.autograd.grad(value, parameters)
        return value.detach(), torch.cat([part.flatten() for part in parts])


class GEM(AGEM):
    """The same with a constraint for every earlier task."""

    def groups(self, batch: Batch, task: Task, replayed: Tensor) -> Sequence[Tensor]:
        return [replayed & (batch.y >= span.start) & (batch.y < span.stop) for span in task.spans[:-1]]


def project(gradient: Tensor, references: Tensor) -> Tensor:
    """The vector nearest to g (P) whose products with the references (J,P) are not negative.

    g' = g + G^T v, v >= 0 the minimum of |g + G^T v|^2, by coordinate descent. Of one reference: A-GEM's formula.
    """
    gram, product = references @ references.T, references @ gradient
    v = torch.zeros_like(product)
    for _ in range(SWEEPS if len(v) > 1 else 1):
        for j in range(len(v)):
            rest = product[j] + gram[j] @ v - gram[j, j] * v[j]
            v[j] = (-rest / gram[j, j].clamp(min=1e-12)).clamp(min=0)
    return gradient + v @ references


def with_gradient(value: Tensor, parameters: Sequence[nn.Parameter], gradient: Tensor) -> Tensor:
    """A scalar of this value whose gradient with respect to the parameters is this vector."""
    product = torch.cat([parameter.flatten() for parameter in parameters]) @ gradient
    return value + product - product.detach()

"""AANets: a stable and a plastic branch, mixed by weights of their own (Liu, Schiele & Sun, "Adaptive Aggregation
Networks for Class-Incremental Learning", CVPR 2021), with LUCIR's losses, as `lucir` here.

Faithful: after the base the network has two branches; in the stable one convolutions are frozen up to a scale for each
pair of channels, the plastic one trains; maps are mixed after each stage, a_k and 1 - a_k, from 0.5 on; all else is
trained on all samples, and the a_k on a balanced set of exemplars. Departs: both levels take their step at once, each
with its own gradient, where the paper alternates by epochs; the a_k have a tenth of the rate (the official default,
1e-8, leaves them at 0.5); their exemplars are those that are replayed in the step, of all classes; the network is as
wide as any other here, so that it has twice the weights.

On frozen features there are no branches: it is `lucir`.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from mtn import losses
from mtn.methods.base import Batch, Stage
from mtn.methods.gem import with_gradient
from mtn.methods.lucir import LUCIR
from mtn.stream import Task

RATE = 0.1


class AANets(LUCIR):
    """LUCIR's loss for all but a; CE on exemplars of all classes for a."""

    needs = replace(LUCIR.needs, images=True, grows="branches")

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="all"),) if self.config.images.side and task.old else super().stages(task)

    def backbone_terms(self, terms: Mapping[str, Tensor], batch: Batch, weights: nn.Parameter) -> dict[str, Tensor]:
        """A term of value 0: with it the gradient of a is that of the replayed samples, all others are as they are."""
        replayed = slice(batch.new_count, None)
        if not len(batch.y[replayed]):
            return {}
        upper = losses.cross_entropy(self.scores(batch.x[replayed], None), batch.y[replayed])
        lower = torch.stack(list(terms.values())).sum()
        (own,), (other,) = (torch.autograd.grad(value, [weights], retain_graph=True) for value in (upper, lower))
        return {"mixing": with_gradient(upper.new_zeros(()), [weights], RATE * own - other)}

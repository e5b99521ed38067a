"""PODNet: several proxies a class, the NCA loss, pooled outputs distillation (Douillard et al., ECCV 2020).

Faithful: K = 10 proxies a class, local similarity classifier, margin 0.6, new proxies from k-means of the class's
features, old ones frozen in the main training, then a balanced fine-tuning of all proxies on exemplars. The margin
works: it is taken from the true class alone, which is left out of the denominator, with a hinge at 0, as in the paper;
in the released code it cancels. Where features are learned: no last ReLU, POD-spatial over all stages and POD-flat,
3 and 1 (for small images) times sqrt(s/m), and a frozen backbone in the balanced fine-tuning; on frozen features
both terms are identically zero. Departs: the base starts from
k-means too, as a random start hardly learns it in ten epochs; the scale is the exponential of what is learned, as it
would otherwise turn negative where features lie closer together than the margin.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.encoders.backbone import Features
from mtn.methods.base import TRAINING_KNOBS, Batch, Method, Needs, Stage, unit_rows
from mtn.methods.lucir import balanced_fine_tuning
from mtn.neighbours import Neighbours
from mtn.stream import Task

PROXIES, MARGIN = 10, 0.6
SPATIAL, FLAT = 3.0, 1.0


class PODNet(Method):
    """y_c = sum_k softmax_k(s_ck) s_ck, s = -||q - theta_ck||^2 of unit vectors; scores eta y_c."""

    knobs = TRAINING_KNOBS
    needs = Needs(feature_distillation=True, signed_features=True)
    class_rows = ("proxies",)

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.proxies = nn.Parameter(torch.zeros(0, PROXIES, dimension))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.margin = MARGIN if config.images.side is None else 0.0

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        old = self.proxies.detach()
        new = [F.normalize(centres, dim=1).to(old)[None] for centres in _cluster(task, self.config.seed)]
        self.proxies = nn.Parameter(torch.cat([old, *new]))

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss), balanced_fine_tuning(self.balanced_loss)) if task.old else (Stage(self.loss),)

    def similarities(self, x: Tensor, frozen: int = 0) -> Tensor:
        """B,C; the proxies of the first `frozen` classes get no gradient."""
        proxies = torch.cat([self.proxies[:frozen].detach(), self.proxies[frozen:]])
        unit = unit_rows(proxies).flatten(0, 1)
        s = (2 * F.normalize(x, dim=1) @ unit.T - 2).unflatten(1, (-1, PROXIES))  # B,C,K
        similarities: Tensor = (s.softmax(2) * s).sum(2)
        return similarities

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.log_scale.exp() * self.similarities(x)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        frozen = task.old if task.new else 0
        similarities = batch.rowwise(lambda x, _: self.similarities(x, frozen))
        return {"nca": losses.nca(similarities, batch.y, self.log_scale.exp(), self.margin)}

    def balanced_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        similarities = batch.rowwise(lambda x, _: self.similarities(x))
        return {"nca": losses.nca(similarities, batch.y, self.log_scale.exp(), self.margin)}

    def feature_distillation(self, now: Features, before: Features, task: Task) -> dict[str, Tensor]:
        more = (task.seen / max(task.new, 1)) ** 0.5
        return {
            "pod_spatial": SPATIAL * more * losses.pod_spatial(now.maps, before.maps),
            "pod_flat": FLAT * more * losses.less_forget(now.x, before.x),
        }


def _cluster(task: Task, seed: int) -> list[Tensor]:
    """K centres of each new class; a class with fewer distinct samples repeats them."""
    from sklearn.cluster import KMeans  # slow to import, and nobody else's

    centres = []
    for label in range(task.old, task.seen):
        x = task.train.x((task.train.y == label).nonzero().squeeze(1))
        distinct = len(np.unique(x.numpy(), axis=0))
        found = KMeans(min(PROXIES, distinct), n_init=1, random_state=seed).fit(x.numpy()).cluster_centers_
        centres.append(torch.from_numpy(found)[torch.arange(PROXIES) % len(found)])
    return centres

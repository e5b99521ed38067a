"""LUCIR: cosine head, imprinted new rows, margin ranking (Hou et al., CVPR 2019).

Faithful: eta <q, w> of unit vectors with a learned scale from 1; new rows are class means at the mean norm of old rows;
old rows are frozen; margin 0.5 against the two best new classes for old samples, on cosines before the scale; where
features are learned, no last ReLU and 5 sqrt(n/m) (1 - cos(q, q_before)), 5 being for small images. On frozen
features this less-forget term is identically zero. The official code freezes old rows because of
that term, so without it one may ask whether they should move: `lucir-free` lets them. `lucir-balanced` adds the
class-balanced fine-tuning on exemplars.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.encoders.backbone import Features
from mtn.methods.base import TRAINING_KNOBS, Batch, Loss, Method, Needs, Stage, class_means, unit_rows
from mtn.neighbours import Neighbours
from mtn.stream import Task

MARGIN, RIVALS, LESS_FORGET = 0.5, 2, 5.0


def balanced_fine_tuning(loss: Loss) -> Stage:
    """The last stage of LUCIR and PODNet: exemplars alone, twice as long, a tenth of the rate, frozen features."""
    return Stage(loss, "balanced_loss", samples="memory", replay="nothing", epochs=2.0, lr=0.1, freeze_backbone=True)


class LUCIR(Method):
    """L = CE(eta cos) + margin ranking + less-forget."""

    knobs = TRAINING_KNOBS
    needs = Needs(feature_distillation=True, signed_features=True)
    class_rows = ("weight",)
    freeze_old_rows: ClassVar[bool] = True  # unless the task has no new classes

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.weight = nn.Parameter(torch.zeros(0, dimension))
        self.scale = nn.Parameter(torch.ones(()))

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        old = self.weight.detach()
        if task.old:
            norms = old.norm(dim=1)
            alive = norms[norms > 0] if norms.any() else torch.ones(1)
            new = F.normalize(class_means(task), dim=1).to(old) * alive.mean()
        else:
            new = nn.Linear(self.dimension, task.seen).weight.detach().to(old)
        self.weight = nn.Parameter(torch.cat([old, new]))

    def cosines(self, x: Tensor, frozen: int = 0) -> Tensor:
        weight = torch.cat([self.weight[:frozen].detach(), self.weight[frozen:]])
        return F.normalize(x, dim=1) @ unit_rows(weight).T

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.scale * self.cosines(x)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        frozen = task.old if self.freeze_old_rows and task.new else 0
        cosines = batch.rowwise(lambda x, _: self.cosines(x, frozen))
        return {
            "classification": losses.cross_entropy(self.scale * cosines, batch.y),
            "margin": losses.margin_ranking(cosines, batch.y, task.old, MARGIN, RIVALS),
        }

    def feature_distillation(self, now: Features, before: Features, task: Task) -> dict[str, Tensor]:
        weight = LESS_FORGET * (task.old / max(task.new, 1)) ** 0.5
        return {"less_forget": weight * losses.less_forget(now.x, before.x)}


class LUCIRFree(LUCIR):
    """LUCIR whose old rows are trained too."""

    freeze_old_rows = False


class LUCIRBalanced(LUCIR):
    """Then 20 epochs, where 10 is the recipe, at a tenth of the rate on exemplars alone, cross-entropy."""

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss), balanced_fine_tuning(self.balanced_loss)) if task.old else (Stage(self.loss),)

    def balanced_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": losses.cross_entropy(batch.rowwise(self.scores), batch.y)}

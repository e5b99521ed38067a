"""Feature adaptation: features of old samples are kept, and carried over to the new backbone by a small network.

Iscen et al., "Memory-Efficient Incremental Learning Through Feature Adaptation", ECCV 2020. Written from the abstract
and from recollection. Faithful: no image of an old class is kept, but vectors of them; the backbone learns from new
images with distillation; phi, with two hidden layers of 16 d units, learns from pairs of a new image's feature before
and after, by their cosine, 100 times, and the cross-entropy of the fixed classifier; then the classifier is trained on
carried-over and new vectors, as many of each class; vectors are carried over once in each later task. Departs: the
classifier is linear, not a cosine; its softmax in the first stage is LwF's; pairs are of images that are not augmented.

On frozen features phi would be the identity: what is left is replay of vectors, `er`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.base import Batch, Needs, Stage
from mtn.methods.baselines import ER
from mtn.methods.lwf import lwf_terms
from mtn.model import Head, rescale
from mtn.samples import rank_within_class
from mtn.stream import Task

SIMILARITY, HIDDEN = 100.0, 16


class Adapter(nn.Module):
    """phi: features before -> features after, at unit length. It is there while a task is learned, and not kept."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.sizes = (dimension, HIDDEN * dimension, HIDDEN * dimension, dimension)
        self.empty()

    def empty(self) -> None:
        """Without any weight."""
        self.layers = nn.ModuleList(Head(size) for size in self.sizes[:-1])

    def renew(self, device: torch.device) -> None:
        """With new weights."""
        self.empty()
        for layer, outputs in zip(self.layers, self.sizes[1:], strict=True):
            assert isinstance(layer, Head)
            layer.grow(outputs)
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """B,D -> B,D."""
        first, second, last = self.layers
        return F.normalize(last(second(first(rescale(x)).relu()).relu()), dim=1)


class Adaptation(ER):
    """L_phi = 100 (1 - cos(phi(q_before), q)) + CE(g(phi(q_before))), then CE over phi(kept vectors) and new ones."""

    needs = Needs(images=True)
    kept: Tensor
    kept_y: Tensor
    adapted: Tensor
    before: Tensor
    before_id: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.adapter = Adapter(dimension)
        # Vectors that are kept and their classes; within a task the same carried over, and the task's own features
        # before it, by rising id.
        for name in ("kept", "adapted", "before"):
            self.register_buffer(name, torch.zeros(0, dimension))
        for name in ("kept_y", "before_id"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))
        if config.images.side is not None:
            self.needs = Needs(memory="nothing", teacher=True, images=True, features_at_end=True)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if len(self.kept):
            order = task.train.id.argsort()
            self.before = task.train.x(order).to(self.kept.device)
            self.before_id = task.train.id[order].to(self.kept.device)
            self.adapter.renew(self.kept.device)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        if self.config.images.side is None:
            return super().stages(task)
        train = Stage(self.backbone_loss, replay="nothing")
        adapt = Stage(self.adapter_loss, "adapter", replay="nothing", parameters="adapter.", freeze_backbone=True)
        joint = Stage(self.joint_loss, "joint", replay="nothing", parameters="head.", freeze_backbone=True)
        return (train, adapt, joint) if len(self.kept) else (train,)

    def backbone_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return lwf_terms(batch.rowwise(self.scores), batch, task, self.config.train.temperature)

    def adapter_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        assert batch.id is not None
        adapted = self.adapter(self.before[torch.searchsorted(self.before_id, batch.id)])
        return {
            "similarity": SIMILARITY * losses.less_forget(adapted, batch.x),
            "classification": losses.cross_entropy(self.scores(adapted, None), batch.y),
        }

    def joint_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        self.carry_over()
        ratio = len(self.kept_y.unique()) / max(len(task.train.y.unique()), 1)
        rows = torch.randint(len(self.kept_y), (max(1, round(len(batch.y) * ratio)),)).to(self.kept_y.device)
        x, y = torch.cat([batch.x, self.adapted[rows]]), torch.cat([batch.y, self.kept_y[rows]])
        return {"classification": losses.cross_entropy(self.scores(x, None), y)}

    @torch.no_grad()
    def carry_over(self) -> None:
        """The kept vectors through phi, once it is trained."""
        if len(self.adapted) < len(self.kept):
            self.adapted = self.adapter(self.kept)

    def end_task(self, task: Task, memory: Memory) -> None:
        """Keep as many vectors as the budget has exemplars, as many of each class, by chance."""
        if not self.needs.features_at_end:
            return
        self.carry_over()
        order = torch.randperm(len(task.train))
        x = torch.cat([self.adapted, task.train.x(order).to(self.adapted)])
        y = torch.cat([self.kept_y, task.train.y[order].to(self.kept_y)])
        quota = memory.quota(torch.bincount(y.cpu(), minlength=task.seen)).to(y.device)
        chosen = rank_within_class(y) < quota[y]
        self.kept, self.kept_y = x[chosen], y[chosen]
        self.adapted, self.before, self.before_id = self.adapted[:0], self.before[:0], self.before_id[:0]
        self.adapter.empty()

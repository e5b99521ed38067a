"""DER: a backbone a task, the older ones frozen (Yan, Xie & He, "DER: Dynamically Expandable Representation for Class
Incremental Learning", CVPR 2021).

Faithful, to the official code: a new network begins as a copy of the last one; features of all networks stand one
after the other; a new classifier over them, and an auxiliary one over the new network's features alone, which tells
the new classes and all old ones together apart; then a new classifier on as many exemplars of each class, features
frozen, T = 5, at half the rate. Departs: networks are not pruned, as in the released code: they grow with the tasks;
features have unit length together; replay is the recipe's, where the code mixes all exemplars with the new samples.

On frozen features there is nothing to expand: what is left is `er`.
"""

from torch import Tensor

from mtn import losses
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.base import Batch, Needs, Stage
from mtn.methods.baselines import ER
from mtn.model import Head, rescale
from mtn.stream import Task

TEMPERATURE = 5.0


class DER(ER):
    """L = CE(all classes; all networks) + CE(new classes and one for all old; the new network), then a new head."""

    needs = Needs(images=True, grows="networks")

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.forget_auxiliaries()

    def forget_auxiliaries(self) -> None:
        """What trains a new network, and does not answer, is gone after the task."""
        self.joint, self.auxiliary = Head(self.dimension), Head(self.dimension)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if task.train.dimension > self.head.weight.shape[1]:  # there is a new network
            device = self.head.weight.device
            self.head, self.joint = Head(task.train.dimension), Head(task.train.dimension)
            for head, outputs in ((self.head, task.seen), (self.joint, task.seen), (self.auxiliary, task.new + 1)):
                head.grow(outputs)
                head.to(device)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        if not len(self.auxiliary.weight):
            return super().stages(task)
        balanced = Stage(
            self.balanced_loss,
            "balanced_loss",
            samples="memory",
            replay="nothing",
            lr=0.5,
            parameters="head.",
            freeze_backbone=True,
        )
        return (Stage(self.expanded_loss), balanced)

    def expanded_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        features = rescale(batch.x)
        z, new = self.joint(features), self.auxiliary(features[:, -self.dimension :])
        return {
            "classification": losses.cross_entropy(z, batch.y),
            "auxiliary": losses.cross_entropy(new, (batch.y - task.old + 1).clamp(min=0)),  # 0: any old class
        }

    def balanced_loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": losses.cross_entropy(batch.rowwise(self.scores) / TEMPERATURE, batch.y)}

    def end_task(self, task: Task, memory: Memory) -> None:
        self.forget_auxiliaries()

"""FeTrIL: new samples moved to where old classes were stand for them (Petit et al., WACV 2023).

Faithful: an old class is represented by the features of the new class with the nearest mean, moved by the difference of
the two means; a linear classifier over all classes is trained from new weights in each task. No exemplars. Departs:
pseudo-features are drawn anew in each step rather than once; the classifier is a softmax trained by the loop, where the
paper prefers a linear support vector machine; a moved vector is not scaled to unit length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn import losses
from mtn.config import Config
from mtn.methods.analytic import NCM
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.model import Head
from mtn.samples import Samples
from mtn.stream import Task


class FeTrIL(LinearHead):
    """CE over all classes on new samples and on x + mu_old - mu_new, as many a class. Keeps C d of means."""

    needs = Needs(memory="nothing", backbone="none")
    defaults = {"train.min_steps": 400}  # noqa: RUF012 (of the class; new weights need steps, however small the task is)

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.sums = NCM(dimension, config)

    def begin_task(self, task: Task) -> None:
        self.head = Head(self.width).to(self.head.weight.device)
        super().begin_task(task)
        self.sums.begin_task(task)
        self.sums.observe(task.train)

    def forget(self, label: int) -> None:
        super().forget(label)
        self.sums.forget(label)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="nothing"),)

    def means(self) -> Tensor:
        """C,D: the mean of each class."""
        return (self.sums.total / self.sums.count.clamp(min=1)[:, None]).float()

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        x, y = batch.x, batch.y
        present = torch.bincount(task.train.y, minlength=task.seen).bool().to(y.device)
        absent = (~present & (self.sums.count > 0)).nonzero().squeeze(1)
        if len(absent):
            count = max(1, round(len(y) * len(absent) / int(present.sum())))
            drawn = absent[torch.randint(len(absent), (count,))]
            x, y = torch.cat([x, self.moved(drawn, present, task.train)]), torch.cat([y, drawn])
        return {"classification": losses.cross_entropy(self.scores(x, None), y)}

    def moved(self, labels: Tensor, present: Tensor, source: Samples) -> Tensor:
        """B,D: for each of these classes, a sample of the nearest class that the task has, moved by their means."""
        means, candidates = self.means(), present.nonzero().squeeze(1)
        unit = F.normalize(means, dim=1)
        nearest = candidates[(unit[labels] @ unit[candidates].T).argmax(1)]  # B
        order = source.y.argsort(stable=True)
        counts = torch.bincount(source.y, minlength=len(means))
        starts = counts.cumsum(0) - counts
        place = (torch.rand(len(labels)) * counts[nearest.cpu()]).long()
        rows = order[starts[nearest.cpu()] + place]
        return source.x(rows).to(means) + means[labels] - means[nearest]

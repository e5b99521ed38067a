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
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.model import Head
from mtn.samples import Samples
from mtn.stream import Task


class FeTrIL(LinearHead):
    """CE over all classes on new samples and on x + mu_old - mu_new, as many a class. Keeps C d of means."""

    needs = Needs(memory="nothing", backbone="none")
    class_rows = (*LinearHead.class_rows, "total", "count")
    total: Tensor
    count: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("total", torch.zeros(0, dimension, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(0, dtype=torch.float64))

    def begin_task(self, task: Task) -> None:
        self.head = Head(self.width).to(self.head.weight.device)
        super().begin_task(task)
        more = task.seen - len(self.count)
        self.total, self.count = F.pad(self.total, (0, 0, 0, more)), F.pad(self.count, (0, more))
        for rows in task.train.chunks():
            y = task.train.y[rows].to(self.total.device)
            self.total.index_add_(0, y, task.train.x(rows).to(self.total))
            self.count.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="nothing"),)

    def means(self) -> Tensor:
        """C,D: the mean of each class."""
        return (self.total / self.count.clamp(min=1)[:, None]).float()

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        x, y = batch.x, batch.y
        present = torch.bincount(task.train.y, minlength=task.seen).bool().to(y.device)
        absent = (~present & (self.count > 0)).nonzero().squeeze(1)
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

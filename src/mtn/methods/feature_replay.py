"""Feature replay: features of old classes are drawn from a generator, and no exemplar is kept (Liu et al., CVPR
workshops 2020, "Generative Feature Replay For Class-Incremental Learning").

Faithful: the classifier goes on from task to task; in each step it sees as many drawn features as new samples, old
classes alike often; the two cross-entropies over all classes are weighted by the number of classes; where features are
learned, the distance to the features before the task is held, n/m times, and on frozen features it is identically zero.
Departs: the generator is a Gaussian a class with one covariance for all, where the paper trains a conditional GAN (its
code has Gaussians too, with a variance a number, as the alternative that is compared); the distance is the mean over
samples, where the code takes the norm of a batch; batch statistics go on where features are learned, the code fixes
them after the base.
"""

import torch
from torch import Tensor

from mtn import losses
from mtn.config import Config
from mtn.encoders.backbone import Features
from mtn.memory import Memory
from mtn.methods.analytic import SLDA
from mtn.methods.base import Batch, LinearHead, Needs, Stage
from mtn.stream import Task


class Generator(SLDA):
    """N(mu_c, Sigma), Sigma pooled over classes. Keeps d^2 + C d numbers."""

    noise: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("noise", torch.zeros(dimension, dimension), persistent=False)

    @property
    def configured_strength(self) -> float:
        return 0.0  # nothing is inverted

    def derive(self) -> None:
        """Sigma^1/2, which gives noise the covariance of a class."""
        means = self.total / self.count.clamp(min=1)[:, None]
        within = (self.gram - self.total.T @ means) / self.count.sum().clamp(min=1)
        values, vectors = torch.linalg.eigh(within)
        self.noise = ((vectors * values.clamp(min=0).sqrt()) @ vectors.T).float()

    def known(self) -> Tensor:
        """The classes that can be drawn."""
        return self.count.nonzero().squeeze(1)

    def draw(self, labels: Tensor) -> Tensor:
        """B,D: mu_c + Sigma^1/2 e for each of these classes (B), e standard normal."""
        centres = (self.total[labels] / self.count[labels][:, None]).float()
        return centres + torch.randn_like(centres) @ self.noise


class FeatureReplay(LinearHead):
    """L = m/s CE(new samples) + n/s CE(drawn features) + n/m |q - q_before|."""

    needs = Needs(memory="nothing", feature_distillation=True, features_at_end=True)

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.generator = Generator(dimension, config)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.generator.begin_task(task)
        self.derive()  # here, as draws are for training alone, and from sums that have room for the new classes already

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="nothing"),)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        new = losses.cross_entropy(batch.rowwise(self.scores), batch.y)
        old = self.generator.known()
        if not len(old):
            return {"classification": new}
        y = old[torch.randint(len(old), (len(batch.y),)).to(old.device)]
        replay = losses.cross_entropy(self.scores(self.generator.draw(y), None), y)
        share = len(old) / (len(old) + max(task.new, 1))  # a task without new classes counts as one with one
        return {"classification": (1 - share) * new, "replay": share * replay}

    def feature_distillation(self, now: Features, before: Features, task: Task) -> dict[str, Tensor]:
        return {"distance": task.old / max(task.new, 1) * losses.distance(now.x, before.x)}

    def end_task(self, task: Task, memory: Memory) -> None:
        self.generator.observe(task.train)

    def derive(self) -> None:
        self.generator.derive()

    def forget(self, label: int) -> None:
        super().forget(label)
        self.generator.forget(label)

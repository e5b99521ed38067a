"""FeCAM: a covariance of its own for every class (Goswami et al., NeurIPS 2023).

Faithful: Sigma_c shrunk twice, S_c + a v_1 I + a v_2 (1 - I) with the mean variance v_1 and the mean covariance v_2,
normalised to a correlation matrix; Mahalanobis distance between unit vectors. Departs: no Tukey transformation, which
takes features that are nowhere negative; a = 1 throughout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import Config
from mtn.methods.analytic import Analytic
from mtn.neighbours import Neighbours
from mtn.stream import Task

SHRINKAGE = 1.0


class FeCAM(Analytic):
    """-(x - u_c)^T R_c^-1 (x - u_c), u_c the unit class mean, R_c the shrunk correlations of the class.

    Keeps C d^2 numbers: mind the column of floats kept.
    """

    class_rows = ("total", "count", "moment")
    moment: Tensor
    precision: Tensor
    centres: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("moment", torch.zeros(0, dimension, dimension))  # sum of x x^T of each class
        self.register_buffer("precision", torch.zeros(0, dimension, dimension), persistent=False)
        self.register_buffer("centres", torch.zeros(0, dimension), persistent=False)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.moment = F.pad(self.moment, (0, 0, 0, 0, 0, task.seen - len(self.moment)))

    def add(self, x: Tensor, y: Tensor) -> None:
        super().add(x, y)
        for label in y.unique().tolist():
            own = x[y == label]
            self.moment[label] += own.T @ own

    def derive(self) -> None:
        means = (self.total / self.count.clamp(min=1)[:, None]).float()
        self.centres = F.normalize(means, dim=1)
        self.precision = torch.stack([self.correlation(label, mean).inverse() for label, mean in enumerate(means)])

    def correlation(self, label: int, mean: Tensor) -> Tensor:
        """D,D: of a class, its covariance shrunk twice; the identity where there is nothing to estimate it from."""
        covariance = self.moment[label] / self.count[label].clamp(min=1).float() - torch.outer(mean, mean)
        shrunk = shrink_twice(covariance, SHRINKAGE)
        deviation = shrunk.diagonal().clamp(min=1e-12).sqrt()
        found = shrunk / torch.outer(deviation, deviation)
        return found if self.count[label] > 1 else torch.eye(len(found)).to(found)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        distances = []
        for centre, precision in zip(self.centres, self.precision, strict=True):
            apart = x - centre
            distances.append((apart @ precision * apart).sum(1))
        return -torch.stack(distances, dim=1)


def shrink_twice(covariance: Tensor, amount: float) -> Tensor:
    """S + a v_1 I + a v_2 (1 - I), v_1 and v_2 the means on and off the diagonal."""
    size = len(covariance)
    variance = covariance.diagonal().mean()
    other = (covariance.sum() - covariance.trace()) / max(size * (size - 1), 1)
    diagonal = torch.eye(size).to(covariance)
    return covariance + amount * variance * diagonal + amount * other * (1 - diagonal)

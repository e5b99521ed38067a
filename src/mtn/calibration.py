"""Scores -> probabilities; vectors -> novelty, how unlike every known class a query is.

Novelty is fitted on samples that each leave themselves out: of their class's mean, of the covariance, of their
neighbours. So it needs nobody held out, and holds for a class of a handful of samples too.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SHARPEST, SOFTEST = 1e-3, 1e3
NEAREST = 3
"""Exemplars whose distance is a sign of novelty."""
SIGN_WEIGHTS = (1.0, 0.25)
"""Of the relative distance to the nearest class and the distance to the nearest exemplars (docs/results/unknown.md)."""

CONFIDENCE = 1.645
"""Standard deviations of a normal variable below which it falls in one case of twenty."""


def temperature(z: Tensor, y: Tensor) -> float:
    """The T > 0 that minimises -log softmax(z / T)_y (Guo et al. 2017), by bisection: it is convex in 1/T.

    z is N,C and y N. Targets are Platt's, 1 - 1/(N + 2) for the true class and the rest for the best other one: with
    targets of 1, scores that are right for every sample would be best with T = 0.
    """
    z, share = z.double(), 1 / (len(y) + 2)
    others = z.scatter(1, y[:, None], -torch.inf).amax(1)
    target = (1 - share) * z.gather(1, y[:, None]).squeeze(1) + share * others
    low, high = np.log(SHARPEST), np.log(SOFTEST)
    for _ in range(24):
        middle = (low + high) / 2
        slope = ((z / np.exp(middle)).softmax(1) * z).sum(1).sub(target).mean()
        low, high = (low, middle) if slope < 0 else (middle, high)  # probabilities are too even: a lower T
    return float(np.exp((low + high) / 2))


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Classes as Gaussians of one covariance, and one Gaussian of all samples (Ren et al. 2021, relative Mahalanobis).

    Both covariances have a prior of the mean variance in all directions, worth as many samples as there are directions.
    """

    means: Tensor  # C,D
    counts: Tensor  # C, 0 for a forgotten class
    precision: Tensor  # D,D, of a class
    centre: Tensor  # D, the mean of all samples
    overall: Tensor  # D,D, the precision of all samples; 0 while there is one class, which tells nothing of others
    projected: Tensor  # C,D: the means times the precision of a class
    squared: Tensor  # C: the squared length of each mean by that precision

    @staticmethod
    def of(total: Tensor, counts: Tensor, gram: Tensor) -> "Gaussians":
        """From sums over the samples: of x (C,D) and 1 (C) by class, of x x^T (D,D)."""
        means, samples = total / counts.clamp(min=1)[:, None], counts.sum()
        centre = total.sum(0) / samples
        precision = _precision(gram - total.T @ means, samples)
        alone = int((counts > 0).sum()) == 1
        overall = _precision(gram - samples * torch.outer(centre, centre), samples)
        overall = torch.zeros_like(overall) if alone else overall
        projected = means @ precision
        return Gaussians(means, counts, precision, centre, overall, projected, (projected * means).sum(1))

    def distances(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """B,C and B: squared Mahalanobis distances to each class and to all samples, per direction.

        That to a class of n samples is d^2 n / (n + 1): its mean has an error, and with it the expected distance of a
        sample is the same for every n. With y (B), x are samples of these classes that the sums contain, and each
        leaves itself out: x - mu becomes n / (n - 1) (x - mu), and the covariance loses a matrix of rank one.
        """
        samples, width = self.counts.sum(), x.shape[1]
        weight = 1 / (samples + width)  # of a sample in the covariance
        residual = x - self.centre
        projected = x @ self.precision
        squared = (projected * x).sum(1)[:, None] - 2 * x @ self.projected.T + self.squared
        overall = ((residual @ self.overall) * residual).sum(1)
        counts = self.counts.expand(len(x), -1)
        if y is not None:
            rows, n = torch.arange(len(x)), self.counts[y]
            grown = n / (n - 1)
            own = projected - self.projected[y]  # B,D: (x - mu) times the precision
            h = (own * (x - self.means[y])).sum(1)
            left = 1 - weight * grown * h
            across = (own * x).sum(1)[:, None] - own @ self.means.T
            squared = squared + (weight * grown / left)[:, None] * across.square()
            squared[rows, y] = grown.square() * h / left
            counts = counts.clone()
            counts[rows, y] -= 1
            grown = samples / (samples - 1)
            overall = grown.square() * overall / (1 - weight * grown * overall)
        squared = (squared * counts / (counts + 1)).where(counts > 0, torch.inf)
        return squared / width, overall / width

    def relative(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """B: how much farther the nearest class is than all samples are, and B: that class."""
        squared, overall = self.distances(x, y)
        nearest = squared.min(1)
        return nearest.values - overall, nearest.indices


def _precision(scatter: Tensor, samples: Tensor) -> Tensor:
    """(S + D v I)^-1 (N + D), v the mean variance."""
    width = len(scatter)
    variance = (scatter.trace() / (samples * width)).clamp(min=1e-9)
    prior = width * variance * torch.eye(width, dtype=scatter.dtype)
    return torch.cholesky_inverse(torch.linalg.cholesky((scatter + prior) / (samples + width)))


def nearest_distance(similarity: Tensor, found: Tensor) -> Tensor:
    """B: the mean distance of the three nearest exemplars; similarity B,K, found B,K: False where there is none."""
    similarity, found = similarity[:, :NEAREST].double(), found[:, :NEAREST]
    return ((1 - similarity) * found).sum(1) / found.sum(1).clamp(min=1)


def class_offsets(values: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """C: by how much the values (N) of a class are above the mean of all, shrunk as if one value more were that mean.

    And N: the same of each value's class without the value itself.
    """
    above = values - values.mean()
    total = torch.zeros(classes, dtype=values.dtype).index_add_(0, y, above)
    counts = torch.bincount(y, minlength=classes)
    return total / (counts + 1), (total[y] - above) / counts[y]


def oddness(z: Tensor, similarity: Tensor) -> Tensor:
    """The signs of novelty of version 0.1: B,2, -log sum exp z and 1 - mean similarity to the nearest exemplars.

    z is B,C over the classes known; similarity B,K, K = 0 for a method that remembers nothing.
    """
    far = 1 - similarity.double().mean(1) if similarity.shape[1] else torch.zeros(len(z), dtype=torch.float64)
    return torch.stack([-z.double().logsumexp(1), far], dim=1)


def usual(signs: Tensor) -> Tensor:
    """2,2: mean and standard deviation of N,2 signs of known samples."""
    deviation = signs.std(0) if len(signs) > 1 else torch.zeros(2, dtype=torch.float64)
    # a sign that hardly varies among known samples gets no weight: the scores of a vote always have the same sum
    return torch.stack([signs.mean(0), deviation.where(deviation > 1e-4, torch.inf)])


def novelty(signs: Tensor, usual: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """B: the weighted sum of both signs, each in standard deviations from the mean of known samples."""
    return ((signs - usual[0]) / usual[1] * torch.tensor(weights, dtype=signs.dtype)).sum(1)


def threshold(novelty: np.ndarray, false_alarms: float) -> float:
    """The value that at most the share `false_alarms` of known samples exceeds, with 95 % confidence (Wilks 1941).

    Of N novelties of known samples so many may exceed it as a binomial variable falls short of in one case of twenty:
    N p - 1.645 sqrt(N p (1 - p)), by the normal distribution; none where that is below 0.
    """
    count, share = len(novelty), false_alarms
    exceeding = max(int(count * share - CONFIDENCE * math.sqrt(count * share * (1 - share))), 0)
    return float(np.sort(novelty)[count - 1 - exceeding])


def probabilities(z: Tensor, temperature: float) -> Tensor:
    """B,C scores -> B,C."""
    return torch.softmax(z.double() / temperature, dim=1)

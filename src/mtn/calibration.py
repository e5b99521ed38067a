"""Scores -> probabilities and novelty: how little a query is like any known class."""

import numpy as np
import torch
from torch import Tensor

SHARPEST, SOFTEST = 1e-3, 1e3


def temperature(z: Tensor, y: Tensor) -> float:
    """The T > 0 that minimises -log softmax(z / T)_y (Guo et al. 2017), by bisection: it is convex in 1/T.

    z is N,C and y N. Targets are Platt's, 1 - 1/(N + 2) for the true class: with targets of 1, scores that are right
    for every sample would be best with T = 0.
    """
    z, share = z.double(), 1 / (len(y) + 2)
    target = (1 - share) * z.gather(1, y[:, None]).squeeze(1) + share * z.mean(1)
    low, high = np.log(SHARPEST), np.log(SOFTEST)
    for _ in range(24):
        middle = (low + high) / 2
        slope = ((z / np.exp(middle)).softmax(1) * z).sum(1).sub(target).mean()
        low, high = (low, middle) if slope < 0 else (middle, high)  # probabilities are too even: a lower T
    return float(np.exp((low + high) / 2))


def oddness(z: Tensor, similarity: Tensor) -> Tensor:
    """B,2: -log sum exp z, high if no class has a high score, and 1 - mean similarity to the nearest exemplars.

    z is B,C over the classes known; similarity B,K, K = 0 for a method that remembers nothing.
    """
    far = 1 - similarity.double().mean(1) if similarity.shape[1] else torch.zeros(len(z), dtype=torch.float64)
    return torch.stack([-z.double().logsumexp(1), far], dim=1)


def usual(oddness: Tensor) -> Tensor:
    """2,2: mean and standard deviation of N,2 oddness of known samples."""
    deviation = oddness.std(0) if len(oddness) > 1 else torch.zeros(2, dtype=torch.float64)
    # a sign that hardly varies among known samples gets no weight: the scores of a vote always have the same sum
    return torch.stack([oddness.mean(0), deviation.where(deviation > 1e-4, torch.inf)])


def novelty(oddness: Tensor, usual: Tensor) -> Tensor:
    """B: the sum of both signs, each in standard deviations from the mean of known samples."""
    return ((oddness - usual[0]) / usual[1]).sum(1)


def threshold(novelty: np.ndarray, false_alarms: float) -> float:
    """The value that at most the share `false_alarms` of N novelties of known samples exceeds."""
    return float(np.quantile(novelty, 1 - false_alarms, method="higher"))


def probabilities(z: Tensor, temperature: float) -> Tensor:
    """B,C scores -> B,C."""
    return torch.softmax(z.double() / temperature, dim=1)

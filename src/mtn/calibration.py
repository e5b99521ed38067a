"""Scores -> probabilities, and how little a query is like anything known."""

import numpy as np
import torch
from torch import Tensor

SHARPEST, SOFTEST = 1e-3, 1e3


def temperature(z: Tensor, y: Tensor) -> float:
    """T > 0 of least -log softmax(z / T)_y (Guo et al. 2017), by bisection: convex in 1/T.

    Targets are Platt's, 1 - 1/(N + 2) for the true class: without them perfect answers would ask for T = 0.
    """
    z, share = z.double(), 1 / (len(y) + 2)
    wanted = (1 - share) * z.gather(1, y[:, None]).squeeze(1) + share * z.mean(1)
    low, high = np.log(SHARPEST), np.log(SOFTEST)
    for _ in range(24):
        middle = (low + high) / 2
        slope = ((z / np.exp(middle)).softmax(1) * z).sum(1).sub(wanted).mean()
        low, high = (low, middle) if slope < 0 else (middle, high)  # too unsure: sharper
    return float(np.exp((low + high) / 2))


def oddness(z: Tensor, similarity: Tensor) -> Tensor:
    """B,2: -log sum exp z (no class speaks up), and 1 - mean similarity to the nearest exemplars (nothing is near).

    z B,C over the classes known; similarity B,K, K = 0 for a method that remembers nothing.
    """
    far = 1 - similarity.double().mean(1) if similarity.shape[1] else torch.zeros(len(z), dtype=torch.float64)
    return torch.stack([-z.double().logsumexp(1), far], dim=1)


def usual(oddness: Tensor) -> Tensor:
    """2,2: mean and standard deviation over known samples."""
    deviation = oddness.std(0) if len(oddness) > 1 else torch.zeros(2, dtype=torch.float64)
    # what hardly varies among known samples tells nothing: a vote's scores always sum to the same
    return torch.stack([oddness.mean(0), deviation.where(deviation > 1e-4, torch.inf)])


def novelty(oddness: Tensor, usual: Tensor) -> Tensor:
    """B: the higher, the less like any known class. Both signs count alike, in deviations of known samples."""
    return ((oddness - usual[0]) / usual[1]).sum(1)


def threshold(novelty: np.ndarray, false_alarms: float) -> float:
    """Exceeded by at most that share of known queries whose novelty is given."""
    return float(np.quantile(novelty, 1 - false_alarms, method="higher"))


def probabilities(z: Tensor, temperature: float) -> Tensor:
    return torch.softmax(z.double() / temperature, dim=1)

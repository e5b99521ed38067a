"""Weights of the parts of a score, fitted on samples that no part has seen."""

import torch
from torch import Tensor

SCALE_PRECISION = 1.0
"""One over the variance of a part's scale, as a multiple of what is believed of it."""


def fit_weights(
    parts: Tensor, y: Tensor, scales: Tensor, shares: Tensor, precision: float, trust: Tensor | None = None
) -> Tensor:
    """Weights (K) of parts (K,N,C): the share of each, times the scale at which it is calibrated by itself.

    First each part's scale, then the shares of the scaled parts: both maximise the likelihood of the labels y (N) with
    a normal prior, of means `scales` (K) and `shares` (K); `precision` is one over the variance of the shares. `trust`
    (N) is how probably each label is right.
    """
    parts = parts.double()
    known, one = scales.to(parts), torch.ones(1)
    alone = [
        mean * most_likely_weights(mean * part[None], y, one, SCALE_PRECISION, trust)
        for part, mean in zip(parts, known, strict=True)
    ]
    scale = torch.cat(alone)
    return (scale * most_likely_weights(scale[:, None, None] * parts, y, shares, precision, trust)).float()


def most_likely_weights(
    parts: Tensor, y: Tensor, mean: Tensor, precision: float, trust: Tensor | None = None
) -> Tensor:
    """w >= 0 (K) that minimise -sum t log softmax(w . z)_y + precision |w - mean|^2 / 2 over parts z (K,N,C).

    t (N) is `trust`, 1 unless given: how much each sample counts. By Newton's method.
    """
    mean, ridge = mean.to(parts), precision * torch.eye(len(parts)).to(parts)
    # less the score of y, so that where y is certain the curvature is no difference of large numbers
    parts = parts - parts.gather(2, y.expand(len(parts), -1)[:, :, None])
    counts = torch.ones_like(parts[0, :, 0]) if trust is None else trust.to(parts)

    def evaluated(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """w, its scores (N,C) and the objective, each computed once."""
        z = torch.tensordot(w, parts, 1)
        return w, z, (counts * z.logsumexp(1)).sum() + precision * (w - mean).square().sum() / 2

    w, z, value = evaluated(mean.clone())
    for _ in range(30):
        likely = z.softmax(1) * parts  # K,N,C
        expected = likely.sum(2)  # K,N
        slope = (counts * expected).sum(1) + precision * (w - mean)
        weighted = (counts[:, None] * likely).flatten(1), counts * expected
        curve = weighted[0] @ parts.flatten(1).T - weighted[1] @ expected.T + ridge
        free = (w > 0) | (slope < 0)
        step = torch.zeros_like(w)
        step[free] = torch.linalg.solve(curve[free][:, free], slope[free])
        size = 1.0
        moved = evaluated((w - step).clamp(min=0))
        while size > 1e-4 and moved[2] > value:
            size /= 2
            moved = evaluated((w - size * step).clamp(min=0))
        if (moved[0] - w).abs().max() < 1e-6:
            break
        w, z, value = moved
    return w

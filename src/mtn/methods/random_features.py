"""Closed forms on random features, beside `ranpac`: sums over samples, so the order of tasks is no matter.

`loranpac` alone depends on it, by what it cuts off.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mtn.config import AtLeastOne, Config, MethodOptions
from mtn.memory import Memory
from mtn.methods.analytic import SLDA, RandomProjection, RanPAC, RidgeOptions
from mtn.stream import Task


class FourierOptions(MethodOptions):
    """Options of `randumb`."""

    units: AtLeastOne = 2000
    """Random Fourier features."""
    gamma: Annotated[float, Field(gt=0)] = 0.25
    """gamma of the kernel exp(-gamma |x - x'|^2) that the features approximate."""


class KLDAOptions(RidgeOptions, FourierOptions):
    """Options of `klda`."""


class KLDA(SLDA):
    """Linear discriminant analysis on random Fourier features (Momeni et al. 2024).

    phi(x) = sqrt(2 / R) cos(x W + b), W ~ N(0, 2 gamma), b ~ U(0, 2 pi); then `slda`. W and b are a seed, not kept.
    """

    Options: ClassVar[type[MethodOptions]] = KLDAOptions
    knobs: ClassVar[Mapping[str, tuple[Any, ...]]] = {"method.gamma": (0.1, 0.25, 0.5), **SLDA.knobs}
    projection: Tensor
    phase: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        fixed = torch.Generator().manual_seed(config.seed)
        projection = torch.randn(dimension, self.width, generator=fixed) * math.sqrt(2 * self.options.gamma)
        self.register_buffer("projection", projection, persistent=False)
        self.register_buffer("phase", 2 * math.pi * torch.rand(self.width, generator=fixed), persistent=False)

    @property
    def width(self) -> int:
        units: int = self.options.units
        return units

    def features(self, x: Tensor) -> Tensor:
        return math.sqrt(2 / self.width) * (x @ self.projection + self.phase).cos()


class RanDumb(KLDA):
    """The nearest class mean by Mahalanobis distance on random Fourier features (Prabhu et al. 2024).

    With one covariance for all classes that is `klda`, its shrinkage not chosen but estimated (oracle approximating
    shrinkage, Chen et al. 2010): Sigma <- (1 - rho) Sigma + rho mean(diag Sigma) I.
    """

    Options = FourierOptions
    knobs = {"method.gamma": (0.1, 0.25, 0.5)}  # noqa: RUF012 (of the class, and never changed)

    @property
    def configured_strength(self) -> float:
        return 0.0  # Sigma is shrunk instead

    def inverse_times(self, matrix: Tensor, right: Tensor) -> Tensor:
        width, samples = len(matrix), self.count.sum()
        scale = matrix.diagonal().mean().clamp(min=1e-6)
        rho = oracle_shrinkage(matrix, samples).clamp(min=1e-6)
        shrunk = (1 - rho) * matrix + rho * scale * torch.eye(width).to(matrix)
        return torch.cholesky_solve(right, torch.linalg.cholesky(shrunk))


def oracle_shrinkage(covariance: Tensor, samples: Tensor) -> Tensor:
    """rho of oracle approximating shrinkage (Chen et al. 2010, Eq. 23), from 0 to 1, of p,p from n samples.

    rho = ((1 - 2/p) tr(S^2) + tr(S)^2) / ((n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)).
    """
    size = len(covariance)
    square, trace = covariance.square().sum(), covariance.trace().square()
    above, below = (1 - 2 / size) * square + trace, (samples + 1 - 2 / size) * (square - trace / size)
    return torch.where(below > 0, (above / below.clamp(min=1e-300)).clamp(0, 1), 1.0)


class ACIL(RanPAC):
    """Recursive least squares on a random expansion (Zhuang et al., NeurIPS 2022; G-ACIL 2024 for mixed tasks).

    Its recursion R <- R - R Z^T (I + Z R Z^T)^-1 Z R, W <- W + R Z^T (Y - Z W) ends where the ridge over all samples
    ends: `ranpac` with a fixed strength. So it is computed as that.
    """


class LoRanPACOptions(MethodOptions):
    """Options of `loranpac`."""

    units: AtLeastOne = 2000
    """Columns of the random projection."""
    cut: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Share of the singular values, the smallest ones, that is cut off after each task."""


class LoRanPAC(RandomProjection):
    """Least squares on ReLU(x P) without a ridge: the smallest singular values are cut off instead (Peng et al. 2024).

    Keeps U S of the features seen, R r numbers with r = (1 - cut) min(R, samples), and C R of the class sums; the
    Gram matrix of `ranpac` would be R^2. The solution U S^-2 U^T B is the least squares within what is kept.
    """

    Options = LoRanPACOptions
    knobs = {"method.cut": (0.1, 0.25, 0.5)}  # noqa: RUF012 (of the class, and never changed)
    factor: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("factor", torch.zeros(self.width, 0, dtype=torch.float64))  # U S

    def end_task(self, task: Task, memory: Memory) -> None:
        gram = self.factor @ self.factor.T
        for rows in task.train.chunks():
            x = self.features(task.train.x(rows).to(gram.device, torch.float32))
            self.add(x, task.train.y[rows].to(gram.device))
            gram += x.T @ x
        self.keep(gram)
        self.derive()

    def keep(self, gram: Tensor) -> None:
        """U S of a Gram matrix without its smallest singular values; what is zero but for rounding goes in any case."""
        values, vectors = torch.linalg.eigh(gram)  # rising
        count = max(1, math.floor((1 - self.options.cut) * min(self.width, float(self.count.sum()))))
        kept = (values > 1e-10 * values[-1]) & (torch.arange(len(values)).to(values.device) >= len(values) - count)
        self.factor = vectors[:, kept] * values[kept].sqrt()

    def forget(self, label: int) -> None:
        """What is kept loses n_c zbar_c zbar_c^T; the class's scatter stays in what all classes share."""
        total, count = self.total[label].clone(), float(self.count[label])
        super().forget(label)
        if count:
            self.keep(self.factor @ self.factor.T - torch.outer(total, total) / count)

    def solve(self) -> Tensor:
        square = self.factor.square().sum(0)  # S^2
        weights = (self.factor / square.square()) @ (self.factor.T @ self.total.T)
        return torch.cat([weights, weights.new_zeros(1, weights.shape[1])])

"""Methods that see each task once and keep statistics, no exemplars: sums over samples, so the order of tasks is no
matter.

Statistics are kept in double precision; `derive` computes the solution from them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from mtn.config import AtLeastOne, Config, MethodOptions
from mtn.evidence import PROTOTYPE
from mtn.memory import Memory
from mtn.methods.base import Method, Needs, Stage
from mtn.neighbours import Neighbours
from mtn.samples import Samples
from mtn.stream import Task

STRENGTHS = [10.0**power for power in range(-4, 2)]
"""Tried when method.strength is "auto"."""


def ridge_solution(matrix: Tensor, right: Tensor, strength: Tensor | float) -> Tensor:
    """(A + strength mean(diag A) I)^-1 B."""
    scale = matrix.diagonal().mean().clamp(min=1e-6)  # one sample a class leaves no scatter
    ridge = strength * scale * torch.eye(len(matrix), device=matrix.device)
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix + ridge))


class Analytic(Method):
    """Sum and number of each class's samples."""

    needs = Needs(memory="nothing", backbone="none")  # sums of features that changed since are of no use
    class_rows: ClassVar[tuple[str, ...]] = ("total", "count")
    total: Tensor
    count: Tensor
    solution: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("total", torch.zeros(0, self.width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("solution", torch.zeros(self.width + 1, 0), persistent=False)

    @property
    def width(self) -> int:
        return self.dimension

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return ()

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        more = task.seen - len(self.count)
        self.total, self.count = F.pad(self.total, (0, 0, 0, more)), F.pad(self.count, (0, more))

    def end_task(self, task: Task, memory: Memory) -> None:
        self.observe(task.train)
        self.derive()

    def observe(self, samples: Samples) -> None:
        for rows in samples.chunks():
            self.add(self.features(samples.x(rows).to(self.total.device)), samples.y[rows].to(self.total.device))

    def features(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, y: Tensor) -> None:
        self.total.index_add_(0, y, x.double())
        self.count.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))

    def derive(self) -> None:
        if self.seen:
            self.solution = self.solve().float()

    def solve(self) -> Tensor:
        """Columns of weights, the last row the bias: (width + 1),C."""
        raise NotImplementedError

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.features(x) @ self.solution[:-1] + self.solution[-1]


class NCM(Analytic):
    """Cosine to the class mean (SimpleCIL, Zhou et al. 2023). Keeps C d numbers."""

    def solve(self) -> Tensor:
        means = F.normalize(self.total / self.count.clamp(min=1)[:, None], dim=1)
        return torch.cat([means.T, means.new_zeros(1, len(means))])

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {PROTOTYPE: self.scores(x, neighbours)}


class RidgeOptions(MethodOptions):
    """Options of `slda` and `ridge`."""

    strength: Annotated[float, Field(gt=0)] | Literal["auto"] = 0.01
    """Strength of the ridge, relative to the mean diagonal. auto: chosen on a fifth of each task."""


class SecondMoment(Analytic):
    """And the sum of x x^T. Keeps d^2 + C d numbers."""

    Options: ClassVar[type[MethodOptions]] = RidgeOptions
    knobs: ClassVar[Mapping[str, tuple[Any, ...]]] = {"method.strength": (0.001, 0.01, 0.1)}
    gram: Tensor
    strength: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("gram", torch.zeros(self.width, self.width, dtype=torch.float64))
        chosen = self.configured_strength
        self.register_buffer("strength", torch.tensor(0.01 if chosen == "auto" else chosen))

    @property
    def configured_strength(self) -> float | Literal["auto"]:
        """method.strength."""
        strength: float | Literal["auto"] = self.options.strength
        return strength

    def end_task(self, task: Task, memory: Memory) -> None:
        if self.configured_strength != "auto":
            return super().end_task(task, memory)
        held = torch.zeros(len(task.train), dtype=torch.bool)
        held[task.train.y.argsort(stable=True)[4::5]] = True  # of every class, in whatever order its samples lie
        self.observe(task.train.select(~held))
        self.strength.fill_(self.choose(task.train.select(held)))
        self.observe(task.train.select(held))
        self.derive()

    def choose(self, held: Samples) -> float:
        """The strength that answers best on a fifth of the task's data, before that fifth is taken in too."""
        if not len(held):
            return float(self.strength)
        right = {}
        for strength in STRENGTHS:
            self.strength.fill_(strength)
            self.derive()
            answers = [self.scores(held.x(rows).to(self.total.device), None).argmax(1).cpu() for rows in held.chunks()]
            right[strength] = int((torch.cat(answers) == held.y).sum())
        return max(right, key=lambda strength: right[strength])

    def add(self, x: Tensor, y: Tensor) -> None:
        super().add(x, y)
        self.gram += x.T @ x

    def forget(self, label: int) -> None:
        """G loses n_c mu_c mu_c^T too, and with it the mean; the class's scatter stays in what all classes share."""
        total, count = self.total[label].clone(), float(self.count[label])
        super().forget(label)
        if count:
            self.gram -= torch.outer(total, total) / count

    def inverse_times(self, matrix: Tensor, right: Tensor) -> Tensor:
        """(A + strength mean(diag A) I)^-1 B."""
        return ridge_solution(matrix, right, self.strength)


class SLDA(SecondMoment):
    """Linear discriminant analysis with one shared covariance (Hayes & Kanan 2020).

    w_c = L mu_c, b_c = -1/2 mu_c^T L mu_c, L = (Sigma + strength mean(diag Sigma) I)^-1. The within-class scatter is
    pooled exactly, sum x x^T - sum_c n_c mu_c mu_c^T; the official streaming update depends on the order of samples.
    """

    def add(self, x: Tensor, y: Tensor) -> None:
        super().add(x.double(), y)  # the scatter is a difference of sums

    def solve(self) -> Tensor:
        means = self.total / self.count.clamp(min=1)[:, None]
        within = (self.gram - self.total.T @ means) / self.count.sum().clamp(min=1)
        weights = self.inverse_times(within, means.T)
        return torch.cat([weights, -0.5 * (means.T * weights).sum(0, keepdim=True)])


class Ridge(SecondMoment):
    """Least squares on one-hot targets: W = (G + strength mean(diag G) I)^-1 B (ACIL without its expansion layer)."""

    def solve(self) -> Tensor:
        weights = self.inverse_times(self.gram, self.total.T)
        return torch.cat([weights, weights.new_zeros(1, weights.shape[1])])


class RanPACOptions(RidgeOptions):
    """Options of `ranpac`."""

    units: AtLeastOne = 2000
    """Columns of the random projection."""


class RandomProjection(Analytic):
    """Sums over ReLU(x P), P a fixed Gaussian matrix of method.units columns: a seed, not kept."""

    projection: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        fixed = torch.Generator().manual_seed(config.seed)
        projection = torch.randn(dimension, self.width, generator=fixed)
        self.register_buffer("projection", projection, persistent=False)

    @property
    def width(self) -> int:
        units: int = self.options.units
        return units

    def features(self, x: Tensor) -> Tensor:
        return (x @ self.projection).relu()


class RanPAC(RandomProjection, Ridge):
    """Ridge on ReLU(x P) (McDonnell et al., NeurIPS 2023).

    method.strength = "auto" chooses on a fifth of each task's data, as the paper does.
    """

    Options = RanPACOptions

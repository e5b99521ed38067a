"""A linear discriminant with one covariance, each sample left out of its sums in turn, exactly and in closed form.

Over vectors as they are it is a part of mtn.methods.gaussian; over random features it is `FourierDiscriminant`.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import Config
from mtn.losses import cross_entropy
from mtn.methods.analytic import SLDA, Analytic
from mtn.methods.mixture import most_likely_weights
from mtn.neighbours import Neighbours
from mtn.samples import Samples

SHRINKAGES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Of Sigma, to its mean variance: the likeliest is chosen."""
PRIOR_SCALE = 0.3
"""At which a discriminant is calibrated, before any sample tells."""
MOST_LEFT_OUT = 1000
"""Samples that this choice looks at, at the most."""
MOST_COMPARED = 250_000
"""The same, times classes."""
ROUNDING = 1e-5
"""Of the squares of random features, what rounding of their sums in single precision may take from a direction."""
NEAR = 0.1
"""gamma of random features, in units of one over the variance of the first samples."""


class LeftOutDiscriminant(SLDA):
    """Scores x . L mu_c - mu_c . L mu_c / 2, L the inverse of Sigma, shrunk as tells left-out samples apart best.

    The variance of all samples counts as one sample more in Sigma, so that one sample of each class is enough.
    """

    scatter: Tensor
    vectors: Tensor
    differences: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        derived = {
            # The scatter of samples in their classes as eigenvalues (W) and eigenvectors (W,W), and along these the
            # class means less their mean (C,W).
            "scatter": torch.zeros(self.width, dtype=torch.float64),
            "vectors": torch.eye(self.width, dtype=torch.float64),
            "differences": torch.zeros(0, self.width, dtype=torch.float64),
        }
        for name, tensor in derived.items():
            self.register_buffer(name, tensor, persistent=False)

    @property
    def configured_strength(self) -> float:
        return 0.01  # the shrinkage, until there are samples to choose it by

    @property
    def means(self) -> Tensor:
        """C,W: the mean of each class; 0 where there is no sample."""
        return self.total / self.count.clamp(min=1)[:, None]

    @property
    def _centre(self) -> Tensor:
        return self.means.sum(0) / (self.count > 0).sum().clamp(min=1)

    @property
    def _freedom(self) -> Tensor:
        return (self.count.sum() - (self.count > 0).sum()).clamp(min=0) + 1

    def _within(self) -> Tensor:
        """W,W: the sum of squares in classes, without the sample more."""
        return self.gram - self.total.T @ self.means

    def _spread(self) -> Tensor:
        """The variance of all samples, a direction."""
        samples = self.count.sum().clamp(min=1)
        mean = self.total.sum(0) / samples
        return (self.gram.trace() / samples - mean.square().sum()).clamp(min=1e-9) / self.width

    def _scale(self, shrinkage: float) -> Tensor:
        """W: of the eigenvectors of the scatter, to where Sigma = I."""
        return (torch.lerp(self.scatter, self.scatter.mean(), shrinkage) / self._freedom.to(self.scatter)).rsqrt()

    def rotated(self, x: Tensor) -> Tensor:
        """N,W: x less the mean of the class means, along the eigenvectors of the scatter."""
        return (self.features(x).to(self.vectors) - self._centre.to(self.vectors)) @ self.vectors

    def discount(self, samples: Samples, trust: Tensor) -> None:
        """Take samples out of the sums as far as their labels are not trusted (N), but of no class nearly all."""
        labels, doubt = samples.y.to(self.total.device), 1 - trust.to(self.total)
        left = self.count - torch.bincount(labels, doubt, minlength=len(self.count))
        doubt = doubt * (left[labels] >= 1)
        for rows in samples.chunks():
            x = self.features(samples.x(rows).to(self.total.device)).to(self.total)
            y, taken = labels[rows], doubt[rows]
            self.total.index_add_(0, y, -taken[:, None] * x)
            self.count.index_add_(0, y, -taken)
            self.gram -= (taken[:, None] * x).T @ x

    def some(self, known: Samples) -> Samples:
        """Samples to leave out in turn, of classes that have others."""
        several = (self.count.cpu()[known.y] > 1).nonzero().squeeze(1)
        most = max(1, min(MOST_LEFT_OUT, MOST_COMPARED // len(self.count)))
        return known.select(several[:: max(1, -(-len(several) // most))])

    def trust(self, samples: Samples) -> Tensor | None:
        return None

    def choose_shrinkage(self, known: Samples, trust: Tensor | None = None) -> tuple[float, float] | None:
        """Take the one of SHRINKAGES at which samples are told apart best, each left out of the sums in turn.

        It is looked for from the present one on, by going to the next that is better: three values are tried as a rule.
        Returns the scale at which the discriminant is then calibrated, and that scale where Sigma were known: 1 if
        classes are Gaussians with one covariance, the less the more they differ from that. An estimated Sigma alone
        makes distances 1 / (1 - h) times as long, h the mean leverage of a sample: what is believed before any sample
        tells is of distances without that. None: no class has two samples. `trust` (N) is of samples that `some` gave.
        """
        there, chosen = self.count > 0, self.some(known)
        if not len(chosen) or there.sum() < 2:
            return None
        y = chosen.y.to(self.total.device)
        trust = self.trust(chosen) if trust is None else trust
        rotated, label = self.rotated(chosen.x().to(self.total.device)), (there.cumsum(0) - 1)[y]

        @cache
        def tried(place: int) -> tuple[float, float, float, float]:
            """-log likelihood, shrinkage, scale and leverage."""
            z, leverage = self.left_out_distances(rotated, y, SHRINKAGES[place])
            z = (1 - leverage) * z[:, there].double()
            scale = most_likely_weights(z[None], label, torch.tensor([PRIOR_SCALE]), 1.0, trust)
            loss = cross_entropy(scale * z, label, trust)
            return float(loss), SHRINKAGES[place], float(scale), float(leverage)

        now = float(self.strength)
        start = min(range(len(SHRINKAGES)), key=lambda place: abs(SHRINKAGES[place] - now))
        _, best, scale_known, share = tried(lowest(tried, start, len(SHRINKAGES)))
        if not math.isclose(now, best, rel_tol=1e-6):
            self.strength.fill_(best)
            self.derive_discriminant()
        return scale_known * (1 - share), min(scale_known, 1.0)

    def derive_discriminant(self) -> None:
        """What depends on the shrinkage."""
        super().derive()

    def where_round(self, rotated: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
        """x (N,W), given as `rotated` makes them, and the class means (C,W) where Sigma = I."""
        scale = self._scale(shrinkage)
        return rotated * scale, self.differences * scale

    def left_out_distances(self, rotated: Tensor, y: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
        """N,C: -(x - mu_c)^T Sigma^-1 (x - mu_c) / 2 but for a term of x alone, mu_y and Sigma without x itself.

        And the mean leverage of x, d^T Sigma^-1 d of its part of Sigma. x (N,W) are given as `rotated` makes them.
        """
        query, rows = self.where_round(rotated, shrinkage)
        residual = query - rows[y]
        own = rows[y] - residual / (self.count[y] - 1).clamp(min=1)[:, None].to(residual)
        leverage = self.leverage(residual, y, (1 - shrinkage) / self._freedom)
        unit = F.normalize(residual, dim=1)
        inner = (query * unit).sum(1, keepdim=True)
        across, squares = left_out_products(query, unit, inner, rows, own, y, leverage)
        return across - squares / 2, leverage.mean()

    def left_out_plainly(self, x: Tensor, y: Tensor) -> Tensor:
        """N,C: the same of x (N,D), at the shrinkage that was chosen."""
        return self.left_out_distances(self.rotated(x), y, float(self.strength))[0]

    def leverage(self, residual: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """N,1: h = a |d|^2 of residuals d (N,W) where Sigma = I. A sample is a d d^T of it, a = share n / (n - 1)."""
        a = share * self.count[y] / (self.count[y] - 1).clamp(min=1)
        return (a.to(residual) * residual.square().sum(1))[:, None].clamp(max=0.999)


class FourierDiscriminant(LeftOutDiscriminant):
    """The same over phi(x) = sqrt(2 / W) (cos(x P + b) - a), P ~ N(0, 2 gamma), b ~ U(0, 2 pi): classes of any shape.

    P and b are a seed, not kept. gamma follows from the variance of the first samples, and a is cos of their mean: no
    score depends on it, but products are small enough for single precision. There are so many features that a
    triangular factor of Sigma for each shrinkage takes less time than eigenvectors for all of them.
    """

    gamma: Tensor
    middle: Tensor
    projection: Tensor
    phase: Tensor
    factor: Tensor
    rows: Tensor
    known_scatter: Tensor | None = None
    """What `sum_of_squares` gives, while the sums stay as they are."""

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        fixed = torch.Generator().manual_seed(config.seed)
        self.register_buffer("gamma", torch.zeros(()))
        self.register_buffer("middle", torch.zeros(self.width))  # a
        self.register_buffer("projection", torch.randn(dimension, self.width, generator=fixed), persistent=False)
        self.register_buffer("phase", 2 * math.pi * torch.rand(self.width, generator=fixed), persistent=False)
        # F (W,W), F F^T = Sigma at the shrinkage that was chosen, and the class means where Sigma = I (C,W).
        self.register_buffer("factor", torch.zeros(0, 0), persistent=False)
        self.register_buffer("rows", torch.zeros(0, self.width), persistent=False)

    @property
    def width(self) -> int:
        features: int = self.options.random_features
        return features

    def features(self, x: Tensor) -> Tensor:
        return math.sqrt(2 / self.width) * (self._cosines(x) - self.middle)

    def _cosines(self, x: Tensor) -> Tensor:
        return ((2 * self.gamma).sqrt() * (x @ self.projection) + self.phase).cos()

    def rotated(self, x: Tensor) -> Tensor:
        """N,W: phi(x) less the mean of the class means."""
        return self.features(x) - self._centre.float()

    def observe(self, samples: Samples) -> None:
        if not self.count.any():
            mean = torch.stack([samples.x(rows).sum(0).double() for rows in samples.chunks()]).sum(0) / len(samples)
            variance = 1 - float(mean.square().sum())  # of unit vectors
            self.gamma.fill_(min(NEAR / max(variance, NEAR), 1.0))
            self.middle = self._cosines(mean.to(self.projection))
        super().observe(samples)

    def add(self, x: Tensor, y: Tensor) -> None:
        Analytic.add(self, x, y)
        self.gram += x.T @ x

    def factorised(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """F of Sigma at a shrinkage, found in double precision, and F^-1 of the class means (C,W)."""
        scatter = self.sum_of_squares() if self.known_scatter is None else self.known_scatter
        sigma = scatter * ((1 - shrinkage) / self._freedom)
        least = ROUNDING * self.gram.diagonal().mean() / self._freedom
        sigma.diagonal().add_(shrinkage * scatter.diagonal().mean() / self._freedom + least)
        factor, failed = torch.linalg.cholesky_ex(sigma)
        while failed:
            sigma.diagonal().add_(least := 10 * least)
            factor, failed = torch.linalg.cholesky_ex(sigma)
        factor = factor.float()
        means = (self.means - self._centre) * (self.count > 0)[:, None]
        return factor, forward(factor, means.float())

    def sum_of_squares(self) -> Tensor:
        """W,W: in classes, with the sample more."""
        scatter = self.gram - self.total.float().T @ self.means.float()
        scatter.diagonal().add_(self._spread())
        return scatter

    def where_round(self, rotated: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
        derived = math.isclose(shrinkage, float(self.strength), rel_tol=1e-6) and len(self.factor)
        factor, rows = (self.factor, self.rows) if derived else self.factorised(shrinkage)
        return forward(factor, rotated), rows

    def solve(self) -> Tensor:
        self.factor, self.rows = self.factorised(float(self.strength))
        weights = torch.linalg.solve_triangular(self.factor.T, self.rows.T, upper=True)
        bias = -0.5 * self.rows.square().sum(1) - self._centre.float() @ weights
        return torch.cat([weights, bias[None]])

    def choose_shrinkage(self, known: Samples, trust: Tensor | None = None) -> tuple[float, float] | None:
        self.known_scatter = self.sum_of_squares()
        self.derive_discriminant()
        chosen = super().choose_shrinkage(known, trust)
        self.known_scatter = None
        return chosen

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.left_out_plainly(x, y).float()


def forward(factor: Tensor, x: Tensor) -> Tensor:
    """N,W: F^-1 of each of x (N,W), F lower triangular."""
    solved: Tensor = torch.linalg.solve_triangular(factor, x.T, upper=False)
    return solved.T


def no_sums(classes: int) -> dict[str, Tensor]:
    """The state of a `FourierDiscriminant` without random features that knows so many classes."""
    return {
        "seen": torch.tensor(classes),
        "forgotten": torch.zeros(classes, dtype=torch.bool),
        "total": torch.zeros(classes, 0, dtype=torch.float64),
        "count": torch.zeros(classes, dtype=torch.float64),
        "gram": torch.zeros(0, 0, dtype=torch.float64),
        "strength": torch.tensor(0.01),
        "gamma": torch.tensor(0.0),
        "middle": torch.zeros(0),
    }


def left_out_products(
    x: Tensor, unit: Tensor, inner: Tensor, rows: Tensor, own: Tensor, y: Tensor, leverage: Tensor
) -> tuple[Tensor, Tensor]:
    """N,C twice: <x, r_c> and <r_c, r_c> in the metric without the sample x (N,D), from vectors where it is I with it.

    Without the sample the metric is I + h / (1 - h) u u^T, u (N,D) the direction of its residual and h its leverage
    (N,1): Sherman and Morrison. `inner` is <x, u> (N,1). Of the sample's class y (N) the row (C,D) is `own` (N,D).
    """
    position = torch.arange(len(y), device=y.device), y
    across, along = x @ rows.T, unit @ rows.T
    squares = rows.square().sum(1).repeat(len(y), 1)
    across[position], along[position] = (x * own).sum(1), (unit * own).sum(1)
    squares[position] = own.square().sum(1)
    gain = leverage / (1 - leverage)
    return across + gain * inner * along, squares + gain * along.square()


def lowest(value: Callable[[int], tuple[float, ...]], place: int, places: int) -> int:
    """Where a value over 0 to places - 1 is lowest, if it falls and then rises: downhill from a place."""
    while True:
        around = range(max(place - 1, 0), min(place + 2, places))
        best = min(around, key=value)
        if best == place:
            return place
        place = best

"""Classes as Gaussians with one covariance: sums over all samples, and what follows from them in closed form."""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import Config
from mtn.losses import cross_entropy
from mtn.methods.analytic import SLDA
from mtn.methods.mixture import most_likely_weights
from mtn.neighbours import Neighbours
from mtn.samples import Samples

WHITENING = 0.9
"""A = L^(-WHITENING / 2) U^T, where Sigma = U L U^T: 0 turns the space alone, 1 gives every class unit variance in all
directions."""
SHRINKAGES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Of Sigma in the discriminant, to its mean variance: the likeliest is chosen."""
PRIOR_SCALE = 0.3
"""At which the discriminant is calibrated, before any sample tells."""
FIRST_DOUBT = 0.2
"""The share of wrong labels from which their share is looked for."""
LEAST_DOUBT, EVIDENCE = 0.02, 10.0
"""Labels are doubted if at least this share is wrong, as the tails of classes look like a few wrong labels; and if that
is so many times likelier than none, as a logarithm."""
MOST_LEFT_OUT = 1000
"""Samples that this choice looks at, at the most."""
MOST_COMPARED = 250_000
"""The same, times classes."""


class GaussianMoments(SLDA):
    """Exact sums over all samples -> a partially whitened space, and the scores of a linear discriminant.

    The discriminant is SLDA's with class means as few samples show them (probabilistic LDA, Ioffe 2006): means are
    drawn from N(m, B), samples from N(mu_c, Sigma). In the basis where Sigma = I and B = diag(b), the expected mean of
    a class whose n_c samples have the mean M_c is R_c = n_c b / (n_c b + 1) M_c: what classes differ by stays, noise
    goes. Scores are q . R_c - |R_c|^2 / 2.
    """

    mean: Tensor
    whitening: Tensor
    stretch: Tensor
    noise: Tensor
    scatter: Tensor
    vectors: Tensor
    differences: Tensor
    between: Tensor
    doubt: Tensor
    directions: Tensor
    along: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        # The share of labels that are wrong, and the scale at which the discriminant is calibrated on the others.
        self.register_buffer("doubt", torch.tensor([0.0, PRIOR_SCALE]))
        derived = {
            "mean": torch.zeros(dimension),
            "whitening": torch.eye(dimension),  # A^T
            "stretch": torch.ones(dimension),  # the lengths of its columns
            "noise": torch.ones(dimension),
            # The scatter of samples in their classes as eigenvalues (D) and eigenvectors (D,D), and along these the
            # class means less their mean (C,D). In the space where the scatter is I, b (K), the directions of B (D,K),
            # and along these the class means (C,K).
            "scatter": torch.zeros(dimension, dtype=torch.float64),
            "vectors": torch.eye(dimension, dtype=torch.float64),
            "differences": torch.zeros(0, dimension, dtype=torch.float64),
            "between": torch.zeros(0, dtype=torch.float64),
            "directions": torch.zeros(dimension, 0, dtype=torch.float64),
            "along": torch.zeros(0, 0, dtype=torch.float64),
        }
        for name, tensor in derived.items():
            self.register_buffer(name, tensor, persistent=False)

    @property
    def configured_strength(self) -> float:
        return 0.01  # the shrinkage, until there are samples to choose it by

    @property
    def means(self) -> Tensor:
        """C,D: the mean of each class; 0 where there is no sample."""
        return self.total / self.count.clamp(min=1)[:, None]

    def class_centres(self) -> Tensor:
        """C,D: the same in single precision."""
        return self.means.float()

    def derive(self) -> None:
        """m, A, and the deviations of a class in the whitened space, where its coordinates vary each by itself; the
        discriminant.

        In A, Sigma has a prior of the mean variance in all directions, worth as many samples as there are directions.
        In the discriminant it is shrunk by what was chosen, and the variance of all samples counts as one sample more,
        so that one sample of each class is enough.
        """
        samples, width = self.count.sum().clamp(min=1), self.dimension
        within = self.gram - self.total.T @ self.means
        variance = (within.trace() / (samples * width)).clamp(min=1e-9)
        prior = width * variance * torch.eye(width, dtype=within.dtype, device=within.device)
        values, vectors = torch.linalg.eigh((within + prior) / (samples + width))
        mean, stretch = self.total.sum(0) / samples, values ** (-WHITENING / 2)
        self.mean, self.stretch, self.noise = mean.float(), stretch.float(), (stretch * values.sqrt()).float()
        self.whitening = (vectors * stretch).float()
        spread = (self.gram.trace() / samples - mean.square().sum()).clamp(min=1e-9)
        self.scatter = (values * (samples + width) - width * variance).clamp(min=0) + spread / width
        self.vectors = vectors
        self.differences = (self.means - self._centre) @ vectors * (self.count > 0)[:, None]
        self.derive_discriminant()

    def derive_discriminant(self) -> None:
        """B, then weights and biases (D + 1),C."""
        there = self.count > 0
        classes, freedom = there.sum().clamp(min=1), (there.sum() - 1).clamp(min=1)
        scale = self._scale(float(self.strength))
        squares, self.directions = principal_directions(self.differences * scale)
        variances = shrunk(squares / freedom, freedom, self.dimension)
        self.between = (variances - (there / self.count.clamp(min=1)).sum() / classes).clamp(min=0)
        self.along = self.differences * scale @ self.directions
        expected = self._expected(self.along, self.count)
        weights = self.vectors * scale @ self.directions @ expected.T
        bias = -0.5 * expected.square().sum(1) - self._centre @ weights
        self.solution = torch.cat([weights, bias[None]]).float()

    @property
    def _centre(self) -> Tensor:
        return self.means.sum(0) / (self.count > 0).sum().clamp(min=1)

    @property
    def _freedom(self) -> Tensor:
        return (self.count.sum() - (self.count > 0).sum()).clamp(min=0) + 1

    def _scale(self, shrinkage: float) -> Tensor:
        """D: of the eigenvectors of the scatter, to where Sigma = I."""
        return (torch.lerp(self.scatter, self.scatter.mean(), shrinkage) / self._freedom).rsqrt()

    def rotated(self, x: Tensor) -> Tensor:
        """N,D: x less the mean of the class means, along the eigenvectors of the scatter."""
        return (x.to(self.total) - self._centre) @ self.vectors

    def _expected(self, means: Tensor, count: Tensor) -> Tensor:
        """R (N,K) of means (N,K) of `count` (N) samples."""
        known = count[:, None] * self.between
        return means * known / (known + 1)

    def whiten(self, x: Tensor) -> Tensor:
        """A (x - m): B,D."""
        return (x - self.mean) @ self.whitening

    def turn(self, x: Tensor) -> Tensor:
        """U^T (x - m): B,D."""
        return self.whiten(x) / self.stretch

    def turn_back(self, rows: Tensor) -> Tensor:
        """x of rows U^T (x - m): B,D."""
        return rows @ (self.whitening / self.stretch).T + self.mean

    def draw_around(self, centres: Tensor) -> Tensor:
        """A sample of a class's Gaussian around each of some class means (N,D), all in the whitened space."""
        return centres + torch.randn_like(centres) * self.noise

    def estimate_wrong_labels(self, samples: Samples) -> None:
        """The share of labels that are wrong among samples that the sums have, if there is strong evidence for any.

        A wrong label is drawn evenly from all classes. Share and scale are found by expectation and maximisation, each
        sample left out of the sums; classes that overlap make no label wrong, as the scale is then small.
        """
        there, chosen = self.count > 0, self._some(samples)
        self.doubt = torch.tensor([0.0, PRIOR_SCALE]).to(self.doubt)
        if not len(chosen) or there.sum() < 2:
            return
        y = chosen.y.to(self.total.device)
        z, _ = self.left_out_distances(self.rotated(chosen.x()), y, float(self.strength))
        z, label, prior = z[:, there], (there.cumsum(0) - 1)[y], torch.tensor([PRIOR_SCALE])

        def log_likelihood(trust: Tensor | None) -> tuple[Tensor, Tensor]:
            scale = most_likely_weights(z[None], label, prior, 1.0, trust)
            return scale, -F.cross_entropy(scale * z, label, reduction="none")

        none = log_likelihood(None)[1].sum()
        share = torch.tensor(FIRST_DOUBT).to(z)
        trust = torch.full_like(z[:, 0], 1 - FIRST_DOUBT)
        for _ in range(20):
            scale, right = log_likelihood(trust)
            both = torch.logaddexp((1 - share).log() + right, (share / z.shape[1]).log())
            trust = ((1 - share).log() + right - both).exp()
            share = (1 - trust).mean()
        if share > LEAST_DOUBT and both.sum() - none > EVIDENCE:
            self.doubt = torch.stack([share, scale[0]]).to(self.doubt)

    def label_trust(self, x: Tensor, y: Tensor) -> Tensor | None:
        """B: how probably labels y of samples x that the sums have are right; None: there is no doubt of any.

        Each sample is left out of the sums; the label of a class's only sample is taken as right.
        """
        share, scale = self.doubt.tolist()
        if not share:
            return None
        z, _ = self.left_out_distances(self.rotated(x), y, float(self.strength))
        there = self.count > 0
        likely = F.cross_entropy(scale * z[:, there], (there.cumsum(0) - 1)[y], reduction="none").neg().exp()
        right = (1 - share) * likely
        trust: Tensor = right / (right + share / there.sum())
        return trust.float().masked_fill(self.count[y] < 2, 1.0)

    def trust(self, samples: Samples) -> Tensor | None:
        if not self.doubt[0]:
            return None
        device = self.total.device
        parts = [self.label_trust(samples.x(rows).to(device), samples.y[rows].to(device)) for rows in samples.chunks()]
        return torch.cat([part for part in parts if part is not None])

    def discount(self, samples: Samples, trust: Tensor) -> None:
        """Take samples out of the sums as far as their labels are not trusted (N), but of no class nearly all."""
        labels, doubt = samples.y.to(self.total.device), 1 - trust.to(self.total)
        left = self.count - torch.bincount(labels, doubt, minlength=len(self.count))
        doubt = doubt * (left[labels] >= 1)
        for rows in samples.chunks():
            x, y, taken = samples.x(rows).to(self.total), labels[rows], doubt[rows]
            self.total.index_add_(0, y, -taken[:, None] * x)
            self.count.index_add_(0, y, -taken)
            self.gram -= (taken[:, None] * x).T @ x

    def _some(self, known: Samples) -> Samples:
        """Samples to leave out in turn, of classes that have others."""
        several = (self.count.cpu()[known.y] > 1).nonzero().squeeze(1)
        most = max(1, min(MOST_LEFT_OUT, MOST_COMPARED // len(self.count)))
        return known.select(several[:: max(1, -(-len(several) // most))])

    def choose_shrinkage(self, known: Samples) -> tuple[float, float] | None:
        """Take the one of SHRINKAGES at which samples are told apart best, each left out of the sums in turn.

        It is looked for from the present one on, by going to the next that is better: three values are tried as a rule.
        Returns the scale at which the discriminant is then calibrated, and that scale where Sigma were known: 1 if
        classes are Gaussians with one covariance, the less the more they differ from that. An estimated Sigma alone
        makes distances 1 / (1 - h) times as long, h the mean leverage of a sample: what is believed before any sample
        tells is of distances without that. None: no class has two samples.
        """
        there, chosen = self.count > 0, self._some(known)
        if not len(chosen) or there.sum() < 2:
            return None
        y = chosen.y.to(self.total.device)
        trust = self.label_trust(chosen.x().to(self.total.device), y)
        rotated, label, prior = self.rotated(chosen.x()), (there.cumsum(0) - 1)[y], torch.tensor([PRIOR_SCALE])

        @cache
        def tried(place: int) -> tuple[float, float, float, float]:
            """-log likelihood, shrinkage, scale and leverage."""
            z, leverage = self.left_out_distances(rotated, y, SHRINKAGES[place])
            z = (1 - leverage) * z[:, there]
            scale = most_likely_weights(z[None], label, prior, 1.0, trust)
            loss = cross_entropy(scale * z, label, trust)
            return float(loss), SHRINKAGES[place], float(scale), float(leverage)

        now = float(self.strength)
        start = min(range(len(SHRINKAGES)), key=lambda place: abs(SHRINKAGES[place] - now))
        _, best, scale_known, share = tried(lowest(tried, start, len(SHRINKAGES)))
        if not math.isclose(now, best, rel_tol=1e-6):
            self.strength.fill_(best)
            self.derive_discriminant()
        return scale_known * (1 - share), min(scale_known, 1.0)

    def left_out_distances(self, rotated: Tensor, y: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
        """N,C: -(x - mu_c)^T Sigma^-1 (x - mu_c) / 2 but for a term of x alone, mu_y and Sigma without x itself.

        And the mean leverage of x, d^T Sigma^-1 d of its part of Sigma. x (N,D) are given as `rotated` makes them.
        Means are not shrunk here, as B differs with the shrinkage.
        """
        scale = self._scale(shrinkage)
        rows, query = self.differences * scale, rotated * scale
        residual = query - rows[y]
        own = rows[y] - residual / (self.count[y] - 1).clamp(min=1)[:, None]
        leverage = self.leverage(residual, y, (1 - shrinkage) / self._freedom)
        unit = F.normalize(residual, dim=1)
        inner = (query * unit).sum(1, keepdim=True)
        across, squares = left_out_products(query, unit, inner, rows, own, y, leverage)
        return across - squares / 2, leverage.mean()

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        """N,C: the discriminant of x (N,D), R_y and Sigma without x itself; B as it is.

        Lengths are those in all directions, products with means those along the directions of B, which means are of.
        """
        shrinkage, count = float(self.strength), self.count[y]
        scale = self._scale(shrinkage)
        query = self.rotated(x) * scale
        residual, query_along = query - self.differences[y] * scale, query @ self.directions
        residual_along = query_along - self.along[y]
        left = self.along[y] - residual_along / (count - 1).clamp(min=1)[:, None]
        rows, own = self._expected(self.along, self.count), self._expected(left, count - 1)
        leverage = self.leverage(residual, y, (1 - shrinkage) / self._freedom)
        length = residual.norm(dim=1, keepdim=True).clamp(min=1e-12)
        inner = (query * residual).sum(1, keepdim=True) / length
        across, squares = left_out_products(query_along, residual_along / length, inner, rows, own, y, leverage)
        return (across - squares / 2).float()

    def leverage(self, residual: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """N,1: h = a |d|^2 of residuals d (N,D) where Sigma = I. A sample is a d d^T of it, a = share n / (n - 1)."""
        a = share * self.count[y] / (self.count[y] - 1).clamp(min=1)
        return (a.to(residual) * residual.square().sum(1))[:, None].clamp(max=0.999)


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


def principal_directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (K) and eigenvectors (D,K) of rows^T rows, rows (C,D); K = min(C, D), the others are 0."""
    if len(rows) > rows.shape[1]:
        values, vectors = torch.linalg.eigh(rows.T @ rows)
        return values.clamp(min=0), vectors
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = values > 1e-10 * values.max().clamp(min=1e-30)
    return values[kept], rows.T @ (vectors[:, kept] / values[kept].sqrt())


def shrunk(variances: Tensor, freedom: Tensor, width: int) -> Tensor:
    """Eigenvalues (K) of a covariance of `freedom` + 1 samples of D numbers, moved to their mean; D - K more are 0.

    How far is what oracle approximating shrinkage says (Chen et al. 2010): the fewer samples and the more alike the
    eigenvalues, the further.
    """
    total, squares = variances.sum(), variances.square().sum()
    unlike = (squares - total.square() / width).clamp(min=1e-30)
    share = ((1 - 2 / width) * squares + total.square()) / ((freedom + 1 - 2 / width) * unlike)
    return torch.lerp(variances, total / width, share.clamp(max=1))

"""Classes as Gaussians with one covariance: sums over all samples, and what follows from them in closed form."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import Config
from mtn.methods.discriminant import PRIOR_SCALE, LeftOutDiscriminant, left_out_products
from mtn.methods.mixture import most_likely_weights
from mtn.neighbours import Neighbours
from mtn.samples import Samples

WHITENING = 0.9
"""A = L^(-WHITENING / 2) U^T, where Sigma = U L U^T: 0 turns the space alone, 1 gives every class unit variance in all
directions."""
FIRST_DOUBT = 0.2
"""The share of wrong labels from which their share is looked for."""
LEAST_DOUBT, EVIDENCE = 0.02, 10.0
"""Labels are doubted if at least this share is wrong, as the tails of classes look like a few wrong labels; and if that
is so many times likelier than none, as a logarithm."""


class GaussianMoments(LeftOutDiscriminant):
    """Exact sums over all samples -> a partially whitened space, and the scores of a linear discriminant.

    The discriminant is SLDA's with class means as few samples show them (probabilistic LDA, Ioffe 2006): means are
    drawn from N(m, B), samples from N(mu_c, Sigma). In the basis where Sigma = I and B = diag(b), the expected mean of
    a class whose n_c samples have the mean M_c is R_c = n_c b / (n_c b + 1) M_c: what classes differ by stays, noise
    goes. Scores are q . R_c - |R_c|^2 / 2.
    """

    mean: Tensor
    whitening: Tensor
    gain: Tensor
    noise: Tensor
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
            "gain": torch.ones(dimension),  # g in mtn.methods.practical
            "noise": torch.ones(dimension),
            # In the space where the scatter is I, b (K), the directions of B (D,K), along these the class means (C,K).
            "between": torch.zeros(0, dtype=torch.float64),
            "directions": torch.zeros(dimension, 0, dtype=torch.float64),
            "along": torch.zeros(0, 0, dtype=torch.float64),
        }
        for name, tensor in derived.items():
            self.register_buffer(name, tensor, persistent=False)

    def class_centres(self) -> Tensor:
        """C,D: the mean of each class in single precision."""
        return self.means.float()

    def derive(self) -> None:
        """m, A, and the deviations of a class in the whitened space, where its coordinates vary each by itself; the
        discriminant.

        In A, Sigma has a prior of the mean variance in all directions, worth as many samples as there are directions.
        In the discriminant it is shrunk by what was chosen.
        """
        samples, width = self.count.sum().clamp(min=1), self.dimension
        within = self._within()
        variance = (within.trace() / (samples * width)).clamp(min=1e-9)
        prior = width * variance * torch.eye(width, dtype=within.dtype, device=within.device)
        values, vectors = torch.linalg.eigh((within + prior) / (samples + width))
        mean, stretch = self.total.sum(0) / samples, values ** (-WHITENING / 2)
        self.mean, self.noise = mean.float(), (stretch * values.sqrt()).float()
        self.gain = (stretch.square() * (stretch.square().sum() / stretch.pow(4).sum()).sqrt()).float()
        self.whitening = (vectors * stretch).float()
        self.scatter = (values * (samples + width) - width * variance).clamp(min=0) + self._spread()
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

    def _expected(self, means: Tensor, count: Tensor) -> Tensor:
        """R (N,K) of means (N,K) of `count` (N) samples."""
        known = count[:, None] * self.between
        return means * known / (known + 1)

    def whiten(self, x: Tensor) -> Tensor:
        """A (x - m): B,D."""
        return (x - self.mean) @ self.whitening

    def unwhiten(self, rows: Tensor) -> Tensor:
        """x of rows A (x - m): B,D."""
        return rows @ (self.whitening / self.whitening.square().sum(0)).T + self.mean

    def draw_around(self, centres: Tensor) -> Tensor:
        """A sample of a class's Gaussian around each of some class means (N,D), all in the whitened space."""
        return centres + torch.randn_like(centres) * self.noise

    def estimate_wrong_labels(self, samples: Samples) -> None:
        """The share of labels that are wrong among samples that the sums have, if there is strong evidence for any.

        A wrong label is drawn evenly from all classes. Share and scale are found by expectation and maximisation, each
        sample left out of the sums; classes that overlap make no label wrong, as the scale is then small.
        """
        there, chosen = self.count > 0, self.some(samples)
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

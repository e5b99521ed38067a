"""AnaCP: features adapted in closed form, then a ridge on them (Momeni, Xiao & Liu, NeurIPS 2025).

Faithful: z = gelu(W x); class means spread in the whitened space become the targets T_c of a ridge from z, literally as
the official code has it (the whitening P is applied once more, not undone); draws from N(mu_c, Sigma) stand for all
samples in the second ridge, on gelu(W_2 h). Departs: Sigma is the exact pooled scatter, so the order of tasks is no
matter (the official update weighs it with counts that already have the batch in them); singular values of zero are not
raised (theirs are, along a direction that rounding decides); the strength is relative to the mean diagonal; one head
by default where the paper averages three; no adapter is trained on the first task.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import AtLeastOne, Config
from mtn.methods.analytic import SLDA, RidgeOptions, ridge_solution
from mtn.neighbours import Neighbours
from mtn.runtime import rng
from mtn.stream import Task

DRAWS = 100
"""Of each class's Gaussian, for the second ridge."""
SCATTER_RIDGE = 1e-4
"""Added to the diagonal of Sigma, of unit vectors."""
SPREAD = 1.0
"""Added to every singular value of the whitened class means."""


class AnaCPOptions(RidgeOptions):
    """Options of `anacp`."""

    units: AtLeastOne = 2000
    """Random features of each head, and of the last layer."""
    heads: AtLeastOne = 1
    """Random projections whose adapted features are averaged."""


class AnaCP(SLDA):
    """h(x) = mean over heads of unit(gelu(W x) theta), then W_c^T gelu(W_2 h(x)). No gradient step anywhere.

    Keeps R^2 + C R numbers a head for R units, and d^2 + C d of the scatter and the class means.
    """

    Options = AnaCPOptions
    class_rows = (*SLDA.class_rows, "lifted_total")
    projection: Tensor
    last_projection: Tensor
    lifted_gram: Tensor
    lifted_total: Tensor
    theta: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        heads, units = self.options.heads, self.options.units
        fixed = torch.Generator().manual_seed(config.seed)
        projection = torch.randn(heads, dimension, units, generator=fixed)
        last = torch.randn(dimension, units, generator=fixed)
        self.register_buffer("projection", projection, persistent=False)  # H,D,R
        self.register_buffer("last_projection", last, persistent=False)  # D,R
        self.register_buffer("lifted_gram", torch.zeros(heads, units, units, dtype=torch.float64))
        self.register_buffer("lifted_total", torch.zeros(0, heads, units, dtype=torch.float64))  # C,H,R
        self.register_buffer("theta", torch.zeros(heads, units, dimension), persistent=False)
        self.register_buffer("solution", torch.zeros(units, 0), persistent=False)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.lifted_total = F.pad(self.lifted_total, (0, 0, 0, 0, 0, task.seen - len(self.lifted_total)))

    def lift(self, x: Tensor) -> Tensor:
        """x B,D -> H,B,R: gelu(W x) of each head."""
        return F.gelu(x @ self.projection)

    def add(self, x: Tensor, y: Tensor) -> None:
        super().add(x, y)
        lifted = self.lift(x)
        self.lifted_gram += lifted.transpose(1, 2) @ lifted
        self.lifted_total.index_add_(0, y, lifted.transpose(0, 1).double())

    def forget(self, label: int) -> None:
        """As of the scatter: each head's G loses n_c zbar_c zbar_c^T, and with it the mean."""
        total, count = self.lifted_total[label].clone(), float(self.count[label])
        super().forget(label)
        if count:
            self.lifted_gram -= total[:, :, None] * total[:, None, :] / count

    def derive(self) -> None:
        known = self.count > 0
        if not known.any():
            return
        means = self.total[known] / self.count[known, None]
        samples = self.count.sum()
        within = (self.gram - self.total[known].T @ means) / samples
        values, vectors = torch.linalg.eigh(within + SCATTER_RIDGE * torch.eye(len(within)).to(within))
        values = values.clamp(min=SCATTER_RIDGE)
        targets = spread(means, (vectors / values.sqrt()) @ vectors.T)
        strength = float(self.strength)
        right = self.lifted_total[known].transpose(0, 1).transpose(1, 2) @ targets  # H,R,D
        solved = [ridge_solution(*pair, strength) for pair in zip(self.lifted_gram, right, strict=True)]
        self.theta = torch.stack(solved).float()
        self.solution = self._last_ridge(means, (vectors * values.sqrt()) @ vectors.T, known, strength)

    def _last_ridge(self, means: Tensor, root: Tensor, known: Tensor, strength: float) -> Tensor:
        """R,C: least squares from the draws of all classes that are known; the others have no weight."""
        units = self.options.units
        gram = torch.zeros(units, units, dtype=torch.float64, device=means.device)
        solution = torch.zeros(units, len(known), device=means.device)
        totals = []
        for label, mean in zip(known.nonzero().squeeze(1).tolist(), means, strict=True):
            noise = torch.randn(DRAWS, self.dimension, generator=rng.generator(self.config.seed, label, "draws"))
            features = self.last_features((mean + noise.to(root) @ root).float())
            gram += features.T @ features
            totals.append(features.sum(0).double())
        solution[:, known] = ridge_solution(gram, torch.stack(totals, dim=1), strength).float()
        return solution

    def last_features(self, x: Tensor) -> Tensor:
        """B,R: gelu(W_2 h(x))."""
        adapted = F.normalize(self.lift(x) @ self.theta, dim=2).mean(0)  # B,D
        return F.gelu(adapted @ self.last_projection)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.last_features(x) @ self.solution


def spread(means: Tensor, whitening: Tensor) -> Tensor:
    """C,D: the unit targets of class means (C,D), farther apart in the whitened space than they are.

    (mu - m) P = U S V^T, T = unit(U (S + 1) V^T P + m), m the mean of the means. A singular value of zero stays zero;
    centred means have one.
    """
    centre = means.mean(0)
    left, values, right = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)
    values = values + SPREAD * (values > 1e-8 * values.max())
    return F.normalize((left * values) @ right @ whitening + centre, dim=1)

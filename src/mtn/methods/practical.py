"""The practical default: MTN beside prototypes in a partially whitened space.

Two parts, trained side by side over all classes seen, then weighted on exemplars that neither was trained on:

- prototypes: s cos(A(x - m), A(w_c - m)), A = Sigma^-0.45 of the pooled within-class scatter (partial whitening), m the
  mean of all samples seen. Sums over all samples give Sigma and m exactly, so nothing of them is forgotten. Rows w_c
  start as class means and are pulled towards them where samples are few. In a task without samples of a class its row
  is frozen, and samples drawn from N(mu_c, Sigma) stand for the class in the loss.
- network: the transformer of `mtn` over the query and its neighbours, with the model before the task as its teacher.
  Its head also sees the query itself, as cosines to rows that start as class means: the 64 numbers of an adapted query
  may not hold what tells an unforeseen class from the others.

Both take the softmax over all seen classes, corrected for how often each class is drawn: one new class at a time is
learned as well as a hundred.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.evidence import PROTOTYPE, QUERY
from mtn.memory import Memory
from mtn.methods.analytic import SLDA
from mtn.methods.base import Batch, Method, Needs, class_means, unit_rows
from mtn.methods.mtn import MTN, TransformerOptions
from mtn.neighbours import Neighbours, capped, nearest
from mtn.stream import Task

DRAWN = 64
"""Samples drawn from the Gaussians of earlier classes in each step."""
WHITENING = 0.9
"""A = Sigma^(-WHITENING / 2): 0 leaves the space as it is, 1 gives every class unit variance in all directions."""
PULL = 8.0
"""The pull of a prototype to its class mean is (PULL / samples of the class)^2."""
HELD_OUT = 10
"""Every tenth exemplar is held out of training: the weights of the two parts are fitted on these."""
PRIOR_MEAN = (1.0, 0.3)
"""Of the weights of prototypes and network."""
PRIOR_PRECISION = (1.0, 10.0)
"""One over the variance of that prior."""
MOST_HELD_OUT = 1000
"""Held-out exemplars that the two weights are fitted on, at the most."""


class WhiteningMoments(SLDA):
    """Exact sums over all samples -> the partially whitened space of the prototypes."""

    mean: Tensor
    whitening: Tensor
    noise: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("mean", torch.zeros(dimension), persistent=False)
        self.register_buffer("whitening", torch.eye(dimension), persistent=False)
        self.register_buffer("noise", torch.eye(dimension), persistent=False)

    @property
    def configured_strength(self) -> float:
        return 0.01  # of the ridge of SLDA, which is not solved here

    def class_centres(self) -> Tensor:
        """C,D: the mean of each class."""
        return (self.total / self.count.clamp(min=1)[:, None]).float()

    def derive(self) -> None:
        """m, A, and A Sigma^1/2, which gives noise the covariance of a class in the whitened space.

        Sigma has a prior of the mean variance in all directions, worth as many samples as there are directions.
        """
        samples, width = self.count.sum().clamp(min=1), self.dimension
        within = self.gram - self.total.T @ (self.total / self.count.clamp(min=1)[:, None])
        variance = (within.trace() / (samples * width)).clamp(min=1e-9)
        prior = width * variance * torch.eye(width, dtype=within.dtype, device=within.device)
        values, vectors = torch.linalg.eigh((within + prior) / (samples + width))
        whitening, noise = ((vectors * values ** (power / 2)) @ vectors.T for power in (-WHITENING, 1 - WHITENING))
        self.mean = (self.total.sum(0) / samples).float()
        self.whitening, self.noise = whitening.float(), noise.float()

    def whiten(self, x: Tensor) -> Tensor:
        """A (x - m): B,D."""
        return (x - self.mean) @ self.whitening

    def draw(self, labels: Tensor) -> Tensor:
        """A sample of each class's Gaussian, in the whitened space."""
        centres = self.whiten(self.class_centres()[labels])
        return centres + torch.randn_like(centres) @ self.noise


class QueryNetwork(MTN):
    """z_c = g_c(h(q, V)) + s cos(q, r_c): the adapted query, and the query as it came."""

    class_rows = (*MTN.class_rows, "raw")
    taught: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.raw = nn.Parameter(torch.zeros(0, dimension))
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.register_buffer("taught", torch.zeros(0, dtype=torch.bool))  # classes the task has samples of

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.raw = nn.Parameter(torch.cat([self.raw.detach(), class_means(task).to(self.raw)]))
        self.taught = torch.bincount(task.train.y, minlength=task.seen).bool().to(self.taught.device)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return super().scores(x, neighbours) + self.query_scores(x)

    def query_scores(self, x: Tensor) -> Tensor:
        """s cos(q, r_c): B,C."""
        rows = unit_rows(torch.where(self.taught[:, None], self.raw, self.raw.detach())) if self.training else self.raw
        return self.log_scale.exp() * x @ rows.T

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {QUERY: self.query_scores(x)} | super().shares(x, neighbours)

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        """Rows are kept at length 1, so that a query needs no normalisation."""
        self.raw[self.taught] = unit_rows(self.raw[self.taught])


class Practical(Method):
    """Prototypes and a network, scores added with fitted weights: what MTNClassifier uses."""

    Options = TransformerOptions
    defaults = {  # noqa: RUF012 (of the class, and never changed)
        "method.size": "small",
        "train.optimizer": "adamw",
        "train.lr": 0.003,
        "train.weight_decay": 0.0,
        "train.replay": 96,
        "train.min_steps": 100,
    }
    needs = Needs(neighbours=True, teacher=True, backbone="none")
    class_rows = ("prototypes", *(f"network.{name}" for name in QueryNetwork.class_rows))
    weights: Tensor
    mean_directions: Tensor
    prototype_directions: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.moments = WhiteningMoments(dimension, config)
        self.prototypes = nn.Parameter(torch.zeros(0, dimension))
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.network = QueryNetwork(dimension, config)
        self.register_buffer("weights", torch.tensor(PRIOR_MEAN))  # of prototypes and network
        # Unit vectors in the whitened space: the means of the task's classes, and the prototypes when the task began
        # or ended.
        self.register_buffer("mean_directions", torch.zeros(0, dimension), persistent=False)
        self.register_buffer("prototype_directions", torch.zeros(0, dimension), persistent=False)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for part in (self.moments, self.network):
            part.begin_task(task)
        self.moments.observe(task.train)
        means = self.moments.class_centres()[task.old :]
        self.prototypes = nn.Parameter(torch.cat([self.prototypes.detach(), means.to(self.prototypes)]))
        self.derive()

    def derive(self) -> None:
        if self.seen:
            self.moments.derive()
            self.derive_directions()

    @torch.no_grad()
    def derive_directions(self) -> None:
        centres = self.moments.class_centres()[self.taught]
        self.mean_directions = F.normalize(self.moments.whiten(centres), dim=1)
        self.prototype_directions = F.normalize(self.moments.whiten(self.prototypes), dim=1)

    @property
    def taught(self) -> Tensor:
        """C mask of the classes that the latest task has samples of."""
        return self.network.taught

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """By id, so for good; a class with nothing else to train on gives none."""
        held = memory.id % HELD_OUT == HELD_OUT - 1
        left = torch.bincount(memory.y[~held], minlength=task.seen)
        return held & (left[memory.y] > 0)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.network.scores)
        moving = F.normalize(self.moments.whiten(self.prototypes[self.taught]), dim=1)
        terms = {
            "network": losses.balanced_cross_entropy(z, batch.y, batch.class_frequency),
            "prototypes": self.prototype_loss(batch, moving),
            "pull": self.pull(moving),
        }
        if batch.teacher_logits is not None:
            terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, [slice(0, task.old)], 1.0)
        return terms

    def prototype_loss(self, batch: Batch, moving: Tensor) -> Tensor:
        """Cross-entropy of the batch and of samples drawn for the classes with frozen rows.

        `moving` are the directions of the prototypes that train.
        """
        x, y, frequency = self.moments.whiten(batch.x), batch.y, batch.class_frequency
        others = (~self.taught & (self.moments.count > 0)).nonzero().squeeze(1)
        if len(others):
            drawn = others[torch.randint(len(others), (DRAWN,))]
            x, y = torch.cat([x, self.moments.draw(drawn)]), torch.cat([y, drawn])
            evenly = torch.zeros_like(frequency).index_fill_(0, others, DRAWN / len(others))
            frequency = (len(batch.y) * frequency + evenly) / len(y)
        unit, taught = F.normalize(x, dim=1), self.taught.nonzero().squeeze(1)
        cosines = (unit @ self.prototype_directions.T).index_copy(1, taught, unit @ moving.T)
        return losses.balanced_cross_entropy(self.log_scale.exp() * cosines, y, frequency)

    def pull(self, moving: Tensor) -> Tensor:
        """The mean of (PULL / n_c)^2 |u(w_c) - u(mu_c)|^2 over the task's classes, u: unit vectors, whitened."""
        weight = (PULL / self.moments.count[self.taught]).square().float()
        return (weight * (moving - self.mean_directions).square().sum(1)).mean()

    def prototype_scores(self, x: Tensor) -> Tensor:
        """s cos(A(x - m), A(w_c - m)): B,C."""
        return self.log_scale.exp() * (F.normalize(self.moments.whiten(x), dim=1) @ self.prototype_directions.T)

    def parts(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """2,B,C: the scores of prototypes and network."""
        return torch.stack([self.prototype_scores(x), self.network.scores(x, neighbours)])

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """The prototype, and of the network the query itself and the query with its neighbours."""
        of_prototypes, of_network = self.weights
        network = self.network.shares(x, neighbours)
        parts = {name: of_network * part for name, part in network.items()}
        return {PROTOTYPE: of_prototypes * self.prototype_scores(x), **parts}

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        scores: Tensor = torch.tensordot(self.weights, self.parts(x, neighbours), 1)
        return scores

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        """A prototype starts as the mean of its class: without x it is (x - mu) / (n - 1) farther from x."""
        parts, residual = self.parts(x, neighbours), x - self.moments.class_centres()[y]
        rows = self.prototypes[y] - residual / (self.moments.count[y] - 1).clamp(min=1).float()[:, None]
        cosines = F.cosine_similarity(self.moments.whiten(x), self.moments.whiten(rows))
        parts[0, torch.arange(len(y)), y] = self.log_scale.exp() * cosines
        scores: Tensor = torch.tensordot(self.weights, parts, 1)
        return scores

    def class_sums(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.moments.total.cpu(), self.moments.count.cpu(), self.moments.gram.cpu()

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        self.network.end_task(task, memory)
        self.derive_directions()
        held = self.held_out(task, memory)
        if not held.any():
            return
        samples = memory.samples().select(held.nonzero().squeeze(1)[:: -(-int(held.sum()) // MOST_HELD_OUT)])
        others = memory.part(~held)
        neighbours = nearest(samples, others, capped(self.options.k, others), self.weights.device)
        scores = [self.parts(samples.x(rows).to(self.weights), neighbours[rows]) for rows in samples.chunks()]
        self.weights = fit_weights(torch.cat(scores, dim=1), samples.y.to(self.weights.device))

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        return self.network.evidence(x, neighbours)

    def forget(self, label: int) -> None:
        super().forget(label)
        self.moments.forget(label)


def fit_weights(parts: Tensor, y: Tensor) -> Tensor:
    """Weights w >= 0 of two parts (2,N,C) that minimise -sum log softmax(w . z)_y + sum_i p_i (w_i - m_i)^2 / 2.

    m is PRIOR_MEAN and p PRIOR_PRECISION. By Newton's method.
    """
    parts = parts.double()
    mean, precision = (torch.tensor(values).to(parts) for values in (PRIOR_MEAN, PRIOR_PRECISION))
    true = parts.gather(2, y.expand(len(parts), -1)[:, :, None]).squeeze(2)  # 2,N

    def objective(w: Tensor) -> Tensor:
        z = torch.tensordot(w, parts, 1)
        value: Tensor = (z.logsumexp(1) - w @ true).sum() + (precision * (w - mean).square()).sum() / 2
        return value

    w = mean.clone()
    for _ in range(30):
        p = torch.tensordot(w, parts, 1).softmax(1)
        expected = (p * parts).sum(2)  # 2,N
        slope = (expected - true).sum(1) + precision * (w - mean)
        curve = torch.einsum("nc,inc,jnc->ij", p, parts, parts) - expected @ expected.T + precision.diag()
        free = (w > 0) | (slope < 0)
        step = torch.zeros_like(w)
        step[free] = torch.linalg.solve(curve[free][:, free], slope[free])
        size = 1.0
        while size > 1e-4 and objective((w - size * step).clamp(min=0)) > objective(w):
            size /= 2
        moved = (w - size * step).clamp(min=0)
        if (moved - w).abs().max() < 1e-6:
            break
        w = moved
    return w.float()

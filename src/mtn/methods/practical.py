"""The practical default: MTN beside prototypes in a space where classes are rounder than they come.

Two parts, trained side by side over all classes seen, weighed on exemplars that neither was trained on:

- prototypes: s cos(A(x - m), A(w_c - m)), A = Sigma^-0.45 of the pooled within-class scatter, m the mean of all seen.
  Sums over all samples give Sigma and m exactly, so they never forget. Rows w_c start as class means, and are held
  there where samples are few; a row stays as it is in a task without samples of its class, which is defended by samples
  drawn from N(mu_c, Sigma).
- network: the transformer of `mtn` over the query and its neighbours, with the model before the task as its teacher.
  Its head sees the query as it came too, as cosines to rows that start as class means and stay as those above do:
  what a class nobody announced differs by may not be in the few numbers that are left of an adapted query.

Both take the softmax over all seen classes, corrected for how often each is drawn: one new class at a time is learned
as well as a hundred.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.analytic import SLDA
from mtn.methods.base import Batch, Method, class_means, unit_rows
from mtn.methods.mtn import MTN
from mtn.neighbours import Neighbours, nearest
from mtn.samples import Samples
from mtn.stream import Task

DRAWN = 64
"""Samples drawn from the Gaussians of earlier classes in each step."""
ROUNDING = 0.9
"""0 leaves the space as it is, 1 makes the spread within classes the same in all directions (A = Sigma^-ROUNDING/2)."""
PULL = 8.0
"""With so many samples of a class, its mean counts as much as they do when its prototype is trained."""
HELD_OUT = 10
"""Every tenth exemplar is trained on by nobody: the weights of the two parts are fitted on it."""
BELIEF = (1.0, 0.3)
"""Weights of prototypes and network before any held-out exemplar is asked."""
FIRMNESS = (1.0, 10.0)
"""One over the variance of that belief: more exemplars move the network's weight than the prototypes' scale."""
ENOUGH = 1000
"""Held-out exemplars that are asked to fit two weights."""


class Moments(SLDA):
    """Exact sums over all samples -> the space of the prototypes."""

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self._space: tuple[Tensor, Tensor, Tensor] | None = None

    def observe(self, samples: Samples) -> None:
        super().observe(samples)
        self._space = None

    def forget(self, label: int) -> None:
        super().forget(label)
        self._space = None

    def means(self) -> Tensor:
        return (self.total / self.count.clamp(min=1)[:, None]).float()

    def space(self) -> tuple[Tensor, Tensor, Tensor]:
        """m, A, and A Sigma^1/2, which gives noise the spread of a class.

        Sigma has a prior of the mean variance in all directions, worth as many samples as there are directions.
        """
        if self._space is None:
            samples, width = self.count.sum().clamp(min=1), self.dimension
            within = self.gram - self.total.T @ (self.total / self.count.clamp(min=1)[:, None])
            variance = (within.trace() / (samples * width)).clamp(min=1e-9)
            prior = width * variance * torch.eye(width, dtype=within.dtype, device=within.device)
            values, vectors = torch.linalg.eigh((within + prior) / (samples + width))
            change, spread = ((vectors * values ** (power / 2)) @ vectors.T for power in (-ROUNDING, 1 - ROUNDING))
            self._space = (self.total.sum(0) / samples).float(), change.float(), spread.float()
        return self._space

    def place(self, x: Tensor) -> Tensor:
        """x in that space."""
        mean, change, _ = self.space()
        return (x - mean) @ change

    def draw(self, labels: Tensor) -> Tensor:
        """A sample of each class's Gaussian, in that space."""
        centres = self.place(self.means()[labels])
        return centres + torch.randn_like(centres) @ self.space()[2]


class Network(MTN):
    """z_c = g_c(h(q, V)) + s cos(q, r_c): the adapted query, and the query as it came."""

    rows = (*MTN.rows, "raw")
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
        rows = unit_rows(torch.where(self.taught[:, None], self.raw, self.raw.detach())) if self.training else self.raw
        return super().scores(x, neighbours) + self.log_scale.exp() * x @ rows.T

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        """At rest rows have length 1, which a query need not wait for."""
        self.raw[self.taught] = unit_rows(self.raw[self.taught])


class Practical(Method):
    uses_neighbours = True
    distils = True
    backbone_by = "nobody"
    rows = ("prototypes", *(f"network.{name}" for name in Network.rows))
    weights: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.moments = Moments(dimension, config)
        self.prototypes = nn.Parameter(torch.zeros(0, dimension))
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.network = Network(dimension, config)
        self.register_buffer("weights", torch.tensor(BELIEF))  # of prototypes and network
        self._home: Tensor | None = None  # directions of the means of the task's classes
        self._placed: Tensor | None = None  # directions of the prototypes in the space, when the task began or ended

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for part in (self.moments, self.network):
            part.begin_task(task)
        self.moments.observe(task.train)
        means = self.moments.means()[task.old :]
        self.prototypes = nn.Parameter(torch.cat([self.prototypes.detach(), means.to(self.prototypes)]))
        self._home = self._placed = None

    @property
    def taught(self) -> Tensor:
        return self.network.taught

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """By id, so for good; a class with nothing else to train on gives none."""
        held = memory.id % HELD_OUT == HELD_OUT - 1
        left = torch.bincount(memory.y[~held], minlength=task.seen)
        return held & (left[memory.y] > 0)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.network.scores)
        moving = F.normalize(self.moments.place(self.prototypes[self.taught]), dim=1)
        terms = {
            "network": losses.balanced_cross_entropy(z, batch.y, batch.share),
            "prototypes": self.prototype_loss(batch, moving),
            "pull": self.pull(moving),
        }
        if batch.before is not None:
            terms["distillation"] = losses.taskwise_distillation(z, batch.before, [slice(0, task.old)], 1.0)
        return terms

    def prototype_loss(self, batch: Batch, moving: Tensor) -> Tensor:
        """Of the batch, and of samples drawn for the classes whose rows stay; `moving` are directions of the others."""
        x, y, share = self.moments.place(batch.x), batch.y, batch.share
        others = (~self.taught & (self.moments.count > 0)).nonzero().squeeze(1)
        if len(others):
            drawn = others[torch.randint(len(others), (DRAWN,))]
            x, y = torch.cat([x, self.moments.draw(drawn)]), torch.cat([y, drawn])
            evenly = torch.zeros_like(share).index_fill_(0, others, DRAWN / len(others))
            share = (len(batch.y) * share + evenly) / len(y)
        unit, taught = F.normalize(x, dim=1), self.taught.nonzero().squeeze(1)
        cosines = (unit @ self.placed().T).index_copy(1, taught, unit @ moving.T)
        return losses.balanced_cross_entropy(self.log_scale.exp() * cosines, y, share)

    def pull(self, moving: Tensor) -> Tensor:
        """The mean of (PULL / n_c)^2 |u(w_c) - u(mu_c)|^2 over the task's classes, u being directions in the space."""
        if self._home is None:
            self._home = F.normalize(self.moments.place(self.moments.means()[self.taught]), dim=1)
        weight = (PULL / self.moments.count[self.taught]).square().float()
        return (weight * (moving - self._home).square().sum(1)).mean()

    def placed(self) -> Tensor:
        if self._placed is None:
            self._placed = F.normalize(self.moments.place(self.prototypes.detach()), dim=1)
        return self._placed

    def parts(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """2,B,C: what prototypes and network score."""
        cosines = F.normalize(self.moments.place(x), dim=1) @ self.placed().T
        return torch.stack([self.log_scale.exp() * cosines, self.network.scores(x, neighbours)])

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return torch.tensordot(self.weights, self.parts(x, neighbours), 1)

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        self.network.end_task(task, memory)
        self._placed = None
        held = self.held_out(task, memory)
        if not held.any():
            return
        samples = memory.samples().select(held.nonzero().squeeze(1)[:: -(-int(held.sum()) // ENOUGH)])
        found = nearest(samples, memory.part(~held), self.config.method.k, self.weights.device)
        asked = [self.parts(samples.x(rows).to(self.weights), found[rows]) for rows in samples.chunks()]
        parts, y = torch.cat(asked, dim=1), samples.y.to(self.weights.device)
        self.weights = weigh(parts, y)

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        return self.network.evidence(x, neighbours)

    def forget(self, label: int) -> None:
        super().forget(label)
        self.moments.forget(label)
        self._placed = None


def weigh(parts: Tensor, y: Tensor) -> Tensor:
    """Weights w >= 0 of two parts (2,N,C) that minimise -sum log softmax(w . z)_y + sum_i f_i (w_i - b_i)^2 / 2.

    b is BELIEF and f its FIRMNESS. By Newton's method.
    """
    parts = parts.double()
    belief, firmness = (torch.tensor(values).to(parts) for values in (BELIEF, FIRMNESS))
    true = parts.gather(2, y.expand(len(parts), -1)[:, :, None]).squeeze(2)  # 2,N

    def objective(w: Tensor) -> Tensor:
        z = torch.tensordot(w, parts, 1)
        return (z.logsumexp(1) - w @ true).sum() + (firmness * (w - belief).square()).sum() / 2

    w = belief.clone()
    for _ in range(30):
        p = torch.tensordot(w, parts, 1).softmax(1)
        mean = (p * parts).sum(2)  # 2,N
        slope = (mean - true).sum(1) + firmness * (w - belief)
        curve = torch.einsum("nc,inc,jnc->ij", p, parts, parts) - mean @ mean.T + firmness.diag()
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

"""The practical default: MTN beside prototypes in a partially whitened space, and beside the classes' Gaussians.

Three parts, weighted on exemplars that none of them has seen:

- discriminant: a Gaussian a class with one covariance, in closed form from sums over all samples. It forgets nothing.
  Where classes are such Gaussians nothing can be better, and what is trained only adds noise.
- prototypes: s cos(A(x - m), A(w_c - m)), A = L^-0.45 U^T of the pooled within-class scatter U L U^T (partial
  whitening), m the mean of all samples seen, from the same sums. Rows w_c start as class means and are pulled towards
  them where samples are few. They are trained as U^T (w_c - m), where A is a factor for each coordinate. In a task
  without samples of a class its row is frozen, and samples drawn from N(mu_c, Sigma) stand for the class in the loss.
- network: the transformer of `mtn` over the query and its neighbours, with the model before the task as its teacher.
  Its head also sees the query itself, as cosines to rows that start as class means: the 64 numbers of an adapted query
  may not hold what tells an unforeseen class from the others.

The last two are trained side by side over all classes seen. Both take the softmax over all of them, corrected for how
often each class is drawn: one new class at a time is learned as well as a hundred.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.cosines import stretched_cosines
from mtn.evidence import DISCRIMINANT, PROTOTYPE
from mtn.memory import Memory
from mtn.methods.base import Batch, Judged, Method, Needs
from mtn.methods.gaussian import GaussianMoments, left_out_products
from mtn.methods.mixture import fit_weights
from mtn.methods.mtn import MTN, TransformerOptions
from mtn.neighbours import Neighbours, capped, nearest
from mtn.samples import Samples
from mtn.stream import Task

DRAWN = 64
"""Samples drawn from the Gaussians of earlier classes in each step."""
PULL = 8.0
"""The pull of a prototype to its class mean is (PULL / samples of the class)^2."""
HELD_OUT = (9, 4, 1)
"""Last digits of the ids of exemplars that are held out of training: the first, or more where it gives fewer than
ENOUGH."""
ENOUGH = 100
"""Held-out exemplars to fit the weights of the parts on."""
MOST_HELD_OUT, MOST_COMPARED = 1000, 500_000
"""The same, at the most; and times classes, as long as there are ENOUGH."""
TRAINED = (0.9, 0.1)
"""What prototypes and network are believed to have of the share that the discriminant leaves them."""
PRECISION = 50.0
"""One over the variance of what is believed of shares."""


class QueryNetwork(MTN):
    """z_c = g_c(h(q, V)) + s cos(q, r_c): the adapted query, and the query as it came, whatever the read-out."""

    sees_query = True


class Practical(Method):
    """Prototypes, a network and a discriminant, scores added with fitted weights: what MTNClassifier uses."""

    Options = TransformerOptions
    defaults = {  # noqa: RUF012 (of the class, and never changed)
        "method.size": "small",
        "train.optimizer": "adamw",
        "train.lr": 0.003,
        "train.weight_decay": 0.0,
        "train.replay": 96,
        "train.min_steps": 50,
        "train.max_draws": 2000,
        "train.precision": "auto",
    }
    needs = Needs(neighbours=True, teacher=True, backbone="none")
    class_rows = ("prototypes", *(f"network.{name}" for name in QueryNetwork.class_rows))
    weights: Tensor
    moving: nn.Parameter | None
    basis: Tensor | None
    centres: Tensor
    mean_directions: Tensor
    prototype_directions: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.moments = GaussianMoments(dimension, config)
        self.prototypes = nn.Parameter(torch.zeros(0, dimension), requires_grad=False)
        # While they train: U^T (w_c - m) of the task's classes (T,D), and the A^T of which U is (D,D). Another machine
        # may find other U of the same sums.
        self.register_parameter("moving", None)
        self.register_buffer("basis", None)
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.network = QueryNetwork(dimension, config)
        self.register_buffer("weights", torch.tensor([*TRAINED, 0.0]))  # of the parts
        # In the whitened space: class means (C,D); as unit vectors, those of the task's classes (T,D) and prototypes
        # (C,D) when the task began or ended.
        self.register_buffer("centres", torch.zeros(0, dimension), persistent=False)
        self.register_buffer("mean_directions", torch.zeros(0, dimension), persistent=False)
        self.register_buffer("prototype_directions", torch.zeros(0, dimension), persistent=False)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for part in (self.moments, self.network):
            part.begin_task(task)
        self.moments.observe(task.train)
        means = self.moments.class_centres()[task.old :]
        rows = torch.cat([self.prototypes, means.to(self.prototypes)])
        self.prototypes = nn.Parameter(rows, requires_grad=False)
        self.derive()
        self.moments.estimate_wrong_labels(task.train)
        trust = self.trust(task.train)
        if trust is not None:
            self.moments.discount(task.train, trust)
            self.derive()

    def derive(self) -> None:
        self.weights = F.pad(self.weights, (0, 3 - len(self.weights)))  # an earlier version had no discriminant
        if self.seen:
            self.moments.derive()
            if self.basis is not None:
                self.moments.whitening = self.basis
            self.derive_directions()

    @torch.no_grad()
    def derive_directions(self) -> None:
        self.centres = self.moments.whiten(self.moments.class_centres())
        self.mean_directions = F.normalize(self.centres[self.taught], dim=1)
        self.prototype_directions = F.normalize(self.moments.whiten(self.prototypes), dim=1)

    def begin_stage(self) -> None:
        self.network.begin_stage()
        if self.moving is None:
            self.basis = self.moments.whitening
            self.moving = nn.Parameter(self.moments.turn(self.prototypes[self.taught]))

    def make_room(self, names: Iterable[str]) -> None:
        names, nothing = list(names), self.prototypes[:0].clone()
        self.moving, self.basis = (nn.Parameter(nothing), nothing) if "moving" in names else (None, None)
        self.network.make_room([name.removeprefix("network.") for name in names if name.startswith("network.")])

    @torch.no_grad()
    def end_training(self) -> None:
        """Prototypes where they have moved to."""
        if self.moving is not None:
            self.prototypes[self.taught] = self.moments.turn_back(self.moving)
            self.moving = self.basis = None
        self.derive_directions()

    @property
    def taught(self) -> Tensor:
        """C mask of the classes that the latest task has samples of."""
        return self.network.taught

    def trust(self, samples: Samples) -> Tensor | None:
        return self.moments.trust(samples)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        """By id, so for good; a class with nothing else to train on gives none."""
        tenths = -(-10 * ENOUGH // max(len(memory), 1))
        held = torch.isin(memory.id % 10, torch.tensor(HELD_OUT[:tenths]))
        left = torch.bincount(memory.y[~held], minlength=task.seen)
        return held & (left[memory.y] > 0)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z, trust = batch.rowwise(self.network.scores), self.moments.label_trust(batch.x, batch.y)
        prototypes, near_means = self.prototype_loss(batch, trust)
        terms = {
            "network": losses.balanced_cross_entropy(z, batch.y, batch.class_frequency, trust),
            "prototypes": prototypes,
            "pull": self.pull(near_means),
        }
        if batch.teacher_logits is not None:
            terms["distillation"] = losses.taskwise_distillation(z, batch.teacher_logits, [slice(0, task.old)], 1.0)
        return terms

    def prototype_loss(self, batch: Batch, trust: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the batch and of samples drawn for the classes with frozen rows.

        And the cosines of the task's prototypes with their class means, whitened.
        """
        with batch.products():
            x = self.moments.whiten(batch.x).float()
        y, frequency = batch.y, batch.class_frequency
        others = (~self.taught & (self.moments.count > 0)).nonzero().squeeze(1)
        if len(others):
            drawn = others[torch.randint(len(others), (DRAWN,))]
            x, y = torch.cat([x, self.moments.draw_around(self.centres[drawn])]), torch.cat([y, drawn])
            evenly = torch.zeros_like(frequency).index_fill_(0, others, DRAWN / len(others))
            frequency = (len(batch.y) * frequency + evenly) / len(y)
            trust = trust if trust is None else F.pad(trust, (0, DRAWN), value=1.0)
        assert self.moving is not None
        rows = self.prototype_directions, self.moving, self.taught, self.moments.stretch, self.mean_directions
        with batch.products():
            near, near_means = stretched_cosines(F.normalize(x, dim=1), *rows)
        return losses.balanced_cross_entropy(self.log_scale.exp() * near, y, frequency, trust), near_means

    def pull(self, cosine: Tensor) -> Tensor:
        """The mean of (PULL / n_c)^2 |u(w_c) - u(mu_c)|^2 over the task's classes, u: unit vectors, whitened.

        `cosine` (T) is that of w_c and mu_c.
        """
        return (self.pull_weights(self.taught) * (2 - 2 * cosine)).mean()

    def pull_weights(self, labels: Tensor) -> Tensor:
        """(PULL / n_c)^2 of each of the labels (N), or of the classes of a mask (C)."""
        return (PULL / self.moments.count[labels]).square().float()

    def prototype_scores(self, x: Tensor) -> Tensor:
        """s cos(A(x - m), A(w_c - m)): B,C."""
        return self.log_scale.exp() * (F.normalize(self.moments.whiten(x), dim=1) @ self.prototype_directions.T)

    def parts(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        """3,B,C: the scores of prototypes, network and discriminant."""
        return torch.stack([self.prototype_scores(x), self.network.scores(x, neighbours), self.moments.scores(x, None)])

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """The prototype, of the network the query itself and the query with its neighbours, and the discriminant."""
        of_prototypes, of_network, of_discriminant = self.weights
        return {
            PROTOTYPE: of_prototypes * self.prototype_scores(x),
            **{name: of_network * part for name, part in self.network.shares(x, neighbours).items()},
            DISCRIMINANT: of_discriminant * self.moments.scores(x, None),
        }

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.weighted(self.parts(x, neighbours))

    def weighted(self, parts: Tensor) -> Tensor:
        """B,C: the sum of parts (3,B,C)."""
        scores: Tensor = torch.tensordot(self.weights, parts, 1)
        return scores

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.weighted(self.left_out_parts(x, y, neighbours))

    def left_out_parts(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        """3,B,C: the scores of exemplars that were held out, without their share in class means and Sigma.

        Without x the mean of its class is (x - mu) / (n - 1) farther from x, and a prototype moves with its mean as far
        as it is pulled there: by a / (1 + a) of it, a the weight of the pull.
        """
        moments, query = self.moments, self.moments.whiten(x)
        residual = (x - moments.class_centres()[y]) @ moments.whitening
        rows = moments.whiten(self.prototypes)
        pull = self.pull_weights(y)[:, None]
        own = rows[y] - pull / (1 + pull) * residual / (moments.count[y] - 1).clamp(min=1).float()[:, None]
        leverage = moments.leverage(residual, y, 1 / (moments.count.sum() + self.dimension))
        unit = F.normalize(residual, dim=1)
        inner = (query * unit).sum(1, keepdim=True)
        across, squares = left_out_products(query, unit, inner, rows, own, y, leverage)
        length = query.square().sum(1, keepdim=True) + leverage / (1 - leverage) * inner.square()
        prototypes = self.log_scale.exp() * across / (length * squares).clamp(min=1e-12).sqrt()
        return torch.stack([prototypes, self.network.scores(x, neighbours), moments.left_out_scores(x, y, None)])

    def class_sums(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.moments.total.cpu(), self.moments.count.cpu(), self.moments.gram.cpu()

    def answer_untrained(self, task: Task, memory: Memory) -> bool:
        """Prototypes and rows of the network are class means; the weights of the parts stay as they were."""
        self.network.end_task(task, memory)
        self.derive_directions()
        return True

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> Judged | None:
        self.network.end_task(task, memory)
        self.end_training()
        scale, share = self.moments.choose_shrinkage(memory.samples()) or (0.0, 0.0)
        scales = torch.tensor([1.0, 1.0, scale])
        shares = torch.tensor([*((1 - share) * part for part in TRAINED), share])
        held = self.held_out(task, memory)
        if not held.any():
            self.weights = (scales * shares).to(self.weights)
            return None
        most = max(ENOUGH, min(MOST_HELD_OUT, MOST_COMPARED // task.seen))
        samples = memory.samples().select(held.nonzero().squeeze(1)[:: -(-int(held.sum()) // most)])
        parts, there = self.parts_left_out(samples, memory.part(~held)), self.moments.count > 0
        y = samples.y.to(parts.device)
        labels, trust = (there.cumsum(0) - 1)[y], self.trust(samples)
        # around what is believed of the parts
        self.weights = fit_weights(parts[:, :, there], labels, scales, shares, PRECISION, trust).to(self.weights)
        return Judged(samples, self.weighted(parts))

    def parts_left_out(self, samples: Samples, others: Memory) -> Tensor:
        """3,N,C: what the parts say of exemplars that were held out, given the others."""
        device = self.weights.device
        neighbours = nearest(samples, others, capped(self.options.k, others), device)
        parts = [
            self.left_out_parts(samples.x(rows).to(device), samples.y[rows].to(device), neighbours[rows])
            for rows in samples.chunks()
        ]
        return torch.cat(parts, dim=1)

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        return self.network.evidence(x, neighbours)

    def forget(self, label: int) -> None:
        super().forget(label)
        self.moments.forget(label)

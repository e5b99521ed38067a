"""The practical default: MTN beside prototypes in a partially whitened space, and beside the classes' Gaussians.

Three parts, weighted on exemplars that none of them has seen:

- discriminant: a Gaussian a class with one covariance, in closed form from sums over all samples. It forgets nothing.
  Where classes are such Gaussians nothing can be better, and what is trained only adds noise. There are two: over the
  vectors as they are, and over random features, which tell classes of any shape apart. Their sum is weighted on
  exemplars that leave themselves out, so nothing is held out for it.
- prototypes: s cos(A(x - m), A(w_c - m)), A = L^-0.45 U^T of the pooled within-class scatter U L U^T (partial
  whitening), m the mean of all samples seen, from the same sums. Rows w_c start as class means and are pulled towards
  them where samples are few. What is trained is A(w_c - m) / g, g = L^-0.9 times a constant: so a step moves rows most
  where classes vary least, by as much in the whitened space as if all directions of w_c took equal steps. In a task
  without samples of a class its row is frozen, and samples drawn from N(mu_c, Sigma) stand for the class in the loss.
- network: the transformer of `mtn` over the query and its neighbours, with the model before the task as its teacher.
  Its head also sees the query itself, as cosines to rows that start as class means: the 64 numbers of an adapted query
  may not hold what tells an unforeseen class from the others.

The last two are trained side by side over all classes seen. Both take the softmax over all of them, corrected for how
often each class is drawn: one new class at a time is learned as well as a hundred.
"""

from collections.abc import Iterable
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from mtn import losses
from mtn.config import Config
from mtn.cosines import stretched_cosines
from mtn.evidence import DISCRIMINANT, PROTOTYPE
from mtn.memory import Memory
from mtn.methods.base import Batch, Judged, Method, Needs
from mtn.methods.discriminant import FourierDiscriminant, LeftOutDiscriminant, left_out_products
from mtn.methods.gaussian import GaussianMoments
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
GAIN = 3.0
"""The discriminant over random features is used where exemplars are so much likelier with it, as a logarithm."""


class PracticalOptions(TransformerOptions):
    """Options of `practical`."""

    random_features: Annotated[int, Field(ge=0, le=20_000)] = 2000
    """Random features of the second discriminant. 0: there is none, and the model is 32 MB smaller."""


class QueryNetwork(MTN):
    """z_c = g_c(h(q, V)) + s cos(q, r_c): the adapted query, and the query as it came, whatever the read-out."""

    sees_query = True


class Practical(Method):
    """Prototypes, a network and a discriminant, scores added with fitted weights: what MTNClassifier uses."""

    Options = PracticalOptions
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
        self.fourier = FourierDiscriminant(dimension, config)
        self.prototypes = nn.Parameter(torch.zeros(0, dimension), requires_grad=False)
        # While they train: A(w_c - m) / g of the task's classes (T,D), and A^T (D,D), as another machine may find other
        # eigenvectors of the same sums.
        self.register_parameter("moving", None)
        self.register_buffer("basis", None)
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.network = QueryNetwork(dimension, config)
        self.register_buffer("weights", torch.tensor([*TRAINED, 0.0, 0.0]))  # of prototypes, network, discriminants
        # In the whitened space: class means (C,D); as unit vectors, those of the task's classes (T,D) and prototypes
        # (C,D) when the task began or ended.
        self.register_buffer("centres", torch.zeros(0, dimension), persistent=False)
        self.register_buffer("mean_directions", torch.zeros(0, dimension), persistent=False)
        self.register_buffer("prototype_directions", torch.zeros(0, dimension), persistent=False)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        sums: list[LeftOutDiscriminant] = [self.moments, self.fourier] if self.has_fourier else [self.moments]
        for part in (self.moments, self.fourier, self.network):
            part.begin_task(task)
        for statistics in sums:
            statistics.observe(task.train)
        means = self.moments.class_centres()[task.old :]
        rows = torch.cat([self.prototypes, means.to(self.prototypes)])
        self.prototypes = nn.Parameter(rows, requires_grad=False)
        self.derive_spaces()
        self.moments.estimate_wrong_labels(task.train)
        trust = self.trust(task.train)
        if trust is not None:
            for statistics in sums:
                statistics.discount(task.train, trust)
            self.derive_spaces()

    def derive(self) -> None:
        self.weights = F.pad(self.weights, (0, 4 - len(self.weights)))  # earlier versions had fewer parts
        if self.seen:
            self.derive_spaces()
            self.derive_fourier()

    def derive_spaces(self) -> None:
        """All but what needs the discriminant over random features."""
        self.moments.derive()
        if self.basis is not None:
            self.moments.whitening = self.basis
        self.derive_directions()

    def derive_fourier(self) -> None:
        if self.weights[3]:
            self.fourier.derive()

    @property
    def has_fourier(self) -> bool:
        """Whether the discriminant over random features has all samples in its sums: earlier versions kept none."""
        ours, all_samples = self.fourier.count, self.moments.count
        return self.fourier.width > 0 and ours.shape == all_samples.shape and torch.allclose(ours, all_samples)

    @torch.no_grad()
    def derive_directions(self) -> None:
        self.centres = self.moments.whiten(self.moments.class_centres())
        self.mean_directions = F.normalize(self.centres[self.taught], dim=1)
        self.prototype_directions = F.normalize(self.moments.whiten(self.prototypes), dim=1)

    def begin_stage(self) -> None:
        self.network.begin_stage()
        if self.moving is None:
            self.basis = self.moments.whitening
            self.moving = nn.Parameter(self.moments.whiten(self.prototypes[self.taught]) / self.moments.gain)

    def make_room(self, names: Iterable[str]) -> None:
        names, nothing = list(names), self.prototypes[:0].clone()
        if not any(name.startswith("fourier.") for name in names):
            self.fourier = FourierDiscriminant(self.dimension, self.config)
        self.moving, self.basis = (nn.Parameter(nothing), nothing) if "moving" in names else (None, None)
        self.network.make_room([name.removeprefix("network.") for name in names if name.startswith("network.")])

    @torch.no_grad()
    def end_training(self) -> None:
        """Prototypes where they have moved to."""
        if self.moving is not None:
            self.prototypes[self.taught] = self.moments.unwhiten(self.moving * self.moments.gain)
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
        rows = self.prototype_directions, self.moving, self.taught, self.moments.gain, self.mean_directions
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
        """4,B,C: the scores of prototypes, network and the two discriminants; 0 of the last if it has no weight."""
        prototypes, linear = self.prototype_scores(x), self.moments.scores(x, None)
        fourier = self.fourier.scores(x, None) if self.weights[3] else torch.zeros_like(linear)
        return torch.stack([prototypes, self.network.scores(x, neighbours), linear, fourier])

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """The prototype, of the network the query itself and the query with its neighbours, and the discriminants."""
        prototypes, _, linear, fourier = self.weights[:, None, None] * self.parts(x, neighbours)
        network = {name: self.weights[1] * part for name, part in self.network.shares(x, neighbours).items()}
        return {PROTOTYPE: prototypes, **network, DISCRIMINANT: linear + fourier}

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.weighted(self.parts(x, neighbours))

    def weighted(self, parts: Tensor) -> Tensor:
        """B,C: the sum of parts (4,B,C)."""
        scores: Tensor = torch.tensordot(self.weights, parts, 1)
        return scores

    def left_out_scores(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.weighted(self.left_out_parts(x, y, neighbours))

    def left_out_parts(self, x: Tensor, y: Tensor, neighbours: Neighbours | None) -> Tensor:
        """4,B,C: the scores of exemplars that were held out, without their share in class means and Sigma.

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
        linear = moments.left_out_scores(x, y, None)
        fourier = self.fourier.left_out_scores(x, y, None) if self.weights[3] else torch.zeros_like(linear)
        return torch.stack([prototypes, self.network.scores(x, neighbours), linear, fourier])

    def class_sums(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.moments.total.cpu(), self.moments.count.cpu(), self.moments.gram.cpu()

    def answer_untrained(self, task: Task, memory: Memory) -> bool:
        """Prototypes and rows of the network are class means; the weights of the parts stay as they were."""
        self.network.end_task(task, memory)
        self.derive_directions()
        self.derive_fourier()
        return True

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> Judged | None:
        self.network.end_task(task, memory)
        self.end_training()
        discriminants, share = self.fit_discriminants(memory)
        shares = torch.tensor([*((1 - share) * part for part in TRAINED), share])
        self.weights = torch.cat([shares[:2], discriminants]).to(self.weights)  # which parts there are scores of
        held, weights, judged = self.held_out(task, memory), shares, None
        if held.any():
            most = max(ENOUGH, min(MOST_HELD_OUT, MOST_COMPARED // task.seen))
            samples = memory.samples().select(held.nonzero().squeeze(1)[:: -(-int(held.sum()) // most)])
            parts, there = self.parts_left_out(samples, memory.part(~held)), self.moments.count > 0
            three = torch.cat([parts[:2], torch.tensordot(discriminants.to(parts), parts[2:], 1)[None]])
            y = samples.y.to(parts.device)
            labels, trust = (there.cumsum(0) - 1)[y], self.trust(samples)
            # around what is believed of the parts
            weights = fit_weights(three[:, :, there], labels, torch.ones(3), shares, PRECISION, trust)
        self.weights = torch.cat([weights[:2], weights[2] * discriminants]).to(self.weights)
        if held.any():
            judged = Judged(samples, self.weighted(parts))
        return judged

    def fit_discriminants(self, memory: Memory) -> tuple[Tensor, float]:
        """Weights (2) of the discriminants over vectors and over random features: the likeliest, exemplars left out.

        And what is believed of the share that both have of the whole, before held-out exemplars tell: how Gaussian
        classes are.
        """
        known = self.moments.some(memory.samples())
        trust = self.trust(known)
        chosen = self.moments.choose_shrinkage(known, trust)
        if chosen is None:
            return torch.zeros(2), 0.0
        scale, share = chosen
        other = self.fourier.choose_shrinkage(known, trust) if self.has_fourier else None
        if other is None:
            return torch.tensor([scale, 0.0]), share
        x, y = known.x().to(self.weights.device), known.y.to(self.weights.device)
        z = torch.stack([part.left_out_plainly(x, y) for part in (self.moments, self.fourier)])
        there = self.moments.count > 0
        z, labels, scales = z[:, :, there].double(), (there.cumsum(0) - 1)[y], torch.tensor([scale, other[0]])
        alone = fit_weights(z[:1], labels, scales[:1], torch.ones(1), PRECISION, trust)
        both = fit_weights(z, labels, scales, torch.full((2,), 0.5), PRECISION, trust)
        loss_alone, loss = (
            losses.cross_entropy(torch.tensordot(w.double(), z[: len(w)], 1), labels, trust) for w in (alone, both)
        )
        if len(labels) * (loss_alone - loss) < GAIN:
            return torch.tensor([scale, 0.0]), share
        return both.cpu(), share

    def parts_left_out(self, samples: Samples, others: Memory) -> Tensor:
        """4,N,C: what the parts say of exemplars that were held out, given the others."""
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
        self.fourier.forget(label)

"""Classifiers that vote over retrieved exemplars in a learned space: matching networks and their relatives.

- Matching networks (Vinyals et al., NeurIPS 2016): softmax over cosines of embedded query and exemplars, summed by
  label. Departs: the support are the k nearest exemplars, not all; no full-context embedding by an LSTM.
- Neural nearest neighbours (Ploetz & Roth, NeurIPS 2018): a differentiable k-NN, by successive soft selections without
  replacement. Departs: it is the classifier, where the paper puts it between layers; one temperature for all queries.
- Attention-based query expansion (Gordo, Radenovic & Berg, ECCV 2020): a transformer over the query and its neighbours
  gives the weights with which neighbours are added to the query, which then votes. Departs: the expanded query is
  compared with what the query had retrieved, not with the whole memory; trained by the loss of the vote.

All embeddings start as the identity, so before training each is a k-NN. There is no weight of a class: a new class is
answered as soon as it has exemplars.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.config import Config
from mtn.evidence import VOTES
from mtn.losses import cross_entropy
from mtn.methods.base import TRAINING_KNOBS, Batch, Method, Needs
from mtn.model import VOTE_FLOOR, MemoryTransformer, NeighbourVote, vote
from mtn.neighbours import Neighbours
from mtn.stream import Task

SELECTIONS = 5
"""Soft neighbours that are selected one after the other."""


class Matching(Method):
    """p(c) = sum over neighbours of class c of softmax(s cos(f(q), f(x_i)))."""

    knobs = TRAINING_KNOBS
    needs = Needs(neighbours=True, backbone="none")
    losses = ("ce",)
    class_rows = ()

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.embedding = nn.Parameter(torch.eye(dimension))
        self.vote = NeighbourVote()

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": cross_entropy(batch.rowwise(self.scores), batch.y)}

    def embedded(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        """B,1+K,D: the query and its neighbours."""
        return torch.cat([x[:, None], neighbours.x], dim=1) @ self.embedding

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        votes: Tensor = self.vote(self.embedded(x, neighbours), neighbours, int(self.seen))
        return votes

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {VOTES: self.scores(x, neighbours)}


class NNN(Matching):
    """p(c) = mean over selections j of the share of class c in w_j, w_j = softmax(a_j), a_j+1 = a_j + log(1 - w_j)."""

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        unit = F.normalize(self.embedded(x, neighbours), dim=2)
        cosine = (unit[:, 1:] @ unit[:, 0, :, None]).squeeze(2)  # B,K
        weights = successive_selections(self.vote.log_scale.exp() * cosine, neighbours.mask, SELECTIONS)
        return (vote(weights, neighbours.y, int(self.seen)) + VOTE_FLOOR).log()


def successive_selections(logits: Tensor, real: Tensor, count: int) -> Tensor:
    """B,K: the mean of soft selections without replacement, of logits B,K of which those with `real` take part."""
    logits, total = logits.masked_fill(~real, -1e9), torch.zeros_like(logits)
    for _ in range(count):
        weights = logits.softmax(1)
        total = total + weights
        logits = logits + (1 - weights).clamp(min=1e-20).log()
    return total / count * real


class QueryExpansion(Method):
    """q' = unit(q + sum_i max(0, cos(t_q, t_i)) x_i), t the transformer's tokens; neighbours vote by cos(q', x_i)."""

    knobs = TRAINING_KNOBS
    needs = Needs(neighbours=True, backbone="none")
    losses = ("ce",)
    class_rows = ()

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.transformer = MemoryTransformer(dimension, self.options.k, "small")
        self.vote = NeighbourVote()

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": cross_entropy(batch.rowwise(self.scores), batch.y)}

    def expanded(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        """B,D: the query with its neighbours added by their weights."""
        real = None if neighbours.full else neighbours.mask
        tokens = F.normalize(self.transformer(x, neighbours.x, neighbours.y, real), dim=2)  # B,1+K,E
        weights = (tokens[:, 1:] @ tokens[:, 0, :, None]).clamp(min=0) * neighbours.mask[:, :, None]  # B,K,1
        return F.normalize(x + (weights * neighbours.x).sum(1), dim=1)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        tokens = torch.cat([self.expanded(x, neighbours)[:, None], neighbours.x], dim=1)
        votes: Tensor = self.vote(tokens, neighbours, int(self.seen))
        return votes

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {VOTES: self.scores(x, neighbours)}

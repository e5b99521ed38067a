"""The two ends of the scale, and the memory alone."""

from torch import Tensor

from mtn.losses import cross_entropy
from mtn.methods.base import Batch, LinearHead, Method
from mtn.model import Head, vote
from mtn.neighbours import Neighbours
from mtn.stream import Task

VOTE_TEMPERATURE = 0.07
"""A neighbour of similarity s votes with weight exp(s / 0.07) (docs/design.md, choice 18)."""


class KNN(Method):
    """mem. k-NN of the paper: the k nearest exemplars vote, weighted by similarity. Nothing is trained."""

    trains = False
    uses_neighbours = True

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        weights = ((neighbours.similarity - 1) / VOTE_TEMPERATURE).exp() * neighbours.mask
        return vote(weights, neighbours.y, int(self.seen))


class FineTune(LinearHead):
    """Cross-entropy on the new samples alone: what forgetting looks like when nothing is done about it."""

    replays = False
    losses = ("ce",)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": cross_entropy(self.scores(batch.x, batch.neighbours), batch.y)}


class Joint(FineTune):
    """The same with all data seen so far, from new weights at each task: the upper bound."""

    sees_all = True

    def begin_task(self, task: Task) -> None:
        self.head = Head(self.width).to(self.head.weight.device)
        super().begin_task(task)

"""The two ends of the scale, plain replay, and the memory alone."""

from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor

from mtn.evidence import VOTES
from mtn.losses import cross_entropy
from mtn.methods.base import Batch, LinearHead, Method, Needs, Stage
from mtn.model import Head, vote
from mtn.neighbours import Neighbours
from mtn.stream import Task

VOTE_TEMPERATURE = 0.07
"""A neighbour of similarity s votes with weight exp(s / 0.07) (docs/explanation/design.md, choice 18)."""


class KNN(Method):
    """mem. k-NN of the paper: the k nearest exemplars vote, weighted by similarity. Nothing is trained."""

    knobs = {"method.k": (1, 5, 10, 20, 50)}  # noqa: RUF012 (of the class, and never changed)
    needs = Needs(neighbours=True, backbone="borrowed")
    class_rows = ()

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return ()

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        weights = ((neighbours.similarity - 1) / VOTE_TEMPERATURE).exp() * neighbours.mask
        return vote(weights, neighbours.y, int(self.seen))

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        return {VOTES: self.scores(x, neighbours)}


class ER(LinearHead):
    """Experience replay: cross-entropy over all seen classes on new and replayed samples."""

    losses = ("ce",)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        return {"classification": cross_entropy(batch.rowwise(self.scores), batch.y)}


class FineTune(ER):
    """The same without replay: what forgetting looks like when nothing is done about it."""

    needs = Needs(memory="nothing")

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, replay="nothing"),)


class Joint(ER):
    """The same with all data seen so far, from new weights at each task: the upper bound."""

    needs = Needs(memory="everything", reinitialise=True)
    samples: ClassVar[Literal["all", "memory"]] = "all"

    def begin_task(self, task: Task) -> None:
        self.head = Head(self.width).to(self.head.weight.device)
        super().begin_task(task)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return (Stage(self.loss, samples=self.samples, replay="nothing"),)


class GDumb(Joint):
    """A model trained from new weights on the balanced memory alone (Prabhu et al., ECCV 2020).

    Departs: without its cutmix and its cyclic rate, which belong to training from images.
    """

    needs = replace(Joint.needs, memory="exemplars")
    samples = "memory"

"""Images in, any method behind them: a backbone learns the features that the method's class sees as vectors.

The class is the one for frozen features. Each step augments a batch, makes vectors of it, lets the model before the
task make its own of the same images, and hands both to the class. In a stage in which the backbone rests, features are
computed once and the lesson is one of vectors (mtn.lesson).
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import backbone
from mtn.augment import augment, plain
from mtn.backbone import Features
from mtn.config import Config
from mtn.memory import Memory, View
from mtn.methods.base import Batch, Method, Stage
from mtn.neighbours import Neighbours, Retrieval, top_k
from mtn.samples import Samples
from mtn.stream import Task

REFRESH = 25
"""Steps after which the features of the memory are computed anew, where they move: a tenth of the time on CPU."""
CHUNK = 128
"""Images looked at at once: bounds memory at any side."""


class Learned(Method):
    """`head` answers. It trains the backbone itself or, where it needs features at rest, after `guide` has done so."""

    def __init__(self, head: type[Method], guide: type[Method] | None, config: Config) -> None:
        network = backbone.make(config.images, (guide or head).signed)
        super().__init__(network.dimension, config)
        self.backbone = network
        self.guide = None if guide is None else guide(self.dimension, config.replace(train={"loss": None}))
        self.head = head(self.dimension, config)
        self.bank = Bank(self.dimension) if self.head.uses_neighbours and guide is None else None
        self.uses_neighbours, self.remembers = self.head.uses_neighbours, self.head.remembers
        self.distils = any(part.distils or part.holds for part in self.parts.values())

    @property
    def parts(self) -> dict[str, Method]:
        """In the order of their training."""
        return {"head": self.head} if self.guide is None else {"guide": self.guide, "head": self.head}

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if self.head.afresh:
            self.backbone = backbone.make(self.config.images, self.head.signed).to(self.seen.device)
        seen = replace(task, train=self.view(task.train))
        for part in self.parts.values():
            part.begin_task(seen)

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """A stage's loss is named part.loss."""
        return tuple(self._stage(name, stage) for name, part in self.parts.items() for stage in part.stages(task))

    def _stage(self, name: str, stage: Stage) -> Stage:
        rests = stage.rests or (self.guide is not None and name == "head")
        return replace(stage, loss=f"{name}.{stage.loss}", only=stage.only and f"{name}.{stage.only}", rests=rests)

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        return self.head.held_out(task, memory)

    def forward(self, stage: Stage, batch: Batch, task: Task) -> dict[str, Tensor]:
        name, _, loss = stage.loss.partition(".")
        part, stage = self.parts[name], replace(stage, loss=loss)
        if stage.rests:
            return part.forward(stage, batch, task)
        images = augment(batch.x, self.config.images)
        now, then, before = self.look(images), None, None
        if batch.teacher is not None:
            assert isinstance(batch.teacher, Learned)
            then, before = batch.teacher.teach(name, images, batch)
        seen = replace(batch, x=now.x, neighbours=self.nearest(now.x, batch), before=before)
        return part.forward(stage, seen, task) | (part.hold(now, then, task) if then is not None else {})

    @torch.no_grad()
    def teach(self, name: str, images: Tensor, batch: Batch) -> tuple[Features, Tensor]:
        """Its own features of the same images, and what its own part answers."""
        seen = self.look(images)
        return seen, self.parts[name].logits(seen.x, self.nearest(seen.x, batch))

    def look(self, images: Tensor) -> Features:
        return backbone.look(self.backbone, images)

    def nearest(self, x: Tensor, batch: Batch) -> Neighbours | None:
        """Among the exemplars of classes it knows."""
        if self.bank is None:
            return None
        assert batch.memory is not None and batch.id is not None
        return self.bank.nearest(x, batch.id, batch.memory, int(self.seen), self.config.method.k, self.view)

    @torch.no_grad()
    def view(self, samples: Samples) -> Samples:
        """Images -> features, the backbone as it is now and without chance; vectors are features already."""
        if len(samples.shape) == 1:
            return samples
        training, x = self.backbone.training, torch.empty(len(samples), self.dimension)
        self.backbone.eval()
        for rows in samples.chunks(CHUNK):
            x[rows] = self.look(plain(samples.x(rows).to(self.seen.device))).x.cpu()
        self.backbone.train(training)
        return Samples(x.numpy(), np.arange(len(samples)), samples.y, samples.id)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.head.scores(x, neighbours)

    def end_task(self, task: Task, memory: Memory) -> None:
        seen = memory.seen_by(self.view)
        for part in self.parts.values():
            part.end_task(task, seen)
        if self.bank is not None:
            self.bank.empty()

    def measured(self) -> dict[str, float]:
        return {} if self.bank is None else {"staleness": self.bank.staleness()}


class Bank(nn.Module):
    """Features of the memory while the backbone moves: constants that are computed anew every REFRESH steps.

    How far each had moved by then, 1 - cos(old, new), is summed: its mean is the staleness at the end of their use.
    """

    x: Tensor
    steps: Tensor
    moved: Tensor
    times: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(0, dimension))
        self.register_buffer("steps", torch.tensor(0))  # asked in this task
        self.register_buffer("moved", torch.tensor(0.0))
        self.register_buffer("times", torch.tensor(0))

    def nearest(self, query: Tensor, ids: Tensor, memory: Memory, classes: int, k: int, view: View) -> Neighbours:
        """The k nearest exemplars of the first `classes`, never the query itself. A frozen model's stay as they are."""
        if not self.steps or (self.training and self.steps % REFRESH == 0):
            seen = memory.seen_by(view).x
            assert isinstance(seen, Tensor)  # of images, which are always here
            self._refresh(seen.to(query.device))
        self.steps += 1
        known = int((memory.y < classes).sum())  # they stand by class
        index, similarity = top_k(query.detach() @ self.x[:known].T, ids, memory.id.to(ids.device), k)
        missing = (0, k - index.shape[1])
        index, similarity = F.pad(index, missing, value=-1), F.pad(similarity, missing)
        y = memory.y.to(query.device)
        return Retrieval(self.x, y, index, similarity, bool((index >= 0).all()))[slice(None)]

    def _refresh(self, x: Tensor) -> None:
        if self.steps:
            self.moved += 1 - (self.x * x).sum(1).mean()
            self.times += 1
        self.x = x

    def empty(self) -> None:
        self.x, self.steps = self.x[:0].clone(), torch.zeros_like(self.steps)

    def staleness(self) -> float:
        return float(self.moved / self.times.clamp(min=1))

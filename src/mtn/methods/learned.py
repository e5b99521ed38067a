"""Images in, any method behind them: a backbone learns the features that the method's class sees as vectors.

The class is the one for frozen features. Each step augments a batch, computes its features, lets the teacher compute
its own of the same images, and hands both to the class. In a stage with a frozen backbone, features are computed once
and the batches are vectors (mtn.batches).
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.config import Config
from mtn.encoders import backbone
from mtn.encoders.augment import augment, plain
from mtn.encoders.backbone import Features
from mtn.encoders.branches import Branches
from mtn.encoders.resnet import ResNet
from mtn.memory import Featurise, Memory
from mtn.methods.base import Batch, Loss, Method, Stage
from mtn.neighbours import Neighbours, Retrieval, top_k
from mtn.samples import Samples
from mtn.search import InProcessStore
from mtn.stream import Task

REFRESH = 25
"""Steps after which the memory's features are computed again while the backbone trains: a tenth of the time on CPU."""
CHUNK = 128
"""Images that pass through the backbone at once: bounds memory at any side."""


class Learned(Method):
    """`head` gives the scores. It trains the backbone itself or, where it needs frozen features, after `guide` has."""

    def __init__(self, head: type[Method], guide: type[Method] | None, config: Config) -> None:
        network = backbone.make_backbone(config.images, (guide or head).needs.signed_features)
        super().__init__(network.dimension, config)
        self.backbone = backbone.GROWING[head.needs.grows](network) if head.needs.grows else network
        self.guide = None if guide is None else guide(self.dimension, _own_loss(config))
        self.head = head(self.dimension, config)
        self.bank = FeatureBank(self.dimension) if self.head.needs.neighbours and guide is None else None
        teacher = any(part.needs.teacher or part.needs.feature_distillation for part in self.parts.values())
        self.needs = replace(self.head.needs, teacher=teacher)

    @property
    def parts(self) -> dict[str, Method]:
        """In the order of their training."""
        return {"head": self.head} if self.guide is None else {"guide": self.guide, "head": self.head}

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if self.needs.reinitialise:
            self.backbone = backbone.make_backbone(self.config.images, self.needs.signed_features).to(self.seen.device)
        if not isinstance(self.backbone, ResNet) and task.old and task.new:
            self.backbone.expand()
        vectors = replace(task, train=self.featurise(task.train))
        for part in self.parts.values():
            part.begin_task(vectors)

    def make_room(self, names: Iterable[str]) -> None:
        places = [name.split(".")[2] for name in names if name.startswith("backbone.networks.")]
        for _ in range(len(set(places)) - 1):
            assert isinstance(self.backbone, backbone.Backbones)
            self.backbone.expand()
        for name, part in self.parts.items():
            part.make_room([one.removeprefix(f"{name}.") for one in names if one.startswith(f"{name}.")])

    def begin_stage(self) -> None:
        for part in self.parts.values():
            part.begin_stage()

    def stages(self, task: Task) -> tuple[Stage, ...]:
        """Those of the parts, named part.stage; their losses get features of augmented images."""
        return tuple(self._stage(name, stage) for name, part in self.parts.items() for stage in part.stages(task))

    def _stage(self, name: str, stage: Stage) -> Stage:
        frozen = stage.freeze_backbone or (self.guide is not None and name == "head")
        return replace(
            stage,
            name=f"{name}.{stage.name}",
            loss=stage.loss if frozen else partial(self.loss_on_images, name, stage.loss),
            parameters=stage.parameters and f"{name}.{stage.parameters}",
            freeze_backbone=frozen,
        )

    def held_out(self, task: Task, memory: Memory) -> Tensor:
        return self.head.held_out(task, memory)

    def loss_on_images(self, name: str, loss: Loss, batch: Batch, task: Task) -> dict[str, Tensor]:
        """The loss of a part on the features of a batch of images, with the terms of its feature distillation."""
        images = augment(batch.x, self.config.images)
        now, before, teacher_logits = self.features(images), None, None
        if batch.teacher is not None:
            assert isinstance(batch.teacher, Learned)
            before, teacher_logits = batch.teacher.teach(name, images, batch)
        vectors = replace(batch, x=now.x, neighbours=self.nearest(now.x, batch), teacher_logits=teacher_logits)
        terms = loss(vectors, task)
        if before is not None:
            terms |= self.parts[name].feature_distillation(now, before, task)
        if isinstance(self.backbone, Branches) and self.backbone.split:
            terms |= self.parts[name].backbone_terms(terms, vectors, self.backbone.mixing)
        return terms

    @torch.no_grad()
    def teach(self, name: str, images: Tensor, batch: Batch) -> tuple[Features, Tensor]:
        """As the teacher: its own features of the same images, and the logits of its own part."""
        features = self.features(images)
        return features, self.parts[name].logits(features.x, self.nearest(features.x, batch))

    def features(self, images: Tensor) -> Features:
        """B,3,H,W -> features."""
        return backbone.compute_features(self.backbone, images)

    def nearest(self, x: Tensor, batch: Batch) -> Neighbours | None:
        """Among the exemplars of classes it knows."""
        if self.bank is None:
            return None
        assert batch.memory is not None and batch.id is not None
        return self.bank.nearest(x, batch.id, batch.memory, int(self.seen), self.options.k, self.featurise)

    @torch.no_grad()
    def featurise(self, samples: Samples) -> Samples:
        """Images -> features of the backbone as it is now, without augmentation; vectors are features already."""
        if len(samples.shape) == 1:
            return samples
        training, x = self.backbone.training, torch.empty(len(samples), self.backbone.dimension)
        self.backbone.eval()
        for rows in samples.chunks(CHUNK):
            x[rows] = self.features(plain(samples.x(rows).to(self.seen.device))).x.cpu()
        self.backbone.train(training)
        return Samples(x.numpy(), np.arange(len(samples)), samples.y, samples.id)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.head.scores(x, neighbours)

    def end_task(self, task: Task, memory: Memory) -> None:
        vectors = memory.featurised(self.featurise)
        if self.needs.features_at_end:
            task = replace(task, train=self.featurise(task.train))
        for part in self.parts.values():
            part.end_task(task, vectors)
        if self.bank is not None:
            self.bank.empty()

    def derive(self) -> None:
        for part in self.parts.values():
            part.derive()

    def measured(self) -> dict[str, float]:
        return {} if self.bank is None else {"staleness": self.bank.staleness()}


class FeatureBank(nn.Module):
    """Features of the memory while the backbone trains: constants that are computed again every REFRESH steps.

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

    def nearest(
        self, query: Tensor, ids: Tensor, memory: Memory, classes: int, k: int, featurise: Featurise
    ) -> Neighbours:
        """The k nearest exemplars of the first `classes`, never the query itself. A frozen model's stay as they are."""
        if not self.steps or (self.training and self.steps % REFRESH == 0):
            self._refresh(memory.featurised(featurise).vectors().to(query.device))
        self.steps += 1
        known = int((memory.y < classes).sum())  # they stand by class
        index, similarity = top_k(query.detach() @ self.x[:known].T, ids, memory.id.to(ids.device), k)
        missing = (0, k - index.shape[1])
        index, similarity = F.pad(index, missing, value=-1), F.pad(similarity, missing)
        y = memory.y.to(query.device)
        store = InProcessStore(memory.id, y, self.x)
        return Retrieval(store, y, index, similarity, bool((index >= 0).all()))[slice(None)]

    def _refresh(self, x: Tensor) -> None:
        if self.steps:
            self.moved += 1 - (self.x * x).sum(1).mean()
            self.times += 1
        self.x = x

    def empty(self) -> None:
        """Let the features go, at the end of a task."""
        self.x, self.steps = self.x[:0].clone(), torch.zeros_like(self.steps)

    def staleness(self) -> float:
        """The mean of 1 - cos(old, new) when features were computed again."""
        return float(self.moved / self.times.clamp(min=1))


def _own_loss(config: Config) -> Config:
    """Without train.loss, which is meant for the head."""
    return config.model_copy(update={"train": config.train.model_copy(update={"loss": None})})

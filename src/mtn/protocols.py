"""How samples arrive where it is not class after class, each once: kinds of streams beside `blocks`.

Each is a section [stream] with options of its own, and says which task each training sample comes in. What it draws
depends on stream.order alone, never on the seed of a run. To add one: a class here, and a line in the table.
"""

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mtn.config import AtLeastOne, Stream
from mtn.errors import InputError, closest
from mtn.runtime import rng
from mtn.samples import Samples, rank_within_class
from mtn.storage.recorded import find_subclass

MOST_TASKS = 1000
"""Of a stream in small portions: accuracy is measured after each of them."""

Share = Annotated[float, Field(ge=0, lt=1)]


class Protocol(Stream):
    """A stream that starts from blocks of classes and moves, drops or relabels training samples."""

    metrics: ClassVar[tuple[str, ...]] = ()
    """Names in `mtn.experiments.metrics.EXTRA` that result.json has for this kind beside the usual ones."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        """Training samples, perhaps fewer or with other labels, and the task (N) that each of them comes in.

        `train.y` counts classes in the order of the blocks; `blocks` (C) is the block of each class.
        """
        raise NotImplementedError

    def generator(self) -> torch.Generator:
        """Of all that this stream draws."""
        return rng.generator(self.order, self.kind)


class Blurry(Protocol):
    """Tasks without sharp borders (Bang et al. 2021): a share of each class comes in other tasks, before or after."""

    kind: str = "blurry"
    share: Share = 0.1
    """Share of each class's samples that arrives in other tasks, spread evenly over them."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        own, tasks = blocks[train.y], int(blocks.max()) + 1
        if tasks == 1:
            return train, own
        other = torch.randint(tasks - 1, own.shape, generator=generator)
        other += other >= own
        return train, torch.where(_drawn(train.y, self.share, generator), other, own)


class Online(Protocol):
    """Small portions, each seen once (Koh et al. 2022): the average over all of them is the anytime accuracy."""

    kind: str = "online"
    samples: AtLeastOne = 100
    """Samples per task. Set train.epochs = 1 for a single pass."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        own = blocks[train.y]
        portions = -(-torch.bincount(own, minlength=int(blocks.max()) + 1) // self.samples)
        if portions.sum() > MOST_TASKS:
            least = -(-len(train) // max(MOST_TASKS - len(portions), 1))
            raise InputError(f"stream.samples must be at least {least} for {len(train)} samples, got {self.samples}")
        shuffled = torch.randperm(len(train), generator=generator)
        position = torch.empty_like(shuffled)
        position[shuffled] = rank_within_class(own[shuffled])
        return train, (portions.cumsum(0) - portions)[own] + position // self.samples


class LongTail(Protocol):
    """Classes of very different sizes (Liu et al. 2022): n_r = n ratio^(-r / (C - 1)), r a random rank of the class."""

    kind: str = "long-tail"
    metrics = ("average_balanced_accuracy",)
    ratio: Annotated[float, Field(ge=1, le=1e6)] = 100.0
    """Samples of the largest class over those of the smallest, if all have equally many before."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        classes = len(blocks)
        rank = torch.randperm(classes, generator=generator) / max(classes - 1, 1)
        quota = (torch.bincount(train.y, minlength=classes) * self.ratio**-rank).round().clamp(min=1)
        kept = train.select(_random_rank(train.y, generator) < quota[train.y])
        return kept, blocks[kept.y]


class FewShot(Protocol):
    """A base task with all its samples, then classes with a few each (Tao et al. 2020): N-way K-shot sessions."""

    kind: str = "few-shot"
    metrics = ("harmonic_accuracy",)
    shots: AtLeastOne = 5
    """Samples of each class that comes after the first task (K); stream.step is N."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        few = _random_rank(train.y, generator) < self.shots
        kept = train.select((blocks[train.y] == 0) | few)
        return kept, blocks[kept.y]


class Repeat(Protocol):
    """Classes come again (Hemati et al. 2023): all tasks once more, each time with other samples of their classes."""

    kind: str = "repeat"
    times: Annotated[int, Field(ge=2, le=100)] = 2
    """Rounds through all tasks; each brings an equal part of a class's samples."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        part = _random_rank(train.y, generator) * self.times // torch.bincount(train.y)[train.y]
        return train, part * (int(blocks.max()) + 1) + blocks[train.y]


class Drift(Protocol):
    """Classes change: of the clusters of each class, half come in a second round through all tasks."""

    kind: str = "drift"
    clusters: Annotated[int, Field(ge=2, le=100)] = 4
    """Clusters per class, found by k-means on its vectors."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        if len(train.shape) == 3:
            raise InputError('stream.kind = "drift" needs vectors, whose clusters come one after the other; got images')
        late = torch.zeros(len(train), dtype=torch.bool)
        for label in train.y.unique():
            rows = (train.y == label).nonzero().squeeze(1)
            late[rows] = self._late(train.x(rows).numpy(), generator)
        return train, late * (int(blocks.max()) + 1) + blocks[train.y]

    def _late(self, x: np.ndarray, generator: torch.Generator) -> Tensor:
        """n: which samples (n,D) of a class come late; none where the class has too few different ones."""
        from sklearn.cluster import KMeans  # takes a second to import, and few runs need it

        clusters = min(self.clusters, len(np.unique(x, axis=0)))
        seed = int(torch.randint(2**31, (), generator=generator))
        chosen = torch.randperm(clusters, generator=generator)[: clusters // 2]
        found = KMeans(clusters, n_init=1, random_state=seed).fit_predict(x)
        return torch.isin(torch.from_numpy(found), chosen)


class Noisy(Protocol):
    """A share of training labels is wrong: another class of the same task or of an earlier one."""

    kind: str = "noisy"
    share: Share = 0.2
    """Share of each class's samples that has a wrong label."""

    def arrange(self, train: Samples, blocks: Tensor, generator: torch.Generator) -> tuple[Samples, Tensor]:
        when = blocks[train.y]
        known = torch.bincount(blocks).cumsum(0)[when]
        wrong = (torch.rand(len(train), generator=generator) * (known - 1)).long()
        wrong += wrong >= train.y
        mislabelled = _drawn(train.y, self.share, generator) & (known > 1)
        return Samples(train.source, train.rows, torch.where(mislabelled, wrong, train.y), train.id), when


STREAMS: dict[str, type[Stream]] = {
    "blocks": Stream,
    "blurry": Blurry,
    "online": Online,
    "long-tail": LongTail,
    "few-shot": FewShot,
    "repeat": Repeat,
    "drift": Drift,
    "noisy": Noisy,
}
"""The section [stream] of each kind."""


def find_stream(kind: str, *, import_modules: bool = True) -> type[Stream]:
    """The section of a kind of stream, or the user's own, named package.module:Class.

    Without `import_modules` the user's own must have been imported already: nothing is run because a file says so.
    """
    if kind in STREAMS:
        return STREAMS[kind]
    if ":" not in kind:
        raise InputError(
            f"no kind of stream {kind!r}: {closest(kind, STREAMS)} (one of your own: package.module:Class)"
        )
    return find_subclass(kind, Protocol, "stream.kind", import_modules=import_modules)


def _random_rank(y: Tensor, generator: torch.Generator) -> Tensor:
    """N: the place of each sample in a random order of its class, from 0."""
    shuffled = torch.randperm(len(y), generator=generator)
    rank = torch.empty_like(shuffled)
    rank[shuffled] = rank_within_class(y[shuffled])
    return rank


def _drawn(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """N: a mask of that share of each class, rounded; one sample of each class is never drawn."""
    count = (torch.bincount(y) * share).round().minimum(torch.bincount(y) - 1)
    return _random_rank(y, generator) < count[y]

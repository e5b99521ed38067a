"""A finished run of mtn -> queries that its exemplars' vote gets wrong and that it gets right: the paper's figure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtn import datasets
from mtn.config import Config
from mtn.datasets import arrays, shards
from mtn.datasets.listing import Listing
from mtn.evidence import Evidence, Look, Neighbour
from mtn.images import Unreadable, are_pixels, thumbnail
from mtn.lesson import generator, scores
from mtn.methods.base import Method
from mtn.methods.baselines import KNN
from mtn.neighbours import Retrieval, nearest
from mtn.progress import silent
from mtn.run import Run
from mtn.samples import Data, Samples
from mtn.stream import split

SHOWN, NEAREST = 5, 5
"""Queries, and exemplars of each, as in the paper's figure."""

Looks = Callable[[int], Look | None]
"""What there is to see of the sample of an id."""


@dataclass(frozen=True)
class Examples:
    """Some queries that k-NN gets wrong and MTN right, and how many there are."""

    truth: list[str]
    voted: list[str]  # k-NN's answers
    evidence: list[Evidence]  # MTN's, with the nearest exemplars
    ids: list[int]
    looks: Looks
    gained: int  # queries MTN alone gets right
    lost: int  # queries k-NN alone gets right
    asked: int


def find(config: Config, folder: Path, looks: Looks | None = None) -> Examples:
    """Drawn at random, one a class, among those with an exemplar of the right class within the nearest five."""
    data = datasets.of(config)
    tasks = split(data, config.stream)
    learner = Run(config, tasks, folder / "state.safetensors", silent, math.inf).learner
    names = [name for task in tasks for name in task.names]
    test = Samples.join([task.test for task in tasks])
    found = nearest(test, learner.memory, config.method.k, learner.method.seen.device)
    vote = KNN(test.dimension, config).to(learner.method.seen.device)
    vote.begin_task(tasks[-1])
    answers, voted = _answers(learner.method, test, found)[0], _answers(vote, test, found)[0]
    gained, lost = (answers == test.y) & (voted != test.y), (answers != test.y) & (voted == test.y)
    near = learner.memory.y[found.index[:, :NEAREST].clamp(min=0).long().cpu()] == test.y[:, None]
    rows = _one_a_class(torch.nonzero(gained & near.any(1)).squeeze(1), test.y)
    return Examples(
        [names[label] for label in test.y[rows].tolist()],
        [names[label] for label in voted[rows].tolist()],
        _evidence(learner.method, test.select(rows), found.of(rows), learner.memory.id, names) if len(rows) else [],
        test.id[rows].tolist(),
        looks or of_data(config.stream.paths[0], data),
        int(gained.sum()),
        int(lost.sum()),
        len(test),
    )


def _answers(method: Method, samples: Samples, found: Retrieval) -> tuple[Tensor, Tensor]:
    """Classes and their probabilities."""
    best = [z.softmax(1).max(1) for _, z in scores(method, samples, found)]
    return torch.cat([one.indices for one in best]).cpu(), torch.cat([one.values for one in best]).cpu()


def _one_a_class(rows: Tensor, y: Tensor) -> Tensor:
    drawn = rows[torch.randperm(len(rows), generator=generator("qualitative"))].tolist()
    first = {int(y[row]): row for row in reversed(drawn)}
    return torch.tensor([row for row in drawn if first[int(y[row])] == row][:SHOWN], dtype=torch.long)


@torch.no_grad()
def _evidence(method: Method, samples: Samples, found: Retrieval, ids: Tensor, names: Sequence[str]) -> list[Evidence]:
    batch = found[slice(None)]
    seen = method.evidence(samples.x().to(method.seen.device), batch)
    assert seen is not None
    answers, probability = _answers(method, samples, found)
    near = [
        [
            Neighbour(
                int(ids[place]),
                names[int(found.y[place])],
                float(batch.similarity[query, rank]),
                float(seen[0][query, rank]),
                float(seen[1][query, rank]),
            )
            for rank, place in enumerate(places[:NEAREST])
            if place >= 0
        ]
        for query, places in enumerate(found.index.tolist())
    ]
    return [Evidence(names[int(a)], float(p), math.nan, n) for a, p, n in zip(answers, probability, near, strict=True)]


def of_data(name: str, data: Data) -> Looks:
    """Images that lie beside vectors as images_train, images_val, images_test; ids count through the splits."""
    path = datasets.DATASETS[name](silent) if name in datasets.DATASETS else Path(name).expanduser()
    if shards.is_store(path):
        return lambda number: None
    splits = {"train": data.train, "val": data.validation, "test": data.test}
    sizes = {part: 0 if own is None else len(own) for part, own in splits.items()}
    there = arrays.read(path, [f"images_{part}" for part in sizes])

    def look(number: int) -> Look | None:
        for part, size in sizes.items():
            if number < size:
                own = there.get(f"images_{part}")  # or whatever else goes by that name
                return own[number] if own is not None and are_pixels(own) and len(own) == size else None
            number -= size
        return None

    return look


def of_listing(listing: Listing, store: Path) -> Looks:
    """Images or sentences as they were given to the encoder; ids are rows of the store."""
    places, ids = dict(zip(listing.ids, listing.places, strict=True)), shards.load(store).ids

    def look(number: int) -> Look | None:
        try:
            loaded = places[str(ids[number])].load()
        except Unreadable:
            return None
        return loaded if isinstance(loaded, str) else thumbnail(loaded)

    return look

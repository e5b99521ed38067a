"""Queries that a k-NN vote over the exemplars gets wrong and a finished run of MTN gets right (the paper's figure)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtn.config import Config
from mtn.data import arrays, feature_store, load_data
from mtn.data.listing import Listing
from mtn.data.sources import open_source
from mtn.evidence import Evidence, Neighbour
from mtn.experiments.evidence_figure import Preview
from mtn.experiments.run import StreamTrainer
from mtn.images import Unreadable, are_pixels, thumbnail
from mtn.inference import scores
from mtn.methods.base import Method
from mtn.methods.baselines import KNN
from mtn.neighbours import Retrieval, nearest
from mtn.runtime.progress import silent
from mtn.runtime.rng import generator
from mtn.samples import Data, Samples
from mtn.stream import split

SHOWN, NEAREST = 5, 5
"""Queries, and exemplars of each, as in the paper's figure."""

PreviewById = Callable[[int], Preview | None]
"""The image or the sentence of the sample with an id, None where there is neither."""


@dataclass(frozen=True)
class QualitativeExamples:
    """Some queries that k-NN gets wrong and MTN right, and how many there are."""

    truth: list[str]
    knn_predictions: list[str]
    evidence: list[Evidence]  # MTN's predictions, with the nearest exemplars
    ids: list[int]
    preview: PreviewById
    mtn_only: int  # queries MTN alone gets right
    knn_only: int  # queries k-NN alone gets right
    queries: int


def find_examples(config: Config, folder: Path, preview: PreviewById | None = None) -> QualitativeExamples:
    """Draw queries at random, one a class, among those with an exemplar of the right class within the nearest five.

    `folder` is that of the finished run; `preview` is of the samples, unset: of images that are beside the vectors.
    """
    data = load_data(config)
    tasks = split(data, config.stream)
    learner = StreamTrainer(config, tasks, folder / "state.safetensors", silent, math.inf).learner
    names = [name for task in tasks for name in task.names]
    test = Samples.join([task.test for task in tasks])
    retrieval = nearest(test, learner.memory, config.method.k, learner.method.seen.device)
    knn = KNN(test.dimension, config).to(learner.method.seen.device)
    knn.begin_task(tasks[-1])
    mtn_labels, knn_labels = _predict(learner.method, test, retrieval)[0], _predict(knn, test, retrieval)[0]
    mtn_only = (mtn_labels == test.y) & (knn_labels != test.y)
    knn_only = (mtn_labels != test.y) & (knn_labels == test.y)
    right_class = learner.memory.y[retrieval.index[:, :NEAREST].clamp(min=0).long().cpu()] == test.y[:, None]
    rows = _one_a_class(torch.nonzero(mtn_only & right_class.any(1)).squeeze(1), test.y)
    return QualitativeExamples(
        [names[label] for label in test.y[rows].tolist()],
        [names[label] for label in knn_labels[rows].tolist()],
        _evidence(learner.method, test.select(rows), retrieval.of(rows), learner.memory.id, names) if len(rows) else [],
        test.id[rows].tolist(),
        preview or array_previews(config.stream.paths[0], data),
        int(mtn_only.sum()),
        int(knn_only.sum()),
        len(test),
    )


def _predict(method: Method, samples: Samples, retrieval: Retrieval) -> tuple[Tensor, Tensor]:
    """Predicted classes and their probabilities: (N,), (N,)."""
    best = [logits.softmax(1).max(1) for _, logits in scores(method, samples, retrieval)]
    return torch.cat([part.indices for part in best]).cpu(), torch.cat([part.values for part in best]).cpu()


def _one_a_class(rows: Tensor, y: Tensor) -> Tensor:
    drawn = rows[torch.randperm(len(rows), generator=generator("qualitative"))].tolist()
    first = {int(y[row]): row for row in reversed(drawn)}
    return torch.tensor([row for row in drawn if first[int(y[row])] == row][:SHOWN], dtype=torch.long)


@torch.no_grad()
def _evidence(
    method: Method, samples: Samples, retrieval: Retrieval, ids: Tensor, names: Sequence[str]
) -> list[Evidence]:
    batch = retrieval[slice(None)]
    adapted = method.evidence(samples.x().to(method.seen.device), batch)
    assert adapted is not None
    similarity, attention = adapted
    labels, probability = _predict(method, samples, retrieval)
    neighbours = [
        [
            Neighbour(
                int(ids[index]),
                names[int(retrieval.y[index])],
                float(batch.similarity[query, rank]),
                float(similarity[query, rank]),
                float(attention[query, rank]),
            )
            for rank, index in enumerate(row[:NEAREST])
            if index >= 0
        ]
        for query, row in enumerate(retrieval.index.tolist())
    ]
    return [
        Evidence(names[int(label)], float(share), math.nan, near)
        for label, share, near in zip(labels, probability, neighbours, strict=True)
    ]


def array_previews(name: str, data: Data) -> PreviewById:
    """Images stored beside vectors as images_train, images_val, images_test; ids count through the splits."""
    path = open_source(name).arrays_path()
    if path is None:
        return lambda number: None
    splits = {"train": data.train, "val": data.validation, "test": data.test}
    sizes = {part: 0 if samples is None else len(samples) for part, samples in splits.items()}
    stored = arrays.read_arrays(path, [f"images_{part}" for part in sizes])

    def preview(number: int) -> Preview | None:
        for part, size in sizes.items():
            if number < size:
                images = stored.get(f"images_{part}")  # any array may have this name
                return images[number] if images is not None and are_pixels(images) and len(images) == size else None
            number -= size
        return None

    return preview


def listing_previews(listing: Listing, store: Path) -> PreviewById:
    """Images or sentences as they were given to the encoder; ids are rows of the store."""
    places, ids = dict(zip(listing.ids, listing.locations, strict=True)), feature_store.load_feature_store(store).ids

    def preview(number: int) -> Preview | None:
        try:
            loaded = places[str(ids[number])].load()
        except Unreadable:
            return None
        return loaded if isinstance(loaded, str) else thumbnail(loaded)

    return preview

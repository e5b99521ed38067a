"""Scores of many samples, chunk by chunk."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mtn.memory import Memory
from mtn.methods import Method
from mtn.neighbours import Retrieval, capped, nearest
from mtn.runtime import distributed
from mtn.samples import Samples


def predictions(method: Method, samples: Samples, memory: Memory, k: int) -> Iterator[tuple[slice, Tensor]]:
    """Scores (B,C) of every sample with what the memory holds now, chunk by chunk."""
    samples = method.featurise(samples)
    neighbours = None
    if method.needs.neighbours:
        searched = featurised_memory(memory, method)
        neighbours = nearest(samples, searched, capped(k, searched), method.seen.device)
    return scores(method, samples, neighbours)


def featurised_memory(memory: Memory, method: Method) -> Memory:
    """The memory as vectors that a method retrieves from; as it is, if the method retrieves nothing."""
    return memory.featurised(method.featurise) if method.needs.neighbours else memory


@torch.no_grad()
def scores(method: Method, samples: Samples, neighbours: Retrieval | None) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their scores (B,C), chunk by chunk; `neighbours` are those of all samples."""
    for rows in samples.chunks():
        own = distributed.own_rows(rows)
        x = samples.x(own).to(method.seen.device)
        own_scores = method.scores(x, None if neighbours is None else neighbours[own])
        yield rows, distributed.gather_rows(own_scores, rows)

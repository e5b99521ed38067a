"""Learners after some tasks on the clusters, and how their scores are looked at."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cluster_data import DIMENSION
from mtn import batches
from mtn.config import Config
from mtn.data import load_vectors
from mtn.methods import Stage
from mtn.samples import Data
from mtn.stream import Task
from mtn.training import Learner


class TaskLearner(Learner):
    """A learner that carries the tasks of its stream."""

    def __init__(self, config: Config, tasks: list[Task]) -> None:
        super().__init__(config, DIMENSION)
        self.tasks = tasks


def stages(it: TaskLearner, index: int) -> Iterator[tuple[Stage, batches.StageBatches]]:
    """Begin a task; each stage with what it trains on, and train it after the caller has looked."""
    it.begin(it.tasks[index])
    for stage in it.method.stages(it.tasks[index]):
        plan = it.prepare(it.tasks[index], stage)
        yield stage, plan
        it.train(it.tasks[index], stage, plan)


def data(it: TaskLearner) -> Data:
    """The data set that its stream is made of."""
    return load_vectors(it.config.stream.data)


def scores_by_name(it: TaskLearner) -> Tensor:
    """Of all test samples; columns in the data's own order of classes."""
    names, arrived = data(it).names, [name for task in it.tasks for name in task.names]
    return it.method.scores(data(it).test.x(), None)[:, [arrived.index(name) for name in names]]


def train_arrays(it: TaskLearner) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors in double precision and labels of the first task."""
    train = it.tasks[0].train
    return train.x().double().numpy(), train.y.numpy()


def close(found: Tensor, expected: Tensor, relative: float = 1e-4) -> None:
    """Assert equality up to a share of the largest expected number."""
    torch.testing.assert_close(found, expected, rtol=relative, atol=relative * float(expected.abs().max()))


def directions(weight: Tensor) -> Tensor:
    """Rows at unit length."""
    return F.normalize(weight.detach(), dim=-1)

"""What is measured of a state around a lesson: accuracy before it, calibration and estimated accuracy after it."""

from dataclasses import replace

import torch

from mtn import calibration
from mtn.classifier import queries
from mtn.classifier.state import ESTIMATES, UNIT, ClassifierState
from mtn.runtime import rng
from mtn.samples import Samples
from mtn.stream import Task

MOST_ASSESSED, FEWEST_ASSESSED = 1000, 100
"""Samples that calibration and estimates look at, at the most: the cost of a lesson stays bounded. Beyond 16 000
classes they are fewer, but no fewer than the second number."""


def accuracy_before(state: ClassifierState, task: Task) -> float | None:
    """The share of right answers on a task's samples of known classes, before it is learned; None without any."""
    samples = task.train.select(task.train.y < task.old)
    if not len(samples):
        return None
    samples = _assessed(state, samples, task.seen)
    z = queries.scores_by_arrival(state, samples, queries.neighbours(state, samples))
    return float((z.argmax(1) == samples.y).double().mean())


def calibrated(state: ClassifierState, task: Task, false_alarms: float) -> ClassifierState:
    """With temperature and threshold, fitted on exemplars held out of training, or on all if the method holds none."""
    learner = state.learner
    known = learner.memory.samples()
    if learner.past:
        known = Samples.join(learner.past)
    elif len(known):
        held = learner.method.held_out(task, learner.memory)
        known = known.select(held) if held.any() else known
    state = replace(state, temperature=1.0, threshold=None, usual=UNIT)
    if not len(known):
        return state
    known = _assessed(state, known, len(state.names))
    retrieval = queries.neighbours(state, known, wanted=True)
    z = queries.scores_by_arrival(state, known, retrieval)
    present = [index for index, name in enumerate(state.names) if name is not None]
    if len(present) > 1:
        position = torch.full((len(state.names),), -1)
        position[present] = torch.arange(len(present))
        state = replace(state, temperature=calibration.temperature(z[:, present], position[known.y]))
    z = z.index_select(1, state.columns)
    state = replace(state, usual=calibration.usual(queries.oddness(z, retrieval)))
    return replace(state, threshold=calibration.threshold(queries.novelty(state, z, retrieval), false_alarms))


def estimated_accuracy(state: ClassifierState, task: Task) -> dict[str, float | None]:
    """The accuracy to expect over all classes and over the new ones, from exemplars that were not trained on.

    None where there are none: a network answers rightly what it was trained on.
    """
    method, memory = state.learner.method, state.memory
    unseen = method.held_out(task, memory) if method.stages(task) else torch.ones(len(memory), dtype=torch.bool)
    if not unseen.any():
        return dict.fromkeys(ESTIMATES)
    samples = _assessed(state, memory.samples().select(unseen), len(state.names))
    z = queries.scores_by_arrival(state, samples, queries.neighbours(state, samples))
    right = (z.argmax(1) == samples.y).double()
    new = right[samples.y >= task.old]
    return dict(zip(ESTIMATES, (float(right.mean()), float(new.mean()) if len(new) else None), strict=True))


def _assessed(state: ClassifierState, samples: Samples, classes: int) -> Samples:
    """A random selection of bounded size, the same at every call."""
    most = min(MOST_ASSESSED, max(FEWEST_ASSESSED, queries.MAX_SCORES // 4 // classes))
    if len(samples) <= most:
        return samples
    drawn = torch.randperm(len(samples), generator=rng.generator(state.learner.config.seed, "held out"))
    return samples.select(drawn[:most].sort().values)

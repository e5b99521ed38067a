"""What is measured of a state around a lesson: accuracy before it, calibration and estimated accuracy after it."""

import torch
from torch import Tensor

from mtn import calibration
from mtn.classifier import queries
from mtn.classifier.state import ESTIMATES, UNIT, ClassifierState
from mtn.memory import quotas
from mtn.runtime import rng
from mtn.samples import Samples, rank_within_class
from mtn.stream import Task

MOST_ASSESSED, FEWEST_ASSESSED = 1000, 100
"""Samples that calibration and estimates look at, at the most: the cost of a lesson stays bounded. Beyond 16 000
classes they are fewer, but no fewer than the second number."""
PRIOR_SAMPLES = 200
"""Held-out exemplars that count as much as the prior of the estimated accuracy."""


def accuracy_before(state: ClassifierState, task: Task) -> float | None:
    """The share of right answers on a task's samples of known classes, before it is learned; None without any."""
    samples = task.train.select(task.train.y < task.old)
    if not len(samples):
        return None
    samples = _assessed(state, samples, task.seen)
    z = queries.scores_by_arrival(state, samples, queries.neighbours(state, samples))
    return float((z.argmax(1) == samples.y).double().mean())


def assess(state: ClassifierState, task: Task, false_alarms: float) -> tuple[ClassifierState, dict[str, float | None]]:
    """The state with temperature and threshold, fitted on what is remembered, and its estimated accuracy."""
    state = state.with_facts(temperature=1.0, threshold=None, usual=UNIT, class_distance=None)
    learner = state.learner
    known = Samples.join(learner.past) if learner.past else state.memory.samples()
    if not len(known):
        return state, dict.fromkeys(ESTIMATES)
    unseen = torch.zeros(len(known), dtype=torch.bool) if learner.past else learner.method.held_out(task, state.memory)
    if learner.judged is None:
        held = _assessed(state, known.select(unseen) if unseen.any() else known, len(state.names))
        z = _left_out_scores(state, held)
    else:
        held, z = learner.judged.samples, learner.judged.scores.cpu()
    z[:, state.forgotten] = -torch.inf
    state, near = _with_threshold(_with_temperature(state, held, z), known, false_alarms)
    trained_on = bool(learner.method.stages(task)) and not unseen.any()
    return state, dict.fromkeys(ESTIMATES) if trained_on else _estimated_accuracy(state, task, held, z, near)


def _with_temperature(state: ClassifierState, held: Samples, z: Tensor) -> ClassifierState:
    """On exemplars held out of training, or on all that is known if the method holds none."""
    present = torch.tensor([name is not None for name in state.names]).nonzero().squeeze(1)
    if len(present) < 2:
        return state
    position = torch.full((len(state.names),), -1)
    position[present] = torch.arange(len(present))
    return state.with_facts(temperature=calibration.temperature(z[:, present], position[held.y]))


def _with_threshold(
    state: ClassifierState, known: Samples, false_alarms: float
) -> tuple[ClassifierState, tuple[Tensor, Tensor]]:
    """On samples of all classes, as many of each as can be, that each leave themselves out.

    Returns their classes too, and the classes whose Gaussians are nearest to them.
    """
    known = _of_each_class(state, _with_others(state, known))
    if not len(known):
        return state, (known.y, known.y)
    signs, near = queries.novelty_signs(state, known, queries.neighbours(state, known, wanted=True), left_out=True)
    offsets, own = calibration.class_offsets(signs[:, 1], known.y, len(state.names))
    signs[:, 1] -= own.where(near == known.y, offsets[near])
    usual = calibration.usual(signs)
    novelty = calibration.novelty(signs, usual, calibration.SIGN_WEIGHTS)
    threshold = calibration.threshold(novelty.numpy(), false_alarms)
    return state.with_facts(usual=usual, class_distance=offsets, threshold=threshold), (known.y, near)


def _estimated_accuracy(
    state: ClassifierState, task: Task, held: Samples, z: Tensor, nearest: tuple[Tensor, Tensor]
) -> dict[str, float | None]:
    """The accuracy to expect over all classes and over the new ones, each class counting the same.

    That of the nearest Gaussian is known of every exemplar, which leaves itself out; `nearest` are classes of some and
    the classes whose Gaussians are nearest. By how much the method's differs is known of exemplars that were not
    trained on (`held`, with their scores), and taken with a prior of no difference.
    """
    method = state.learner.method
    others = queries.gaussians(state).counts[held.y] > 1
    if not others.any():
        return dict.fromkeys(ESTIMATES)
    right = (z.argmax(1) == held.y)[others].double()
    own = (_nearest(state, held.select(others)) == held.y[others]).double()
    difference = float((right - own).sum()) / (len(right) + PRIOR_SAMPLES)
    y, near = nearest
    taught = state.memory.samples() if method.class_sums() is None else task.train  # Gaussians of new classes are of it
    new = _of_each_class(state, _with_others(state, taught.select(taught.y >= task.old)))
    old, of_new = y < task.old, _class_shares(new.y, _nearest(state, new))
    found = [torch.cat([_class_shares(y[old], near[old]), of_new]), of_new]
    values = [min(max(float(part.mean()) + difference, 0.0), 1.0) if len(part) else None for part in found]
    return dict(zip(ESTIMATES, values, strict=True))


def _with_others(state: ClassifierState, samples: Samples) -> Samples:
    """Those that are not the only sample of their class, which without it is not known."""
    return samples.select(queries.gaussians(state).counts[samples.y] > 1)


def _class_shares(y: Tensor, near: Tensor) -> Tensor:
    """Of each class that there are samples of, y (N), the share whose nearest Gaussian (N) is its own."""
    counts = torch.bincount(y)
    right = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, y, (near == y).double())
    return (right / counts.clamp(min=1))[counts > 0]


def _nearest(state: ClassifierState, samples: Samples) -> Tensor:
    """N: the class whose Gaussian is nearest to each sample, which leaves itself out."""
    return queries.novelty_signs(state, samples, None, left_out=True)[1] if len(samples) else samples.y


@torch.no_grad()
def _left_out_scores(state: ClassifierState, samples: Samples) -> Tensor:
    """N,C by arrival, of exemplars that were held out."""
    method, retrieval = state.learner.method, queries.neighbours(state, samples)
    chunks = [
        method.left_out_scores(
            samples.x(rows).to(state.device),
            samples.y[rows].to(state.device),
            None if retrieval is None else retrieval[rows],
        )
        for rows in samples.chunks()
    ]
    return torch.cat([chunk.cpu() for chunk in chunks])


def _of_each_class(state: ClassifierState, samples: Samples) -> Samples:
    """A selection of bounded size, as many of each class as there can be."""
    quota = quotas(torch.bincount(samples.y), _most(len(state.names)))
    return samples.select(rank_within_class(samples.y) < quota[samples.y])


def _assessed(state: ClassifierState, samples: Samples, classes: int) -> Samples:
    """A random selection of bounded size, the same at every call."""
    most = _most(classes)
    if len(samples) <= most:
        return samples
    drawn = torch.randperm(len(samples), generator=rng.generator(state.learner.config.seed, "held out"))
    return samples.select(drawn[:most].sort().values)


def _most(classes: int) -> int:
    return min(MOST_ASSESSED, max(FEWEST_ASSESSED, queries.MAX_SCORES // 4 // classes))

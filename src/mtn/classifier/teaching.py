"""A state of a classifier -> the next one. The given state stays as it is: what changes is changed on copies."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mtn import recipes
from mtn.classifier import assessment
from mtn.classifier.labels import Id, Label, check_labels
from mtn.classifier.schema import LabelKind
from mtn.classifier.state import ESTIMATES, ClassifierState
from mtn.config import Config, MethodOptions
from mtn.errors import InputError
from mtn.images import are_pixels
from mtn.runtime.progress import Progress, shown_progress
from mtn.runtime.text import shorten
from mtn.samples import Samples
from mtn.search import make_store, new_location
from mtn.storage.recorded import Recorded
from mtn.stream import Task
from mtn.training import Learner

MOST_TEXT = 1000
"""Characters of a sentence that are kept."""

NAMED = 3
"""Labels that are probably wrong are named up to so many; the others are counted."""
_RANDOM = threading.RLock()
"""Held while torch's random state, which all threads share, is seeded and drawn from: classifiers that learn in several
threads take turns, and each learns what it would have learned alone."""


def configuration(
    *, method: str, memory: int, k: int, false_alarms: float, random_state: Any, device: str, settings: Any, **_: Any
) -> Config:
    """What a classifier with these parameters learns with; an error for one that is wrong."""
    settings, own_keys = dict(settings or {}), ", ".join(recipes.PARAMETERS)
    if bad := [key for key in settings if key.startswith(("stream.", "images.")) or key in recipes.PARAMETERS]:
        raise InputError(f"settings: {bad[0]!r} is not for here: streams are not, {own_keys} are parameters")
    if not 0 <= false_alarms < 1:
        raise InputError(f"false_alarms must be at least 0 and below 1, got {false_alarms!r}")
    seed = random_state
    if not isinstance(seed, int | np.integer):
        from sklearn.utils import check_random_state  # here: an answer does without scikit-learn

        seed = check_random_state(seed).randint(2**31)
    own = dict(zip(recipes.PARAMETERS, (method, memory, k, int(seed), device), strict=True))
    # a method that a model's folder names is not imported
    return recipes.classifier_config(own | settings, import_methods=not isinstance(method, Recorded))


def new_state(
    config: Config,
    label_kind: LabelKind,
    feature_count: int,
    feature_names: np.ndarray | None,
    source: dict[str, Any],
    uri: str | None = None,
) -> ClassifierState:
    """A state that knows no class yet; its exemplars will be in Milvus at the URI, if one is given."""
    store = None if uri is None else make_store(config.memory, (feature_count,), new_location(uri))
    with isolated_random_state():
        learner = Learner(config, feature_count, store=store)
    return ClassifierState(learner, label_kind, feature_count, feature_names, source)


@contextmanager
def isolated_random_state() -> Iterator[None]:
    """Leave torch's random state as it was, and keep other learning threads away from it meanwhile."""
    with _RANDOM, torch.random.fork_rng(devices=[]):
        yield


# ---- learning


def learn(
    state: ClassifierState,
    X: np.ndarray,
    labels: Sequence[Label],
    ids: Any,
    thumbnails: Any,
    texts: Sequence[str] | None = None,
    *,
    progress: bool | Progress,
    false_alarms: float,
    polish: bool = True,
) -> ClassifierState:
    """Learn N,D samples of known classes and of new ones; without `polish`, without training and calibration."""
    own_ids, images = _check_ids(state, ids, len(X)), _check_thumbnails(thumbnails, len(X))
    task, names = _next_task(state, X, labels)
    known = len(state.columns)
    accuracy = assessment.accuracy_before(state, task) if known and polish else None
    with isolated_random_state(), shown_progress(progress) as report:
        # a learner that has learned nothing is in no other state
        learner = _copy_of(state.learner) if state.stops else state.learner
        learner.limit_threads = learner.memory.keeps_neighbours = True
        learner.learn_task(task, report) if polish else learner.answer_untrained(task)
        numbers = task.train.id.tolist()
        taught = replace(
            state,
            learner=learner,
            names=names,
            stops=(*state.stops, len(names)),
            arrived=state.arrived + len(X),
            own_ids={**state.own_ids, **dict(zip(numbers, own_ids or [], strict=False))},
            thumbnails={**state.thumbnails, **dict(zip(numbers, images, strict=False))},
            texts={
                **state.texts,
                **{n: kept_text(text) for n, text in zip(numbers, texts or (), strict=False) if text},
            },
        )
        taught = _without_leftovers(taught)
        if not polish:
            return _unpolished(taught, task, known)
        taught, estimated = assessment.assess(taught, task, false_alarms)
        learner.judged = None
    _warn_of_k(learner)
    _warn_of_wrong_labels(learner, task, labels)
    entry = {"samples": len(X), "new_classes": task.new, "classes": known + task.new, "accuracy_before": accuracy}
    return taught.with_facts(history=(*state.history, entry | estimated))


def _unpolished(state: ClassifierState, task: Task, known: int) -> ClassifierState:
    """Calibrated as it was before; a new class is as far from its neighbours as the mean of the others."""
    distance = None if state.class_distance is None else F.pad(state.class_distance, (0, task.new))
    entry = {"samples": len(task.train), "new_classes": task.new, "classes": known + task.new, "polished": False}
    nothing = dict.fromkeys(("accuracy_before", *ESTIMATES))
    return state.with_facts(class_distance=distance, history=(*state.history, entry | nothing))


def _warn_of_k(learner: Learner) -> None:
    """Say that k is capped; not of the usual k, which more lessons will soon fill."""
    k, remembered = learner.config.method.k, len(learner.memory)
    if learner.method.needs.neighbours and k > max(remembered, MethodOptions().k):
        warnings.warn(f"k = {k}, but {remembered} exemplars are remembered: so many are looked up", stacklevel=5)


def _warn_of_wrong_labels(learner: Learner, task: Task, labels: Sequence[Label]) -> None:
    """Name labels that the method does not trust: it learns little from these samples."""
    trust = learner.method.trust(task.train)
    doubted = [] if trust is None else (trust < 0.5).nonzero().squeeze(1).tolist()
    if doubted:
        named = ", ".join(f"{labels[row]!r} of row {row}" for row in doubted[:NAMED])
        rest = ", ..." if len(doubted) > NAMED else ""
        warnings.warn(
            f"{len(doubted)} of {len(labels)} labels are probably wrong, and their samples count less: {named}{rest}; "
            "if these labels are right, teach the samples once more, by themselves",
            stacklevel=5,
        )


def _copy_of(learner: Learner) -> Learner:
    """A learner that shares nothing with the given one that is changed in place."""
    twin = learner.copy()
    twin.memory.store = twin.memory.store.detached()
    return twin


def _next_task(state: ClassifierState, X: np.ndarray, labels: Sequence[Label]) -> tuple[Task, tuple[Label | None, ...]]:
    """The samples as a task, and the names of all classes, new ones in sorted order behind those there are."""
    index = {name: class_index for class_index, name in enumerate(state.names) if name is not None}
    new = sorted(set(labels) - index.keys())
    index |= {name: len(state.names) + position for position, name in enumerate(new)}
    names = (*state.names, *new)
    y = torch.tensor([index[label] for label in labels])
    numbers = torch.arange(state.arrived, state.arrived + len(X))
    # a method that keeps all samples must not keep the caller's array
    kept = X.copy() if state.learner.method.needs.memory == "everything" else X
    samples = Samples(kept, np.arange(len(X)), y, numbers)
    task = Task(
        len(state.stops),
        tuple(slice(*ends) for ends in zip([0, *state.stops], [*state.stops, len(names)], strict=True)),
        tuple(map(str, new)),
        samples,
        samples.select(torch.zeros(0, dtype=torch.long)),
    )
    return task, names


def _without_leftovers(state: ClassifierState) -> ClassifierState:
    """Ids, thumbnails and texts of what is remembered alone."""
    if not (state.own_ids or state.thumbnails or state.texts):
        return state
    numbers = set(state.memory.id.tolist())
    return replace(
        state,
        own_ids={number: id for number, id in state.own_ids.items() if number in numbers},
        thumbnails={number: image for number, image in state.thumbnails.items() if number in numbers},
        texts={number: text for number, text in state.texts.items() if number in numbers},
    )


def kept_text(text: str) -> str:
    """A sentence as it is kept: of bounded length, and in UTF-8."""
    return shorten(text, MOST_TEXT).encode("utf-8", "replace").decode()


# ---- corrections


def annotate(state: ClassifierState, facts: dict[str, Any]) -> ClassifierState:
    """Add facts to the latest entry of the history."""
    return state.with_facts(history=(*state.history[:-1], {**state.history[-1], **facts}))


def forget(state: ClassifierState, label: Label) -> ClassifierState:
    """Drop a class: its exemplars, its rows in the weights, its name."""
    class_index = state.class_index(label)
    learner = _copy_of(state.learner)
    learner.forget(class_index)
    return _without_leftovers(replace(state, learner=learner, names=_renamed(state, class_index, None)))


def rename(state: ClassifierState, old: Label, new: Label) -> ClassifierState:
    """Give a class another label of the same type."""
    class_index = state.class_index(old)
    new = new.item() if isinstance(new, np.generic) else new
    if type(new).__name__ != state.label_kind:
        raise InputError(f"new must be of the same type as the labels ({state.label_kind}), got {new!r}")
    if new in state.names:
        raise InputError(f"{new!r} is already the label of another class")
    check_labels([new], _renamed(state, class_index, None))
    return state.with_facts(names=_renamed(state, class_index, new))


def _renamed(state: ClassifierState, class_index: int, new: Label | None) -> tuple[Label | None, ...]:
    return (*state.names[:class_index], new, *state.names[class_index + 1 :])


def remove_exemplar(state: ClassifierState, id: Id) -> ClassifierState:
    """Take one sample out of the memory."""
    row = state.exemplar_row(id)
    learner = _copy_of(state.learner)
    learner.memory.remove(torch.arange(len(learner.memory)) == row)
    learner.refresh()
    return _without_leftovers(replace(state, learner=learner))


def relabel_exemplar(state: ClassifierState, id: Id, label: Label) -> ClassifierState:
    """Give a remembered sample the label of another known class."""
    row, class_index = state.exemplar_row(id), state.class_index(label)
    learner = _copy_of(state.learner)
    learner.memory.relabel(row, class_index)
    learner.refresh()
    return replace(state, learner=learner)


def move_memory(state: ClassifierState, uri: str | None) -> ClassifierState:
    """Put the exemplars into a new collection in Milvus, or with None into this process."""
    place = {"store": "exact" if uri is None else "milvus", "uri": uri}
    config = recipes.with_changes(state.learner.config, memory=place)
    memory = state.memory.moved(make_store(config.memory, (state.feature_count,)))
    return replace(state.with_memory(memory), folder=None)  # the folder it was saved to has the old collection


# ---- checks


def _check_ids(state: ClassifierState, ids: Any, count: int) -> list[Id] | None:
    """The caller's ids of N samples; None where running numbers do."""
    if ids is None:
        clash = set(state.own_ids.values()) & set(range(state.arrived, state.arrived + count))
        if clash:
            raise InputError(f"ids must be given: the running number {min(clash, key=str)} is one of yours already")
        return None
    own: list[Id] = [id.item() if isinstance(id, np.generic) else id for id in ids]
    if len(own) != count:
        raise InputError(f"ids must be one a sample, {count}, got {len(own)}")
    for id in own:
        if not isinstance(id, str | int) or isinstance(id, bool):
            raise InputError(f"ids must be strings or integers, got {id!r}")
    taken = set(own) & set(state.ids())
    if taken or len(set(own)) < len(own):
        twice = min(taken, key=str) if taken else next(id for id in own if own.count(id) > 1)
        raise InputError(f"ids must be different from each other and from those remembered, got {twice!r} twice")
    return own


def _check_thumbnails(thumbnails: Any, count: int) -> list[np.ndarray]:
    """A copy of each of N images."""
    if thumbnails is None:
        return []
    images = np.asarray(thumbnails)
    if not are_pixels(images):
        raise InputError(f"thumbnails must be uint8 of shape N,H,W or N,H,W,3, got {images.dtype} {images.shape}")
    if len(images) != count:
        raise InputError(f"thumbnails must be one a sample, {count}, got {len(images)}")
    return [image.copy() for image in images]

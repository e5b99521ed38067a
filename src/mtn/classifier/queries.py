"""Queries -> neighbours -> scores, each from one state of a classifier."""

import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtn import calibration, inference
from mtn.classifier.labels import check_labels, kind_of
from mtn.classifier.state import ClassifierState
from mtn.encoders.base import Encoder
from mtn.errors import InputError
from mtn.neighbours import Retrieval, capped, nearest
from mtn.samples import Samples

SCORE_MULTIPLE = 4
"""Queries are scored in multiples of this: matrix products of fewer rows round differently, and an answer must not
depend on what else is asked."""

MAX_SCORES = 2**26
"""Scores computed at once: 256 MB of float32."""

_PREPARING = threading.Lock()
"""Held while caches of a memory are filled: two threads must not build one index at the same time."""


# ---- validate


def validate(state: ClassifierState, X: Any, estimator: str) -> Samples:
    """N,D numbers -> queries, checked by scikit-learn against the features of the state.

    `estimator` is the name in scikit-learn's messages. An array that is plainly right is spared its checks, which take
    as long as a tenth of an answer.
    """
    if state.feature_names is None and _is_right(X, state.feature_count):
        return as_queries(X)
    return as_queries(_validate_data(_checker(estimator, state), X, reset=False))


def _is_right(X: Any, features: int) -> bool:
    """Whether X is N,D finite numbers in an array of a type that needs no conversion."""
    if type(X) is not np.ndarray or X.dtype not in (np.float32, np.float64) or X.ndim != 2:
        return False
    return bool(len(X)) and X.shape[1] == features and bool(np.isfinite(X).all())


def validate_training(
    state: ClassifierState | None, X: Any, y: Any, estimator: str
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray | None]:
    """N,D samples and N labels, checked against the state, or of any features without one.

    Returns both with the number of features and their names.
    """
    checker = _checker(estimator, state)
    X, y = _validate_data(checker, X, y, reset=state is None)
    return X, y, checker.n_features_in_, getattr(checker, "feature_names_in_", None)


def _validate_data(checker: Any, *data: Any, reset: bool) -> Any:
    from sklearn.utils.validation import validate_data  # here: it takes as long to import as torch does

    return validate_data(checker, *data, reset=reset, dtype=[np.float64, np.float32])


def _checker(name: str, state: ClassifierState | None) -> Any:
    """An estimator that has nothing but features: scikit-learn's checks read them from an estimator and write them
    to it, and the classifier itself may be taught by another thread meanwhile."""
    checker = _checker_class(name)()
    if state is not None:
        checker.n_features_in_ = state.feature_count
        if state.feature_names is not None:
            checker.feature_names_in_ = state.feature_names
    return checker


@cache
def _checker_class(name: str) -> Any:
    from sklearn.base import BaseEstimator, ClassifierMixin

    return type(name, (ClassifierMixin, BaseEstimator), {})


def as_queries(x: np.ndarray) -> Samples:
    """N,D finite numbers, as many as the model's vectors have -> queries that are not validated again."""
    unlabelled = torch.full((len(x),), -1)
    return Samples(x, np.arange(len(x)), unlabelled, unlabelled)


def portions(state: ClassifierState, samples: Samples) -> Iterator[Samples]:
    """So many queries at a time that their scores fit into MAX_SCORES."""
    size = max(SCORE_MULTIPLE, MAX_SCORES // len(state.names) // SCORE_MULTIPLE * SCORE_MULTIPLE)
    for rows in samples.chunks(size):
        yield samples.select(torch.arange(rows.start, rows.stop))


# ---- neighbours


def neighbours(state: ClassifierState, samples: Samples, *, wanted: bool = False) -> Retrieval | None:
    """The neighbours of each query if the method scores with them, or if they are `wanted` and there are any."""
    if not (state.uses_neighbours or (wanted and len(state.memory))):
        return None
    return nearest_exemplars(state, samples, state.learner.config.method.k)


def nearest_exemplars(state: ClassifierState, samples: Samples, k: int) -> Retrieval:
    """The k nearest exemplars of each query, or all where there are fewer."""
    prepare(state)
    enough = samples.select(_padded(len(samples), state.memory.store.query_multiple))
    return nearest(enough, state.memory, capped(k, state.memory), state.device).of(slice(0, len(samples)))


def prepare(state: ClassifierState) -> None:
    """Fill the memory's caches for searching: the vectors as columns, or the index of a large memory."""
    with _PREPARING:
        state.memory.prepare_for_queries()


# ---- scores


def scores(state: ClassifierState, samples: Samples, retrieval: Retrieval | None) -> Tensor:
    """N,C in the order of the sorted labels."""
    return scores_by_arrival(state, samples, retrieval).index_select(1, state.columns)


def scores_by_arrival(state: ClassifierState, samples: Samples, retrieval: Retrieval | None) -> Tensor:
    """N,C in the order in which classes arrived, -inf for a forgotten one."""
    chunks = inference.scores(state.learner.method, *padded(state, samples, retrieval))
    z = torch.cat([chunk.cpu() for _, chunk in chunks])[: len(samples)]
    z[:, state.forgotten] = -torch.inf
    return z


def padded(state: ClassifierState, samples: Samples, retrieval: Retrieval | None) -> tuple[Samples, Retrieval | None]:
    """As many samples as are scored together, and their neighbours if the method scores with them."""
    rows = _padded(len(samples), SCORE_MULTIPLE)
    near = retrieval.of(rows) if retrieval is not None and state.uses_neighbours else None
    return samples.select(rows), near


def _padded(count: int, multiple: int) -> Tensor:
    """Rows of `count` samples, the first ones repeated at the end, up to a multiple."""
    return torch.arange(-(-count // multiple) * multiple) % count


# ---- what follows from scores


def probabilities(state: ClassifierState, z: Tensor) -> np.ndarray:
    """N,C scores -> N,C."""
    return calibration.probabilities(z, state.temperature).numpy()


def novelty(state: ClassifierState, samples: Samples, z: Tensor, retrieval: Retrieval | None) -> np.ndarray:
    """N: the higher, the less a query is like any known class. z are its scores, N,C."""
    if state.class_distance is None:  # nothing is remembered, or it was calibrated by version 0.1
        similarity = torch.zeros(len(z), 0) if retrieval is None else retrieval.similarity.cpu()
        return calibration.novelty(calibration.oddness(z, similarity), state.usual).numpy()
    signs, near = novelty_signs(state, samples, retrieval)
    signs[:, 1] -= state.class_distance[near]
    return calibration.novelty(signs, state.usual, calibration.SIGN_WEIGHTS).numpy()


def novelty_signs(
    state: ClassifierState, samples: Samples, retrieval: Retrieval | None, *, left_out: bool = False
) -> tuple[Tensor, Tensor]:
    """N,2: relative distance to the nearest class, distance to the nearest exemplars; and N: that class.

    `left_out`: the samples are of those that the classes are known by, and each leaves itself out.
    """
    known, rows = gaussians(state), _padded(len(samples), SCORE_MULTIPLE)
    enough = samples.select(rows)
    parts = [known.relative(enough.x(c).double(), enough.y[c] if left_out else None) for c in enough.chunks()]
    relative, near = (torch.cat(part)[: len(samples)] for part in zip(*parts, strict=True))
    far = torch.zeros_like(relative)
    if retrieval is not None:
        far = calibration.nearest_distance(retrieval.similarity.cpu(), retrieval.index.cpu() >= 0)
    return torch.stack([relative, far], dim=1), near


def gaussians(state: ClassifierState) -> calibration.Gaussians:
    """The classes as Gaussians: of the method's sums over all samples, or else of what is remembered. Computed once."""
    with _PREPARING:
        if not state.derived:
            try:
                state.derived.append(calibration.Gaussians.of(*_class_sums(state)))
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not list it
                raise InputError("the model is damaged: its sums over samples are not those of any samples") from None
        return state.derived[0]


def _class_sums(state: ClassifierState) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over samples: of x (C,D) and 1 (C) by class, of x x^T (D,D)."""
    learner = state.learner
    sums = learner.method.class_sums()
    if sums is not None:
        return sums
    samples = Samples.join(learner.past) if learner.past else learner.memory.samples()
    total = torch.zeros(len(state.names), state.feature_count, dtype=torch.float64)
    gram = torch.zeros(state.feature_count, state.feature_count, dtype=torch.float64)
    for rows in samples.chunks():
        x = samples.x(rows).double()
        total.index_add_(0, samples.y[rows], x)
        gram += x.T @ x
    return total, torch.bincount(samples.y, minlength=len(total)).double(), gram


def predict(state: ClassifierState, samples: Samples, unknown: Any = None) -> np.ndarray:
    """N labels; with `unknown`, a label or N of them, that label where the novelty is above the threshold."""
    best: list[np.ndarray] = []
    new: list[np.ndarray] = []
    for portion in portions(state, samples):
        retrieval = neighbours(state, portion, wanted=unknown is not None)
        z = scores(state, portion, retrieval)
        best.append(z.argmax(1).numpy())
        if unknown is not None:
            new.append(novelty(state, portion, z, retrieval))
    labels: np.ndarray = state.classes()[np.concatenate(best)]
    if unknown is None:
        return labels
    if state.threshold is None:
        name = state.learner.config.method.name
        raise InputError(f"unknown: method {name!r} keeps no exemplars, or one a class, to tell by what is unknown")
    stand_ins = np.asarray(unknown)
    if stand_ins.shape not in ((), labels.shape):
        raise InputError(f"unknown must be one label, or one a query, {len(labels)}, got {stand_ins.size}")
    mixed = labels.astype(np.result_type(labels, stand_ins) if kind_of(unknown) == state.label_kind else object)
    return np.where(np.concatenate(new) > state.threshold, stand_ins.astype(mixed.dtype), mixed)


def nearest_names(x: np.ndarray, names: Sequence[str], encoder: Encoder) -> np.ndarray:
    """N of the names: argmax cos(x, t), x N,D vectors of images, t those of the names' texts."""
    check_labels(list(names))
    if not len(names) or not all(isinstance(name, str) for name in names):
        raise InputError(f"names must be strings, at least one, got {list(names)[:3]}")
    texts = encoder.encode_names(names)
    cosines = x @ (texts / np.linalg.norm(texts, axis=1, keepdims=True)).T
    best: np.ndarray = np.array(names)[cosines.argmax(1)]
    return best


def decision(state: ClassifierState, samples: Samples) -> np.ndarray:
    """N,C scores in the order of the sorted labels; of two classes N, the second's less the first's."""
    z: np.ndarray = scores(state, samples, neighbours(state, samples)).double().numpy()
    return z[:, 1] - z[:, 0] if z.shape[1] == 2 else z


def kneighbors(state: ClassifierState, samples: Samples, k: int | None) -> tuple[np.ndarray, np.ndarray]:
    """N,K cosine distances and rows of the memory, nearest first; None: as many as the method looks up."""
    k = capped(state.learner.config.method.k, state.memory) if k is None else k
    if not 1 <= k <= len(state.memory):
        raise InputError(f"n_neighbors must be from 1 to {len(state.memory)}, what is remembered, got {k}")
    retrieval = nearest_exemplars(state, samples, k)
    distance: np.ndarray = 1 - retrieval.similarity.double().cpu().numpy()
    return distance.clip(min=0), retrieval.index.long().cpu().numpy()

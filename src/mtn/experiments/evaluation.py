"""How good a classifier is on samples whose labels are known: accuracy, confusions, calibration, the unknown."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from mtn.classifier import AnsweringModel, Label
from mtn.classifier.labels import convert_label
from mtn.data.inputs import Inputs
from mtn.errors import InputError
from mtn.experiments.metrics import calibration_chance, calibration_error

PORTION = 4096
"""Samples that are answered at once."""
EXAMPLES = 3
"""Samples that are named of each confusion."""
UNKNOWN = object()
"""What is answered for a sample that is called unknown; no label is equal to it."""


@dataclass(frozen=True)
class ClassScore:
    """Of the samples of one class."""

    label: Label
    samples: int
    right: int
    precision: float | None  # share of right answers among those that name the class; None: no answer does
    recall: float  # share of right answers among the samples of the class
    called_unknown: float | None


@dataclass(frozen=True)
class Confusion:
    """Samples of one class that were answered with another."""

    label: Label
    answer: Label
    samples: int
    examples: list[Any]  # the sentences or the ids of some of them


@dataclass(frozen=True)
class Evaluation:
    """Shares are from 0 to 1, and None where there is nothing to take them of."""

    samples: int  # of classes that the model knows; all shares but `unknown_found` are of these
    accuracy: float | None
    balanced_accuracy: float | None  # mean over classes of their recall
    calibration_error: float | None  # by how much probabilities are off, root mean square, debiased
    calibration_chance: float | None  # with as many samples, probabilities without fault stay below it 19 times of 20
    called_unknown: float | None  # share that is called unknown, and should not be
    unknown_samples: int  # of classes that the model does not know
    unknown_found: float | None  # share of these that is called unknown, correctly
    classes: list[ClassScore]  # those that there are samples of, in the order of `classes_`
    confusions: list[Confusion]  # the most frequent first


def evaluate(classifier: AnsweringModel, X: Any, y: Any = None, *, ids: Sequence[Any] | None = None) -> Evaluation:
    """Compare the answers of a classifier, such as an MTNClassifier, to X with the labels y.

    X are N samples, as `predict` takes them, and y their N labels. Without y, X is the path of data with labels; its
    test split is used if it has one. `ids` name the samples in `confusions`. By default these are the sentences, the
    ids of the data, or running numbers.
    """
    classifier = copy.copy(classifier)  # which nobody teaches meanwhile
    inputs = _read(classifier, X, y)
    kind, known = classifier.state_.label_kind, set(classifier.classes_.tolist())
    true = [convert_label(label, kind) for label in inputs.labels.tolist()]  # type: ignore[union-attr]
    names = list(ids if ids is not None else inputs.texts or inputs.ids or range(len(true)))
    if not len(true) == len(names) == len(inputs):
        raise InputError(f"X, y and ids must be equally long, got {len(inputs)}, {len(true)} and {len(names)}")
    answers, confidence, unknown = _ask(classifier, inputs.x)
    is_known = np.array([label in known for label in true], dtype=bool)
    rows = np.flatnonzero(is_known)
    y_known, answered = ([labels[row] for row in rows] for labels in (true, answers))
    right = np.array([a == b for a, b in zip(y_known, answered, strict=True)], dtype=float)
    classes = _class_scores(y_known, answered, None if unknown is None else unknown[is_known])
    return Evaluation(
        samples=len(rows),
        accuracy=_mean(right),
        balanced_accuracy=_mean(np.array([score.recall for score in classes])),
        calibration_error=calibration_error(confidence[rows], right) if len(rows) else None,
        calibration_chance=calibration_chance(confidence[rows]) if len(rows) else None,
        called_unknown=None if unknown is None else _mean(unknown[is_known]),
        unknown_samples=int((~is_known).sum()),
        unknown_found=None if unknown is None else _mean(unknown[~is_known]),
        classes=classes,
        confusions=_confusions(y_known, answered, [names[row] for row in rows]),
    )


def _read(classifier: AnsweringModel, X: Any, y: Any) -> Inputs:
    """The samples as vectors, with labels."""
    if y is None and isinstance(X, str | Path):
        X = classifier.reader().to_evaluate(X)
    inputs = X if isinstance(X, Inputs) else classifier.reader().encode_items(X) or Inputs(X)
    labels = inputs.labels if y is None else np.asarray(y)
    if labels is None:
        raise InputError("y must be given: X has no labels of its own")
    return Inputs(inputs.x, inputs.ids, labels, texts=inputs.texts)


def _ask(classifier: AnsweringModel, x: Any) -> tuple[list[Label], np.ndarray, np.ndarray | None]:
    """Of N samples: the answers, the probability of each, and whether it is called unknown (None: that is not told)."""
    answers, confidence, unknown = [], [np.zeros(0)], [np.zeros(0)]
    classes = classifier.classes_
    for start in range(0, len(x), PORTION):
        portion = x[start : start + PORTION]
        probabilities = classifier.predict_proba(portion)
        answers += classes[probabilities.argmax(1)].tolist()
        confidence.append(probabilities.max(1))
        if classifier.threshold_ is not None:
            told = classifier.predict(portion, unknown=UNKNOWN)
            unknown.append(np.array([answer is UNKNOWN for answer in told], dtype=float))
    return answers, np.concatenate(confidence), None if classifier.threshold_ is None else np.concatenate(unknown)


def _class_scores(true: list[Label], answers: list[Label], unknown: np.ndarray | None) -> list[ClassScore]:
    labels = sorted(set(true))
    if not labels:
        return []
    precision, recall, _, counts = precision_recall_fscore_support(true, answers, labels=labels, zero_division=np.nan)
    position = {label: index for index, label in enumerate(labels)}
    of_class = np.array([position[label] for label in true])
    called = None if unknown is None else np.bincount(of_class, unknown, len(labels)) / counts
    return [
        ClassScore(
            label,
            samples=int(counts[index]),
            right=round(float(recall[index] * counts[index])),
            precision=None if np.isnan(precision[index]) else float(precision[index]),
            recall=float(recall[index]),
            called_unknown=None if called is None else float(called[index]),
        )
        for index, label in enumerate(labels)
    ]


def _confusions(true: list[Label], answers: list[Label], names: list[Any]) -> list[Confusion]:
    """The most frequent first; of equally frequent ones in the order of their labels."""
    found: dict[tuple[Label, Label], list[Any]] = defaultdict(list)
    for label, answer, name in zip(true, answers, names, strict=True):
        if label != answer:
            found[label, answer].append(name)
    pairs = sorted(found, key=lambda pair: (-len(found[pair]), pair))
    return [Confusion(*pair, len(found[pair]), found[pair][:EXAMPLES]) for pair in pairs]


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None

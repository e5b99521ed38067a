"""What a classifier says of labels that are probably wrong, and that it can be taught them all the same."""

import warnings

import numpy as np
import pytest

from mtn import MTNClassifier

RNG = np.random.default_rng(0)
CENTRES = 1.2 * RNG.standard_normal((8, 32))
SETTINGS = {"train.epochs": 2, "train.min_steps": 20}


def samples(y: np.ndarray) -> np.ndarray:
    return CENTRES[y] + 0.5 * np.random.default_rng(len(y)).standard_normal((len(y), 32))


def named(y: np.ndarray) -> np.ndarray:
    return np.array([f"class {label}" for label in y])


@pytest.fixture
def mislabelled() -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Samples, labels, and the rows with another label than the true one."""
    y = np.repeat(np.arange(8), 30)
    wrong = np.arange(0, len(y), 8)
    given = y.copy()
    given[wrong] = (y[wrong] + 1 + np.random.default_rng(1).integers(7, size=len(wrong))) % 8
    return samples(y), named(given), wrong.tolist()


def test_wrong_labels_are_named_and_answers_are_right(mislabelled) -> None:
    x, labels, wrong = mislabelled
    it = MTNClassifier(memory=80, settings=SETTINGS)
    with pytest.warns(UserWarning, match=f"^{len(wrong)} of 240 labels are probably wrong") as notes:
        it.fit(x, labels)
    assert f"{str(labels[0])!r} of row 0, {str(labels[8])!r} of row 8, {str(labels[16])!r} of row 16, ...;" in str(
        notes[0].message
    )
    asked = np.repeat(np.arange(8), 20)
    assert (it.predict(samples(asked)) == named(asked)).mean() > 0.97
    assert not {int(example.id) for example in it.memory_} & set(wrong), "exemplars have right labels"


def test_samples_that_all_look_like_another_class_are_believed(mislabelled) -> None:
    x, labels, wrong = mislabelled
    right = np.setdiff1d(np.arange(len(x)), wrong)
    it = MTNClassifier(memory=80, settings=SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        it.fit(x[right], labels[right])
        it.partial_fit(samples(np.full(10, 3)), ["class 5"] * 10)
    assert sum(example.label == "class 5" for example in it.memory_) == 10

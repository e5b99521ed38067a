"""Every metric of a run against numbers worked out by hand."""

import json

import numpy as np
import pytest

from mtn.experiments.metrics import (
    backward_transfer,
    balanced,
    calibration_chance,
    calibration_error,
    forgetting,
    summarise,
)

# Three tasks of 2, 1 and 1 classes with 10, 30, 20 and 40 test samples.
TOTAL = np.array([10, 30, 20, 40])
CORRECT = [np.array([8, 15]), np.array([10, 14, 10]), np.array([5, 18, 12, 30])]
MATRIX = [
    [57.5],  # 23 / 40
    [60.0, 50.0],  # 24 / 40, 10 / 20
    [57.5, 60.0, 75.0],  # 23 / 40, 12 / 20, 30 / 40
]
ACCURACY = [57.5, 100 * 34 / 60, 65.0]  # 23 / 40, 34 / 60, 65 / 100

EXPECTED = {
    "classes_per_task": [2, 1, 1],
    "accuracy": ACCURACY,
    "average_incremental_accuracy": sum(ACCURACY) / 3,
    "average_without_base": (ACCURACY[1] + ACCURACY[2]) / 2,
    "last_accuracy": 65.0,
    "matrix": [[57.5, None, None], [60.0, 50.0, None], [57.5, 60.0, 75.0]],
    "forgetting": ((60.0 - 57.5) + (50.0 - 60.0)) / 2,  # -3.75: the best of the earlier rows less the last
    "backward_transfer": ((57.5 - 57.5) + (60.0 - 50.0)) / 2,  # 5: the last less the task's own row
    "newest_accuracy": [57.5, 50.0, 75.0],
    "old_accuracy": [None, 60.0, 100 * 35 / 60],  # (5 + 18 + 12) / (10 + 30 + 20)
    "balanced_accuracy": (50 + 60 + 60 + 75) / 4,  # 5 / 10, 18 / 30, 12 / 20, 30 / 40
}


@pytest.fixture
def found() -> dict:
    return summarise(CORRECT, TOTAL, [2, 1, 1])


@pytest.mark.parametrize("name", EXPECTED)
def test_each_metric_by_hand(found, name):
    if name in ("matrix", "old_accuracy"):
        assert json.dumps(found[name]) == json.dumps(EXPECTED[name])
    else:
        assert found[name] == pytest.approx(EXPECTED[name])


def test_no_metric_is_without_a_hand_computed_value(found):
    assert found.keys() == EXPECTED.keys()


def test_accuracy_counts_samples_and_balanced_accuracy_counts_classes(found):
    assert found["last_accuracy"] == 65.0
    assert np.mean(found["matrix"][-1]) != pytest.approx(65.0)  # not the mean over tasks
    assert found["balanced_accuracy"] == 61.25


def test_a_single_task_has_nothing_to_forget():
    found = summarise([np.array([3, 4])], np.array([5, 5]), [2])
    assert found["forgetting"] is None and found["backward_transfer"] is None
    assert found["average_without_base"] is None
    assert found["old_accuracy"] == [None]
    assert found["average_incremental_accuracy"] == found["last_accuracy"] == 70.0
    assert found["newest_accuracy"] == [70.0] and found["matrix"] == [[70.0]]


def test_forgetting_takes_the_best_of_earlier_rows_not_the_first():
    assert forgetting([[50.0], [80.0, 90.0], [60.0, 70.0, 10.0]]) == pytest.approx(((80 - 60) + (90 - 70)) / 2)
    assert backward_transfer([[50.0], [80.0, 90.0], [60.0, 70.0, 10.0]]) == pytest.approx(((60 - 50) + (70 - 90)) / 2)


def test_forgetting_never_counts_the_last_row_as_its_own_best():
    assert forgetting([[50.0], [90.0, 20.0]]) == -40.0


def test_classes_without_test_samples_are_left_out():
    found = summarise([np.array([3, 0]), np.array([2, 0, 0])], np.array([4, 0, 0]), [2, 1])
    assert found["accuracy"] == [75.0, 50.0]
    assert found["matrix"] == [[75.0, None], [50.0, None]]
    assert found["newest_accuracy"] == [75.0, None]
    assert found["forgetting"] == 25.0
    assert found["balanced_accuracy"] == 50.0
    assert balanced(np.array([0]), np.array([0])) is None


def test_a_summary_can_be_written_as_json(found):
    assert json.loads(json.dumps(found)) == found


def test_calibration_error_by_hand() -> None:
    """Two answers of 0.5, both right; two of about 0.9, one right: a = 1 and 1/2, a (1 - a) / (n - 1) = 0 and 1/4."""
    confidence, right = np.array([0.92, 0.88, 0.5, 0.5]), np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx(np.sqrt((2 * 0.5**2 + 2 * (0.4**2 - 0.25)) / 4))
    assert calibration_error(confidence[::-1], right[::-1]) == calibration_error(confidence, right)
    assert calibration_error(np.array([0.9, 0.9]), np.array([True, False])) == 0.0  # 0.4^2 - 1/4: below 0
    spread = np.array([(0.92 * 0.08 + 0.88 * 0.12) / 2, 0.25])
    assert calibration_chance(confidence) == pytest.approx(np.sqrt(1.645 * np.sqrt(2 * (spread**2).sum()) / 4))
    assert calibration_error(np.ones(1), np.ones(1)) == calibration_chance(np.ones(1)) == 0.0


@pytest.mark.parametrize("count", [60, 650, 3000])
@pytest.mark.parametrize("fault", [0.0, 0.06])
def test_calibration_error_is_the_true_one_however_few_answers_there_are(fault: float, count: int) -> None:
    """The mean square over 300 test sets is that of confidences that are too high by the fault, 0 included."""
    random, found, exceeded = np.random.default_rng(count), [], 0
    for _ in range(300):
        confidence = 1 - 0.6 * random.beta(0.7, 3, count)
        right = random.random(count) < confidence - fault
        found.append(calibration_error(confidence, right))
        exceeded += found[-1] > calibration_chance(confidence)
    chance = calibration_chance(confidence)
    if fault == 0:
        assert np.mean(found) < 0.4 * chance and 0.01 < exceeded / 300 < 0.12  # one case of twenty, about
    else:
        bound = chance**2 / 3  # negative squares are cut off at 0, which adds a little where chance is large
        assert np.mean(np.square(found)) == pytest.approx(fault**2, rel=0.1, abs=bound)

"""Teach now, polish after: a copy that was trained nothing answers while the classifier learns."""

import asyncio
import copy
from pathlib import Path

import numpy as np
import pytest

from classifiers import QUICK, classifier, some
from cluster_data import LABELS, TEST, TRAIN, TRUE
from mtn import MTNClassifier
from mtn.errors import InputError
from mtn.serve.engine import Engine
from mtn.serve.journal import Journal, LabelledSamples
from mtn.serve.worker import Supervisor
from service import write_model

OLD, NEW = tuple(range(9)), (9,)


@pytest.fixture(scope="module")
def taught() -> MTNClassifier:
    return classifier("practical").fit(TRAIN[some(*OLD)], LABELS[some(*OLD)])


def test_a_class_is_known_at_once_and_what_was_known_still_is(taught: MTNClassifier) -> None:
    before = taught.state_
    meanwhile = copy.copy(taught).partial_fit(TRAIN[some(*NEW)], LABELS[some(*NEW)], polish=False)
    assert taught.state_ is before  # the classifier itself has learned nothing
    name = LABELS[some(*NEW)][0]
    of_new, of_old = TEST[name == TRUE], np.isin(TRUE, taught.classes_)
    assert np.mean(meanwhile.predict(of_new) == name) > 0.8
    right = [np.mean(it.predict(TEST[of_old]) == TRUE[of_old]) for it in (taught, meanwhile)]
    assert right[1] > right[0] - 0.1
    assert len(meanwhile.explain(of_new)) == len(meanwhile.novelty(of_new)) == len(of_new)
    assert (meanwhile.temperature_, meanwhile.threshold_) == (taught.temperature_, taught.threshold_)
    entry = meanwhile.history_[-1]
    assert entry["polished"] is False and entry["new_classes"] == 1 and entry["estimated_accuracy"] is None


def test_what_the_classifier_learns_is_the_same_with_a_copy_or_without(taught: MTNClassifier) -> None:
    plain, other = copy.copy(taught), copy.copy(taught)
    copy.copy(other).partial_fit(TRAIN[some(*NEW)], LABELS[some(*NEW)], polish=False)
    for it in (plain, other):
        it.partial_fit(TRAIN[some(*NEW)], LABELS[some(*NEW)])
    np.testing.assert_array_equal(plain.decision_function(TEST), other.decision_function(TEST))
    assert "polished" not in plain.history_[-1]


def test_a_method_without_training_knows_all_at_once() -> None:
    it = classifier(method="slda", settings=None).fit(TRAIN[some(*OLD)], LABELS[some(*OLD)])
    both = [copy.copy(it).partial_fit(TRAIN[some(*NEW)], LABELS[some(*NEW)], polish=p) for p in (True, False)]
    np.testing.assert_array_equal(both[0].decision_function(TEST), both[1].decision_function(TEST))


def test_a_method_that_knows_classes_by_training_alone_says_so() -> None:
    it = classifier(method="mtn", settings=QUICK).fit(TRAIN[some(0, 1)], LABELS[some(0, 1)])
    before = it.state_
    with pytest.raises(InputError, match="polish = False: method 'mtn' knows a class by training alone"):
        it.partial_fit(TRAIN[some(*NEW)], LABELS[some(*NEW)], polish=False)
    assert it.state_ is before


def test_the_service_answers_for_a_class_while_it_learns_it_and_an_end_meanwhile_loses_nothing(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", steps=30, method="practical")
    x = TRAIN[some(*NEW)]

    async def work(*, to_the_end: bool) -> list[str]:
        """What the model with the new class was, one name a change of it."""
        journal, found = Journal(folder / "journal.sqlite"), []
        if not journal.waiting():
            journal.learn(LabelledSamples(x, ["new"] * len(x)))
        with Supervisor(folder) as supervisor:
            service = Engine(folder, journal, supervisor)
            service.start()
            while not found or (to_the_end and journal.waiting()):
                await asyncio.sleep(0.01)
                kind = "trained" if service.model.history[-1].get("polished", True) else "untrained"
                if "new" in service.model.labels and kind not in found:
                    found.append(kind)
                    assert sum(answer.top[0][0] == "new" for answer in service.model.answer(x)) > 0.8 * len(x)
            await service.stop()
        return found

    assert asyncio.run(work(to_the_end=False)) == ["untrained"]
    assert "new" not in MTNClassifier.load(folder).classes_  # nothing untrained is ever saved
    assert asyncio.run(work(to_the_end=True))[0] == "untrained"
    learned = MTNClassifier.load(folder)
    assert "new" in learned.classes_ and learned.history_[-1]["samples"] == len(x)

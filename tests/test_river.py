"""The adapter to river: one sample at a time, and river's own checks."""

import itertools
from collections.abc import Iterator

import pytest
from sklearn.datasets import load_digits

from mtn.errors import InputError

pytest.importorskip("river", reason="pip install '.[river]'")

from river import checks, metrics, stream

from mtn.river import RiverClassifier


def test_a_class_nobody_announced_is_learned_one_sample_at_a_time() -> None:
    model, accuracy = RiverClassifier("slda", batch=50), metrics.Accuracy()
    assert model.predict_one({"a": 1.0}) is None and model.predict_proba_one({"a": 1.0}) == {}
    for number, (x, y) in enumerate(itertools.islice(stream.iter_sklearn_dataset(load_digits()), 400)):
        if number >= 200:
            accuracy.update(y, model.predict_one(x))
        model.learn_one(x, y)
    model.learn_one(x, "a letter")
    shares = model.predict_proba_one(x)
    assert accuracy.get() > 0.85
    assert len(shares) == 11 and shares["a letter"] == 0 and sum(shares.values()) == pytest.approx(1)
    for _ in range(49):
        model.learn_one({name: 1.0 for name in x}, "a letter")
    assert model.predict_one({name: 1.0 for name in x}) == "a letter"


def river_checks() -> Iterator[object]:
    model = next(RiverClassifier(**values) for values in RiverClassifier._unit_test_params())
    for number, check in enumerate(checks.yield_checks(model)):
        slow = [pytest.mark.slow] if hasattr(check, "keywords") else []
        yield pytest.param(check, id=f"{check.__name__}-{number}", marks=slow)


@pytest.mark.filterwarnings("ignore:vectors of different classes")  # a check leaves one feature of each sample
@pytest.mark.parametrize("check", [*river_checks()])
def test_river_accepts_it(check) -> None:
    check(next(RiverClassifier(**values) for values in RiverClassifier._unit_test_params()))


def test_a_parameter_that_is_wrong_is_one_line() -> None:
    model = RiverClassifier("no-such-method", batch=1)
    with pytest.raises(InputError, match="no-such-method"):
        model.learn_one({"a": 1.0}, "b")

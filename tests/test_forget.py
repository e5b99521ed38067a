"""What is forgotten is gone: from the answers, the memory, the weights and every byte on disk."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cluster_data import ARRAYS, DIMENSION
from mtn import MTNClassifier
from mtn.classifier import queries
from mtn.errors import InputError
from mtn.methods import METHODS, Method

QUICK = {"method.size": "small", "train.epochs": 2, "train.min_steps": 0, "method.units": 40}
X, Y = ARRAYS["x_train"], np.array([f"class {label}" for label in ARRAYS["y_train"]])
GONE = "class 3"


def taught(method: str, **settings: object) -> MTNClassifier:
    it = MTNClassifier(method, memory=60, k=5, settings=QUICK | settings)
    first = ARRAYS["y_train"] < 6
    return it.partial_fit(X[first], Y[first]).partial_fit(X[~first], Y[~first])


def rows_of(it: MTNClassifier, index: int) -> list[np.ndarray]:
    """The class's own row of every tensor that has one."""
    state = it.state_.learner.method.state_dict()
    return [state[name][index].numpy().copy() for name in it.state_.learner.method.class_rows or () if name in state]


@pytest.mark.parametrize("method", [*METHODS, "mtn labels"])
def test_no_vector_of_a_forgotten_class_is_left_in_any_saved_byte(method: str, tmp_path: Path) -> None:
    name, _, labels = method.partition(" ")
    it = taught(name, **({"method.labels": True} if labels else {}))
    index = it.state_.names.index(GONE)
    memory, unit = it.state_.learner.memory, X / np.linalg.norm(X, axis=1, keepdims=True)
    secret = [*memory.vectors(memory.y == index).numpy(), *X[Y == GONE], unit[Y == GONE].mean(0), *rows_of(it, index)]
    secret += [vector.astype(np.float64) for vector in secret]
    it.save(tmp_path / "model")
    before = b"".join(file.read_bytes() for file in sorted((tmp_path / "model").iterdir()))
    kept = [vector for vector in secret if vector.size > 1 and vector.any()]
    if rows_of(it, index) or len(memory):
        assert any(vector.tobytes() in before for vector in kept)
    it.forget(GONE)
    it.save(tmp_path / "model")
    for file in (tmp_path / "model").iterdir():
        content = file.read_bytes()
        assert not any(vector.tobytes() in content for vector in kept), file.name
        assert GONE.encode() not in content
    assert GONE not in it.classes_ and GONE not in it.predict(X)
    again = MTNClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), it.predict_proba(X))
    for state in (it.state_, again.state_):
        samples = queries.as_queries(X)
        z = queries.scores_by_arrival(state, samples, queries.neighbours(state, samples))
        assert bool(z[:, index].isneginf().all())


@pytest.mark.parametrize("method", METHODS)
def test_learning_goes_on_after_forgetting_and_a_name_taught_again_is_a_new_class(method: str) -> None:
    it = taught(method, **{"train.min_steps": 60}).forget(GONE)
    assert it.state_.names.count(None) == 1
    it.partial_fit(X[Y == GONE], Y[Y == GONE])
    assert it.state_.names.index(GONE) == 12
    assert len(it.classes_) == 12 and it.predict_proba(X).shape[1] == 12
    assert np.isfinite(it.predict_proba(X)).all()
    if method not in ("lwf", "ccil", "bic"):  # which hold on to the old classes
        assert it.score(X[Y == GONE], Y[Y == GONE]) > 0.3


def test_the_mean_leaves_the_second_moment_and_the_scatter_stays() -> None:
    it = taught("slda")
    unit = torch.nn.functional.normalize(torch.from_numpy(X), dim=1).double().numpy()
    it.forget(GONE)
    mean = unit[Y == GONE].mean(0)
    scatter = (unit[Y == GONE] - mean).T @ (unit[Y == GONE] - mean)
    others = unit[Y != GONE].T @ unit[Y != GONE]
    np.testing.assert_allclose(it.state_.learner.method.gram.numpy(), others + scatter, atol=1e-6)


def test_everything_forgotten_can_be_taught_anew() -> None:
    for method in ("mtn", "slda", "lucir", "podnet", "icarl", "joint"):
        it = MTNClassifier(method, memory=60, k=5, settings=QUICK).fit(X[:60], Y[:60])
        for label in it.classes_:
            it.forget(label)
        with pytest.raises(InputError, match="every class has been forgotten"):
            it.predict(X)
        assert it.partial_fit(X[60:120], Y[60:120]).score(X[60:120], Y[60:120]) > 0.4


def test_a_method_that_does_not_say_what_it_keeps_refuses(configure) -> None:
    with pytest.raises(InputError, match="cannot forget"):
        Method(DIMENSION, configure()).forget(0)

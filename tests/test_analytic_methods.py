"""Methods that keep statistics, compared with their equations."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cluster_data import CLASSES, DIMENSION, cluster_arrays
from learners import close, scores_by_name, train_arrays
from mtn.methods import METHODS, make
from mtn.methods.analytic import Ridge
from mtn.samples import Samples

ALL_AT_ONCE = {"first": CLASSES, "step": None}


@pytest.mark.parametrize("name", ["ncm", "slda", "ridge", "ranpac"])
def test_statistics_do_not_depend_on_the_order_of_tasks_or_their_number(train_learner, name: str) -> None:
    options = {"method": {"units": 50}}
    one, other = (train_learner(name, 4, stream={"order": order}, **options) for order in (1, 2))
    assert one.tasks[0].names != other.tasks[0].names
    close(scores_by_name(one), scores_by_name(other))
    close(scores_by_name(one), scores_by_name(train_learner(name, 1, stream=ALL_AT_ONCE, **options)))


def test_ncm_is_the_cosine_to_the_class_mean(train_learner) -> None:
    it = train_learner("ncm", 1)
    x, y = train_arrays(it)
    means = np.stack([x[y == label].mean(0) for label in range(6)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    test = it.tasks[0].test.x()
    close(it.method.scores(test, None), test @ torch.from_numpy(means.T).float())


def test_slda_is_linear_discriminant_analysis_with_the_pooled_scatter(train_learner) -> None:
    it = train_learner("slda", 1)
    x, y = train_arrays(it)
    means = np.stack([x[y == label].mean(0) for label in range(6)])
    within = sum((row - means[label])[:, None] * (row - means[label]) for row, label in zip(x, y, strict=True)) / len(x)
    precision = np.linalg.inv(within + 0.01 * np.diag(within).mean() * np.eye(DIMENSION))
    bias = [-0.5 * mean @ precision @ mean for mean in means]
    test = it.tasks[0].test.x()
    expected = test.double().numpy() @ precision @ means.T + np.array(bias)
    close(it.method.scores(test, None), torch.from_numpy(expected).float(), 1e-3)


def test_ridge_is_least_squares_on_one_hot_targets(train_learner) -> None:
    it = train_learner("ridge", 1)
    x, y = train_arrays(it)
    strength = 0.01 * np.diag(x.T @ x).mean()
    # the same minimum from an augmented system: rows sqrt(strength) I with targets 0
    rows = np.concatenate([x, np.sqrt(strength) * np.eye(DIMENSION)])
    weights = np.linalg.lstsq(rows, np.concatenate([np.eye(6)[y], np.zeros((DIMENSION, 6))]), rcond=None)[0]
    test = it.tasks[0].test.x()
    close(it.method.scores(test, None), test @ torch.from_numpy(weights).float())


def test_ranpac_is_ridge_on_rectified_random_features_of_its_seed(train_learner) -> None:
    it = train_learner("ranpac", 1, method={"units": 50})
    x, y = train_arrays(it)
    features = np.maximum(x @ it.method.projection.double().numpy(), 0)
    strength = 0.01 * np.diag(features.T @ features).mean()
    weights = np.linalg.solve(features.T @ features + strength * np.eye(50), features.T @ np.eye(6)[y])
    test = it.tasks[0].test.x()
    expected = np.maximum(test.double().numpy() @ it.method.projection.double().numpy(), 0) @ weights
    close(it.method.scores(test, None), torch.from_numpy(expected).float(), 1e-3)
    again = make(DIMENSION, it.config)
    assert torch.equal(again.projection, it.method.projection)
    assert "projection" not in it.method.state_dict()  # a seed, not kept


def written(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    np.savez(folder / "data.npz", **arrays)
    return {"data": str(folder / "data.npz")}


def test_slda_without_any_scatter_is_the_nearest_mean(train_learner, tmp_path: Path) -> None:
    """One training sample a class."""
    stream = written(tmp_path, cluster_arrays(train=1))
    slda, ncm = (train_learner(name, 4, stream=stream) for name in ("slda", "ncm"))
    assert torch.equal(scores_by_name(slda).argmax(1), scores_by_name(ncm).argmax(1))


class WatchedRidge(Ridge):
    """Ridge that tells what it chose its strength on."""

    def choose(self, held: Samples) -> float:
        self.held = held
        return super().choose(held)


def test_an_automatic_strength_is_chosen_on_a_fifth_of_every_class(train_learner, tmp_path: Path) -> None:
    """In whatever order samples lie: here classes take turns, so that every fifth sample is of one of two classes."""
    arrays = cluster_arrays(classes=10)
    turns = np.argsort(np.tile(np.arange(30), 10), kind="stable")
    arrays |= {key: arrays[key][turns] for key in ("x_train", "y_train")}
    it = train_learner(f"{__name__}:WatchedRidge", 1, stream=written(tmp_path, arrays), method={"strength": "auto"})
    assert torch.bincount(it.method.held.y).tolist() == [6] * 6
    assert it.method.count.tolist() == [30.0] * 6  # and taken in afterwards


def test_an_automatic_strength_stays_where_there_is_nothing_to_choose_on(
    train_learner, single_sample_stream: dict
) -> None:
    it = train_learner("ridge", 2, stream=single_sample_stream, method={"strength": "auto"})
    it.method.strength.fill_(0.5)
    it.learn_task(it.tasks[2])  # a single sample
    assert float(it.method.strength) == 0.5


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs.memory != "exemplars"])
def test_methods_without_exemplars_leave_the_memory_empty(train_learner, name: str) -> None:
    assert len(train_learner(name, 2).memory) == 0

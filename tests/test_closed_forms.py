"""Closed forms on random features, class covariances and a cache, compared with their equations in NumPy."""

import numpy as np
import pytest
import torch

from cluster_data import CLASSES, DIMENSION
from learners import TaskLearner, close, scores_by_name, train_arrays
from mtn import inference
from mtn.methods.anacp import DRAWS, spread
from mtn.methods.fecam import shrink_twice
from mtn.methods.random_features import oracle_shrinkage
from mtn.neighbours import nearest
from mtn.runtime import rng

UNITS = 40
OPTIONS = {"method": {"units": UNITS}}
ALL_AT_ONCE = {"first": CLASSES, "step": None}


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def statistics(it: TaskLearner) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, y, class means and the pooled within-class covariance of the first task."""
    x, y = train_arrays(it)
    means = np.stack([x[y == label].mean(0) for label in range(6)])
    return x, y, means, (x - means[y]).T @ (x - means[y]) / len(x)


def ridge(features: np.ndarray, targets: np.ndarray, strength: float = 0.01) -> np.ndarray:
    gram = features.T @ features
    return np.linalg.solve(gram + strength * np.diag(gram).mean() * np.eye(len(gram)), features.T @ targets)


@pytest.mark.parametrize("name", ["anacp", "klda", "randumb", "acil", "fecam", "loranpac uncut"])
def test_task_by_task_is_the_same_as_all_at_once(train_learner, name: str) -> None:
    name, _, uncut = name.partition(" ")
    options = {"method": OPTIONS["method"] | ({"cut": 0.0} if uncut else {})}
    whole = train_learner(name, 1, stream=ALL_AT_ONCE, **options)
    close(scores_by_name(train_learner(name, 4, **options)), scores_by_name(whole), 1e-3)


@pytest.mark.parametrize("name", ["klda", "randumb", "acil", "fecam"])
def test_the_order_of_tasks_is_no_matter(train_learner, name: str) -> None:
    one, other = (train_learner(name, 4, stream={"order": order}, **OPTIONS) for order in (1, 2))
    close(scores_by_name(one), scores_by_name(other), 1e-3)


# ---- anacp


def test_anacp_is_two_ridges_with_targets_spread_in_the_whitened_space(train_learner) -> None:
    it = train_learner("anacp", 1, method={"units": UNITS, "heads": 2})
    x, y, means, within = statistics(it)
    values, vectors = np.linalg.eigh(within + 1e-4 * np.eye(DIMENSION))
    whitening, root = (vectors * values**-0.5) @ vectors.T, (vectors * values**0.5) @ vectors.T
    left, singular, right = np.linalg.svd((means - means.mean(0)) @ whitening.T, full_matrices=False)
    singular[:5] += 1  # the sixth is zero: the means are centred
    targets = unit(left @ np.diag(singular) @ right @ whitening + means.mean(0))
    first, last = it.method.projection.double().numpy(), it.method.last_projection.double().numpy()
    theta = [ridge(gelu(x @ head), targets[y]) for head in first]

    def features(rows: np.ndarray) -> np.ndarray:
        return gelu(np.mean([unit(gelu(rows @ head) @ own) for head, own in zip(first, theta, strict=True)], 0) @ last)

    noise = [torch.randn(DRAWS, DIMENSION, generator=rng.generator(0, label, "draws")).numpy() for label in range(6)]
    drawn = np.concatenate([mean + own @ root for mean, own in zip(means, noise, strict=True)])
    weights = ridge(features(drawn), np.eye(6)[np.repeat(np.arange(6), DRAWS)])
    test = it.tasks[0].test.x()
    close(it.method.scores(test, None), torch.from_numpy(features(test.double().numpy()) @ weights).float(), 2e-3)
    assert not {"projection", "last_projection", "theta"} & it.method.state_dict().keys()  # seeds and solutions


def test_spread_targets_by_hand() -> None:
    """Two means at (1, 0) and (-1, 0), no whitening: the singular value sqrt(2) of the first axis grows by 1."""
    found = spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]) + torch.tensor([0.0, 1.0]), torch.eye(2))
    far = (2**0.5 + 1) / 2**0.5
    close(found, torch.tensor([[far, 1.0], [-far, 1.0]]) / (far**2 + 1) ** 0.5)


def test_anacp_forgets_the_mean_of_a_class_in_both_spaces(train_learner) -> None:
    it = train_learner("anacp", 1, **OPTIONS)
    x, y, *_ = statistics(it)
    lifted = gelu(x @ it.method.projection[0].double().numpy())
    it.forget(2)
    mean = lifted[y == 2].mean(0)
    scatter = (lifted[y == 2] - mean).T @ (lifted[y == 2] - mean)
    expected = lifted[y != 2].T @ lifted[y != 2] + scatter
    close(it.method.lifted_gram[0], torch.from_numpy(expected), 1e-5)
    assert not it.method.lifted_total[2].any() and not it.method.solution[:, 2].any()


# ---- random features


def test_klda_is_discriminant_analysis_on_fourier_features(train_learner) -> None:
    it = train_learner("klda", 1, method={"units": UNITS, "gamma": 0.5})
    x, y = train_arrays(it)
    projection, phase = it.method.projection.double().numpy(), it.method.phase.double().numpy()
    features, test = (
        np.sqrt(2 / UNITS) * np.cos(rows @ projection + phase) for rows in (x, it.tasks[0].test.x().numpy())
    )
    means = np.stack([features[y == label].mean(0) for label in range(6)])
    within = (features - means[y]).T @ (features - means[y]) / len(x)
    precision = np.linalg.inv(within + 0.01 * np.diag(within).mean() * np.eye(UNITS))
    expected = test @ precision @ means.T - 0.5 * np.diag(means @ precision @ means.T)
    close(it.method.scores(it.tasks[0].test.x(), None), torch.from_numpy(expected).float(), 2e-3)


def test_fourier_features_stand_for_the_gaussian_kernel(train_learner) -> None:
    method = train_learner("klda", 0, method={"units": 2000, "gamma": 0.25}).method
    x = torch.nn.functional.normalize(torch.randn(5, DIMENSION, generator=torch.Generator().manual_seed(0)), dim=1)
    phi = method.features(x)
    expected = (-0.25 * torch.cdist(x, x).square()).exp()
    assert (phi @ phi.T - expected).abs().max() < 0.1


def test_randumb_is_klda_with_the_shrinkage_that_is_estimated(train_learner) -> None:
    it = train_learner("randumb", 1, **OPTIONS)
    x, y = train_arrays(it)
    features = it.method.features(torch.from_numpy(x).float()).double().numpy()
    means = np.stack([features[y == label].mean(0) for label in range(6)])
    within = (features - means[y]).T @ (features - means[y]) / len(x)
    rho = float(oracle_shrinkage(torch.from_numpy(within), torch.tensor(float(len(x)))))
    assert 0 < rho < 1
    precision = np.linalg.inv((1 - rho) * within + rho * np.diag(within).mean() * np.eye(UNITS))
    test = it.tasks[0].test.x()
    rows = it.method.features(test).double().numpy()
    apart = rows[:, None] - means[None]
    distance = np.einsum("bcd,de,bce->bc", apart, precision, apart)
    answers = it.method.scores(test, None).argmax(1).numpy()
    assert np.array_equal(answers, distance.argmin(1))  # the nearest mean, by Mahalanobis distance


def test_the_shrinkage_of_a_round_and_of_a_long_covariance_by_hand() -> None:
    """Of diag(1, 1) there is nothing else to shrink to: 1. Of diag(1, 0), p = 2 and n = 9: (0 + 1) / (9 (1 - 1/2))."""
    nine = torch.tensor(9.0)
    assert float(oracle_shrinkage(torch.eye(2), nine)) == 1.0
    assert float(oracle_shrinkage(torch.diag(torch.tensor([1.0, 0.0])), nine)) == pytest.approx(2 / 9)


def test_the_recursion_of_acil_ends_where_the_ridge_ends(train_learner) -> None:
    """R and W task by task, as the paper updates them, never seeing a sample twice."""
    it = train_learner("acil", 4, **OPTIONS)
    strength = 0.01 * float(it.method.gram.diagonal().mean())
    inverse, weights = np.eye(UNITS) / strength, np.zeros((UNITS, CLASSES))
    for task in it.tasks:
        z = it.method.features(task.train.x()).double().numpy()
        inverse -= inverse @ z.T @ np.linalg.solve(np.eye(len(z)) + z @ inverse @ z.T, z @ inverse)
        weights += inverse @ z.T @ (np.eye(CLASSES)[task.train.y] - z @ weights)
    test = it.tasks[0].test.x()
    expected = it.method.features(test).double().numpy() @ weights
    close(it.method.scores(test, None), torch.from_numpy(expected).float(), 1e-3)


def test_loranpac_is_least_squares_within_the_directions_it_keeps(train_learner) -> None:
    it = train_learner("loranpac", 1, method={"units": UNITS, "cut": 0.5})
    x, y = train_arrays(it)
    z = np.maximum(x @ it.method.projection.double().numpy(), 0)
    left, singular, right = np.linalg.svd(z, full_matrices=False)
    weights = right[:20].T @ np.diag(1 / singular[:20]) @ left[:, :20].T @ np.eye(6)[y]
    test = it.tasks[0].test.x()
    expected = np.maximum(test.double().numpy() @ it.method.projection.double().numpy(), 0) @ weights
    close(it.method.scores(test, None), torch.from_numpy(expected).float(), 2e-3)
    assert it.method.factor.shape == (UNITS, 20)  # what is kept in place of 40 x 40


# ---- a covariance a class, and a cache


def test_fecam_is_the_mahalanobis_distance_by_shrunk_correlations(train_learner) -> None:
    it = train_learner("fecam", 1)
    x, y, means, _ = statistics(it)
    test, expected = it.tasks[0].test.x().double().numpy(), []
    for label in range(6):
        own = x[y == label]
        covariance = (own - means[label]).T @ (own - means[label]) / len(own)
        off = (covariance.sum() - np.trace(covariance)) / (DIMENSION * (DIMENSION - 1))
        covariance += np.diag(covariance).mean() * np.eye(DIMENSION) + off * (1 - np.eye(DIMENSION))
        deviation = np.sqrt(np.diag(covariance))
        precision = np.linalg.inv(covariance / np.outer(deviation, deviation))
        apart = test - unit(means[label])
        expected.append(-np.einsum("bd,de,be->b", apart, precision, apart))
    close(it.method.scores(it.tasks[0].test.x(), None), torch.from_numpy(np.stack(expected, 1)).float(), 1e-3)


def test_a_covariance_is_shrunk_towards_its_mean_variance_and_its_mean_covariance() -> None:
    found = shrink_twice(torch.tensor([[3.0, 1.0], [1.0, 5.0]]), 0.5)
    assert found.tolist() == [[5.0, 1.5], [1.5, 7.0]]


def test_tip_adapter_adds_the_cache_to_the_class_means(train_learner) -> None:
    it = train_learner("tip-adapter", 1, method={"k": 60, "alpha": 3.0, "beta": 7.0})
    _, _, means, _ = statistics(it)
    test = it.tasks[0].test.x()
    keys, labels = it.memory.vectors().double().numpy(), it.memory.y.numpy()
    rows = test.double().numpy()
    cache = np.exp(-7 * (1 - rows @ keys.T)) @ np.eye(6)[labels]
    expected = 100 * rows @ unit(means).T + 3 * cache
    found = torch.cat([z for _, z in inference.predictions(it.method, it.tasks[0].test, it.memory, 60)])
    close(found, torch.from_numpy(expected).float(), 1e-3)
    assert len(nearest(it.tasks[0].test, it.memory, 60)[slice(0, 1)].y[0]) == 60

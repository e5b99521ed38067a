"""The practical default: its space, what stays, what is held out, how its parts are weighed."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mtn import calibration, inference
from mtn.config import Config
from mtn.data import load_vectors
from mtn.methods.practical import PRIOR_MEAN, PULL, WHITENING, Practical, WhiteningMoments, fit_weights
from mtn.neighbours import nearest
from mtn.recipes import with_changes
from mtn.samples import Samples
from mtn.stream import Task, split
from mtn.training import Learner

ADAM = {"epochs": 1, "min_steps": 40, "optimizer": "adamw", "lr": 0.003, "weight_decay": 0.0}


@pytest.fixture
def start(configure: Callable[..., Config]) -> Callable[..., tuple[Learner, list[Task]]]:
    def make(tasks: int, **sections) -> tuple[Learner, list[Task]]:
        config = with_changes(configure(**({"train": ADAM} | sections)), method={"name": "practical"})
        every = split(load_vectors(config.stream.data), config.stream)
        it = Learner(config, every[0].train.dimension)
        for task in every[:tasks]:
            it.learn_task(task)
        return it, every

    return make


def method(it: Learner) -> Practical:
    assert isinstance(it.method, Practical)
    return it.method


def accuracy(it: Learner, samples: Samples) -> float:
    right = [(z.argmax(1) == samples.y[rows]) for rows, z in inference.predictions(it.method, samples, it.memory, 5)]
    return float(torch.cat(right).double().mean())


def gaussian(configure: Callable[..., Config], count: int) -> tuple[WhiteningMoments, Tensor]:
    """Of two classes with one known covariance, given whole, as unit vectors would not be."""
    covariance = torch.diag(torch.tensor([4.0, 1.0, 0.25, 0.25]))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((count, 4))).float() @ covariance.sqrt()
    y = torch.arange(count) % 2
    moments = WhiteningMoments(4, configure())
    moments.total, moments.count = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    moments.add(x + 3 * y[:, None], y)
    moments.derive()
    return moments, covariance


def test_whitening_evens_the_variance_within_classes_out(configure) -> None:
    moments, covariance = gaussian(configure, 40_000)
    mean, change, noise = moments.mean, moments.whitening, moments.noise
    assert torch.allclose(mean, torch.full((4,), 1.5), atol=0.05)
    assert torch.allclose(change @ covariance @ change.T, covariance ** (1 - WHITENING) * (covariance > 0), atol=0.03)
    assert torch.allclose(noise, change @ covariance.sqrt(), atol=0.03)


def test_few_samples_leave_the_space_nearly_as_it_is(configure) -> None:
    moments, _ = gaussian(configure, 4)
    few = moments.whitening.diagonal()
    many = gaussian(configure, 4000)[0].whitening.diagonal()
    assert few.max() / few.min() < many.max() / many.min()


def test_drawn_samples_have_their_class_s_mean_and_spread(configure) -> None:
    torch.manual_seed(0)
    moments, covariance = gaussian(configure, 40_000)
    x = moments.draw(torch.ones(20_000, dtype=torch.long))
    assert torch.allclose(x.mean(0), moments.whiten(moments.class_centres()[1]), atol=0.05)
    assert torch.allclose(x.T.cov(), moments.whitening @ covariance @ moments.whitening.T, atol=0.06)


def test_prototypes_are_pulled_to_their_means_by_hand(start) -> None:
    it, _ = start(1)
    practical, turned = method(it), torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    practical.moments.mean, practical.moments.whitening = torch.zeros(2), torch.eye(2)
    practical.prototypes = torch.nn.Parameter(torch.zeros(3, 2))
    practical.moments.total = torch.tensor([[4.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    practical.moments.count = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    practical.network.taught = torch.tensor([True, True, False])
    practical.derive_directions()
    # |(0.6, 0.8) - (1, 0)|^2 = 0.8 of 4 samples, |(1, 0) - (0, 1)|^2 = 2 of 2 samples; the third class is not taught
    assert practical.pull(turned).item() == pytest.approx(PULL**2 * (0.8 / 4**2 + 2 / 2**2) / 2)


def rows(it: Learner) -> list[Tensor]:
    """What has one vector a class, in both parts."""
    return [method(it).prototypes.detach().clone(), method(it).network.raw.detach().clone()]


def test_rows_of_classes_without_new_samples_stay(start) -> None:
    it, tasks = start(1)
    before = rows(it)
    it.learn_task(tasks[1])
    means = method(it).moments.class_centres()
    for now, then in zip(rows(it), before, strict=True):
        assert torch.equal(now[:6], then)
        assert not torch.allclose(now[6:], means[6:], atol=1e-4)  # they were trained


def test_more_samples_of_a_known_class_move_its_rows(start) -> None:
    it, tasks = start(2)
    before, train = rows(it), tasks[0].train
    again = Samples(train.source, train.rows, train.y, train.id + 10_000).select(train.y == 2)
    it.learn_task(Task(2, (*tasks[1].spans, slice(8, 8)), (), again, tasks[1].test))
    for now, then in zip(rows(it), before, strict=True):
        assert (now != then).any(1).tolist() == [label == 2 for label in range(8)]


def test_the_network_adds_cosines_of_the_query_as_it_came_by_hand(start) -> None:
    it, tasks = start(1)
    network, samples = method(it).network.requires_grad_(False), tasks[0].test
    found = nearest(samples, it.memory, 5)[:]
    adapted = network.head(network.embed(samples.x(), found))
    network.log_scale.fill_(math.log(3.0))
    network.raw.zero_()
    network.raw[1, 0] = 2.0  # cos(q, (2, 0, ...)) = q_0 of a unit vector; rows of zeros score nothing
    expected = adapted.clone()
    expected[:, 1] += 3 * samples.x()[:, 0]
    torch.testing.assert_close(network.train().scores(samples.x(), found), expected)
    network.eval().end_task(tasks[0], it.memory)
    torch.testing.assert_close(network.scores(samples.x(), found), expected)


def test_what_is_held_out_is_neither_trained_on_nor_anybody_s_neighbour(start) -> None:
    it, tasks = start(1)
    it.begin(tasks[1])
    held = it.method.held_out(tasks[1], it.memory)
    assert 0 < held.sum() < len(held) / 3
    plan = it.prepare(tasks[1], it.method.stages(tasks[1])[0])
    secret = it.memory.vectors(held)
    for sampler in plan.samplers:
        assert not torch.isin(sampler.samples.id, it.memory.id[held]).any()
        assert sampler.neighbours is not None
        assert not torch.isin(sampler.neighbours.store.read(slice(None)), secret).all(1).any()


def test_a_class_with_one_exemplar_keeps_it_for_training(start) -> None:
    it, tasks = start(1, memory={"total": None, "per_class": 1})
    assert not it.method.held_out(tasks[0], it.memory).any()
    assert method(it).weights.tolist() == pytest.approx(PRIOR_MEAN)  # nothing to weigh by


def test_one_class_at_a_time_is_learned(start) -> None:
    it, tasks = start(7, stream={"step": 1})
    newest = [accuracy(it, task.test) for task in tasks[1:7]]
    assert np.mean(newest) > 0.8 and accuracy(it, tasks[0].test) > 0.8


def test_fitted_weights_have_the_least_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(5, (400,), generator=generator)
    good = 2 * torch.nn.functional.one_hot(y, 5) + torch.randn(400, 5, generator=generator)
    fair = torch.nn.functional.one_hot(y, 5) + torch.randn(400, 5, generator=generator)
    parts = torch.stack([good, fair])

    def loss(w: Tensor) -> float:
        prior = (w[0] - 1.0) ** 2 / 2 + 10 * (w[1] - 0.3) ** 2 / 2
        return float(torch.nn.functional.cross_entropy(torch.tensordot(w, parts, 1), y, reduction="sum") + prior)

    found = fit_weights(parts, y)
    assert found[0] > found[1] > 0.3
    for change in ([0.05, 0], [-0.05, 0], [0, 0.005], [0, -0.005]):
        assert loss(found) < loss(found + torch.tensor(change))


def test_few_samples_leave_the_network_s_weight_and_many_move_it() -> None:
    generator = torch.Generator().manual_seed(0)

    def weight_of_the_network(samples: int, sign: float) -> float:
        y = torch.arange(samples) % 3
        right = torch.nn.functional.one_hot(y, 3)
        parts = torch.stack([right, sign * right]) + torch.randn(2, samples, 3, generator=generator)
        return float(fit_weights(parts, y)[1])

    for sign in (1.0, -1.0):
        assert abs(weight_of_the_network(6, sign) - 0.3) < 10**-0.5  # the standard deviation of what is believed
    assert weight_of_the_network(3000, 1.0) > 0.5
    assert weight_of_the_network(3000, -1.0) == 0  # it misleads


def test_oddness_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [float(np.log(3)), 0.0]])
    found = calibration.oddness(z, torch.tensor([[1.0, 0.5], [0.2, 0.0]]))
    assert torch.allclose(found, torch.tensor([[-np.log(2), 0.25], [-np.log(4), 0.9]], dtype=torch.float64))
    assert calibration.oddness(z, torch.zeros(2, 0))[:, 1].tolist() == [0, 0]


def test_novelty_counts_deviations_and_leaves_out_what_never_varies() -> None:
    usual = calibration.usual(torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64))
    new = calibration.novelty(torch.tensor([[2.0, 5.0], [4.0, 9.0]], dtype=torch.float64), usual)
    assert torch.allclose(new, torch.tensor([0.0, 2 / 2**0.5], dtype=torch.float64))

"""The practical default: its space, what stays, what is held out, how its parts are weighed."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtn import calibration, inference
from mtn.config import Config
from mtn.data import load_vectors
from mtn.memory import Memory
from mtn.methods import mixture
from mtn.methods.analytic import SLDA
from mtn.methods.practical import PULL, TRAINED, Practical
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


def test_prototypes_are_pulled_to_their_means_by_hand(start) -> None:
    it, _ = start(1)
    practical = method(it)
    practical.moments.mean, practical.moments.whitening = torch.zeros(2), torch.eye(2)
    practical.prototypes = torch.nn.Parameter(torch.zeros(3, 2))
    practical.moments.total = torch.tensor([[4.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    practical.moments.count = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    practical.network.taught = torch.tensor([True, True, False])
    practical.derive_directions()
    torch.testing.assert_close(practical.mean_directions, torch.eye(2))
    # (0.6, 0.8) and (1, 0) of 4 samples: cosine 0.6, squared distance 0.8; (1, 0) and (0, 1) of 2 samples: 0 and 2
    assert practical.pull(torch.tensor([0.6, 0.0])).item() == pytest.approx(PULL**2 * (0.8 / 4**2 + 2 / 2**2) / 2)


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
    network.begin_stage()
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
    found = method(it).weights
    # What is believed of the parts: the trained ones share what the discriminant leaves them, which is of its scale.
    discriminants, share = method(it).fit_discriminants(it.memory)
    assert (discriminants >= 0).all() and 0 < share < 1
    expected = [(1 - share) * TRAINED[0], (1 - share) * TRAINED[1], *(share * discriminants).tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("total", "tenths"), [(1000, 1), (999, 2), (500, 2), (499, 3), (90, 3)])
def test_the_smaller_the_memory_the_more_of_it_is_held_out(start, total: int, tenths: int) -> None:
    it, tasks = start(0)
    memory = Memory(it.config.memory, 4)
    held = {}
    for count in (total, 1000):
        numbers = torch.arange(count)
        memory = Memory(it.config.memory.model_copy(update={"total": count}), 4)
        memory.add(Samples(np.eye(4)[np.arange(count) % 4], np.arange(count), numbers % 4, numbers), torch.Generator())
        held[count] = set(memory.id[method(it).held_out(tasks[0], memory)].tolist())
    assert len(held[total]) == pytest.approx(tenths * total / 10, abs=3)
    assert held[1000] & set(range(total)) <= held[total]  # a memory that grows never holds out what was trained on


def test_one_class_at_a_time_is_learned(start) -> None:
    it, tasks = start(7, stream={"step": 1})
    newest = [accuracy(it, task.test) for task in tasks[1:7]]
    assert np.mean(newest) > 0.8 and accuracy(it, tasks[0].test) > 0.8


def test_weights_are_fitted_on_scores_without_what_is_held_out(start, monkeypatch) -> None:
    monkeypatch.setattr("mtn.methods.practical.PULL", 30.0)
    it, tasks = start(1)
    seen: list[tuple[Tensor, Tensor]] = []
    fit = mixture.fit_weights
    monkeypatch.setattr("mtn.methods.practical.fit_weights", lambda *given: (seen.append(given[:2]), fit(*given))[1])
    it.learn_task(tasks[1])
    (fitted, y), practical = seen[-1], method(it)  # the first fit is of the discriminants
    held = it.method.held_out(tasks[1], it.memory)
    x, others = it.memory.vectors(held), it.memory.part(~held)
    assert torch.equal(y, it.memory.y[held])
    known = it.memory.samples().select(held.nonzero().squeeze(1))
    parts = practical.left_out_parts(x, y, nearest(known, others, it.config.method.k)[:])
    torch.testing.assert_close(fitted[:2].float(), parts[:2])
    outer = practical.weights[2:] @ parts[2:].flatten(1)
    ratio = outer / fitted[2].flatten()  # the discriminants are one part of the second fit
    torch.testing.assert_close(ratio, ratio.median().expand_as(ratio).to(ratio), rtol=1e-3, atol=1e-3)
    # By brute force: sums without the sample; the prototype follows its mean as far as it is pulled there, here 1 / 2.
    assert (practical.moments.count == 30).all()
    for row in range(0, len(y), 3):
        moments = copy.deepcopy(practical.moments)
        moments.total[y[row]] -= x[row]
        moments.count[y[row]] -= 1
        moments.gram -= torch.outer(x[row], x[row]).double()
        moments.derive()
        rows = practical.prototypes + 0.5 * (moments.class_centres() - practical.moments.class_centres())
        cosines = F.cosine_similarity(moments.whiten(x[row])[None], moments.whiten(rows))
        expected = (practical.log_scale.exp() * cosines)[y[row]]
        with_it = practical.prototype_scores(x[row][None])[0, y[row]]
        # The space is whitened but in part, so this is the first order of what a sample changes in it.
        assert (parts[0, row, y[row]] - expected).abs() < 0.3 * (with_it - expected).abs()
        difference = parts[2, row] - moments.scores(x[row][None], None)[0]  # B moves a little without a sample
        assert (difference - difference.mean()).abs().max() < 0.1 * parts[2, row].std()


def test_a_model_without_a_discriminant_answers_as_it_did(start) -> None:
    it, tasks = start(1)
    it.restore(it.method.state_dict() | {"weights": torch.tensor([0.7, 0.4])})
    x, near = tasks[0].test.x(), nearest(tasks[0].test, it.memory, 5)[:]
    prototypes, network, *_ = method(it).parts(x, near)
    torch.testing.assert_close(it.method.scores(x, near), 0.7 * prototypes + 0.4 * network)


def test_a_model_without_sums_of_random_features_answers_as_it_did_and_learns_on(start) -> None:
    it, tasks = start(1)
    kept = {name: value for name, value in it.method.state_dict().items() if not name.startswith("fourier.")}
    it.restore(kept | {"weights": torch.tensor([0.7, 0.4, 0.2])})
    x, near = tasks[0].test.x(), nearest(tasks[0].test, it.memory, 5)[:]
    prototypes, network, linear, _ = method(it).parts(x, near)
    torch.testing.assert_close(it.method.scores(x, near), 0.7 * prototypes + 0.4 * network + 0.2 * linear)
    it.learn_task(tasks[1])
    assert not method(it).has_fourier and method(it).weights[3] == 0
    assert not method(it).fourier.count.any()  # of some classes alone it would be of no use


@pytest.fixture(scope="module")
def winding(tmp_path_factory) -> str:
    """Eight classes in a plane, each in four places that lie between those of others: no plane tells them apart."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 60), ("test", 100)):
        y = np.repeat(np.arange(8), count)
        angle = (y + 8 * rng.integers(0, 4, len(y)) + rng.uniform(0.15, 0.85, len(y))) * 2 * np.pi / 32
        plane = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        arrays |= {f"x_{name}": np.hstack([plane, 0.02 * rng.standard_normal((len(y), 4))]), f"y_{name}": y}
    path = tmp_path_factory.mktemp("winding") / "winding.npz"
    np.savez(path, **arrays)
    return str(path)


def test_classes_of_any_shape_are_told_apart(winding, start) -> None:
    it, tasks = start(3, stream={"data": winding, "first": 4, "step": 2}, memory={"total": 160})
    test = Samples.join([task.test for task in tasks])
    found, parts = nearest(test, it.memory, 5), []
    for rows in test.chunks():
        parts.append(method(it).parts(test.x(rows), found[rows]))
    prototypes, _, linear, fourier = ((z.argmax(1) == test.y).double().mean() for z in torch.cat(parts, dim=1))
    assert max(prototypes, linear) < 0.5 < 0.9 < fourier
    assert accuracy(it, test) > 0.9


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory) -> str:
    """Sixteen classes that differ little, and most where classes vary least; 200 test samples of each."""
    rng = np.random.default_rng(0)
    spread = np.exp(-np.arange(24) / 12)
    centres = 0.22 * np.exp(-np.arange(24) / 24) * rng.standard_normal((16, 24))
    arrays = {}
    for name, count in (("train", 40), ("test", 200)):
        y = np.repeat(np.arange(16), count)
        arrays |= {f"x_{name}": centres[y] + spread * rng.standard_normal((len(y), 24)), f"y_{name}": y}
    path = tmp_path_factory.mktemp("overlapping") / "overlapping.npz"
    np.savez(path, **arrays)
    return str(path)


def test_where_classes_overlap_it_is_not_below_its_parts_nor_below_slda(overlapping, start) -> None:
    it, tasks = start(3, stream={"data": overlapping, "first": 8, "step": 4}, memory={"total": 320})
    practical, test = method(it), Samples.join([task.test for task in tasks])
    slda = SLDA(24, with_changes(it.config, method={"name": "slda"}))
    for task in tasks:
        slda.begin_task(task)
        slda.end_task(task, it.memory)
    retrieval = nearest(test, it.memory, 5)
    parts = torch.cat([practical.parts(test.x(rows), retrieval[rows]) for rows in test.chunks()], dim=1)
    right = {name: (z.argmax(1) == test.y).double().mean() for name, z in zip(("p", "n", "d", "f"), parts, strict=True)}
    right["slda"] = (slda.scores(test.x(), None).argmax(1) == test.y).double().mean()
    assert accuracy(it, test) > max(right.values()) - 0.01  # one standard error of the difference
    assert right["slda"] > right["p"] + 0.01  # and the stream is one where that is not for nothing
    assert practical.weights[3] == 0  # classes are Gaussians: random features add nothing
    # What exemplars that are left out say of prototypes is what new samples say of them, but for how hard they are.
    held = practical.held_out(tasks[-1], it.memory)
    known, others = it.memory.samples().select(held.nonzero().squeeze(1)), it.memory.part(~held)
    near = nearest(known, others, 5)[torch.arange(len(known))]
    left_out = practical.left_out_parts(known.x(), known.y, near)
    harder = [
        F.cross_entropy(z, known.y) - F.cross_entropy(new, test.y) for z, new in zip(left_out, parts, strict=True)
    ]
    assert abs(harder[0] - harder[2]) < 0.15


def test_where_labels_are_wrong_it_is_not_below_slda_and_remembers_right_ones(tmp_path, start) -> None:
    rng, y, fresh = np.random.default_rng(0), np.repeat(np.arange(16), 60), np.repeat(np.arange(16), 100)
    centres = 0.55 * rng.standard_normal((16, 24))
    x, asked = (centres[of] + rng.standard_normal((len(of), 24)) for of in (y, fresh))
    np.savez(tmp_path / "wrong.npz", x_train=x, y_train=y, x_test=asked, y_test=fresh)
    stream, memory = {"data": str(tmp_path / "wrong.npz"), "first": 8, "step": 4}, {"total": 320}
    it, tasks = start(3, stream=stream | {"kind": "noisy", "share": 0.3}, memory=memory)
    test = Samples.join([task.test for task in tasks])
    slda = SLDA(24, with_changes(it.config, method={"name": "slda"}))
    for task in tasks:
        slda.begin_task(task)
        slda.end_task(task, it.memory)
    below = (slda.scores(test.x(), None).argmax(1) == test.y).double().mean()
    assert accuracy(it, test) > below - 0.01  # a standard error
    _, clean = start(0, stream=stream, memory=memory)
    true = {int(i): int(label) for task in clean for i, label in zip(task.train.id, task.train.y, strict=True)}
    right = [true[int(i)] == int(label) for i, label in zip(it.memory.id, it.memory.y, strict=True)]
    assert np.mean(right) > 0.9  # 0.7 of all


def test_with_fewer_samples_than_numbers_every_part_has_a_say(tmp_path, start) -> None:
    """All are told apart, so nothing says how far the discriminant can be believed: not for ever."""
    rng, y = np.random.default_rng(0), np.repeat(np.arange(4), 12)
    x = np.eye(4, 400)[y] * 6 + 0.5 * rng.standard_normal((48, 400))
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    it, tasks = start(2, stream={"data": str(tmp_path / "few.npz"), "first": 2, "step": 2}, memory={"total": 100})
    practical, test = method(it), Samples.join([task.test for task in tasks])
    parts = practical.parts(test.x(), nearest(test, it.memory, 5)[torch.arange(len(test))])
    sizes = (practical.weights[:, None, None] * (parts - parts.mean(2, keepdim=True))).abs().mean((1, 2))
    assert practical.weights[:3].min() > 0 and sizes[2] < 10 * sizes[0]


def test_oddness_by_hand() -> None:
    z = torch.tensor([[0.0, 0.0], [float(np.log(3)), 0.0]])
    found = calibration.oddness(z, torch.tensor([[1.0, 0.5], [0.2, 0.0]]))
    assert torch.allclose(found, torch.tensor([[-np.log(2), 0.25], [-np.log(4), 0.9]], dtype=torch.float64))
    assert calibration.oddness(z, torch.zeros(2, 0))[:, 1].tolist() == [0, 0]


def test_novelty_counts_deviations_and_leaves_out_what_never_varies() -> None:
    usual = calibration.usual(torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64))
    new = calibration.novelty(torch.tensor([[2.0, 5.0], [4.0, 9.0]], dtype=torch.float64), usual)
    assert torch.allclose(new, torch.tensor([0.0, 2 / 2**0.5], dtype=torch.float64))

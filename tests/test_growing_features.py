"""Methods whose backbone grows, or whose statistics and vectors follow it: what their papers claim, by hand."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mtn.config import Config
from mtn.encoders.augment import plain
from striped_images import learner, move_backbone, striped_configuration, write_stripes


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stripes(tmp_path_factory.mktemp("stripes"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTN_CACHE", str(cache))


@pytest.fixture
def configure(folder: Path) -> Callable[..., Config]:
    return functools.partial(striped_configuration, folder)


def test_the_statistics_of_feature_replay_are_of_the_trained_backbone(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("feature-replay", train={"epochs": 1}))
    it.learn_task(tasks[0])
    x = it.method.featurise(tasks[0].train)
    expected = torch.stack([x.x((x.y == label).nonzero().squeeze(1)).sum(0) for label in range(4)])
    torch.testing.assert_close(it.method.head.generator.total.float(), expected)
    it.learn_task(tasks[1])
    torch.testing.assert_close(it.method.head.generator.total[:4].float(), expected)  # as it was
    assert {"distance", "replay", "classification"} == set(it.terms)


# ---- adaptation


def test_adaptation_pairs_features_before_and_after_and_keeps_vectors_alone(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("adaptation", train={"epochs": 1}))
    it.learn_task(tasks[0])
    method = it.method.head
    assert len(it.memory) == 0 and it.kept()["statistics"] >= 32 * 64  # 32 vectors, beside batch statistics
    assert torch.bincount(method.kept_y).tolist() == [8] * 4
    before = it.method.featurise(tasks[1].train)
    it.begin(tasks[1])
    train, adapt, joint = it.method.stages(tasks[1])
    move_backbone(it.method)
    after = it.method.featurise(tasks[1].train)
    batch = it.prepare(tasks[1], adapt).batch(0)
    seen = {}
    adapter = method.adapter.forward
    method.adapter.forward = lambda x: seen.setdefault("x", x) * 0 + adapter(x)
    terms = adapt.loss(batch, tasks[1])
    rows = [tasks[1].train.id.tolist().index(number) for number in batch.id.tolist()]
    torch.testing.assert_close(seen["x"], before.x(torch.tensor(rows)))
    torch.testing.assert_close(batch.x, after.x(torch.tensor(rows)))
    cosine = (adapter(seen["x"]) * batch.x).sum(1)
    assert float(terms["similarity"].detach()) == pytest.approx(100 * float((1 - cosine.detach()).mean()), rel=1e-4)
    assert (train.parameters, adapt.parameters, joint.parameters) == ("", "head.adapter.", "head.head.")
    method.adapter.forward = adapter
    joint.loss(batch, tasks[1])
    torch.testing.assert_close(method.adapted, adapter(method.kept))


def test_what_adaptation_keeps_is_carried_over_and_within_the_budget(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("adaptation", train={"epochs": 1}))
    it.learn_task(tasks[0])
    first = it.method.head.kept.clone()
    it.learn_task(tasks[1])
    method = it.method.head
    assert torch.bincount(method.kept_y).tolist() == [6, 6, 5, 5, 5, 5]
    assert not torch.isin(method.kept[method.kept_y < 4], first).all()
    torch.testing.assert_close(method.kept.norm(dim=1), torch.ones(32))
    assert not len(method.before) and not sum(p.numel() for p in method.adapter.parameters())  # gone


# ---- der


def test_der_adds_a_network_and_leaves_the_older_ones_as_they_are(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("der", train={"epochs": 1}))
    it.learn_task(tasks[0])
    dimension, images = it.method.dimension, plain(tasks[0].train.x(slice(8)))
    first = {name: value.clone() for name, value in it.method.backbone.networks[0].state_dict().items()}
    it.begin(tasks[1])
    torch.testing.assert_close(it.method.backbone.networks[1].state_dict(), first)  # a copy, at first
    it.stage, it.step = 0, 0
    for stage in it.method.stages(tasks[1]):
        it.train(tasks[1], stage, it.prepare(tasks[1], stage))
    it.method.end_task(tasks[1], it.memory)
    networks = it.method.backbone.networks
    assert len(networks) == 2
    assert all(torch.equal(value, first[name]) for name, value in networks[0].state_dict().items())
    assert not torch.equal(networks[1].conv1.weight, networks[0].conv1.weight)
    with torch.no_grad():
        parts = [network(images) for network in networks]
        torch.testing.assert_close(
            it.method.features(images).x, torch.nn.functional.normalize(torch.cat(parts, 1), dim=1)
        )
    assert it.method.head.head.weight.shape == (6, 2 * dimension)
    assert not len(it.method.head.auxiliary.weight) and not len(it.method.head.joint.weight)


def test_the_auxiliary_classifier_of_der_tells_new_classes_and_all_old_ones_apart(
    configure: Callable[..., Config],
) -> None:
    it, tasks = learner(configure("der", train={"epochs": 1}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    method, width = it.method.head, 2 * it.method.dimension
    x, y = torch.nn.functional.normalize(torch.rand(3, width), dim=1), torch.tensor([1, 4, 5])
    batch = replace(it.prepare(tasks[1], it.method.stages(tasks[1])[1]).batch(0), x=x, y=y)
    terms = method.expanded_loss(batch, tasks[1])
    scaled = x * width**0.5
    new = scaled[:, -it.method.dimension :] @ method.auxiliary.weight.T + method.auxiliary.bias
    expected = -new.log_softmax(1)[torch.arange(3), torch.tensor([0, 1, 2])].mean()
    torch.testing.assert_close(terms["auxiliary"], expected)
    z = scaled @ method.joint.weight.T + method.joint.bias
    torch.testing.assert_close(terms["classification"], -z.log_softmax(1)[torch.arange(3), y].mean())
    again = method.balanced_loss(batch, tasks[1])["classification"]
    torch.testing.assert_close(again, -(method.scores(x, None) / 5).log_softmax(1)[torch.arange(3), y].mean())


# ---- aanets


def test_aanets_splits_after_the_base_and_freezes_the_convolutions_of_one_branch(
    configure: Callable[..., Config],
) -> None:
    it, tasks = learner(configure("aanets", train={"epochs": 1}))
    it.learn_task(tasks[0])
    branches, images = it.method.backbone, plain(tasks[0].train.x(slice(8)))
    with torch.no_grad():
        alone = branches.plastic.stages(images)
        it.begin(tasks[1])
        torch.testing.assert_close(branches.stages(images), alone, rtol=1e-4, atol=1e-4)  # two that are alike
        frozen = branches.stable.conv1.weight.clone()
        stage = it.method.stages(tasks[1])[0]
    it.train(tasks[1], stage, it.prepare(tasks[1], stage))
    assert torch.equal(branches.stable.conv1.weight, frozen)
    assert not torch.equal(branches.plastic.conv1.weight, frozen)
    assert (branches.stable.conv1.scale != 1).any() and (branches.mixing != 0.5).all()
    first = [network.layer1(network.stem(images)) for network in (branches.stable, branches.plastic)]
    expected = branches.mixing[0] * first[0] + (1 - branches.mixing[0]) * first[1]
    torch.testing.assert_close(branches.stages(images)[0], expected)


def test_the_weights_of_branches_follow_the_replayed_samples_and_all_else_the_loss(
    configure: Callable[..., Config],
) -> None:
    """By two backward passes: one of LUCIR's loss, one of cross-entropy on exemplars."""
    it, tasks = learner(configure("aanets", train={"epochs": 1}, images={"crop": 1.0, "jitter": 0.0}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    stage = it.method.stages(tasks[1])[0]
    batch = it.prepare(tasks[1], stage).batch(0)
    assert batch.y[batch.new_count :].max() >= 4 and stage.replay == "all"  # exemplars of new classes too
    mixing, weight = it.method.backbone.mixing, it.method.backbone.plastic.conv1.weight
    terms = it.method(stage, batch, tasks[1])
    assert float(terms["mixing"].detach()) == 0.0
    it.method.zero_grad()
    sum(terms.values()).backward()
    found = mixing.grad.clone(), weight.grad.clone()
    terms = it.method(stage, batch, tasks[1])
    (lower,) = torch.autograd.grad(sum(value for name, value in terms.items() if name != "mixing"), [weight])
    x = it.method.features(plain(batch.x)).x[batch.new_count :]
    upper = torch.nn.functional.cross_entropy(it.method.scores(x, None), batch.y[batch.new_count :])
    torch.testing.assert_close(found[1], lower, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[0], 0.1 * torch.autograd.grad(upper, [mixing])[0], rtol=1e-3, atol=1e-5)

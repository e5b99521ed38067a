"""The values of `mtn`: the paper's in the paper's recipes, its own everywhere else; and what its read-outs do."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster_data import cluster_arrays
from mtn import MTNClassifier, inference
from mtn.config import Config, Train
from mtn.data import load_vectors
from mtn.methods.mtn import MTN, TransformerOptions
from mtn.neighbours import nearest
from mtn.recipes import comparison, recipe
from mtn.samples import Samples
from mtn.stream import split
from mtn.training import Learner

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import permuted

OWN = {key.partition(".")[2]: value for key, value in MTN.defaults.items() if key.startswith("train.")}
PAPER = {
    "clinc150": "2b184af0",
    "flowers102": "2b5e3cb5",
    "glyphs-1k": "7bfe9451",
    "glyphs-1k-hard": "601e5351",
    "learned/omniglot": "bbf6d73e",
    "learned/tiny-imagenet-40": "03fff4c7",
    "paper/imagenet1k-l100": "654b52ac",
    "paper/imagenet1k-l250": "264d1d39",
    "paper/imagenet1k-l50": "a2909089",
    "paper/landmarks1k-l100": "540e9c61",
    "paper/landmarks1k-l250": "da573fc5",
    "paper/landmarks1k-l50": "c3368037",
    "paper/literal": "98bd55cc",
}
"""Recipe -> digest of its configuration before `mtn` declared values of its own."""


# ---- which values


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_paper_and_of_learned_features_are_the_same_runs_as_before(name: str) -> None:
    assert recipe(name).digest() == PAPER[name]
    assert comparison(name, ["mtn"])[0].digest() == PAPER[name]


@pytest.mark.parametrize("name", ["clinc150", "flowers102", "glyphs-1k", "paper/imagenet1k-l100"])
def test_recipes_of_the_paper_have_its_values(name: str) -> None:
    config = recipe(name)
    assert config.train.model_copy(update={"min_steps": 0}) == Train() and config.method == TransformerOptions()
    ssil = comparison(name, ["ssil"])[0]
    assert ssil.train == config.train  # what a recipe says of steps holds for all methods


@pytest.mark.parametrize("name", ["demo", "practical"])
def test_elsewhere_mtn_has_its_own_values(name: str) -> None:
    config = comparison(name, ["mtn"])[0]
    assert {key: getattr(config.train, key) for key in OWN} == OWN
    assert (config.method.size, config.method.readout) == ("small", "query")
    assert comparison(name, ["mtn"], ["train.loss=ss"])[0].train.loss == "ss"


def test_a_classifier_has_them_too_and_unlocked_does_not() -> None:
    x = torch.randn(8, 4).numpy()
    found = MTNClassifier("mtn", memory=8, settings={"train.epochs": 0.1, "train.min_steps": 1}).fit(x, [0, 1] * 4)
    train = found.state_.learner.config.train
    assert (train.loss, train.optimizer, train.lr, train.replay) == ("balanced", "adamw", 0.003, 96)
    assert recipe("demo", ["method.name=mtn-unlocked"]).train.optimizer == "sgd"


def test_where_features_are_learned_the_values_are_those_of_the_backbone() -> None:
    config = recipe("demo", ["images.side=32"])
    assert (config.train.optimizer, config.train.replay, config.method.readout) == ("sgd", 32, "cls")


# ---- the read-out `query`


def learned(config: Config) -> tuple[Learner, Samples]:
    tasks = split(load_vectors(config.stream.data), config.stream)
    it = Learner(config, *tasks[0].train.shape)
    for task in tasks:
        it.learn_task(task)
    return it, Samples.join([task.test for task in tasks])


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Samples]:
    """On twelve classes that overlap: an exemplar says more of a class than the noise around it does."""
    data = tmp_path_factory.mktemp("data") / "overlapping.npz"
    np.savez(data, **cluster_arrays(train=60, test=40, noise=1.6))
    sizes = [f"stream.data={data}", "stream.first=6", "stream.step=3", "memory.total=240"]
    return learned(
        recipe("practical", ["method.name=mtn", *sizes, "train.batch=64", "train.replay=48", "train.min_steps=60"])
    )


def test_scores_are_those_of_the_head_and_scaled_cosines_to_rows(taught: tuple[Learner, Samples]) -> None:
    it, test = taught
    method, x = it.method, test.x(slice(0, 5))
    neighbours = nearest(test, it.memory, 10)[slice(0, 5)]
    with torch.no_grad():
        head = method.embed(x, neighbours) @ method.head.weight.T + method.head.bias
        rows = method.raw / method.raw.norm(dim=1, keepdim=True)
        expected = head + method.log_scale.exp() * (x / x.norm(dim=1, keepdim=True)) @ rows.T
        torch.testing.assert_close(method.scores(x, neighbours), expected)
        torch.testing.assert_close(sum(method.shares(x, neighbours).values()), expected)


def test_rows_start_as_class_means_and_rest_in_tasks_without_their_class(configure: Callable[..., Config]) -> None:
    config = configure(method={"readout": "query"}, train={"loss": "balanced", "weight_decay": 0.0})
    first, second = split(load_vectors(config.stream.data), config.stream)[:2]
    it = Learner(config, *first.train.shape)
    it.learn_task(first)
    before = it.method.raw.detach().clone()
    it.begin(second)
    new = second.train.x()[second.train.y == second.old].mean(0)
    torch.testing.assert_close(it.method.raw[second.old].detach(), new)
    torch.testing.assert_close(it.method.raw[: first.seen].detach(), before)
    stage = it.method.stages(second)[0]
    it.train(second, stage, it.prepare(second, stage))
    torch.testing.assert_close(it.method.raw[: first.seen].detach(), before)


def test_neighbours_of_another_query_lower_the_accuracy(taught: tuple[Learner, Samples]) -> None:
    it, test = taught
    accuracy = {}
    for name, neighbours in permuted.kinds(nearest(test, it.memory, 10)):
        right = [z.argmax(1) == test.y[rows] for rows, z in inference.scores(it.method, test, neighbours)]
        accuracy[name] = float(torch.cat(right).double().mean())
    assert accuracy["as found"] > accuracy["permuted"] + 0.01


def test_every_query_gets_the_neighbours_of_another(taught: tuple[Learner, Samples]) -> None:
    it, test = taught
    found = nearest(test, it.memory, 10)
    moved = dict(permuted.kinds(found))
    assert torch.equal(moved["permuted"].index.sort(0).values, found.index.sort(0).values)
    assert (moved["permuted"].index != found.index).any(1).double().mean() > 0.9
    assert (moved["none"].index == -1).all()

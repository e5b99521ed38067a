"""What each method's paper claims, on data small enough to work it out by hand."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster_data import CLASSES, DIMENSION, cluster_arrays
from learners import directions, stages
from mtn import inference
from mtn.config import Config
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"


# ---- LUCIR and PODNet


def test_lucir_imprints_new_rows_along_the_class_means_at_the_mean_norm_of_old_rows(train_learner) -> None:
    it = train_learner("lucir", 1)
    norm = it.method.weight.detach().norm(dim=1).mean()
    next(stages(it, 1))
    train = it.tasks[1].train
    for label in (6, 7):
        row = it.method.weight[label].detach()
        torch.testing.assert_close(row.norm(), norm)
        torch.testing.assert_close(directions(row), directions(train.x()[train.y == label].mean(0)))


@pytest.mark.parametrize(("name", "moves"), [("lucir", False), ("lucir-free", True), ("lucir-balanced", True)])
def test_old_rows_of_lucir_turn_only_in_its_variants(train_learner, name: str, moves: bool) -> None:
    it = train_learner(name, 1)
    before = directions(it.method.weight)
    it.learn_task(it.tasks[1])
    after = directions(it.method.weight)[:6]
    assert torch.allclose(before, after, atol=1e-6) is not moves


def test_old_proxies_of_podnet_stay_in_the_main_stage_and_move_in_the_balanced_one(train_learner) -> None:
    it = train_learner("podnet", 1)
    seen = [directions(it.method.proxies)]
    for stage, _ in stages(it, 1):
        seen.append(directions(it.method.proxies)[:6])
        assert stage.samples == ("memory" if len(seen) == 3 else "task")
    torch.testing.assert_close(seen[1], seen[0])  # at the start of the main stage
    torch.testing.assert_close(seen[2], seen[0])  # and at its end
    assert not torch.allclose(directions(it.method.proxies)[:6], seen[2], atol=1e-6)


# ---- distillation


def test_ccil_replays_as_many_exemplars_as_new_samples_new_classes_among_them(train_learner) -> None:
    it = train_learner("ccil", 1)
    _, plan = next(stages(it, 1))
    assert plan.replay.size == plan.new.size == 32
    assert plan.replay.samples.y.unique().tolist() == list(range(8))
    batch = plan.batch(0)
    assert batch.new_count == 32 and len(batch.y) == 64 and (batch.y[:32] >= 6).all()


@pytest.mark.parametrize("name", ["ssil", "ccil", "lwf"])
def test_distillation_from_an_identical_model_is_zero(train_learner, name: str) -> None:
    it = train_learner(name, 1)
    _, plan = next(stages(it, 1))  # old rows of the head are still what they were
    terms = it.method.loss(plan.batch(0), it.tasks[1])
    distilled = [float(value.detach()) for term, value in terms.items() if term.startswith("distillation")]
    assert len(distilled) == (2 if name == "ccil" else 1)
    assert distilled == pytest.approx([0.0] * len(distilled), abs=1e-4)


# ---- plain replay, its ends, and exemplar means


@pytest.mark.parametrize("name", ["gdumb", "joint"])
def test_gdumb_and_joint_start_from_new_weights_whatever_was_learned(train_learner, name: str) -> None:
    short, long = (train_learner(name, 1, train={"epochs": epochs}) for epochs in (1, 3))
    assert not torch.equal(short.method.head.weight, long.method.head.weight)
    learned = short.method.head.weight.detach().clone()
    next(stages(short, 1)), next(stages(long, 1))
    assert torch.equal(short.method.head.weight, long.method.head.weight)
    assert (short.method.head.weight[:6] != learned).all()


def test_joint_sees_all_data_and_gdumb_the_memory_alone(train_learner) -> None:
    (_, all_data), (_, memory) = (next(stages(train_learner(name, 1), 1)) for name in ("joint", "gdumb"))
    assert len(all_data.new.samples) == 8 * 30 and all_data.replay is None
    assert len(memory.new.samples) == 60 and memory.replay is None


def test_icarl_is_the_nearest_mean_of_exemplars(train_learner) -> None:
    it = train_learner("icarl", 2)
    means = torch.stack([directions(it.memory.vectors(it.memory.y == label).mean(0)) for label in range(8)])
    test = it.tasks[1].test.x()
    torch.testing.assert_close(it.method.scores(test, None), test @ means.T)


# ---- what is kept


HEAD = CLASSES * DIMENSION + CLASSES  # weights and biases


SUMS = CLASSES * DIMENSION + CLASSES  # sums and counts


EXEMPLARS = 60 * DIMENSION


@pytest.mark.parametrize(
    ("name", "exemplars", "weights", "statistics"),
    [
        ("knn", EXEMPLARS, 0, 0),
        ("ncm", 0, 0, SUMS),
        ("slda", 0, 0, SUMS + DIMENSION**2 + 1),  # and the strength
        ("ridge", 0, 0, SUMS + DIMENSION**2 + 1),
        ("ranpac", 0, 0, CLASSES * 50 + CLASSES + 50**2 + 1),
        ("ssil", EXEMPLARS, HEAD, 0),
        ("joint", 30 * CLASSES * DIMENSION, HEAD, 0),
    ],
)
def test_numbers_kept_by_hand(train_learner, name: str, exemplars: int, weights: int, statistics: int) -> None:
    kept = train_learner(name, 4, method={"units": 50}).kept()
    assert [kept[part] for part in ("exemplars", "weights", "statistics")] == [exemplars, weights, statistics]
    assert kept["total"] == exemplars + weights + statistics


# ---- small classes


@pytest.mark.parametrize("name", [name for name in METHODS if name != "bic"])
def test_one_class_a_task_and_classes_with_a_single_sample(
    train_learner, single_sample_stream: dict, name: str
) -> None:
    it = train_learner(name, 3, stream=single_sample_stream, method={"units": 20})
    assert (torch.bincount(it.tasks[2].train.y)[11:] == 1).all()
    for task in it.tasks:
        for _, z in inference.predictions(it.method, task.test, it.memory, 5):
            assert z.shape == (len(task.test), 12) and z.isfinite().all()


def test_a_class_with_one_sample_has_it_as_each_of_its_podnet_proxies(
    train_learner, single_sample_stream: dict
) -> None:
    it = train_learner("podnet", 2, stream=single_sample_stream)
    next(stages(it, 2))
    torch.testing.assert_close(it.method.proxies[11].detach(), it.tasks[2].train.x().expand(10, -1))


def test_copies_of_one_sample_are_one_cluster_to_podnet(
    train_learner, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Twelve samples of each class, three of them distinct: no more centres, and no warning of k-means."""
    arrays = cluster_arrays(train=3, test=2)
    arrays |= {name: np.repeat(arrays[name], 4, axis=0) for name in ("x_train", "y_train")}
    np.savez(tmp_path / "copies.npz", **arrays)
    it = train_learner("podnet", 0, stream={"data": str(tmp_path / "copies.npz")})
    next(stages(it, 0))
    assert len(it.method.proxies[0].detach().unique(dim=0)) == 3
    assert not recwarn.list


# ---- a method of one's own


def test_the_example_of_the_documentation_learns(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tutorials" / "method.md").read_text("utf-8"), re.DOTALL)[:2]
    assert len(blocks[0].splitlines()) <= 30
    (tmp_path / "my_methods.py").write_text("\n".join(blocks), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = run(configure(method={"name": "my_methods:MeansAndHead"}), tmp_path / "run")
    assert result["last_accuracy"] > 3 * 100 / CLASSES
    own = configure(method={"name": "my_methods:ScaledMeansAndHead", "scale": 5.0})
    assert run(own, tmp_path / "scaled")["config"]["method"]["scale"] == 5.0
    with pytest.raises(InputError, match=r"method\.scale .* got 'much'"):
        configure(method={"name": "my_methods:ScaledMeansAndHead", "scale": "much"})
    with pytest.raises(InputError, match=r"unknown key 'method\.scael': did you mean 'method\.scale'"):
        configure(method={"name": "my_methods:ScaledMeansAndHead", "scael": 5.0})


def test_every_method_has_a_page_in_the_index() -> None:
    index = (DOCS / "methods" / "README.md").read_text("utf-8")
    pages = dict(re.findall(r"^\| \[([\w-]+)\]\(([\w-]+\.md)\)", index, re.MULTILINE))
    assert list(pages) == list(METHODS)
    for page in set(pages.values()):
        text = (DOCS / "methods" / page).read_text("utf-8")
        (name,) = re.findall(r"^\$ mtn run (?:demo --set method\.name=)?([\w-]+)$", text, re.MULTILINE)
        assert text.startswith(f"# {name}") and pages[name] == page

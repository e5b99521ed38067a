"""What each method's paper claims, on data small enough to work it out by hand."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import CLASSES, DIMENSION, cluster_arrays
from mtn import datasets, lesson
from mtn.config import Config
from mtn.errors import InputError
from mtn.learn import Learner, make_optimiser, minimise
from mtn.methods import METHODS, Batch, Stage, make
from mtn.methods.analytic import Ridge
from mtn.methods.bic import Correction
from mtn.model import spread
from mtn.run import run
from mtn.samples import Data, Samples
from mtn.stream import Task, split

ADDING = Path(__file__).parents[1] / "docs" / "methods" / "adding.md"


class Fed(Learner):
    """With the tasks at hand."""

    def __init__(self, config: Config, tasks: list[Task]) -> None:
        super().__init__(config, DIMENSION)
        self.tasks = tasks


@pytest.fixture
def start(configure: Callable[..., Config]) -> Callable[..., Fed]:
    """A learner that has done `tasks` tasks: `start("ncm", 4, stream={...})`."""

    def make(name: str, tasks: int, **sections) -> Fed:
        config = configure(**{"train": {"epochs": 1}, **sections}).replace(method={"name": name})
        every = split(datasets.load(config.stream.data), config.stream)
        it = Fed(config, every)
        for task in every[:tasks]:
            it.learn_task(task)
        return it

    return make


def stages(it: Fed, index: int) -> Iterator[tuple[Stage, lesson.Lesson]]:
    """Begin a task; each stage with what it trains on, and train it after the caller has looked."""
    it.begin(it.tasks[index])
    for stage in it.method.stages(it.tasks[index]):
        plan = it.prepare(it.tasks[index], stage)
        yield stage, plan
        it.train(it.tasks[index], stage, plan)


def data(it: Fed) -> Data:
    return datasets.load(it.config.stream.data)


def scores_by_name(it: Fed) -> Tensor:
    """Of all test samples; columns in the data's own order of classes."""
    names, arrived = data(it).names, [name for task in it.tasks for name in task.names]
    return it.method.scores(data(it).test.x(), None)[:, [arrived.index(name) for name in names]]


def train_arrays(it: Fed) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors in double precision and labels of the first task."""
    train = it.tasks[0].train
    return train.x().double().numpy(), train.y.numpy()


def close(found: Tensor, expected: Tensor, relative: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=relative, atol=relative * float(expected.abs().max()))


def directions(weight: Tensor) -> Tensor:
    return F.normalize(weight.detach(), dim=-1)


ALL_AT_ONCE = {"first": CLASSES, "step": None}

# ---- methods that keep statistics


@pytest.mark.parametrize("name", ["ncm", "slda", "ridge", "ranpac"])
def test_statistics_do_not_depend_on_the_order_of_tasks_or_their_number(start, name: str) -> None:
    options = {"method": {"units": 50}}
    one, other = (start(name, 4, stream={"order": order}, **options) for order in (1, 2))
    assert one.tasks[0].names != other.tasks[0].names
    close(scores_by_name(one), scores_by_name(other))
    close(scores_by_name(one), scores_by_name(start(name, 1, stream=ALL_AT_ONCE, **options)))


def test_ncm_is_the_cosine_to_the_class_mean(start) -> None:
    it = start("ncm", 1)
    x, y = train_arrays(it)
    means = np.stack([x[y == label].mean(0) for label in range(6)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    test = it.tasks[0].test.x()
    close(it.method.scores(test, None), test @ torch.from_numpy(means.T).float())


def test_slda_is_linear_discriminant_analysis_with_the_pooled_scatter(start) -> None:
    it = start("slda", 1)
    x, y = train_arrays(it)
    means = np.stack([x[y == label].mean(0) for label in range(6)])
    within = sum((row - means[label])[:, None] * (row - means[label]) for row, label in zip(x, y, strict=True)) / len(x)
    precision = np.linalg.inv(within + 0.01 * np.diag(within).mean() * np.eye(DIMENSION))
    bias = [-0.5 * mean @ precision @ mean for mean in means]
    test = it.tasks[0].test.x()
    expected = test.double().numpy() @ precision @ means.T + np.array(bias)
    close(it.method.scores(test, None), torch.from_numpy(expected).float(), 1e-3)


def test_ridge_is_least_squares_on_one_hot_targets(start) -> None:
    it = start("ridge", 1)
    x, y = train_arrays(it)
    strength = 0.01 * np.diag(x.T @ x).mean()
    # the same minimum from an augmented system: rows sqrt(strength) I with targets 0
    rows = np.concatenate([x, np.sqrt(strength) * np.eye(DIMENSION)])
    weights = np.linalg.lstsq(rows, np.concatenate([np.eye(6)[y], np.zeros((DIMENSION, 6))]), rcond=None)[0]
    test = it.tasks[0].test.x()
    close(it.method.scores(test, None), test @ torch.from_numpy(weights).float())


def test_ranpac_is_ridge_on_rectified_random_features_of_its_seed(start) -> None:
    it = start("ranpac", 1, method={"units": 50})
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


def test_slda_without_any_scatter_is_the_nearest_mean(start, tmp_path: Path) -> None:
    """One training sample a class."""
    stream = written(tmp_path, cluster_arrays(train=1))
    slda, ncm = (start(name, 4, stream=stream) for name in ("slda", "ncm"))
    assert torch.equal(scores_by_name(slda).argmax(1), scores_by_name(ncm).argmax(1))


class WatchedRidge(Ridge):
    """Ridge that tells what it chose its strength on."""

    def choose(self, held: Samples) -> float:
        self.held = held
        return super().choose(held)


def test_an_automatic_strength_is_chosen_on_a_fifth_of_every_class(start, tmp_path: Path) -> None:
    """In whatever order samples lie: here classes take turns, so that every fifth sample is of one of two classes."""
    arrays = cluster_arrays(classes=10)
    turns = np.argsort(np.tile(np.arange(30), 10), kind="stable")
    arrays |= {key: arrays[key][turns] for key in ("x_train", "y_train")}
    it = start(f"{__name__}:WatchedRidge", 1, stream=written(tmp_path, arrays), method={"strength": "auto"})
    assert torch.bincount(it.method.held.y).tolist() == [6] * 6
    assert it.method.count.tolist() == [30.0] * 6  # and taken in afterwards


def test_an_automatic_strength_stays_where_there_is_nothing_to_choose_on(start, small: dict) -> None:
    it = start("ridge", 2, stream=small, method={"strength": "auto"})
    it.method.strength.fill_(0.5)
    it.learn_task(it.tasks[2])  # a single sample
    assert float(it.method.strength) == 0.5


@pytest.mark.parametrize("name", ["ncm", "slda", "ridge", "ranpac", "lwf", "finetune", "joint"])
def test_methods_without_exemplars_leave_the_memory_empty(start, name: str) -> None:
    assert len(start(name, 2).memory) == 0


# ---- BiC


def test_bic_second_stage_recovers_a_known_scale_and_shift(configure: Callable[..., Config]) -> None:
    """Labels drawn from softmax(z); the method is given (z - c) / a for the new half."""
    scale, shift = 0.6, -0.5
    draw = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(20_000, 4, generator=draw)
    y = torch.multinomial(z.softmax(1), 1, generator=draw).squeeze(1)
    z[:, 2:] = (z[:, 2:] - shift) / scale
    config = configure(method={"name": "bic"}, train={"lr": 1.0, "weight_decay": 0.0})
    method = make(4, config)
    nothing = Samples(np.zeros((0, 4), np.float32), np.arange(0), torch.zeros(0, dtype=torch.long), torch.zeros(0))
    task = Task(1, (slice(0, 2), slice(2, 4)), ("c", "d"), nothing, nothing)
    method.begin_task(task)
    with torch.no_grad():  # logits in, logits out
        method.head.weight.copy_(torch.eye(4) / 4**0.5)
        method.head.bias.zero_()
    correct = method.stages(task)[1]
    batch = Batch(z, y, len(y), None, None, torch.full((4,), 0.25))

    def fit(*terms: str) -> tuple[float, float]:
        method.correction.reset(2)
        optimiser = make_optimiser(method, config.train, correct.only)

        def loss(step: int) -> dict[str, Tensor]:
            found = getattr(method, correct.loss)(batch, task)
            return {term: found[term] for term in terms}

        for _ in minimise(loss, optimiser, config.train, steps=150):
            pass
        return method.correction.scale.item(), method.correction.shift.item()

    assert fit("classification") == pytest.approx((scale, shift), abs=0.04)
    _, held_back = fit("classification", "penalty")
    assert shift < held_back < 0  # the penalty shortens the shift and does not turn it
    assert torch.equal(method.head.weight, torch.eye(4) / 2)


@pytest.mark.parametrize(("memory", "held"), [({"total": 60}, 1), ({"total": None, "per_class": 25}, 2)])
def test_bic_holds_out_as_many_of_every_class_and_shows_them_to_the_second_stage_only(
    start, memory: dict, held: int
) -> None:
    it = start("bic", 1, memory=memory)
    (first, plan), (second, corrected) = stages(it, 1)
    out = it.method.held_out(it.tasks[1], it.memory)
    assert torch.bincount(it.memory.y[out]).tolist() == [held] * 8
    ids = set(it.memory.id[out].tolist())
    assert first.sees == "task" and second.sees == "held out"
    assert not ids & (set(plan.new.samples.id.tolist()) | set(plan.replay.samples.id.tolist()))
    assert len(plan.new.samples) == 60 - 2 * held  # of 2 classes, 30 samples each
    assert set(corrected.new.samples.id.tolist()) == ids and corrected.replay is None


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ({"total": 23}, r"memory\.total = 23 leaves class '.*' 1 of its 30"),  # 12 classes in the end: one too few
        ({"total": None, "per_class": 1}, r"memory\.per_class = 1 leaves class '.*' 1 of its 30"),
    ],
)
def test_bic_says_which_memory_is_too_small_before_anything_is_trained(
    configure: Callable[..., Config], tmp_path: Path, memory: dict, said: str
) -> None:
    config = configure(method={"name": "bic"}, memory=memory)
    with pytest.raises(InputError, match=f"'bic' needs 2 exemplars of each class; {said}"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bic_finds_out_on_the_way_what_a_reservoir_leaves_it(start) -> None:
    it = start("bic", 1, memory={"total": 12, "select": "reservoir"})
    with pytest.raises(InputError, match=r"'bic' needs 2 exemplars of each class; memory\.total = 12"):
        it.learn_task(it.tasks[1])


def test_bic_needs_no_exemplars_without_old_classes(configure: Callable[..., Config], tmp_path: Path) -> None:
    config = configure(method={"name": "bic"}, stream={"first": 12, "step": None}, memory={"total": 12})
    assert run(config, tmp_path / "run")["classes_per_task"] == [12]


def test_bic_corrects_the_latest_classes_only() -> None:
    correction = Correction()
    correction.reset(2)
    with torch.no_grad():
        correction.scale.fill_(3.0)
        correction.shift.fill_(1.0)
    assert correction(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist() == [[1.0, 2.0, 10.0, 13.0]]


def test_bic_distils_from_corrected_scores(start) -> None:
    it = start("bic", 2, train={"epochs": 3})
    _, plan = next(stages(it, 2))
    assert int(it.before.correction.start) == 6 and it.before.correction.scale.item() != 1.0
    raw = it.before.head(spread(plan.new.samples.x()))
    expected = torch.cat([raw[:, :6], it.before.correction.scale * raw[:, 6:] + it.before.correction.shift], dim=1)
    torch.testing.assert_close(plan.new.before, expected.detach())
    # its own correction begins anew, for the newest classes
    assert [p.item() for p in it.method.correction.parameters()] == [1.0, 0.0] and int(it.method.correction.start) == 8


# ---- LUCIR and PODNet


def test_lucir_imprints_new_rows_along_the_class_means_at_the_mean_norm_of_old_rows(start) -> None:
    it = start("lucir", 1)
    norm = it.method.weight.detach().norm(dim=1).mean()
    next(stages(it, 1))
    train = it.tasks[1].train
    for label in (6, 7):
        row = it.method.weight[label].detach()
        torch.testing.assert_close(row.norm(), norm)
        torch.testing.assert_close(directions(row), directions(train.x()[train.y == label].mean(0)))


@pytest.mark.parametrize(("name", "moves"), [("lucir", False), ("lucir-free", True), ("lucir-balanced", True)])
def test_old_rows_of_lucir_turn_only_in_its_variants(start, name: str, moves: bool) -> None:
    it = start(name, 1)
    before = directions(it.method.weight)
    it.learn_task(it.tasks[1])
    after = directions(it.method.weight)[:6]
    assert torch.allclose(before, after, atol=1e-6) is not moves


def test_old_proxies_of_podnet_stay_in_the_main_stage_and_move_in_the_balanced_one(start) -> None:
    it = start("podnet", 1)
    seen = [directions(it.method.proxies)]
    for stage, _ in stages(it, 1):
        seen.append(directions(it.method.proxies)[:6])
        assert stage.sees == ("memory" if len(seen) == 3 else "task")
    torch.testing.assert_close(seen[1], seen[0])  # at the start of the main stage
    torch.testing.assert_close(seen[2], seen[0])  # and at its end
    assert not torch.allclose(directions(it.method.proxies)[:6], seen[2], atol=1e-6)


# ---- distillation


def test_ccil_replays_as_many_exemplars_as_new_samples_new_classes_among_them(start) -> None:
    it = start("ccil", 1)
    _, plan = next(stages(it, 1))
    assert plan.replay.size == plan.new.size == 32
    assert plan.replay.samples.y.unique().tolist() == list(range(8))
    batch = plan.batch(0)
    assert batch.fresh == 32 and len(batch.y) == 64 and (batch.y[:32] >= 6).all()


@pytest.mark.parametrize("name", ["ssil", "ccil", "lwf"])
def test_distillation_from_an_identical_model_is_zero(start, name: str) -> None:
    it = start(name, 1)
    _, plan = next(stages(it, 1))  # old rows of the head are still what they were
    terms = it.method.loss(plan.batch(0), it.tasks[1])
    distilled = [float(value.detach()) for term, value in terms.items() if term.startswith("distillation")]
    assert len(distilled) == (2 if name == "ccil" else 1)
    assert distilled == pytest.approx([0.0] * len(distilled), abs=1e-4)


def test_bic_distillation_from_an_identical_model_is_its_entropy_by_the_share_of_old_classes(start) -> None:
    it = start("bic", 1)
    _, plan = next(stages(it, 1))
    batch = plan.batch(0)
    p = (batch.before / 2).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    torch.testing.assert_close(it.method.loss(batch, it.tasks[1])["distillation"].detach(), 6 / 8 * entropy)


# ---- plain replay, its ends, and exemplar means


@pytest.mark.parametrize("name", ["gdumb", "joint"])
def test_gdumb_and_joint_start_from_new_weights_whatever_was_learned(start, name: str) -> None:
    short, long = (start(name, 1, train={"epochs": epochs}) for epochs in (1, 3))
    assert not torch.equal(short.method.head.weight, long.method.head.weight)
    learned = short.method.head.weight.detach().clone()
    next(stages(short, 1)), next(stages(long, 1))
    assert torch.equal(short.method.head.weight, long.method.head.weight)
    assert (short.method.head.weight[:6] != learned).all()


def test_joint_sees_all_data_and_gdumb_the_memory_alone(start) -> None:
    (_, all_data), (_, memory) = (next(stages(start(name, 1), 1)) for name in ("joint", "gdumb"))
    assert len(all_data.new.samples) == 8 * 30 and all_data.replay is None
    assert len(memory.new.samples) == 60 and memory.replay is None


def test_icarl_is_the_nearest_mean_of_exemplars(start) -> None:
    it = start("icarl", 2)
    means = torch.stack([directions(it.memory.x[it.memory.y == label].mean(0)) for label in range(8)])
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
def test_numbers_kept_by_hand(start, name: str, exemplars: int, weights: int, statistics: int) -> None:
    kept = start(name, 4, method={"units": 50}).kept()
    assert [kept[part] for part in ("exemplars", "weights", "statistics")] == [exemplars, weights, statistics]
    assert kept["total"] == exemplars + weights + statistics


# ---- small classes


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A stream of 10 + 1 + 1 classes; one of the base and the last have a single training sample."""
    arrays = cluster_arrays(train=8, test=2)
    y = arrays["y_train"]
    rows = np.array([row for row, label in enumerate(y) if label not in (0, 11) or y[row - 1] != label])
    arrays |= {"x_train": arrays["x_train"][rows], "y_train": y[rows]}
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, **arrays)
    names = datasets.load(str(path)).names
    return {"data": str(path), "first": None, "step": None, "tasks": [names[:10], names[10:11], names[11:]]}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "bic"])
def test_one_class_a_task_and_classes_with_a_single_sample(start, small: dict, name: str) -> None:
    it = start(name, 3, stream=small, method={"units": 20})
    assert (torch.bincount(it.tasks[2].train.y)[11:] == 1).all()
    for task in it.tasks:
        for _, z in lesson.predictions(it.method, task.test, it.memory, 5):
            assert z.shape == (len(task.test), 12) and z.isfinite().all()


def test_bic_refuses_a_class_with_a_single_sample(start, small: dict) -> None:
    with pytest.raises(InputError, match=r"leaves class number \d+ in order of arrival 1$"):
        start("bic", 3, stream=small)


def test_a_class_with_one_sample_has_it_as_each_of_its_podnet_proxies(start, small: dict) -> None:
    it = start("podnet", 2, stream=small)
    next(stages(it, 2))
    torch.testing.assert_close(it.method.proxies[11].detach(), it.tasks[2].train.x().expand(10, -1))


def test_copies_of_one_sample_are_one_cluster_to_podnet(
    start, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Twelve samples of each class, three of them distinct: no more centres, and no warning of k-means."""
    arrays = cluster_arrays(train=3, test=2)
    arrays |= {name: np.repeat(arrays[name], 4, axis=0) for name in ("x_train", "y_train")}
    np.savez(tmp_path / "copies.npz", **arrays)
    it = start("podnet", 0, stream={"data": str(tmp_path / "copies.npz")})
    next(stages(it, 0))
    assert len(it.method.proxies[0].detach().unique(dim=0)) == 3
    assert not recwarn.list


# ---- a method of one's own


def test_the_example_of_the_documentation_learns(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", ADDING.read_text("utf-8"), re.DOTALL)
    assert len(block.splitlines()) <= 30
    (tmp_path / "my_methods.py").write_text(block, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = run(configure(method={"name": "my_methods:MeansAndHead"}), tmp_path / "run")
    assert result["last_accuracy"] > 3 * 100 / CLASSES


def test_every_method_has_a_page_in_the_index() -> None:
    index = (ADDING.parent / "README.md").read_text("utf-8")
    pages = dict(re.findall(r"^\| \[([\w-]+)\]\(([\w-]+\.md)\)", index, re.MULTILINE))
    assert list(pages) == list(METHODS)
    assert all((ADDING.parent / page).read_text("utf-8").startswith("# ") for page in pages.values())

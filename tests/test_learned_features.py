"""Features that are learned from images, through the same contract as frozen ones."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mtn import inference
from mtn.config import Config
from mtn.encoders.augment import plain
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.methods import METHODS, find
from mtn.methods.learned import REFRESH, FeatureBank, Learned
from mtn.recipes import with_changes
from mtn.storage.tensors import load_tensors
from mtn.stream import Task
from mtn.training import Learner
from runs import without_timings
from striped_images import SIDE, learner, move_backbone, striped_configuration, write_stripes

TRAINABLE = [name for name in METHODS if find(name).needs.backbone != "none"]


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


def accuracy(it: Learner, task: Task) -> float:
    right = [
        z.argmax(1) == task.test.y[rows]
        for rows, z in inference.predictions(it.method, task.test, it.memory, it.config.method.k)
    ]
    return float(torch.cat(right).float().mean())


@pytest.mark.parametrize("name", TRAINABLE)
def test_every_method_learns_from_images_within_its_budget(name: str, configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure(name))
    for task in tasks[:2]:
        it.learn_task(task)
        remembers = it.method.needs.memory == "exemplars"
        assert len(it.memory) == (32 if remembers else 0)
        assert it.memory.samples().x().dtype == torch.uint8 and it.memory.sample_shape == (SIDE, SIDE, 3)
        for _, z in inference.predictions(it.method, task.test, it.memory, 3):
            assert z.shape[1] == task.seen and z.isfinite().all()
        if not task.index:
            assert accuracy(it, task) > 0.5  # chance is 0.25
    assert not it.method.backbone.training
    assert it.kept()["exemplars"] == (len(it.memory) + sum(map(len, it.past))) * SIDE * SIDE * 3 / 4


def test_gradients_reach_the_backbone_and_the_part_that_a_stage_is_about(configure: Callable[..., Config]) -> None:
    for name, moved in (("mtn", {"guide": ("backbone", "guide"), "head": ("head",)}), ("mtn-unlocked", {})):
        it, tasks = learner(configure(name, train={"epochs": 1}))
        it.learn_task(tasks[0])
        it.begin(tasks[1])
        for stage in it.method.stages(tasks[1]):
            it.method.zero_grad()
            plan = it.prepare(tasks[1], stage)
            sum(it.method(stage, plan.batch(0), tasks[1]).values()).backward()
            reached = {key.split(".")[0] for key, p in it.method.named_parameters() if p.grad is not None}
            assert reached == set(moved.get(stage.name.split(".")[0], ("backbone", "head")))


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_terms_that_hold_features_are_zero_until_the_backbone_moves(
    name: str, configure: Callable[..., Config]
) -> None:
    it, tasks = learner(configure(name, train={"epochs": 1}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    assert isinstance(it.method, Learned) and isinstance(it.teacher, Learned)
    images = plain(tasks[1].train.x(slice(8)))

    def held() -> list[float]:
        with torch.no_grad():
            terms = it.method.head.feature_distillation(
                it.method.features(images), it.teacher.features(images), tasks[1]
            )
        return [float(value) for value in terms.values()]

    assert held() == pytest.approx([0.0] * len(held()), abs=1e-5)
    move_backbone(it.method)
    assert min(held()) > 0.01


def test_the_teacher_answers_with_its_own_backbone(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("mtn", train={"epochs": 1}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    stages = it.method.stages(tasks[1])
    move_backbone(it.method)
    plan = it.prepare(tasks[1], stages[-1])
    known = it.memory.part(it.memory.y < 4)
    answers = [z for _, z in inference.predictions(it.teacher, tasks[1].train, known, 3)]
    torch.testing.assert_close(plan.new.teacher_logits, torch.cat(answers))
    assert not torch.allclose(plan.new.samples.x(), it.teacher.featurise(tasks[1].train).x(), atol=0.01)


RESUMED = [("ssil", 15), ("mtn", 3), ("mtn", 15), ("mtn", 27), ("mtn", 33), ("mtn-unlocked", 15), ("ccil-sd", 15)]
RESUMED += [("adaptation", 15), ("adaptation", 21), ("adaptation", 27), ("der", 15), ("der", 21), ("der", 30)]
RESUMED += [("feature-replay", 15), ("aanets", 15)]


@pytest.mark.parametrize(("name", "stop"), RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one(
    name: str,
    stop: int,
    configure: Callable[..., Config],
    tmp_path: Path,
    whole_runs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stops after so many steps: in the first task (12 a part) or a later one (6), of the backbone or of MTN."""
    monkeypatch.setattr("mtn.methods.learned.REFRESH", 4)
    config = configure(name, train={"epochs": 4})
    if name not in whole_runs:
        result = run(config, tmp_path / "whole")
        whole_runs[name] = result, load_tensors(tmp_path / "whole" / "state.safetensors")[0]
    steps = 0

    def say(what: str, done: int, of: int) -> None:
        nonlocal steps
        steps += "training" in what
        if steps == stop:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config, out, say, save_every=0.0)
    result = run(config, out)
    assert without_timings(result) == without_timings(whole_runs[name][0])
    state = load_tensors(out / "state.safetensors")[0]
    assert state.keys() == whole_runs[name][1].keys()
    for key in state:
        assert torch.equal(state[key], whole_runs[name][1][key]), key


@pytest.fixture(scope="session")
def whole_runs() -> dict[str, Any]:
    return {}


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(configure: Callable[..., Config]) -> None:
    states = []
    for seed in (0, 0, 1):
        it, tasks = learner(with_changes(configure("ssil", train={"epochs": 1}), seed=seed))
        it.learn_task(tasks[0])
        states.append(torch.cat([value.flatten().float() for value in it.method.state_dict().values()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_joint_starts_from_a_new_backbone_and_others_go_on(configure: Callable[..., Config]) -> None:
    for name, goes_on in (("joint", False), ("finetune", True)):
        it, tasks = learner(configure(name, train={"epochs": 1}))
        it.learn_task(tasks[0])
        before = it.method.backbone.conv1.weight.clone()
        it.begin(tasks[1])
        assert torch.equal(before, it.method.backbone.conv1.weight) == goes_on


def test_a_bank_excludes_the_query_grows_stale_and_is_made_anew(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("mtn-unlocked", train={"epochs": 1}))
    it.begin(tasks[0])
    method, memory = it.method, it.memory
    assert isinstance(method, Learned) and isinstance(method.bank, FeatureBank)
    x = memory.featurised(method.featurise).vectors()
    method.train()
    found = method.bank.nearest(x, memory.id, memory, 4, 3, method.featurise)
    assert not (found.x == x[:, None]).all(2).any()  # by id
    assert found.y.max() < 4 and found.mask.all()
    only = method.bank.nearest(x, memory.id, memory, 1, 100, method.featurise)
    assert (only.mask.sum(1)[memory.y == 0] == (memory.y == 0).sum() - 1).all() and not only.y.any()
    move_backbone(method)
    for _ in range(REFRESH - 2):
        method.bank.nearest(x, memory.id, memory, 4, 3, method.featurise)
    assert torch.equal(method.bank.x, x) and method.measured() == {"staleness": 0.0}
    method.bank.nearest(x, memory.id, memory, 4, 3, method.featurise)
    fresh = memory.featurised(method.featurise).vectors()
    assert torch.equal(method.bank.x, fresh)
    assert method.measured()["staleness"] == pytest.approx(float(1 - (x * fresh).sum(1).mean()))


def test_herding_judges_images_by_their_features(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("icarl", memory={"select": "herding"}))
    it.begin(tasks[0])
    features = it.method.featurise(tasks[0].train)
    first = features.x((features.y == 0).nonzero().squeeze(1))
    chosen = it.memory.featurised(it.method.featurise).vectors()[0]
    assert (first @ first.mean(0)).argmax() == (first @ chosen).argmax()


def test_methods_that_keep_sums_of_features_are_refused(configure: Callable[..., Config]) -> None:
    with pytest.raises(InputError, match="'slda' is for frozen features"):
        learner(configure("slda"))


def test_a_method_may_be_given_the_features_of_another(configure: Callable[..., Config]) -> None:
    for features in ("podnet", "ccil"):
        it, _ = learner(configure("mtn", method={"features": features}))
        assert type(it.method.guide) is METHODS[features]
        assert isinstance(it.method.backbone.layer4[-1].relu, torch.nn.Identity) == (features == "podnet")


def test_the_loss_of_the_head_is_not_that_of_the_guide(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("mtn", train={"loss": "balanced", "epochs": 1}))
    it.learn_task(tasks[0])
    assert it.method.guide.config.train.loss is None and it.method.head.config.train.loss == "balanced"


def test_icarl_distils_its_head_and_answers_by_means(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("icarl", train={"epochs": 1}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    plan = it.prepare(tasks[1], it.method.stages(tasks[1])[0])
    batch = plan.batch(0)
    assert batch.teacher is it.teacher and batch.x.dtype == torch.uint8
    _, before = it.teacher.teach("head", plain(batch.x), batch)
    x = it.teacher.features(plain(batch.x)).x
    torch.testing.assert_close(before, it.teacher.head.head(x * x.shape[1] ** 0.5))
    assert not torch.allclose(before, it.teacher.scores(x, None))


def test_a_stage_at_rest_learns_from_vectors(configure: Callable[..., Config]) -> None:
    it, tasks = learner(configure("bic", train={"epochs": 1}))
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    moving, resting = (it.prepare(tasks[1], stage).batch(0) for stage in it.method.stages(tasks[1]))
    assert moving.x.dim() == 4 and moving.teacher_logits is None and moving.teacher is it.teacher
    assert resting.x.dim() == 2 and resting.teacher_logits is not None and resting.teacher is None
    assert it.method.stages(tasks[1])[1].parameters == "head.correction."

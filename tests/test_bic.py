"""BiC: what it holds out, the correction it fits, and the memory it needs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from learners import stages
from mtn.config import Config
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.methods import Batch, make
from mtn.methods.bic import Correction
from mtn.model import rescale
from mtn.samples import Samples
from mtn.stream import Task
from mtn.training import make_optimiser, minimise


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
        optimiser = make_optimiser(method, config.train, correct.parameters)

        def loss(step: int) -> dict[str, Tensor]:
            found = correct.loss(batch, task)
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
    train_learner, memory: dict, held: int
) -> None:
    it = train_learner("bic", 1, memory=memory)
    (first, plan), (second, corrected) = stages(it, 1)
    out = it.method.held_out(it.tasks[1], it.memory)
    assert torch.bincount(it.memory.y[out]).tolist() == [held] * 8
    ids = set(it.memory.id[out].tolist())
    assert first.samples == "task" and second.samples == "held out"
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


def test_bic_finds_out_on_the_way_what_a_reservoir_leaves_it(train_learner) -> None:
    it = train_learner("bic", 1, memory={"total": 12, "select": "reservoir"})
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


def test_bic_distils_from_corrected_scores(train_learner) -> None:
    it = train_learner("bic", 2, train={"epochs": 3})
    _, plan = next(stages(it, 2))
    assert int(it.teacher.correction.start) == 6 and it.teacher.correction.scale.item() != 1.0
    raw = it.teacher.head(rescale(plan.new.samples.x()))
    expected = torch.cat([raw[:, :6], it.teacher.correction.scale * raw[:, 6:] + it.teacher.correction.shift], dim=1)
    torch.testing.assert_close(plan.new.teacher_logits, expected.detach())
    # its own correction begins anew, for the newest classes
    assert [p.item() for p in it.method.correction.parameters()] == [1.0, 0.0] and int(it.method.correction.start) == 8


def test_bic_distillation_from_an_identical_model_is_its_entropy_by_the_share_of_old_classes(train_learner) -> None:
    it = train_learner("bic", 1)
    _, plan = next(stages(it, 1))
    batch = plan.batch(0)
    p = (batch.teacher_logits / 2).softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    torch.testing.assert_close(it.method.loss(batch, it.tasks[1])["distillation"].detach(), 6 / 8 * entropy)


def test_bic_refuses_a_class_with_a_single_sample(train_learner, single_sample_stream: dict) -> None:
    with pytest.raises(InputError, match=r"leaves class number \d+ in order of arrival 1$"):
        train_learner("bic", 3, stream=single_sample_stream)

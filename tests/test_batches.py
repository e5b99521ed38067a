"""A lesson: what each step of a task draws, looks up and is told by the model before."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtn.batches import Sampler, StageBatches, TeacherOnDemand, prepare
from mtn.config import Config
from mtn.data import load_vectors
from mtn.inference import predictions
from mtn.memory import Memory
from mtn.methods import Method, Stage, make
from mtn.neighbours import nearest
from mtn.runtime.rng import generator
from mtn.samples import Samples
from mtn.stream import Task, split


def portion(count: int, size: int, key: tuple = ("seed", 0, "new")) -> Sampler:
    samples = Samples(np.ones((count, 2)), np.arange(count), torch.zeros(count).long(), torch.arange(count))
    return Sampler(samples, size, key)


class Taught:
    """A method, its memory and the lesson of a task, as the loop has them."""

    def __init__(self, config: Config, index: int) -> None:
        torch.manual_seed(0)
        self.config = config
        self.tasks: list[Task] = split(load_vectors(config.stream.data), config.stream)[: index + 1]
        self.memory = Memory(config.memory, self.tasks[0].train.dimension)
        self.method: Method = make(self.tasks[0].train.dimension, config).eval()
        self.teacher: Method | None = None
        for task in self.tasks:
            self.memory.add(task.train, generator(task.index))
            self.teacher = copy.deepcopy(self.method) if self.method.needs.teacher and task.index else None
            self.method.begin_task(task)
        stage = self.method.stages(self.task)[0]
        self.lesson: StageBatches = prepare(
            self.task,
            stage,
            self.method,
            self.teacher,
            self.memory,
            config,
            past=[task.train for task in self.tasks[:-1]],
        )

    @property
    def task(self) -> Task:
        return self.tasks[-1]


@pytest.fixture
def teach(configure) -> Callable[..., Taught]:
    """6 + 2 + 2 + 2 classes of 30 training samples; steps of 32 new and 8 replayed ones; 60 exemplars."""

    def lesson_of(name: str = "ssil", index: int = 1, **sections) -> Taught:
        with torch.random.fork_rng(devices=[]):
            return Taught(configure(**sections | {"method": {"name": name} | sections.get("method", {})}), index)

    return lesson_of


# ---- random numbers


def test_a_generator_depends_on_the_whole_key_and_nothing_else():
    def draw(*key: object) -> list[float]:
        return torch.rand(3, generator=generator(*key)).tolist()

    assert draw(0, 1, "new") == draw(0, 1, "new")
    keys = [(0, 1, "new"), (1, 0, "new"), (0, 1, "replay"), (0, 1), (1, 11), (11, 1)]
    assert len({tuple(draw(*key)) for key in keys}) == 6


# ---- drawing


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 30), data=st.data())
def test_each_pass_draws_each_sample_once(count, data):
    size = data.draw(st.integers(1, count))
    drawn = torch.cat([portion(count, size).rows(step) for step in range(3 * count)])
    assert len(drawn) == 3 * count * size
    for start in range(0, len(drawn), count):
        assert sorted(drawn[start : start + count].tolist()) == list(range(count))


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 30), data=st.data())
def test_the_draw_of_a_step_depends_on_its_number_alone(count, data):
    size = data.draw(st.integers(1, count))
    steps = data.draw(st.lists(st.integers(0, 200), max_size=12))
    used = portion(count, size)
    for step in steps:
        assert torch.equal(used.rows(step), portion(count, size).rows(step))


def test_passes_and_keys_are_shuffled_differently():
    one, other = portion(50, 50), portion(50, 50, ("seed", 1, "new"))
    orders = [one.rows(0), one.rows(1), one.rows(2), other.rows(0)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_a_long_training_does_not_pile_up_permutations():
    used = portion(10, 7)
    for step in range(200):
        used.rows(step)
    assert len(used._permutations) <= 3


# ---- steps


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ({"epochs": 3, "batch": 32}, 6),  # 3 x 60 / 32 = 5.625
        ({"epochs": 2, "batch": 60}, 2),
        ({"epochs": 0.5, "batch": 32}, 1),  # 30 / 32
        ({"epochs": 3, "batch": 32, "min_steps": 5}, 6),
        ({"epochs": 3, "batch": 32, "min_steps": 100}, 100),
        ({"epochs": 0, "batch": 32}, 0),
        ({"epochs": 3, "batch": 1000}, 3),  # a step holds no more than the 60 samples
        ({"epochs": 3, "batch": 32, "max_draws": 40}, 3),  # 2 classes, 80 / 32 = 2.5
        ({"epochs": 3, "batch": 32, "max_draws": 91}, 6),  # the epochs draw 90 of a class
        ({"epochs": 3, "batch": 32, "max_draws": 1, "min_steps": 5}, 5),
    ],
)
def test_steps_are_enough_for_the_epochs_and_at_least_the_floor(teach, train, steps):
    assert teach(train=train).lesson.steps == steps


@pytest.mark.parametrize(
    ("train", "size"),
    [
        ({"batch": 32, "min_steps": 100}, 32),
        ({"batch": 32, "min_steps": 100, "max_draws": 500}, 10),  # 2 classes: 1 000 draws in 100 steps
        ({"batch": 32, "min_steps": 100, "max_draws": 3000}, 32),
        ({"batch": 32, "max_draws": 40}, 32),  # 3 steps of 32 round 80 up
        ({"batch": 32, "min_steps": 1000, "max_draws": 1}, 1),
    ],
)
def test_steps_that_a_task_must_have_draw_less_where_a_class_was_drawn_enough(teach, train, size):
    assert teach(train={"epochs": 3} | train).lesson.new.size == size


def test_steps_count_the_samples_of_the_task(teach):
    assert teach(index=0).lesson.steps == 17  # 3 x 180 / 32 = 16.9
    assert teach("joint", index=1).lesson.steps == 23  # 3 x 240 / 32 = 22.5


def test_the_base_has_half_of_its_steps_at_least(teach):
    for most, steps in ((1, 9), (60, 12), (90, 17)):  # 3 x 180 / 2 / 32 = 8.4; 6 x 60 / 32 = 11.25
        assert teach(index=0, train={"epochs": 3, "batch": 32, "max_draws": most}).lesson.steps == steps


# ---- what a step holds


def test_new_samples_come_first_then_exemplars_of_old_classes(teach):
    taught = teach(index=2)
    old = taught.task.old
    for step in range(10):
        batch = taught.lesson.batch(step)
        assert len(batch.y) == len(batch.x) == taught.lesson.size == 40
        assert (batch.y[:32] >= old).all() and (batch.y[32:] < old).all()


def test_replay_holds_every_old_exemplar_and_nothing_else(teach):
    taught = teach(index=2)
    replay = taught.lesson.replay.samples
    assert sorted(replay.id.tolist()) == sorted(taught.memory.id[taught.memory.y < taught.task.old].tolist())
    assert (replay.y < taught.task.old).all()
    assert len(taught.memory) > len(replay)  # the new classes' exemplars are in the memory already


def test_a_batch_holds_the_vectors_and_labels_of_its_rows(teach):
    taught = teach()
    batch, new, replay = taught.lesson.batch(3), taught.lesson.new, taught.lesson.replay
    rows, old_rows = new.rows(3), replay.rows(3)
    torch.testing.assert_close(batch.x, torch.cat([new.samples.x(rows), replay.samples.x(old_rows)]))
    assert torch.equal(batch.y, torch.cat([new.samples.y[rows], replay.samples.y[old_rows]]))


def test_batches_can_be_taken_in_any_order(teach):
    one, other = teach().lesson, teach().lesson
    expected = [one.batch(step) for step in range(8)]
    for step in (7, 2, 5, 2, 0):
        batch = other.batch(step)
        assert torch.equal(batch.x, expected[step].x) and torch.equal(
            batch.teacher_logits, expected[step].teacher_logits
        )


def test_sizes_larger_than_what_there_is_are_cut(teach):
    taught = teach(train={"batch": 1000, "replay": 1000})
    known = int((taught.memory.y < taught.task.old).sum())
    assert (taught.lesson.new.size, taught.lesson.replay.size) == (60, known)
    batch = taught.lesson.batch(0)
    assert batch.y.bincount(minlength=8).tolist()[6:] == [30, 30]  # the whole task, once
    assert len(batch.y) == 60 + known


@pytest.mark.parametrize(
    ("name", "index", "train"), [("ssil", 0, {}), ("finetune", 1, {}), ("ssil", 1, {"replay": 0}), ("joint", 1, {})]
)
def test_nothing_is_replayed_without_old_classes_or_need(teach, name, index, train):
    taught = teach(name, index, train=train)
    assert taught.lesson.replay is None
    assert taught.lesson.size == 32
    assert (taught.lesson.batch(0).y >= (0 if name == "joint" else taught.task.old)).all()


def test_joint_training_draws_from_all_tasks_so_far(teach):
    taught = teach("joint", 2)
    assert sorted(taught.lesson.new.samples.id.tolist()) == sorted(
        identity for task in taught.tasks for identity in task.train.id.tolist()
    )


# ---- shares


@pytest.mark.parametrize("name", ["ssil", "finetune", "joint"])
@pytest.mark.parametrize("index", [0, 2])
def test_shares_sum_to_one_over_the_seen_classes(teach, name, index):
    taught = teach(name, index)
    assert taught.lesson.class_frequency.shape == (taught.task.seen,)
    assert taught.lesson.class_frequency.sum().item() == pytest.approx(1, abs=1e-6)


def test_shares_are_the_frequencies_of_whole_passes(teach):
    """64 exemplars of 8 classes, 48 of the 6 old ones: four steps of 15 + 12 are one pass of 60 new and of 48 old."""
    taught = teach(train={"batch": 15, "replay": 12}, memory={"total": 64})
    drawn = torch.cat([taught.lesson.batch(step).y for step in range(4)])
    assert drawn.bincount().tolist() == [8] * 6 + [30] * 2
    torch.testing.assert_close(taught.lesson.class_frequency, drawn.bincount() / len(drawn))


def test_shares_are_those_of_new_and_replayed_samples_in_a_step(teach):
    share = teach(train={"batch": 32, "replay": 8}).lesson.class_frequency
    torch.testing.assert_close(share[6:], torch.tensor([0.4, 0.4]))  # 32 of 40, halved
    torch.testing.assert_close(share[:6].sum().item(), 0.2)  # 8 of 40


# ---- neighbours and the model before


def test_neighbours_of_a_batch_are_those_of_its_samples(teach):
    taught = teach("mtn", 1)
    batch, new, replay = taught.lesson.batch(2), taught.lesson.new, taught.lesson.replay
    drawn = [new.samples.select(new.rows(2)), replay.samples.select(replay.rows(2))]
    for samples, rows in zip(drawn, (slice(0, 32), slice(32, 40)), strict=True):
        expected = nearest(samples, taught.memory, 5)[:]
        torch.testing.assert_close(batch.neighbours.x[rows], expected.x)
        assert torch.equal(batch.neighbours.y[rows], expected.y)


def test_no_sample_is_its_own_neighbour(teach):
    taught = teach("mtn", 1)
    for part in taught.lesson.samplers:
        assert not (taught.memory.id[part.neighbours.index.long()] == part.samples.id[:, None]).any()
        assert set(part.samples.id.tolist()) & set(taught.memory.id.tolist())  # it could have been


def test_new_samples_find_new_exemplars_but_the_model_before_does_not(teach):
    taught = teach("mtn", 1)
    part, known = taught.lesson.new, taught.memory.part(taught.memory.y < taught.task.old)
    assert (part.neighbours[:].y >= taught.task.old).any()
    alone = torch.cat([z for _, z in predictions(taught.teacher, part.samples, known, 5)])
    torch.testing.assert_close(part.teacher_logits, alone)
    everything = torch.cat([z for _, z in predictions(taught.teacher, part.samples, taught.memory, 5)])
    assert not torch.allclose(part.teacher_logits, everything, atol=1e-3)


def test_the_model_before_is_asked_in_every_step_where_its_answers_would_not_fit(teach, monkeypatch):
    once = teach("mtn", 1).lesson
    monkeypatch.setattr("mtn.batches.MOST_CACHED_LOGITS", 0)
    stepwise = teach("mtn", 1).lesson
    assert isinstance(stepwise.new.teacher_logits, TeacherOnDemand)
    for step in (0, 5):
        torch.testing.assert_close(stepwise.batch(step).teacher_logits, once.batch(step).teacher_logits)
        assert not stepwise.batch(step).teacher_logits.requires_grad


def test_the_model_before_answers_for_the_old_classes_without_gradient(teach):
    taught = teach(index=2)
    batch = taught.lesson.batch(0)
    assert batch.teacher_logits.shape == (40, taught.task.old) and not batch.teacher_logits.requires_grad
    torch.testing.assert_close(batch.teacher_logits, taught.teacher.scores(batch.x, None).detach())


@pytest.mark.parametrize("name", ["finetune", "joint"])
def test_methods_are_given_only_what_they_ask_for(teach, name):
    batch = teach(name).lesson.batch(0)
    assert batch.neighbours is None and batch.teacher_logits is None


@pytest.mark.parametrize("method", [{}, {"labels": True}, {"readout": "nn"}, {"readout": "mix"}])
def test_a_memory_without_any_old_exemplar_is_enough_for_a_lesson(teach, method):
    """A small reservoir may lose all of them."""
    taught = teach("mtn", 1, method=method)
    memory = Memory(taught.config.memory, taught.task.train.dimension)
    memory.add(taught.task.train, generator(0))
    lesson = prepare(taught.tasks[-1], Stage(taught.method.loss), taught.method, taught.teacher, memory, taught.config)
    assert lesson.replay is None
    assert lesson.batch(0).teacher_logits.isfinite().all()


def test_predictions_cover_every_sample_once(teach):
    taught = teach("mtn", 1)
    samples = taught.tasks[0].train
    parts = list(predictions(taught.method, samples, taught.memory, 5))
    assert [rows for rows, _ in parts] == list(samples.chunks())
    z = torch.cat([z for _, z in parts])
    assert z.shape == (180, 8) and not z.requires_grad

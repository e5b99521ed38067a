"""One contract, run over every method of the table: a new one is tested for free."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mtn import inference
from mtn.config import Config
from mtn.data import load_vectors
from mtn.errors import InputError
from mtn.experiments.run import StreamTrainer, run
from mtn.methods import METHODS, Method, Stage, find, make
from mtn.neighbours import Neighbours, nearest
from mtn.protocols import STREAMS
from mtn.recipes import with_changes
from mtn.runtime.progress import silent
from mtn.samples import Data, Samples
from mtn.search import bit_codes
from mtn.stream import Task, split
from mtn.training import Learner

VARIANTS = [
    *METHODS,
    "mtn labels",
    "mtn nn",
    "mtn mix",
    "mtn query",
    "mtn rankless",
    "mtn ce",
    "mtn balanced",
    "mtn ccil",
    "mtn adamw",
    "ranpac auto",
    "tests.test_methods:NearestMean",
]
OPTIONS = {
    "labels": {"method": {"labels": True}},
    "nn": {"method": {"readout": "nn", "labels": True}},
    "mix": {"method": {"readout": "mix"}},
    "query": {"method": {"readout": "query"}},
    "rankless": {"method": {"rank": False}},
    "ce": {"train": {"loss": "ce"}},
    "ccil": {"train": {"loss": "ccil"}},
    "auto": {"method": {"strength": "auto", "units": 50}},
    "balanced": {"train": {"loss": "balanced"}},
    "adamw": {"train": {"optimizer": "adamw", "lr": 0.001, "epochs": 10}},
}


class NearestMean(Method):
    """A user's own method, named package.module:Class: the mean of each class's exemplars."""

    class_rows = ("means",)
    means: torch.Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("means", torch.zeros(0, dimension))

    def stages(self, task):
        return ()

    def end_task(self, task, memory) -> None:
        total = torch.zeros(task.seen, self.dimension).index_add_(0, memory.y, memory.vectors())
        self.means = total / torch.bincount(memory.y, minlength=task.seen).clamp(min=1)[:, None]

    def scores(self, x, neighbours):
        return x @ self.means.T


@pytest.fixture(params=VARIANTS)
def config(request, configure: Callable[..., Config]) -> Config:
    name, _, option = request.param.partition(" ")
    return with_changes(configure(method={"name": name}), **OPTIONS.get(option, {}))


def learner(config: Config, tmp_path: Path) -> tuple[Learner, list[Task], StreamTrainer]:
    tasks = split(load_vectors(config.stream.data), config.stream)
    whole = StreamTrainer(config, tasks, tmp_path / "state.safetensors", silent, save_every=1e9)
    return whole.learner, tasks, whole


def test_gradient_reaches_every_trainable_parameter(config: Config, tmp_path: Path) -> None:
    """In one stage or another of the second task."""
    it, tasks, _ = learner(config, tmp_path)
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    reached = set()
    for stage in it.method.stages(tasks[1]):
        it.method.begin_stage()
        it.method.zero_grad()
        plan = it.prepare(tasks[1], stage)
        sum(stage.loss(plan.batch(0), tasks[1]).values()).backward()
        for name, parameter in it.method.named_parameters():
            if parameter.grad is not None:
                assert parameter.grad.isfinite().all(), name
                reached |= {name} if parameter.grad.any() else set()
    trainable = {name for name, p in it.method.named_parameters() if p.requires_grad and p.numel()}
    assert reached == trainable


def test_memory_within_budget_scores_for_seen_classes_only_and_better_than_chance(
    config: Config, tmp_path: Path
) -> None:
    it, tasks, whole = learner(config, tmp_path)
    for task in tasks:
        it.learn_task(task)
        remembers = it.method.needs.memory == "exemplars"
        assert len(it.memory) == (60 if remembers else 0)  # exactly M: the first task has 180 samples already
        assert sorted(it.memory.y.unique().tolist()) == (list(range(task.seen)) if remembers else [])
        for _, z in inference.predictions(it.method, task.test, it.memory, config.method.k):
            assert z.shape[1] == task.seen and z.isfinite().all()
    correct = whole.evaluate(tasks[-1])
    assert correct.sum() > 1.5 * 10  # 120 test samples, 12 classes: chance is 10
    check_shares(it, tasks[-1].test)


@torch.no_grad()
def check_shares(it: Learner, samples: Samples) -> None:
    """The parts that a method names for `explain` sum to its scores."""
    near = nearest(samples, it.memory, it.config.method.k)[:] if it.method.needs.neighbours else None
    shares = it.method.shares(samples.x(), near)
    assert all(name and part.shape == (len(samples), int(it.method.seen)) for name, part in shares.items())
    torch.testing.assert_close(sum(shares.values()), it.method.scores(samples.x(), near), rtol=1e-5, atol=1e-4)


def test_the_same_seed_gives_the_same_result_and_another_seed_another(config: Config, tmp_path: Path) -> None:
    results = [run(with_changes(config, seed=seed), tmp_path / name) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    for result in results:
        for key in ("seconds", "processor_seconds", "train_samples_per_second", "peak_memory_mb"):
            result.pop(key)
    assert results[0] == results[1]
    states = [(tmp_path / name / "state.safetensors").read_bytes() for name in "abc"]
    assert states[0] != states[2]


def test_one_new_class_at_a_time_and_classes_with_one_sample_are_learned_without_error(
    config: Config, tmp_path: Path
) -> None:
    single = with_changes(config, stream={"first": 6, "step": 1}, memory={"total": 24})
    it, tasks, whole = learner(single, tmp_path)
    for task in tasks[:3]:
        it.learn_task(task)
        assert whole.evaluate(task).shape == (task.seen,)


def test_unknown_method_foreign_class_and_loss_of_another_method_are_refused(configure: Callable[..., Config]) -> None:
    with pytest.raises(InputError, match="did you mean 'ssil'"):
        find("ssill")
    with pytest.raises(InputError, match="cannot be imported"):
        find("no.such:Thing")
    with pytest.raises(InputError, match="subclass"):
        find("pathlib:Path")
    with pytest.raises(InputError, match=r"train\.loss = 'balanced': method 'ssil' takes ss"):
        make(4, configure(method={"name": "ssil"}, train={"loss": "balanced"}))


def test_mtn_reads_its_neighbours(configure: Callable[..., Config], tmp_path: Path) -> None:
    """Neighbours that belong to other queries make its answers worse: it does not look at the query alone."""
    it, tasks, _ = learner(configure(train={"epochs": 20}, method={"size": "small"}), tmp_path)
    it.learn_task(tasks[0])
    test = tasks[0].test
    found = nearest(test, it.memory, 5)[slice(None)]
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    mixed = Neighbours(found.x[order], found.y[order], found.similarity[order], found.mask[order], found.full)
    with torch.no_grad():
        right, wrong = (
            float((it.method.scores(test.x(), near).argmax(1) == test.y).float().mean()) for near in (found, mixed)
        )
    assert right > 0.8
    assert wrong < right - 0.1


def test_the_teacher_asks_only_exemplars_it_knows(configure: Callable[..., Config], tmp_path: Path) -> None:
    it, tasks, _ = learner(configure(), tmp_path)
    it.learn_task(tasks[0])
    it.begin(tasks[1])
    plan = it.prepare(tasks[1], Stage(it.method.loss))
    known = it.memory.part(it.memory.y < 6)
    rows = torch.arange(20)
    with torch.no_grad():
        expected = it.teacher.scores(plan.new.samples.x(rows), nearest(plan.new.samples, known, 5)[rows])
    torch.testing.assert_close(plan.new.teacher_logits[rows], expected)
    assert expected.shape[1] == 6


SURPRISES = [
    ("more of known classes beside new ones", [[0, 1, 6, 7]]),
    ("no new class", [[2, 3]]),
    ("one class", [[6], [7]]),
    ("a class with one sample", [[0, 6]]),
]


def surprise(groups: list[list[int]], source: Samples, single: int | None) -> Iterator[Task]:
    """Six classes, then whatever comes: labels count on, ids too."""
    spans: list[slice] = []
    for index, group in enumerate([[0, 1, 2, 3, 4, 5], *groups]):
        seen = spans[-1].stop if spans else 0
        spans.append(slice(seen, max(seen, max(group) + 1)))
        rows = torch.cat([(source.y == label).nonzero().squeeze(1)[10 * index : 10 * index + 10] for label in group])
        part = source.select(rows)
        if single is not None and index:
            part = part.select((part.y != single) | (part.id == part.id[part.y == single][0]))
        yield Task(index, tuple(spans), tuple(map(str, range(seen, spans[-1].stop))), part, part)


@pytest.mark.parametrize(("situation", "groups"), SURPRISES, ids=[name for name, _ in SURPRISES])
def test_tasks_nobody_announced(config: Config, situation: str, groups: list[list[int]]) -> None:
    """And a class that is forgotten in between: training goes on, and every score stays finite."""
    data = load_vectors(config.stream.data)
    it = Learner(config, data.train.dimension)
    single = 6 if situation == "a class with one sample" else None
    for task in surprise(groups, data.train, single):
        if task.index == len(groups):
            it.forget(4)
        if single and config.method.name == "bic" and task.index:
            with pytest.raises(InputError, match="needs 2 exemplars of each class"):
                it.learn_task(task)
            return
        it.learn_task(task)
    assert 4 not in it.memory.y
    for _, z in inference.predictions(it.method, data.test, it.memory, config.method.k):
        assert z.shape[1] == task.seen and z.isfinite().all()


def test_a_first_task_of_one_class_and_one_sample(config: Config) -> None:
    data = load_vectors(config.stream.data)
    one = data.train.select(data.train.y == 0).select(torch.tensor([0]))
    it = Learner(config, data.train.dimension)
    it.learn_task(Task(0, (slice(0, 1),), ("0",), one, one))
    for _, z in inference.predictions(it.method, data.test, it.memory, config.method.k):
        assert z.shape[1] == 1 and z.isfinite().all()


# ---- every method with every kind of memory

MEMORIES = {
    "float16": {"precision": "float16"},
    "herding": {"select": "herding"},
    "reservoir": {"select": "reservoir"},
    "approximate": {"search": "approximate"},
    "milvus": {"store": "milvus", "uri": "memory.db"},
}


FIRST_WITH_NEEDS = {find(name).needs: name for name in reversed(METHODS)}
"""All that a method sees of a memory is what it needs of the loop."""


def kinds(name: str) -> list[str]:
    """One is enough for a method that keeps no exemplars; Milvus, which takes long, is for the first with its needs."""
    needs = find(name).needs
    if needs.memory != "exemplars":
        return ["float16"]
    return [kind for kind in MEMORIES if kind != "milvus" or FIRST_WITH_NEEDS[needs] == name]


@pytest.mark.parametrize(("name", "memory"), [(name, memory) for name in METHODS for memory in kinds(name)])
def test_every_method_learns_with_every_memory(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, memory: str
) -> None:
    """Two tasks, in a run that is saved: scores are finite, better than chance, and of all seen classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bit_codes, "MINIMUM", 8)  # so that a small memory is searched by the index
    sections = {"memory": {"total": 120} | MEMORIES[memory], "stream": {"first": 6, "step": 6}}
    config = configure(method={"name": name}, train={"epochs": 2, "min_steps": 20}, **sections)
    it, tasks, whole = learner(config, tmp_path)
    for task in tasks:
        it.learn_task(task)
        whole._save()
    z = torch.cat([part for _, part in inference.predictions(it.method, tasks[0].test, it.memory, config.method.k)])
    assert z.shape[1] == 12 and z.isfinite().all()
    if name != "finetune":  # which forgets
        assert (z[:, :6].argmax(1) == tasks[0].test.y).float().mean() > 0.4
    assert len(it.memory) <= 120


# ---- every method on every kind of stream


@pytest.mark.parametrize("kind", STREAMS)
def test_every_method_learns_every_kind_of_stream(configure: Callable[..., Config], kind: str) -> None:
    """Whatever comes in a task: all seen classes have finite scores, and a method without training is right."""
    options = {"online": {"samples": 36}, "long-tail": {"ratio": 4.0}}.get(kind, {})
    sections = {"stream": {"kind": kind, "first": 6, "step": 6} | options, "memory": {"total": 48}}
    sections["train"] = {"epochs": 1, "batch": 64}
    data = load_vectors(configure().stream.data)
    few = Data(data.train.select(torch.arange(0, len(data.train), 3)), None, data.test, data.names)
    tasks = split(few, configure(**sections).stream)
    tested = next(task.test for task in reversed(tasks) if task.new)
    own = tested.y.unique()
    for name in METHODS:
        config = configure(method={"name": name}, **sections)
        it = Learner(config, few.train.dimension)
        for task in tasks:
            it.learn_task(task)
        z = torch.cat([part for _, part in inference.predictions(it.method, tested, it.memory, config.method.k)])
        assert z.shape == (len(tested), 12) and z.isfinite().all(), name
        assert len(it.memory) <= 48 and (len(it.memory) > 40) == (it.method.needs.memory == "exemplars"), name
        if not it.effort.trained_samples:
            assert (own[z[:, own].argmax(1)] == tested.y).float().mean() > 0.6, name

"""Kinds of streams: which samples come in which task, what a class's first task is, and what each kind promises."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtn.config import Config, Stream
from mtn.errors import InputError
from mtn.experiments import metrics, stream_ranks
from mtn.experiments.run import run
from mtn.protocols import STREAMS
from mtn.recipes import parse, recipe, with_changes
from mtn.samples import Data, Samples
from mtn.stream import Task, split

CLASSES, EACH = 8, 20
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "streams.md"


def clusters(each: int = EACH) -> Data:
    """8 classes; the vectors of a class have four directions of their own."""
    y = torch.arange(CLASSES).repeat_interleave(each)
    x = np.zeros((len(y), 40), np.float32)
    x[np.arange(len(y)), 4 * y.numpy() + np.arange(len(y)) % 4] = 1
    x[:, 32:] = np.eye(8)[y] * 2
    train = Samples(x, np.arange(len(y)), y, torch.arange(len(y)))
    test = Samples(x, np.arange(len(y))[::4], y[::4], torch.arange(len(y))[::4] + 10_000)
    return Data(train, None, test, [f"class {label}" for label in range(CLASSES)])


def tasks_of(kind: str, each: int = EACH, **options: Any) -> list[Task]:
    return split(clusters(each), STREAMS[kind](data="unused", first=4, step=2, **options))


def ids(tasks: list[Task]) -> list[int]:
    return [number for task in tasks for number in task.train.id.tolist()]


@pytest.mark.parametrize("kind", STREAMS)
def test_every_kind_is_a_stream_of_tasks(kind: str) -> None:
    tasks = tasks_of(kind)
    assert [task.index for task in tasks] == list(range(len(tasks))) and tasks[0].old == 0
    names = [name for task in tasks for name in task.names]
    assert sorted(names) == [f"class {label}" for label in range(CLASSES)]
    assert len(set(ids(tasks))) == len(ids(tasks)), "a sample comes once"
    for before, task in itertools.pairwise(tasks):
        assert task.spans[:-1] == before.spans and task.old == before.seen and task.new == len(task.names)
    for task in tasks:
        assert len(task.train) and int(task.train.y.max()) < task.seen
        assert set(range(task.old, task.seen)) <= set(task.train.y.tolist()), "a new class has a sample"
        assert task.test.y.unique().tolist() == list(range(task.old, task.seen))
        true = [names.index(f"class {number % 10_000 // EACH}") for number in task.test.id.tolist()]
        assert task.test.y.tolist() == true, "test labels follow the order of arrival"
    again = tasks_of(kind)
    assert all(torch.equal(a.train.id, b.train.id) for a, b in zip(tasks, again, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in STREAMS if kind not in ("long-tail", "few-shot")])
def test_nothing_is_dropped_where_nothing_is_promised_to_be(kind: str) -> None:
    assert sorted(ids(tasks_of(kind))) == list(range(CLASSES * EACH))


@pytest.mark.parametrize("kind", [kind for kind in STREAMS if kind != "noisy"])
def test_labels_are_right_but_where_noise_is_asked_for(kind: str) -> None:
    tasks = tasks_of(kind)
    names = [name for task in tasks for name in task.names]
    for task in tasks:
        assert [names[y] for y in task.train.y.tolist()] == [f"class {i // EACH}" for i in task.train.id.tolist()]


def test_blurry_moves_a_share_of_each_class_to_other_tasks() -> None:
    tasks, blocks = tasks_of("blurry", share=0.3), tasks_of("blocks")
    home = {number: task.index for task in blocks for number in task.train.id.tolist()}
    moved = [number for task in tasks for number in task.train.id.tolist() if home[number] != task.index]
    assert np.bincount(np.array(moved) // EACH).tolist() == [6] * CLASSES
    assert len(tasks) == 3 and len(tasks[0].names) > 4, "classes of later blocks have samples in the first task"


def test_online_brings_small_portions_of_one_block_after_the_other() -> None:
    tasks, blocks = tasks_of("online", samples=30), tasks_of("blocks")
    assert [len(task.train) for task in tasks] == [30, 30, 20, 30, 10, 30, 10]
    assert set(ids(tasks[:3])) == set(blocks[0].train.id.tolist())
    with pytest.raises(InputError, match=r"stream\.samples must be at least \d+ for 2400 samples, got 1"):
        tasks_of("online", each=300, samples=1)


def test_long_tail_is_exponential_with_the_ratio_asked_for() -> None:
    counts = sorted(np.bincount(np.array(ids(tasks_of("long-tail", each=100, ratio=50.0))) // 100).tolist())
    assert counts == sorted(round(100 * 50 ** (-rank / 7)) for rank in range(CLASSES))
    assert counts[0] == 2 and counts[-1] == 100
    assert min(np.bincount(np.array(ids(tasks_of("long-tail", each=2))) // 2)) == 1, "no class is lost"


def test_few_shot_keeps_the_base_and_a_few_of_each_later_class() -> None:
    tasks = tasks_of("few-shot", shots=3)
    assert [torch.bincount(task.train.y)[task.old :].tolist() for task in tasks] == [[EACH] * 4, [3, 3], [3, 3]]


def test_repeat_brings_all_tasks_again_with_other_samples() -> None:
    tasks = tasks_of("repeat", times=2)
    assert [task.new for task in tasks] == [4, 2, 2, 0, 0, 0]
    for first, second in zip(tasks[:3], tasks[3:], strict=True):
        assert first.train.y.unique().tolist() == second.train.y.unique().tolist()
        assert torch.bincount(second.train.y).max() == EACH // 2


def test_drift_holds_whole_clusters_back() -> None:
    tasks = tasks_of("drift", clusters=4)
    assert [task.new for task in tasks] == [4, 2, 2, 0, 0, 0]
    early, late = ({(i // EACH, i % 4) for i in ids(part)} for part in (tasks[:3], tasks[3:]))
    assert not early & late and len(early) == len(late) == 2 * CLASSES


def test_noisy_gives_a_share_of_each_class_a_wrong_label_that_is_known_by_then() -> None:
    tasks = tasks_of("noisy", share=0.25)
    names = [name for task in tasks for name in task.names]
    wrong = [
        (number // EACH, names[y])
        for task in tasks
        for number, y in zip(task.train.id.tolist(), task.train.y.tolist(), strict=True)
        if names[y] != f"class {number // EACH}"
    ]
    assert np.bincount([true for true, _ in wrong]).tolist() == [5] * CLASSES


# ---- configuration


def test_blocks_are_written_as_before_there_were_other_kinds() -> None:
    config = recipe("demo")
    assert "kind" not in config.model_dump()["stream"] and type(config.stream) is Stream


def test_a_kind_survives_being_written_and_changed() -> None:
    config = recipe("demo", ["stream.kind=blurry", "stream.share=0.3"])
    assert config.stream.model_dump()["kind"] == "blurry" and config.stream.model_dump()["share"] == 0.3
    assert with_changes(config, seed=3).stream == config.stream
    assert parse(json.loads(json.dumps(config.model_dump(exclude_none=True))), "test") == config
    assert config.digest() != recipe("demo").digest() != recipe("demo", ["stream.kind=noisy"]).digest()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["stream.kind=blury"], ["stream.kind", "'blury'", "did you mean 'blurry'?"]),
        (["stream.kind=blurry", "stream.share=2.0"], ["stream.share", "less than 1", "2.0"]),
        (["stream.kind=blurry", "stream.shots=2"], ["stream.shots is for", '"few-shot"', "'blurry'"]),
        (["stream.share=0.5"], ["stream.share is for", '"blurry" or "noisy"', "'blocks'"]),
        (["stream.kind=online", "stream.sampels=2"], ["unknown key", "stream.samples"]),
        (["stream.kind=3"], ["stream.kind", "string"]),
    ],
)
def test_a_wrong_option_names_the_key_and_the_rule(changes: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        recipe("demo", changes)
    assert all(word in str(error.value) for word in words), str(error.value)


# ---- metrics, and a run


def test_extra_metrics_by_hand() -> None:
    correct, total = [np.array([8, 2]), np.array([6, 4, 1])], np.array([10, 5, 4])
    # class means: (80 + 40) / 2 = 60 and (60 + 80 + 25) / 3 = 55
    assert metrics.average_balanced_accuracy(correct, total, [2, 1]) == pytest.approx(57.5)
    # base 10 of 15, later 1 of 4: 2 x 66.67 x 25 / 91.67
    assert metrics.harmonic_accuracy(correct, total, [2, 1]) == pytest.approx(36.3636, abs=1e-4)
    assert metrics.harmonic_accuracy(correct[:1], total[:2], [2]) is None


@pytest.mark.parametrize(
    ("kind", "extra"), [("few-shot", "harmonic_accuracy"), ("long-tail", "average_balanced_accuracy")]
)
def test_a_run_reports_what_its_kind_asks_for(
    kind: str, extra: str, configure: Callable[..., Config], tmp_path: Path
) -> None:
    config = configure(stream={"kind": kind}, method={"name": "slda"})
    result = run(config, tmp_path / kind)
    assert 0 < result[extra] <= 100 and result["config"]["stream"]["kind"] == kind
    assert run(config, tmp_path / kind) == result


def test_a_run_of_a_repeated_stream_counts_tasks_without_a_new_class(
    configure: Callable[..., Config], tmp_path: Path
) -> None:
    result = run(configure(stream={"kind": "repeat"}, method={"name": "er"}), tmp_path / "run")
    assert result["classes_per_task"] == [6, 2, 2, 2, 0, 0, 0, 0]
    assert len(result["accuracy"]) == 8 and result["newest_accuracy"][4:] == [None] * 4


# ---- several kinds side by side


def test_ranks_by_hand() -> None:
    def runs(kind: str, **accuracy: float) -> list[dict[str, Any]]:
        return [{"method": method, stream_ranks.metric_of(kind): value} for method, value in accuracy.items()]

    results = {"blocks": runs("blocks", a=90.0, b=80.0, c=80.0), "few-shot": runs("few-shot", a=10.0, b=30.0)}
    table = stream_ranks.accuracies(results)
    assert stream_ranks.ranks(table, list(results)) == {"b": [2.5, 1.0], "a": [1.0, 2.0], "c": [2.5, 3.0]}
    assert "| b | 80.0 | 30.0 | 1.8 |" in stream_ranks.markdown(table, list(results))
    assert "few-shot: harmonic_accuracy" in stream_ranks.markdown(table, list(results))


def test_the_command_ranks_methods_on_several_kinds(
    call: Callable[..., tuple[int, str, str]], clusters: Path, tmp_path: Path
) -> None:
    sets = [f"stream.data={clusters}", "stream.first=6", "stream.step=2", "memory.total=60", "stream.shots=2"]
    words = [word for text in sets for word in ("--set", text)]
    command = ["compare", "demo", "--methods", "slda,ncm", "--streams", "blocks,few-shot,repeat", "--jobs", "1", *words]
    code, said, errors = call(*command, "--out", "ranks")
    assert code == 0 and "mean rank" in said and "slda" in said, errors
    assert {path.name for path in (tmp_path / "ranks").iterdir()} >= {"blocks", "few-shot", "repeat", "streams.png"}
    shots = json.loads((tmp_path / "ranks/few-shot/results.json").read_text())[0]["config"]["stream"]["shots"]
    assert shots == 2
    assert call(*command, "--out", "ranks")[0] == 0, "it goes on from what is there"
    code, _, errors = call("compare", "demo", "--streams", "blocks,blury")
    assert code == 2 and "did you mean 'blurry'?" in errors


def test_a_method_that_cannot_run_on_one_kind_does_not_stop_the_others(
    call: Callable[..., tuple[int, str, str]], clusters: Path, tmp_path: Path
) -> None:
    sets = [f"stream.data={clusters}", "stream.first=6", "stream.step=2", "memory.total=60", "stream.shots=1"]
    words = [word for text in [*sets, "train.min_steps=1", "train.epochs=1"] for word in ("--set", text)]
    command = ["compare", "demo", "--methods", "bic,ncm", "--streams", "few-shot,repeat", "--jobs", "1", *words]
    code, _, errors = call(*command, "--out", "ranks")
    assert code == 2 and "few-shot: bic-seed0: method 'bic' needs 2 exemplars of each class" in errors
    found = {kind: json.loads((tmp_path / f"ranks/{kind}/results.json").read_text()) for kind in ("few-shot", "repeat")}
    assert [[result["method"] for result in results] for results in found.values()] == [["ncm"], ["bic", "ncm"]]


# ---- one's own, as the page says


def test_the_page_lists_every_kind_with_its_option_and_default() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (?:`(.+?)`|)", PAGE.read_text("utf-8"), re.M))
    for kind, section in STREAMS.items():
        own = {name: field.default for name, field in section.model_fields.items() if name not in Stream.model_fields}
        assert rows[kind] == "".join(f"stream.{name} = {default}" for name, default in own.items())


def test_the_pages_stream_of_ones_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    page = PAGE.read_text("utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "my_streams.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = re.findall(r"^\$ mtn (run .*my_streams.*)$", page, re.M)[0].split()
    small = ["--set", f"stream.data={clusters}", "--set", "stream.first=6", "--set", "stream.step=2", "--out", "own"]
    code, _, errors = call(*command, *small)
    assert code == 0, errors
    result = json.loads((tmp_path / "own" / "result.json").read_text())
    assert result["classes_per_task"] == [6, 2, 2, 2, 0] and result["config"]["stream"]["share"] == 0.5


def test_a_stream_that_a_file_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "payload_stream.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    values = recipe("demo").model_dump(exclude_none=True)
    values["stream"] |= {"kind": "payload_stream:Evil"}
    with pytest.raises(InputError, match="import payload_stream first"):
        parse(values, "a file", import_methods=False)

"""The paper's tables and figures on small data: what is run, what is not run again, and the command."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cluster_data import cluster_arrays
from grids import CLASSES, brief, make, rows
from mtn import config
from mtn.errors import InputError
from mtn.experiments import report
from mtn.experiments.paper import grid, size, timing
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.run import StreamTrainer, run
from mtn.methods.mtn import TransformerOptions
from mtn.recipes import with_changes
from mtn.stream import Task
from mtn.training import Learner

# ---- what is run


@pytest.mark.parametrize(
    ("rest", "middle", "expected"),
    [(500, 100, (50, 100, 250)), (75, 15, (5, 15, 25)), (51, 17, (3, 17, 51)), (100, None, (10, 20, 50)),
     (10, None, (1, 2, 5)), (7, None, (1, 7)), (1, None, (1,))],
)  # fmt: skip
def test_classes_a_task_are_the_papers_shares_of_what_comes_after_the_base(
    rest: int, middle: int | None, expected: tuple[int, ...]
) -> None:
    assert grid.task_sizes(rest, middle) == expected
    assert all(rest % size == 0 for size in expected)


def test_a_recipe_gives_the_sizes_and_the_paper_all_else(tmp_path: Path) -> None:
    arrays = cluster_arrays(classes=150, train=4, test=1)
    np.savez(tmp_path / "clinc150_minilm.npz", **arrays)
    found = grid.grid_setup(str(tmp_path / "clinc150_minilm.npz"), [0])
    assert (found.config.stream.first, found.middle, found.steps) == (75, 15, (5, 15, 25))
    assert (found.config.memory.total, found.config.train) == (1500, config.Train())  # as the paper has it
    demo = grid.grid_setup("glyphs", [0])
    assert (demo.config.stream.data, demo.config.memory.total, demo.middle) == ("glyphs-200", 2000, 20)
    assert (demo.config.method, demo.config.train.loss) == (TransformerOptions(), None)  # not the demo's own
    own = grid.grid_setup(str(tmp_path / "clinc150_minilm.npz"), [0]).config
    assert own.method == TransformerOptions()
    runs = [run for one in grid.grid_points("tasks", found) if one.series == "MTN" for run in one.runs]
    assert all((run.method, run.train) == (TransformerOptions(), config.Train()) for run in runs) and runs


def test_the_table_has_both_blocks_and_the_papers_numbers(grid_data: Path) -> None:
    points = grid.grid_points("table1", grid.grid_setup(str(grid_data), [0, 1, 2]))
    assert {(one.block, len(one.runs)) for one in points} == {(grid.LEARNED, 0), (grid.FROZEN, 3), (grid.OTHERS, 3)}
    points = grid.grid_points("table1", grid.grid_setup("glyphs", [0, 1, 2], images="glyphs"))
    runs = [run for one in points if one.block == grid.LEARNED for run in one.runs]
    assert {run.method.name for run in runs} == {"podnet", "ccil", "ssil", "mtn"} and len(runs) == 4 * 3 * 3
    assert all(run.images.side and run.stream.data == "glyphs-200" and run.memory.total == 2000 for run in runs)
    for block, columns in grid.paper_table1().items():
        for printed in columns.values():
            assert printed.keys() <= grid.BLOCKS[block].keys()
    assert grid.paper_table1()[grid.FROZEN]["ImageNet-1k, SimCLR"]["MTN"] == "69.5 / 70.7 / 73.3"
    assert grid.paper_table1()[grid.LEARNED]["ImageNet-1k, ResNet-18"]["PODNet"] == "64.1 / 67.0 / –"


def test_what_is_varied_differs_and_what_targets_share_is_one_cell(grid_data: Path) -> None:
    setting = grid.grid_setup(str(grid_data), [0])
    cells = {}
    for name in TARGETS:
        digests = [run.digest() for point in grid.grid_points(name, setting) for run in point.runs]
        assert len(set(digests)) == len(digests)
        cells[name] = set(digests)
    base = cells["qualitative"]
    assert all(base <= cells[name] for name in ("table1", "tasks", "neighbours", "memory", "rank", "labels", "readout"))
    lengths = [(point.value, point.runs[0].train) for point in grid.grid_points("schedule", setting)]
    assert [at for at, _ in lengths] == [2, 5, 10, 400, 1600] * 2  # 60 samples a task, all of them in one step


@pytest.mark.parametrize(
    ("data", "blocks"),
    [
        ("glyphs-4x130", {"easy": "glyphs-4x130", "hard": "glyphs-4x130-hard"}),
        ("glyphs-4x130-hard", {"easy": "glyphs-4x130", "hard": "glyphs-4x130-hard"}),
    ],
)
def test_size_has_a_glyphs_set_easy_and_hard_with_few_images_first(
    data: str, blocks: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTN_CACHE", str(tmp_path))
    setup = grid.grid_setup(data, [0, 1])
    points = grid.grid_points("size", setup)
    assert [(one.value, one.block, one.series) for one in points] == list(
        itertools.product((25, 100, 130), blocks, grid.SIZE_METHODS)
    )
    assert (setup.config.memory.total, setup.config.stream.first) == (80, 2)
    for one in points:
        for own in one.runs:
            assert own.stream.data == blocks[one.block]
            assert own.stream.per_class == (None if one.value == 130 else one.value)  # whole: shared with other targets


def test_differences_are_of_runs_of_the_same_seed() -> None:
    def point(series: str, averages: dict[int, float]) -> grid.PointResults:
        results = [{"seed": seed, "average_incremental_accuracy": one} for seed, one in averages.items()]
        return grid.PointResults(grid.GridPoint(series, 25, block="hard"), results)

    found = size.differences([point("MTN", {0: 60.0, 1: 63.0, 2: 9.0}), point("SS-IL", {0: 59.0, 1: 60.0})])
    assert found == {"hard": {"MTN - SS-IL": {25: report.MeanStd(2.0, pytest.approx(2**0.5))}}}


def test_size_is_drawn_when_one_method_alone_has_been_run(
    grid_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "SIZE_METHODS", {"SS-IL": "ssil", "slda": "slda"})
    make(brief(grid_data), ["size"], tmp_path / "out", limit=0.0, also=["size/slda/25"])
    assert "| slda | 25 | 1 |" in (tmp_path / "out/size/table.md").read_text()


# ---- what is not run again, and what is not run


@pytest.mark.parametrize("method", ["mtn", "bic", "joint"])
def test_runs_share_their_first_task_and_end_as_if_they_did_not(
    method: str, configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    original = Learner.learn_task

    def counted(self: Learner, task: Task, *rest: object) -> None:
        learned.append(task.index)
        original(self, task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "learn_task", counted)
    for step in (2, 3):
        config = configure(method={"name": method}, stream={"step": step})
        own = run(config, tmp_path / f"own{step}")
        shared = run(config, tmp_path / f"shared{step}", first_tasks=tmp_path / "first")
        for result in (own, shared):
            assert result.pop("seconds")["training"] > 0
            for name in ("processor_seconds", "peak_memory_mb", "train_samples_per_second"):
                del result[name]
        assert shared == own
    assert learned == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 1, 2]


def test_other_values_or_seeds_do_not_share_a_first_task(configure, tmp_path: Path) -> None:
    changes = ({}, {"seed": 1}, {"memory": {"total": 30}}, {"stream": {"first": 4}}, {"stream": {"step": 3}})
    for number, change in enumerate(changes):
        run(configure(method={"name": "ncm"}, **change), tmp_path / str(number), first_tasks=tmp_path / "first")
    assert len(list((tmp_path / "first").iterdir())) == 4  # the last is of the first's


def test_interrupted_and_started_again_a_grid_repeats_no_finished_cell(
    grid_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, begun = brief(grid_data), []
    original = StreamTrainer.learn

    def counted(self: StreamTrainer) -> None:
        if len(self.tasks) > 1:  # the first task is a run of its own, which others share
            begun.append(self.config.digest())
            if len(begun) == 3:
                raise KeyboardInterrupt
        original(self)

    monkeypatch.setattr(StreamTrainer, "learn", counted)
    with pytest.raises(KeyboardInterrupt):
        make(setting, ["memory"], tmp_path / "out")
    told = make(setting, ["memory"], tmp_path / "out")
    points = grid.grid_points("memory", setting)
    assert len(begun) == len(points) + 1 and len(set(begun)) == len(points)  # only the third was begun twice
    assert len(told) == len(points) - 2 and re.match(r"1 of 2 cells, .*: average \d+\.\d %; about .* left", told[0])
    assert make(setting, ["memory"], tmp_path / "out") == [] and len(begun) == len(points) + 1


def test_the_time_left_is_shared_by_the_processes_and_learns_from_what_cells_took() -> None:
    a, b, c, d = map(Path, "abcd")
    clock = timing.RemainingTime({a: 10.0, b: 40.0, c: 10.0, d: 20.0}, 2, 100.0)  # a and b begin
    # a took twice as long as expected: b needs 80 - 20, c 20, d 40 seconds
    assert clock.finish(a, 120.0) == pytest.approx((60 + 20 + 40) / 2)
    # 40 of 20 expected: b needs 80 - 40 more, d 40; they end together
    assert clock.finish(c, 140.0) == pytest.approx(40)
    # b took 80: d, which began at 140, needs 40 - 40
    assert clock.finish(b, 180.0) == pytest.approx(0)
    assert clock.finish(d, 181.0) == 0
    lone = timing.RemainingTime({a: 10.0, b: 100.0}, 2, 0.0)
    assert lone.finish(a, 5.0) == pytest.approx(45)  # nobody can help with the last one


def test_long_cells_are_left_out_unless_asked_for_and_stay_once_done(grid_data: Path, tmp_path: Path) -> None:
    setting, out = brief(grid_data, (0, 1)), tmp_path / "out"
    assert make(setting, ["neighbours"], out, limit=0.0) == []
    assert {row["runs"] for row in rows(out / "neighbours/table.csv")} == {"0"}
    markdown = (out / "neighbours/table.md").read_text()
    assert markdown.count("| not run |") and "--also 'neighbours/medium/1' runs it" in markdown
    assert 'class="none">not run</td>' in (out / "index.html").read_text()
    told = make(setting, ["neighbours"], out, limit=0.0, also=["neighbours/small/10/1", "neighbours/medium/1"])
    assert len(told) == 3
    runs = {(row["series"], row["at"]): row["runs"] for row in rows(out / "neighbours/table.csv")}
    assert runs == {("small", "10"): "1", ("medium", "1"): "2"} | {key: "0" for key in runs if runs[key] == "0"}
    assert "k = 10 (1 of 2 runs): about" in (out / "neighbours/table.md").read_text()
    own = [float(row["average"]) for row in rows(out / "neighbours/data.csv") if row["series"] == "medium"]
    (medium,) = [row for row in rows(out / "neighbours/table.csv") if (row["series"], row["at"]) == ("medium", "1")]
    assert float(medium["average mean"]) == pytest.approx(np.mean(own))
    assert float(medium["average std"]) == pytest.approx(np.std(own, ddof=1))
    times = json.loads((out / "times.json").read_text())
    assert set(times) == {f"{size}, k = {k}" for size in ("small", "medium") for k in (1, 10, 20)}
    assert times["medium, k = 20"] > times["small, k = 1"] > 0


def test_a_cell_that_cannot_run_is_told_and_the_others_go_on(grid_data: Path, tmp_path: Path) -> None:
    setting = brief(grid_data)
    few = dataclasses.replace(setting, config=with_changes(setting.config, memory={"total": CLASSES}), steps=(5,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "BLOCKS", {grid.FROZEN: {"BiC": "bic", "mem. k-NN": "knn"}})
        told = make(few, ["table1"], tmp_path / "out")
    assert len(told) == 2 and "needs 2 exemplars" in (tmp_path / "out/table1/table.md").read_text()


def test_a_folder_of_something_else_is_refused(grid_data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InputError, match="not a report of mtn"):
        make(brief(grid_data), ["rank"], tmp_path / "full")
    make(brief(grid_data), ["rank"], tmp_path / "out", limit=0.0)
    other = dataclasses.replace(brief(grid_data), fast=False)
    with pytest.raises(InputError, match="is a report on"):
        make(other, ["rank"], tmp_path / "out")


# ---- the command


def test_the_command_encodes_images_first_and_says_how_to_make_it_again(call, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for label in "abcd":
            (tmp_path / "pictures" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(0, 256, (32, 32), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pictures" / split / label / f"{number}.png")
    common = ("--data", "pictures", "--encoder", "glyph", "--fast", "--jobs", "1", "--out", "out")
    code, out, err = call("reproduce", "rank", *common, "--limit", "0")
    assert code == 0, err
    assert (tmp_path / "out/features/manifest.json").is_file() and "out/index.html" in out
    assert "<h1>Memory Transformer Network on pictures (glyph)</h1>" in (tmp_path / "out/index.html").read_text()
    command = "mtn reproduce rank --data pictures --encoder glyph --seeds 0 --out out --limit 0 --fast"
    assert command in (tmp_path / "out/rank/table.md").read_text()
    code, out, _ = call("reproduce", "rank", *common, "--limit", "0", "--also", "rank/*")
    assert "--limit 0 --also 'rank/*' --fast" in (tmp_path / "out/rank/table.md").read_text()
    assert code == 0
    for words, error in (
        (("tabel1", "--data", "x"), "did you mean 'table1'"),
        (("rank", *common, "--also", "rank/wihtout"), "--also: no run is called 'rank/wihtout'"),
        (("rank", "--data", "nowhere.npz"), "no file or folder"),
        (("rank", "--data", "pictures", "--encoder", "glyph", "--out", "pictures"), "pictures"),
    ):
        code, _, err = call("reproduce", *words)
        assert code == 2 and err.count("\n") == 1 and error in err


@pytest.mark.slow
def test_the_whole_fast_grid_takes_a_quarter_of_an_hour(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mtn", "reproduce", "all", "--data", "glyphs", "--fast", "--out", str(tmp_path)]
    start = time.monotonic()
    subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"})
    assert time.monotonic() - start < 900
    assert all((tmp_path / target / "figure.png").is_file() for target in TARGETS)


def test_the_names_of_the_targets_cost_no_heavy_import() -> None:
    code = "import sys, mtn.experiments.paper.targets; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout == "set()\n"
    assert all(target.title and target.description for target in TARGETS.values())

"""The paper's tables and figures on small data: what is run, what is written, and the page in a real browser."""

import csv
import dataclasses
import itertools
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cluster_data import cluster_arrays
from mtn import config
from mtn.data import load_vectors
from mtn.errors import InputError
from mtn.evidence import Evidence, Neighbour
from mtn.experiments import log
from mtn.experiments.paper import figures, grid, packing, page, qualitative, timing
from mtn.experiments.paper import reproduce as reproduction
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.plotting import separate
from mtn.experiments.run import StreamTrainer, run
from mtn.methods.mtn import TransformerOptions
from mtn.recipes import with_changes

CHROMIUM = shutil.which("chromium")
CLASSES = 20
FILES = {"table.md", "table.csv", "data.csv", "figure.png", "figure.svg"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 20 classes with long names, and an image beside each vector."""
    folder = tmp_path_factory.mktemp("data") / "twenty"
    folder.mkdir()
    arrays = cluster_arrays(classes=CLASSES, noise=1.1)
    for split in ("train", "val", "test"):
        y = arrays[f"y_{split}"]
        arrays[f"images_{split}"] = np.broadcast_to((y * 12).astype(np.uint8)[:, None, None], (len(y), 8, 8)).copy()
    arrays["names"] = np.array([f"a class of many words {label}" for label in range(CLASSES)])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def brief(data: Path, seeds: tuple[int, ...] = (0,)) -> grid.GridSetup:
    """A grid of few steps; the small transformer everywhere but where its size is varied."""
    found = grid.grid_setup(str(data), seeds, fast=True)
    quick = with_changes(found.config, train={"epochs": 0.2, "min_steps": 3}, memory={"total": 100}, device="cpu")
    return dataclasses.replace(found, config=quick)


def make(setting: grid.GridSetup, targets: list[str], out: Path, **options: object) -> list[str]:
    """Lines about cells that were run."""
    told: list[str] = []
    report_on = reproduction.ReportOptions(out, lambda target: f"mtn reproduce {target} --data <x>")
    reproduction.reproduce(setting, targets, report_on, jobs=1, on_line=told.append, **options)  # type: ignore[arg-type]
    return told


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every target, without the methods that take longest."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "QUICK", ("slda", "joint"))
        make(dataclasses.replace(brief(data), steps=(2, 5)), list(TARGETS), out, limit=1e6)
    return out


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


def test_the_table_has_both_blocks_and_the_papers_numbers(data: Path) -> None:
    points = grid.grid_points("table1", grid.grid_setup(str(data), [0, 1, 2]))
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


def test_what_is_varied_differs_and_what_targets_share_is_one_cell(data: Path) -> None:
    setting = grid.grid_setup(str(data), [0])
    cells = {}
    for name in TARGETS:
        digests = [run.digest() for point in grid.grid_points(name, setting) for run in point.runs]
        assert len(set(digests)) == len(digests)
        cells[name] = set(digests)
    base = cells["qualitative"]
    assert all(base <= cells[name] for name in ("table1", "tasks", "neighbours", "memory", "rank", "labels", "readout"))
    lengths = [(point.value, point.runs[0].train) for point in grid.grid_points("schedule", setting)]
    assert [at for at, _ in lengths] == [2, 5, 10, 400, 1600] * 2  # 60 samples a task, all of them in one step


# ---- what is not run again, and what is not run


def test_interrupted_and_started_again_a_grid_repeats_no_finished_cell(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, begun = brief(data), []
    original = StreamTrainer.learn

    def counted(self: StreamTrainer) -> None:
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


def test_long_cells_are_left_out_unless_asked_for_and_stay_once_done(data: Path, tmp_path: Path) -> None:
    setting, out = brief(data, (0, 1)), tmp_path / "out"
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


def test_a_cell_that_cannot_run_is_told_and_the_others_go_on(data: Path, tmp_path: Path) -> None:
    setting = brief(data)
    few = dataclasses.replace(setting, config=with_changes(setting.config, memory={"total": CLASSES}), steps=(5,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "BLOCKS", {grid.FROZEN: {"BiC": "bic", "mem. k-NN": "knn"}})
        told = make(few, ["table1"], tmp_path / "out")
    assert len(told) == 2 and "needs 2 exemplars" in (tmp_path / "out/table1/table.md").read_text()


def test_a_folder_of_something_else_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InputError, match="not a report of mtn"):
        make(brief(data), ["rank"], tmp_path / "full")
    make(brief(data), ["rank"], tmp_path / "out", limit=0.0)
    other = dataclasses.replace(brief(data), fast=False)
    with pytest.raises(InputError, match="is a report on"):
        make(other, ["rank"], tmp_path / "out")


# ---- a report that is published without the folders of its runs


def test_a_report_with_packed_results_runs_nothing_and_has_the_same_page(
    whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    packed = packing.pack_results(out)
    results = {path.parent.name: json.loads(path.read_text()) for path in out.glob("cells/*/result.json")}
    assert packing.read_packed(out) == results and len(results) > 20
    assert packing.pack_results(out).read_bytes() == packed.read_bytes()  # once more, with what is packed
    before = {path.relative_to(out): path.read_bytes() for path in out.glob("*/*") if "cells" not in path.parts}
    page_before = (out / "index.html").read_bytes()
    shutil.rmtree(out / "cells")
    monkeypatch.setattr(grid, "QUICK", ("slda", "joint"))
    assert make(dataclasses.replace(brief(data), steps=(2, 5)), list(TARGETS), out, limit=0.0) == []
    assert (out / "index.html").read_bytes() == page_before
    assert {path.relative_to(out): path.read_bytes() for path in out.glob("*/*")} == before
    assert packing.pack_results(out).read_bytes() and packing.read_packed(out) == results  # nothing is lost


def test_without_its_model_the_qualitative_figure_is_not_drawn_from_another(
    whole: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    packing.pack_results(out)
    for name in ("cells", "qualitative"):
        shutil.rmtree(out / name)
    (out / "index.html").unlink()
    assert make(dataclasses.replace(brief(data), steps=(2, 5)), ["qualitative"], out, limit=0.0) == []
    assert "its model is not in this folder" in (out / "qualitative/table.md").read_text()


def test_a_published_report_goes_on_as_it_is(whole: Path, data: Path, tmp_path: Path) -> None:
    """Another target is added, and one target anew; the other sections stay."""
    out, setting = tmp_path / "out", brief(data)
    make(setting, ["rank", "labels"], out)
    sections = page.read_sections(out)
    packing.pack_results(out)
    shutil.rmtree(out / "cells")
    assert len(make(setting, ["readout"], out)) == 2  # cls is the same run as rank
    assert page.read_sections(out).keys() == {"rank", "labels", "readout"}
    assert {name: page.read_sections(out)[name] for name in sections} == sections
    assert (out / "index.html").read_text().index('href="#labels"') < (out / "index.html").read_text().index("#readout")
    packing.pack_results(out)  # two runs in their folders, three packed
    assert len(packing.read_packed(out)) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no xz", "is damaged"),
        (lzma.compress(b"{}")[:-8], "is damaged"),
        (lzma.compress(b"[1]"), "must hold a result"),
        (lzma.compress(b"{" + b" " * 2000), "more than 1,000 bytes"),
    ],
)
def test_a_bad_file_of_packed_results_is_one_line(
    content: bytes, message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LARGEST", 1000)
    (tmp_path / reproduction.MARK).write_text(json.dumps({"data": str(data), "fast": True}))
    (tmp_path / packing.PACKED).write_bytes(content)
    with pytest.raises(InputError, match=message):
        make(brief(data), ["rank"], tmp_path)


def test_packed_results_of_another_configuration_are_refused(data: Path, tmp_path: Path) -> None:
    setting = brief(data)
    make(setting, ["rank"], tmp_path / "out")
    results = packing.read_packed(packing.pack_results(tmp_path / "out").parent)
    for result in results.values():
        result["config"]["seed"] = 7
    (tmp_path / "out" / packing.PACKED).write_bytes(lzma.compress(json.dumps(results).encode()))
    shutil.rmtree(tmp_path / "out/cells")
    with pytest.raises(InputError, match="is of another configuration"):
        make(setting, ["rank"], tmp_path / "out")


def test_there_is_nothing_to_pack_without_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to pack"):
        packing.pack_results(tmp_path)


REPORTS = sorted((Path(__file__).parents[1] / "docs/results").glob("reproduce-*"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_published_reports_can_be_resumed(report: Path) -> None:
    """Each result is under the name that its configuration has now, and the page has the sections of its folders."""
    data = json.loads((report / reproduction.MARK).read_text())["data"]
    for name, result in packing.read_packed(report).items():
        settings = config.Config.model_validate(result["config"])
        assert name == f"{settings.method.name}-seed{settings.seed}-{settings.digest()}"
        assert settings.stream.data == data and settings.model_dump() == result["config"]
    assert page.read_sections(report).keys() == {path.name for path in report.iterdir() if path.is_dir()}


# ---- what is written


def test_every_target_has_its_files_and_the_page_needs_no_other(whole: Path) -> None:
    text = (whole / "index.html").read_text("utf-8")
    for target in TARGETS:
        assert {file.name for file in (whole / target).iterdir()} == FILES
        assert f'<section id="{target}">' in text and f"mtn reproduce {target} --data &lt;x&gt;" in text
        assert Image.open(whole / target / "figure.png").width >= 500
    assert "<script" not in text and not re.search(r'(src|href)="(?!data:|#|\w+/)', text)
    assert len(text) < 3_000_000


def test_names_of_classes_are_no_html(tmp_path: Path) -> None:
    bad = '<script>alert("1")</script></section>'
    near = [Neighbour(1, bad, 0.9, 0.8, 0.1)]
    evidence = [Evidence(bad, 0.9, 0.1, near)]
    examples = qualitative.QualitativeExamples([bad], [bad], evidence, [0], lambda number: bad, 1, 0, 6)
    section = page.write_section(page.examples_section(examples, [], f"mtn reproduce --data {bad}"), tmp_path)
    assert "<script" not in section and section.count("</section>") == 1
    assert section.count("&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&lt;/section&gt;") == 5


def test_files_hold_what_the_runs_gave(whole: Path) -> None:
    results = {path.parent.name: json.loads(path.read_text()) for path in whole.glob("cells/*/result.json")}
    averages = {result["average_incremental_accuracy"] for result in results.values()}
    drawn = rows(whole / "neighbours/data.csv")
    assert {float(row["average"]) for row in drawn} <= averages and len(drawn) == 6
    for row in rows(whole / "memory/table.csv"):
        own = [
            float(one["average"])
            for one in rows(whole / "memory/data.csv")
            if one["at"] == row["at"] and one["series"] == row["series"]
        ]
        assert float(row["average mean"]) == pytest.approx(np.mean(own))
        assert row["average std"] == "" and row["runs"] == "1"
    curves = {tuple(result["accuracy"]) for result in results.values()}
    for _, group in itertools.groupby(
        rows(whole / "tasks/data.csv"), lambda row: (row["series"], row["at"], row["seed"])
    ):
        assert tuple(float(row["accuracy"]) for row in group) in curves
    assert "the paper's, ImageNet-1k, SimCLR" in (whole / "table1/table.md").read_text()
    assert "| PODNet | not run | not run | 64.1 / 67.0 / – |" in (whole / "table1/table.md").read_text()


def test_examples_are_wrong_for_the_vote_and_right_for_mtn(whole: Path, data: Path) -> None:
    (run,) = grid.grid_points("qualitative", brief(data))[0].runs
    folder = whole / "cells" / f"mtn-seed0-{run.digest()}"
    found = qualitative.find_examples(run, folder)
    assert found.mtn_only >= len(found.ids) > 0 and len(set(found.truth)) == len(found.truth)
    y, names = np.load(data / "y_test.npy"), np.load(data / "names.npy")
    first = len(np.load(data / "y_train.npy")) + len(np.load(data / "y_val.npy"))
    for number, truth, voted, one in zip(found.ids, found.truth, found.knn_predictions, found.evidence, strict=True):
        assert names[y[number - first]] == truth == one.prediction != voted
        assert truth in [near.label for near in one.neighbours] and len(one.neighbours) == 5
        assert (found.preview(number) == y[number - first] * 12).all()  # the picture is of that very sample
        for near in one.neighbours:
            assert names[int(found.preview(near.id)[0, 0]) // 12] == near.label
    # counted again, from the accuracies that the two runs reported
    mtn = json.loads((folder / "result.json").read_text())["last_accuracy"]
    knn = next(
        result["last_accuracy"]
        for path in whole.glob("cells/knn-seed0-*/result.json")
        if (result := json.loads(path.read_text()))["config"]["stream"] == run.stream.model_dump()
    )
    assert found.mtn_only - found.knn_only == pytest.approx((mtn - knn) / 100 * found.queries)


def test_where_the_vote_is_never_wrong_there_is_nothing_to_show(tmp_path: Path) -> None:
    np.savez(tmp_path / "easy.npz", **cluster_arrays(classes=6, noise=0.01))
    make(brief(tmp_path / "easy.npz"), ["qualitative"], tmp_path / "out")
    assert "MTN alone gets 0 right" in (tmp_path / "out/qualitative/table.md").read_text()
    assert rows(tmp_path / "out/qualitative/data.csv") == []
    assert {file.name for file in (tmp_path / "out/qualitative").iterdir()} == FILES


def test_sentences_are_shown_as_they_were_given(tmp_path: Path) -> None:
    said = [
        (f"{word} {number} to {split}", word, split) for split in ("train", "test") for word in "abc" for number in "12"
    ]
    with (tmp_path / "said.csv").open("w") as file:
        csv.writer(file).writerows([("text", "label", "split"), *said])
    source = reproduction.prepare_data(str(tmp_path / "said.csv"), "hashing", tmp_path)
    loaded = load_vectors(source.vectors)
    assert source.preview is not None and source.images is None
    for part, split in ((loaded.train, "train"), (loaded.test, "test")):
        shown = {
            (source.preview(int(one)), loaded.names[label], split) for one, label in zip(part.id, part.y, strict=True)
        }
        assert shown == {one for one in said if one[2] == split}
    near = [Neighbour(loaded.train.id[0].item(), "a", 0.9, 0.8, 0.1)]
    asked = loaded.test.id[:1].tolist()
    examples = qualitative.QualitativeExamples(
        ["a"], ["b"], [Evidence("a", 0.9, 0.1, near)], asked, source.preview, 1, 0, 6
    )
    section = page.examples_section(examples, [], "mtn reproduce")
    assert section.tables[0].rows[0][0] == (source.preview(asked[0]), 0)
    assert [axes.texts[0].get_text() for axes in section.figure.axes[:2]] == [
        source.preview(asked[0]),
        source.preview(near[0].id),
    ]


@pytest.mark.parametrize(
    ("missing", "shape", "kind"), [(1, (8, 8), np.uint8), (0, (8, 8), np.float32), (0, (8, 8, 4), np.uint8)]
)
def test_arrays_that_are_no_images_are_not_shown(
    missing: int, shape: tuple[int, ...], kind: type, tmp_path: Path
) -> None:
    """A file may hold anything beside its vectors; a grid that ran for hours should not fail over it at its end."""
    arrays = cluster_arrays()
    odd = np.zeros((len(arrays["y_test"]) - missing, *shape), kind)
    np.savez(tmp_path / "odd.npz", **arrays, images_test=odd)
    loaded = load_vectors(str(tmp_path / "odd.npz"))
    looks = qualitative.array_previews(str(tmp_path / "odd.npz"), loaded)
    assert {looks(number) for number in (*loaded.test.id.tolist(), loaded.train.id[0].item())} == {None}


def test_labels_are_moved_apart_as_little_as_it_takes() -> None:
    assert separate([1.0, 5.0, 9.0], 2.0) == [1.0, 5.0, 9.0]
    assert separate([5.0, 5.0, 1.0], 2.0) == [4.0, 6.0, 1.0]
    chance = np.random.default_rng(3)
    for _ in range(50):
        wanted = chance.uniform(0, 10, 6).tolist()
        found = separate(wanted, 1.0)
        assert np.argsort(found).tolist() == np.argsort(wanted).tolist()
        assert min(b - a for a, b in itertools.pairwise(sorted(found))) >= 1 - 1e-9
        assert np.mean(found) == pytest.approx(np.mean(wanted))


@pytest.mark.parametrize("target", ["tasks", "neighbours", "memory", "schedule", "rank", "readout"])
def test_no_text_of_a_figure_lies_over_another(target: str, data: Path) -> None:
    """The worst case: every line ends at nearly the same height."""
    points = grid.grid_points(target, grid.grid_setup(str(data), [0]))
    measured = [grid.PointResults(point, [_result(0.01 * place)]) for place, point in enumerate(points)]
    figure = figures.draw_target(target, measured)
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
        assert boxes and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(figure.bbox.padded(1).contains(*corner) for box in boxes for corner in (box.min, box.max))


def _result(more: float) -> dict[str, object]:
    accuracy = [90.0, 80.0 + more, 70.0 + more]
    return {
        "classes_per_task": [10, 5, 5],
        "accuracy": accuracy,
        "average_incremental_accuracy": sum(accuracy) / 3,
        "average_without_base": 75.0 + more,
        "last_accuracy": accuracy[-1],
        "forgetting": 3.0,
        "newest_accuracy": [90.0, 40.0 + more, 40.0 + more],
        "old_accuracy": [None, 70.0 + more, 70.0 + more],
        "seconds": {"retrieval": 1.0, "training": 2.0, "evaluation": 4.0, "per_1000_queries": 0.5},
        "kept": {"total": 1500, "mb": 0.006},
        "seed": 0,
    }


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(whole: Path, width: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab, complaints = browser.new_page(viewport={"width": width, "height": 844}), []
        tab.set_default_timeout(120_000)
        tab.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("requestfailed", lambda request: complaints.append(request.url))
        tab.goto((whole / "index.html").as_uri())
        for target in TARGETS:
            figure = tab.locator(f"#{target} img")
            assert figure.count() == 1 and figure.evaluate("it => it.complete && it.naturalWidth > 100")
            assert tab.locator(f"#{target} pre").inner_text().startswith(f"mtn reproduce {target}")
            assert tab.locator(f"#{target} a[href='{target}/data.csv']").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= width  # only tables and figures scroll aside
        assert tab.locator("#table1 td", has_text="69.5 / 70.7 / 73.3").is_visible()
        assert tab.locator("b").count() and not complaints
        browser.close()


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


# ---- the log


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_logs_its_losses_and_accuracies(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    result = run(configure(train={"min_steps": 45}), tmp_path)
    written = lines(tmp_path)
    after = [line for line in written if "accuracy" in line]
    assert [line["accuracy"] for line in after] == result["accuracy"]
    assert [line["newest_accuracy"] for line in after] == result["newest_accuracy"]
    assert [line["task"] for line in after] == [1, 2, 3, 4] and after[0]["old_accuracy"] is None
    steps = [line for line in written if "lr" in line]
    assert [line["step"] for line in steps] == [20, 40, 60, 80, 100, 120, 140, 160][: len(steps)]
    assert len(steps) >= 6 and 0 < steps[0]["lr"] <= 0.1 and steps[0]["loss/classification"] > 0
    assert any("loss/distillation" in line for line in steps[2:])


def test_a_resumed_run_logs_no_step_twice(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    setting = configure(train={"min_steps": 60})
    run(setting, tmp_path / "whole")

    def stop(what: str, done: int, of: int) -> None:
        if what == "task 3/4: training" and done == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(setting, tmp_path / "cut", stop)
    with (tmp_path / "cut/log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n7\n{}\n{"task": "x", "step": null}\n')  # damaged
        file.write(b'{"task": 3, "st')  # killed in the middle of a line
    run(setting, tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_where_it_logs_is_not_what_the_run_is(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    one, other = configure(), configure(log="tensorboard")
    assert one.digest() == other.digest() and one.model_dump() == other.model_dump()
    assert with_changes(other, seed=3).log == "tensorboard"
    assert run(one, tmp_path) == run(other, tmp_path)


def test_tensorboard_has_the_same_numbers(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(configure(log="tensorboard"), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    np.testing.assert_allclose([event.value for event in events.Scalars("accuracy")], result["accuracy"], rtol=1e-6)
    assert {"lr", "loss/classification", "newest_accuracy", "old_accuracy"} <= set(events.Tags()["scalars"])


def test_weights_and_biases_without_a_network(
    configure: Callable[..., config.Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(configure(log="wandb"), tmp_path / "run")
    assert list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize(("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_log_that_is_not_installed_is_one_line(
    kind: str, module: str, configure: Callable[..., config.Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'mtn\[log\]'"):
        log.open_log(tmp_path, configure(log=kind), 0, 0)


def test_logging_is_seldom_enough_not_to_be_felt(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    """A line takes far less than a hundredth of the steps between two lines, at a millisecond a step."""
    it = log.open_log(tmp_path, configure(), 0, 0)
    numbers = {"lr": 0.1, "loss/classification": 1.234567, "loss/distillation": 0.5}
    start = time.process_time()
    for step in range(200):
        it.write(1, step, numbers)
    spent = (time.process_time() - start) / 200
    it.close()
    assert spent < 0.1 * log.LOG_EVERY * 1e-3

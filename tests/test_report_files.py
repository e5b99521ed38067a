"""What a reproduction writes: tables, figures, and the page in a real browser."""

import csv
import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cluster_data import cluster_arrays
from grids import FILES, brief, make, rows
from mtn.data import load_vectors
from mtn.evidence import Evidence, Neighbour
from mtn.experiments.paper import figures, grid, page, qualitative
from mtn.experiments.paper import reproduce as reproduction
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.plotting import separate

CHROMIUM = shutil.which("chromium")


def test_every_target_has_its_files_and_the_page_needs_no_other(grid_report: Path) -> None:
    text = (grid_report / "index.html").read_text("utf-8")
    for target in TARGETS:
        assert {file.name for file in (grid_report / target).iterdir()} == FILES
        assert f'<section id="{target}">' in text and f"mtn reproduce {target} --data &lt;x&gt;" in text
        assert Image.open(grid_report / target / "figure.png").width >= 500
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


def test_files_hold_what_the_runs_gave(grid_report: Path) -> None:
    results = {path.parent.name: json.loads(path.read_text()) for path in grid_report.glob("cells/*/result.json")}
    averages = {result["average_incremental_accuracy"] for result in results.values()}
    drawn = rows(grid_report / "neighbours/data.csv")
    assert {float(row["average"]) for row in drawn} <= averages and len(drawn) == 6
    for row in rows(grid_report / "memory/table.csv"):
        own = [
            float(one["average"])
            for one in rows(grid_report / "memory/data.csv")
            if one["at"] == row["at"] and one["series"] == row["series"]
        ]
        assert float(row["average mean"]) == pytest.approx(np.mean(own))
        assert row["average std"] == "" and row["runs"] == "1"
    curves = {tuple(result["accuracy"]) for result in results.values()}
    for _, group in itertools.groupby(
        rows(grid_report / "tasks/data.csv"), lambda row: (row["series"], row["at"], row["seed"])
    ):
        assert tuple(float(row["accuracy"]) for row in group) in curves
    assert "the paper's, ImageNet-1k, SimCLR" in (grid_report / "table1/table.md").read_text()
    assert "| PODNet | not run | not run | 64.1 / 67.0 / – |" in (grid_report / "table1/table.md").read_text()


def test_examples_are_wrong_for_the_vote_and_right_for_mtn(grid_report: Path, grid_data: Path) -> None:
    (run,) = grid.grid_points("qualitative", brief(grid_data))[0].runs
    folder = grid_report / "cells" / f"mtn-seed0-{run.digest()}"
    found = qualitative.find_examples(run, folder)
    assert found.mtn_only >= len(found.ids) > 0 and len(set(found.truth)) == len(found.truth)
    y, names = np.load(grid_data / "y_test.npy"), np.load(grid_data / "names.npy")
    first = len(np.load(grid_data / "y_train.npy")) + len(np.load(grid_data / "y_val.npy"))
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
        for path in grid_report.glob("cells/knn-seed0-*/result.json")
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
def test_no_text_of_a_figure_lies_over_another(target: str, grid_data: Path) -> None:
    """The worst case: every line ends at nearly the same height."""
    points = grid.grid_points(target, grid.grid_setup(str(grid_data), [0]))
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
def test_the_page_in_a_browser(grid_report: Path, width: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab, complaints = browser.new_page(viewport={"width": width, "height": 844}), []
        tab.set_default_timeout(120_000)
        tab.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("requestfailed", lambda request: complaints.append(request.url))
        tab.goto((grid_report / "index.html").as_uri())
        for target in TARGETS:
            figure = tab.locator(f"#{target} img")
            assert figure.count() == 1 and figure.evaluate("it => it.complete && it.naturalWidth > 100")
            assert tab.locator(f"#{target} pre").inner_text().startswith(f"mtn reproduce {target}")
            assert tab.locator(f"#{target} a[href='{target}/data.csv']").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= width  # only tables and figures scroll aside
        assert tab.locator("#table1 td", has_text="69.5 / 70.7 / 73.3").is_visible()
        assert tab.locator("b").count() and not complaints
        browser.close()

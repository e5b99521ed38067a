"""Tables and the curve, from results written out by hand."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mtn.experiments import report
from mtn.experiments.plotting import method_styles
from mtn.methods import METHODS


def result(method: str, seed: int, accuracy: list[float]) -> dict[str, Any]:
    return {
        "method": method,
        "data": "folder/flowers.npz",
        "seed": seed,
        "classes_per_task": [4, 2],
        "accuracy": accuracy,
        "average_incremental_accuracy": sum(accuracy) / 2,
        "average_without_base": accuracy[1],
        "last_accuracy": accuracy[1],
        "forgetting": 3.0,
        "newest_accuracy": [accuracy[0], 40.0],
        "old_accuracy": [None, 70.0],
        "seconds": {"retrieval": 1.0, "training": 2.0, "evaluation": 4.0, "per_1000_queries": 0.5},
        "kept": {"exemplars": 1000, "weights": 500, "statistics": 0, "total": 1500, "mb": 0.006},
        "config": {"memory": {"total": 1500, "per_class": None}, "stream": {"evaluate": "test", "order": 1993}},
    }


@pytest.fixture
def results() -> list[dict[str, Any]]:
    return [result("mtn", 0, [90.0, 80.0]), result("mtn", 1, [92.0, 84.0]), result("knn", 0, [70.0, 60.0])]


def test_cells_are_means_and_sample_standard_deviations(results: list[dict[str, Any]]) -> None:
    found = report.summarise_methods(results)
    # averages 85 and 88: mean 86.5, sample standard deviation sqrt((1.5^2 + 1.5^2) / 1) = 2.1213
    assert found["mtn"]["average"].mean == 86.5
    assert found["mtn"]["average"].std == pytest.approx(2.1213, abs=1e-4)
    assert str(found["mtn"]["average"]) == "86.5 ± 2.1"
    assert str(found["knn"]["average"]) == "65.0"  # one seed: no spread
    assert found["mtn"]["old"].mean == 70.0  # the base, where it is undefined, is left out
    assert found["mtn"]["seconds"].mean == 3.0


def test_markdown_names_data_protocol_and_seeds(results: list[dict[str, Any]]) -> None:
    text = report.markdown(results)
    assert text.startswith("**flowers: 4 + 1 x 2 classes, M = 1,500, seeds 0, 1**")
    assert "| mtn | 86.5 ± 2.1 | 82.0 ± 2.8 |" in text


def test_markdown_aggregates_over_class_orders_and_names_them() -> None:
    runs = [result("mtn", 0, [90.0, 80.0]), result("mtn", 0, [92.0, 84.0]), result("mtn", 0, [91.0, 82.0])]
    for one, order in zip(runs, (1993, 1, "lists/my order.txt"), strict=True):
        one["config"]["stream"]["order"] = order
    text = report.markdown(runs)
    assert text.startswith("**flowers: 4 + 1 x 2 classes, M = 1,500, seed 0, class orders 1993, 1, my order.txt**")
    assert "| mtn | 86.5 ± 1.5 |" in text  # averages 85, 88, 86.5
    assert "over runs (seeds and class orders)" in text


def test_the_curve_is_written_as_a_readable_png_and_the_same_svg_each_time(
    results: list[dict[str, Any]], tmp_path: Path
) -> None:
    report.write(results, tmp_path, "results")
    first = (tmp_path / "curve.svg").read_bytes()
    report.write(results, tmp_path, "results")
    assert (tmp_path / "curve.svg").read_bytes() == first
    image = Image.open(tmp_path / "curve.png")
    assert image.width >= 1000 and len(image.convert("L").getcolors() or []) > 2


def test_labels_at_the_ends_do_not_overlap() -> None:
    figure = report.curve([result(name, 0, [90.0, 80.0 + index / 100]) for index, name in enumerate("abcde")])
    heights = sorted(text.xy[1] for text in figure.axes[0].texts)
    low, high = figure.axes[0].get_ylim()
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 0.05 * (high - low) * 0.99


def test_best_and_second_best_are_marked_and_joint_is_out_of_the_race() -> None:
    named = {"knn": [70.0, 60.0], "mtn": [90.0, 80.0], "joint": [99.0, 99.0], "ssil": [80.0, 70.0]}
    text = report.markdown([result(method, 0, accuracy) for method, accuracy in named.items()])
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    # average, without base, last; the other columns are equal for all
    assert lines["mtn"].startswith("| mtn | **85.0** | **80.0** | **80.0** |")
    assert lines["ssil"].startswith("| ssil | _75.0_ | _70.0_ | _70.0_ |")
    assert lines["knn"].startswith("| knn | 65.0 | 60.0 | 60.0 |")
    assert lines["joint"].startswith("| joint | 99.0 | 99.0 | 99.0 |") and "**" not in lines["joint"]


def test_two_methods_need_no_marks(results: list[dict[str, Any]]) -> None:
    assert report.top_two(report.summarise_methods(results)) == {}


def test_equal_printed_numbers_share_the_place_and_after_two_best_there_is_no_second() -> None:
    named = {"knn": [70.0, 90.0], "mtn": [70.0, 90.04], "ssil": [70.0, 89.96], "er": [70.0, 80.0], "ncm": [70.0, 70.0]}
    rows = report.summarise_methods([result(method, 0, accuracy) for method, accuracy in named.items()])
    marks = {method: place for (method, column), place in report.top_two(rows).items() if column == "last"}
    assert marks == {"knn": 1, "mtn": 1, "ssil": 1}
    rows.pop("mtn"), rows.pop("ssil")
    rows["bic"] = rows["er"]
    marks = {method: place for (method, column), place in report.top_two(rows).items() if column == "last"}
    assert marks == {"knn": 1, "er": 2, "bic": 2}


def distance(one: str, other: str) -> float:
    """Of two colours, in sRGB from 0 to 255."""
    a, b = ([int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in (one, other))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def test_a_method_has_one_colour_in_every_figure_and_no_two_have_the_same() -> None:
    colours = {}
    for names in (["mtn", "knn", "mine:Own"], ["mine:Own", "knn", "ssil", "mtn"]):
        lines = report.curve([result(name, 0, [90.0, 80.0]) for name in names]).axes[0].lines
        colours[len(names)] = {name: line.get_color() for name, line in zip(names, lines, strict=True)}
    assert all(colours[4][name] == colour for name, colour in colours[3].items())
    every = [colour for colour, _ in method_styles([*METHODS, *(f"mine:Own{i}" for i in range(30))]).values()]
    assert min(distance(one, other) for one, other in itertools.combinations(every, 2)) > 15


def test_a_caption_explains_the_columns_that_are_shown_and_no_other(results: list[dict[str, Any]]) -> None:
    short, whole = str(report.rich_table(results).caption), report.markdown(results)
    assert "ms a query" not in short and "MB:" not in short and "million floats:" in short and "newest, old:" in short
    assert all(f"{name}:" in whole for name in ("without base", "ms a query", "MB"))
    assert "±" in short and "±" not in str(report.rich_table(results[2:]).caption)  # one run has no spread

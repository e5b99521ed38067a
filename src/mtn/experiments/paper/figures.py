"""The figures of a report, drawn from the results of grid points."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtn.experiments import evidence_figure
from mtn.experiments.paper.grid import CURVES, PointResults
from mtn.experiments.paper.qualitative import QualitativeExamples
from mtn.experiments.paper.size import differences
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.plotting import (
    COLOURS,
    GREY,
    MARKERS,
    LineEnd,
    label_line_ends,
    method_styles,
    plot_accuracy,
    style_axes,
)
from mtn.experiments.report import MeanStd, summarise_runs

Y_LABELS = {
    "average": "average incremental accuracy (%)",
    "newest": "accuracy on the newest classes (%)",
    "old": "accuracy on all older classes (%)",
}
X_LABELS = {"k": "nearest exemplars as input, k", "M": "exemplars in memory, M", "steps a task": "steps a task"}


def draw_target(target: str, points: Sequence[PointResults]) -> Figure:
    """The figure of a target, of the points that have results."""
    finished = [point for point in points if point.results]
    if not finished:
        return _text_figure("not run")
    return _DRAW[target](finished, TARGETS[target].varied)


def draw_examples(examples: QualitativeExamples) -> Figure:
    """The paper's qualitative figure, k-NN's prediction under MTN's."""
    if not examples.evidence:
        return _text_figure("no query that k-NN gets wrong and MTN right")
    neighbours = {neighbour.id for answer in examples.evidence for neighbour in answer.neighbours}
    loaded = {number: examples.preview(number) for number in neighbours | set(examples.ids)}
    previews = {number: preview for number, preview in loaded.items() if preview is not None}
    queries = [previews[number] for number in examples.ids] if set(examples.ids) <= previews.keys() else None
    notes = [f"MTN: right\nk-NN: {evidence_figure.wrap_label(label)}" for label in examples.knn_predictions]
    return evidence_figure.plot(examples.evidence, previews, queries, notes)


def _text_figure(text: str) -> Figure:
    figure = Figure(figsize=(5.6, 1.0))
    figure.text(0.5, 0.5, text, ha="center", va="center", color=GREY, fontsize=12)
    return figure


def _series(points: Sequence[PointResults]) -> dict[str, list[PointResults]]:
    """The points of each line, from left to right."""
    lines: dict[str, list[PointResults]] = {}
    for point in points:
        lines.setdefault(point.point.series, []).append(point)
    return {name: sorted(line, key=lambda point: point.point.value) for name, line in lines.items()}


def _values(points: Sequence[PointResults]) -> list[int]:
    return sorted({point.point.value for point in points})


def _series_style(series: str, index: int) -> tuple[str, str]:
    styles = method_styles(CURVES.values())
    return styles[CURVES[series]] if series in CURVES else (COLOURS[index], MARKERS[index])


def _plot_lines(axes: Axes, points: Sequence[PointResults], column: str, varied: str) -> list[LineEnd]:
    """Draw a line a series over a logarithmic scale, with bars of one standard deviation; return the lines' ends."""
    ends = []
    for index, (name, line) in enumerate(_series(points).items()):
        colour, marker = _series_style(name, index)
        numbers = [summarise_runs(point.results)[column] for point in line]
        x, y = [point.point.value for point in line], [number.mean or 0.0 for number in numbers]
        bars = [number.std or 0.0 for number in numbers]
        axes.errorbar(x, y, bars, color=colour, marker=marker, markersize=5, linewidth=1.8, elinewidth=1.2, capsize=2.5)
        ends.append(LineEnd(float(x[-1]), y[-1], name, colour))
    ticks = _values(points)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=9)
    axes.minorticks_off()
    axes.set_xlabel(X_LABELS[varied])
    axes.set_ylabel(Y_LABELS[column])
    style_axes(axes)
    return ends


def _draw_average(points: Sequence[PointResults], varied: str) -> Figure:
    figure = Figure(figsize=(5.8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    label_line_ends(axes, _plot_lines(axes, points, "average", varied))
    return figure


def _draw_new_and_old(points: Sequence[PointResults], varied: str) -> Figure:
    """Draw new beside old classes: the separated softmax does not compare them."""
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    ends = [_plot_lines(axes, points, column, varied) for axes, column in zip(panels, ("newest", "old"), strict=True)]
    for axes, line_ends in zip(panels, ends, strict=True):  # only now is the scale that they share known
        label_line_ends(axes, line_ends)
    return figure


def _draw_differences(points: Sequence[PointResults], varied: str) -> Figure:
    """Draw differences between methods against images a class, a panel a difficulty, with bars over seeds."""
    by_block = differences(points)
    if not by_block:
        return _text_figure("no two methods that are compared have been run")
    figure = Figure(figsize=(4.6 * len(by_block) + 0.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(by_block), sharey=True, squeeze=False)[0]
    ends: list[list[LineEnd]] = []
    for axes, (block, lines) in zip(panels, by_block.items(), strict=True):
        ends.append([])
        for index, (name, line) in enumerate(lines.items()):
            x, y = list(line), [number.mean or 0.0 for number in line.values()]
            bars = [number.std or 0.0 for number in line.values()]
            style: dict[str, Any] = {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 5}
            axes.errorbar(x, y, bars, linewidth=1.8, elinewidth=1.2, capsize=2.5, **style)
            ends[-1].append(LineEnd(float(x[-1]), y[-1], name, COLOURS[index]))
        axes.axhline(0, color=GREY, linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks(_values(points), [f"{tick:,}" for tick in _values(points)], fontsize=9)
        axes.minorticks_off()
        axes.set_title(block, fontsize=10)
        axes.set_xlabel("training images a class")
        style_axes(axes)
    for axes, line_ends in zip(panels, ends, strict=True):  # only now is the shared scale known
        label_line_ends(axes, line_ends)
    panels[0].set_ylabel("difference of average accuracy (points)")
    return figure


def _draw_tasks(points: Sequence[PointResults], varied: str) -> Figure:
    """Draw accuracy over all seen classes against their number, a panel a value of L."""
    values = _values(points)
    figure = Figure(figsize=(3.6 * len(values) + 0.4, 3.4), layout="constrained")
    panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
    ends = []
    for axes, value in zip(panels, values, strict=True):
        own = {point.point.series: point.results for point in points if point.point.value == value}
        ends.append(
            [
                plot_accuracy(axes, results, series, _series_style(series, index), markersize=4.5)
                for index, (series, results) in enumerate(own.items())
            ]
        )
    for axes, value, line_ends in zip(panels, values, ends, strict=True):  # only now is the shared scale known
        axes.set_title(f"{varied} = {value}", fontsize=10)
        axes.set_xlabel("classes seen")
        style_axes(axes)
        label_line_ends(axes, line_ends)
    panels[0].set_ylabel("accuracy over seen classes (%)")
    return figure


def _draw_variants(points: Sequence[PointResults], varied: str) -> Figure:
    """Draw a row a variant; average, newest and old accuracy side by side, each on a scale of its own."""
    names = [point.point.series for point in points]
    figure = Figure(figsize=(8.4, 0.5 * len(names) + 1.0), layout="constrained")
    for axes, column in zip(figure.subplots(1, 3, sharey=True), Y_LABELS, strict=True):
        for row, point in enumerate(points):
            number = summarise_runs(point.results)[column]
            _plot_dot(axes, number, row, COLOURS[0], "o")
            axes.annotate(
                number.text(), (number.mean or 0.0, row), (0, 8), textcoords="offset points", ha="center", fontsize=9
            )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.7)
        axes.margins(x=0.3)
        axes.set_xlabel(Y_LABELS[column], fontsize=8.5)
        axes.tick_params(axis="y", length=0)
        style_axes(axes, grid="both")
    return figure


def _draw_table1(points: Sequence[PointResults], varied: str) -> Figure:
    """Draw a row a method, a marker a value of L; the blocks of the table one below the other, each under its name."""
    rows = list(dict.fromkeys((point.point.block, point.point.series) for point in points))
    values = _values(points)
    blocks = list(dict.fromkeys(block for block, _ in rows))
    heights = {row: index + 1.2 * (blocks.index(row[0]) + 1) for index, row in enumerate(rows)}
    figure = Figure(figsize=(6.4, 0.3 * (max(heights.values()) + 1) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    for point in points:
        index = values.index(point.point.value)
        shift = 0.22 * (index - (len(values) - 1) / 2)  # so that no marker hides another
        height = heights[point.point.block, point.point.series] + shift
        _plot_dot(axes, summarise_runs(point.results)["average"], height, COLOURS[index], MARKERS[index])
    axes.set_yticks(list(heights.values()), [name for _, name in rows])
    axes.set_ylim(max(heights.values()) + 0.7, 0)
    axes.set_xlabel(Y_LABELS["average"])
    axes.tick_params(axis="y", length=0)
    style_axes(axes, grid="both")
    for block in blocks:
        top = min(height for row, height in heights.items() if row[0] == block)
        axes.text(0.01, top - 0.75, block, transform=axes.get_yaxis_transform(), va="center", color=GREY)
    handles = [axes.plot([], [], MARKERS[index], color=COLOURS[index])[0] for index in range(len(values))]
    labels = [f"{varied} = {value}" for value in values]
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)
    return figure


def _plot_dot(axes: Axes, number: MeanStd, height: float, colour: str, marker: str) -> None:
    if number.mean is not None:
        axes.errorbar(number.mean, height, xerr=number.std, color=colour, marker=marker, markersize=5.5, capsize=2.5)


_DRAW: dict[str, Callable[[Sequence[PointResults], str], Figure]] = {
    "table1": _draw_table1,
    "tasks": _draw_tasks,
    "neighbours": _draw_average,
    "memory": _draw_average,
    "size": _draw_differences,
    "rank": _draw_variants,
    "labels": _draw_variants,
    "readout": _draw_variants,
    "schedule": _draw_new_and_old,
}

"""Measured points -> the figures of the report."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtn import evidence
from mtn.grid import TARGETS, Measured
from mtn.qualitative import Examples
from mtn.report import COLOURS, MARKERS, Cell, label_ends, plain, style, summary

METHODS = {"MTN": "mtn", "SS-IL": "ssil", "mem. k-NN": "knn"}
AXES = {
    "average": "average incremental accuracy (%)",
    "newest": "accuracy on the newest classes (%)",
    "old": "accuracy on all older classes (%)",
}
PLACES = {"k": "nearest exemplars as input, k", "M": "exemplars in memory, M", "steps a task": "steps a task"}


def draw(target: str, measured: Sequence[Measured]) -> Figure:
    """The figure of a target, of what has been measured."""
    known = [one for one in measured if one.results]
    if not known:
        return _words("not run")
    return DRAW[target](known, TARGETS[target].at)


def _words(instead: str) -> Figure:
    figure = Figure(figsize=(5.6, 1.0))
    figure.text(0.5, 0.5, instead, ha="center", va="center", color="#666666", fontsize=12)
    return figure


def _series(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The points of each line, from left to right."""
    names = dict.fromkeys(one.point.series for one in measured)
    own = {name: [one for one in measured if one.point.series == name] for name in names}
    return {name: sorted(points, key=lambda one: one.point.at) for name, points in own.items()}


def _style(series: str, place: int) -> tuple[str, str]:
    return style(METHODS[series]) if series in METHODS else (COLOURS[place], MARKERS[place])


Ends = list[tuple[float, float, str, str]]


def _lines(axes: Axes, measured: Sequence[Measured], column: str, at: str) -> Ends:
    """A line a series over a logarithmic scale, with bars of one standard deviation; where their names go."""
    ends = []
    for place, (name, points) in enumerate(_series(measured).items()):
        colour, marker = _style(name, place)
        cells = [summary(one.results)[column] for one in points]
        x, y = [one.point.at for one in points], [cell.mean or 0.0 for cell in cells]
        bars = [cell.std or 0.0 for cell in cells]
        axes.errorbar(x, y, bars, color=colour, marker=marker, markersize=5, linewidth=1.8, elinewidth=1.2, capsize=2.5)
        ends.append((float(x[-1]), y[-1], name, colour))
    places = sorted({one.point.at for one in measured})
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=9)
    axes.minorticks_off()
    axes.set_xlabel(PLACES[at])
    axes.set_ylabel(AXES[column])
    plain(axes)
    return ends


def _against(measured: Sequence[Measured], at: str) -> Figure:
    figure = Figure(figsize=(5.8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    label_ends(axes, _lines(axes, measured, "average", at))
    return figure


def _lengths(measured: Sequence[Measured], at: str) -> Figure:
    """New beside old classes: what the separated softmax does not compare."""
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    ends = [_lines(axes, measured, column, at) for axes, column in zip(both, ("newest", "old"), strict=True)]
    for axes, behind in zip(both, ends, strict=True):  # once both have their one scale
        label_ends(axes, behind)
    return figure


def _tasks(measured: Sequence[Measured], at: str) -> Figure:
    """A panel a value of L: accuracy over all seen classes against their number."""
    panels = sorted({one.point.at for one in measured})
    figure = Figure(figsize=(3.6 * len(panels) + 0.4, 3.4), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    ends = [
        [_curve(axes, one, place) for place, one in enumerate(one for one in measured if one.point.at == panel)]
        for axes, panel in zip(grid, panels, strict=True)
    ]
    for axes, panel, behind in zip(grid, panels, ends, strict=True):  # once all panels have their one scale
        axes.set_title(f"{at} = {panel}", fontsize=10)
        axes.set_xlabel("classes seen")
        plain(axes)
        label_ends(axes, behind)
    grid[0].set_ylabel("accuracy over seen classes (%)")
    return figure


def _curve(axes: Axes, one: Measured, place: int) -> tuple[float, float, str, str]:
    """Mean and a band of one standard deviation; where its name goes."""
    colour, marker = _style(one.point.series, place)
    y = np.array([result["accuracy"] for result in one.results], dtype=float)
    x, mean = np.cumsum(one.results[0]["classes_per_task"]), y.mean(0)
    axes.plot(x, mean, color=colour, marker=marker, markersize=4.5, linewidth=1.8)
    if len(y) > 1:
        std = y.std(0, ddof=1)
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    return float(x[-1]), float(mean[-1]), one.point.series, colour


def _variants(measured: Sequence[Measured], at: str) -> Figure:
    """A row a variant; its average, newest and old accuracy side by side, each on a scale of its own."""
    names = [one.point.series for one in measured]
    figure = Figure(figsize=(8.4, 0.5 * len(names) + 1.0), layout="constrained")
    for axes, column in zip(figure.subplots(1, 3, sharey=True), AXES, strict=True):
        cells = [summary(one.results)[column] for one in measured]
        for place, cell in enumerate(cells):
            _dot(axes, cell, place, COLOURS[0], "o")
            axes.annotate(
                cell.text(), (cell.mean or 0.0, place), (0, 8), textcoords="offset points", ha="center", fontsize=9
            )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.7)
        axes.margins(x=0.3)
        axes.set_xlabel(AXES[column], fontsize=8.5)
        _rows(axes)
    return figure


def _table1(measured: Sequence[Measured], at: str) -> Figure:
    """A row a method, a mark a value of L; a block of the table below the other, each under its name."""
    rows = list(dict.fromkeys((one.point.block, one.point.series) for one in measured))
    places = sorted({one.point.at for one in measured})
    blocks = list(dict.fromkeys(block for block, _ in rows))
    height = {row: index + 1.2 * (blocks.index(row[0]) + 1) for index, row in enumerate(rows)}
    figure = Figure(figsize=(6.4, 0.3 * (max(height.values()) + 1) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    for one in measured:
        kind = places.index(one.point.at)
        row = height[one.point.block, one.point.series] + 0.22 * (kind - (len(places) - 1) / 2)  # none hides another
        _dot(axes, summary(one.results)["average"], row, COLOURS[kind], MARKERS[kind])
    axes.set_yticks(list(height.values()), [name for _, name in rows])
    axes.set_ylim(max(height.values()) + 0.7, 0)
    axes.set_xlabel(AXES["average"])
    _rows(axes)
    for block in blocks:
        top = min(at for row, at in height.items() if row[0] == block)
        axes.text(0.01, top - 0.75, block, transform=axes.get_yaxis_transform(), va="center", color="#666666")
    marks = [axes.plot([], [], MARKERS[kind], color=COLOURS[kind])[0] for kind in range(len(places))]
    figure.legend(marks, [f"{at} = {place}" for place in places], loc="outside upper right", ncols=3, frameon=False)
    return figure


def _dot(axes: Axes, cell: Cell, row: float, colour: str, marker: str) -> None:
    if cell.mean is not None:
        axes.errorbar(cell.mean, row, xerr=cell.std, color=colour, marker=marker, markersize=5.5, capsize=2.5)


def _rows(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="both", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def examples(found: Examples) -> Figure:
    """The paper's qualitative figure, k-NN's answer under MTN's."""
    near = {one.id for answer in found.evidence for one in answer.neighbours}
    known = {number: found.looks(number) for number in near | set(found.ids)}
    seen = {number: look for number, look in known.items() if look is not None}
    queries = [seen[number] for number in found.ids] if set(found.ids) <= seen.keys() else None
    notes = [f"MTN: right\nk-NN: {evidence.wrapped(one)}" for one in found.voted]
    if not found.evidence:
        return _words("no query that k-NN gets wrong and MTN right")
    return evidence.plot(found.evidence, seen, queries, notes)


DRAW: dict[str, Callable[[Sequence[Measured], str], Figure]] = {
    "table1": _table1,
    "tasks": _tasks,
    "neighbours": _against,
    "memory": _against,
    "rank": _variants,
    "labels": _variants,
    "readout": _variants,
    "schedule": _lengths,
}

"""Methods on several kinds of streams: a table of accuracies, and a figure of the rank of each method on each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mtn.experiments.plotting import save_figure
from mtn.experiments.report import MeanStd, mean_std
from mtn.protocols import STREAMS
from mtn.storage import files

Result = dict[str, Any]
"""The content of a result.json."""
Accuracies = dict[str, dict[str, MeanStd]]
"""Method -> kind of stream -> accuracy."""


def metric_of(kind: str) -> str:
    """The key of result.json that methods are ranked by on a kind of stream."""
    own = getattr(STREAMS.get(kind), "metrics", ())
    return own[0] if own else "average_incremental_accuracy"


def accuracies(results: Mapping[str, Sequence[Result]]) -> Accuracies:
    """Of the results of each kind of stream, over seeds and class orders."""
    table: Accuracies = {}
    for kind, runs in results.items():
        for method in dict.fromkeys(run["method"] for run in runs):
            table.setdefault(method, {})[kind] = mean_std(
                [run[metric_of(kind)] for run in runs if run["method"] == method], with_std=True
            )
    return table


def ranks(table: Accuracies, kinds: Sequence[str]) -> dict[str, list[float]]:
    """Method -> its rank on each kind of stream, 1 for the best; methods of equal accuracy share their mean rank.

    Methods are sorted by their mean rank. One that did not run on a stream comes last there.
    """
    found = np.empty((len(table), len(kinds)))
    for column, kind in enumerate(kinds):
        values = np.array([_value(row.get(kind)) for row in table.values()])
        found[:, column] = [((values > value).sum() + 1 + (values >= value).sum()) / 2 for value in values]
    order = found.mean(1).argsort(kind="stable")
    methods = list(table)
    return {methods[row]: found[row].tolist() for row in order}


def _value(accuracy: MeanStd | None) -> float:
    return -np.inf if accuracy is None or accuracy.mean is None else accuracy.mean


def write(results: Mapping[str, Sequence[Result]], out: Path) -> str:
    """Write streams.md and the figure, streams.png and .svg; returns the table."""
    table, kinds = accuracies(results), list(results)
    text = markdown(table, kinds)
    files.write_text(out / "streams.md", text)
    save_figure(draw(table, kinds), out / "streams")
    return text


def markdown(table: Accuracies, kinds: Sequence[str]) -> str:
    """Accuracy on each kind of stream, and the mean rank."""
    lines = [f"| method | {' | '.join(kinds)} | mean rank |", f"|---|{'---:|' * (len(kinds) + 1)}"]
    for method, row in ranks(table, kinds).items():
        cells = [str(table[method].get(kind, MeanStd(None, None))) for kind in kinds]
        lines.append(f"| {method} | {' | '.join(cells)} | {np.mean(row):.1f} |")
    special = [f"{kind}: {metric_of(kind)}" for kind in kinds if metric_of(kind) != "average_incremental_accuracy"]
    legend = "Per cent, average_incremental_accuracy" + (f"; {'; '.join(special)}" if special else "") + "."
    return "\n".join([*lines, "", legend, ""])


def draw(table: Accuracies, kinds: Sequence[str]) -> Figure:
    """A cell a method and kind of stream: its colour is the rank, the number in it the accuracy."""
    ranked = ranks(table, kinds)
    values = np.array(list(ranked.values()))
    figure = Figure(figsize=(1.8 + 0.95 * len(kinds), 1.1 + 0.34 * len(ranked)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="cividis_r", aspect="auto", vmin=1, vmax=max(len(ranked), 2))
    dark = values > (1 + len(ranked)) / 2
    for row, method in enumerate(ranked):
        for column, kind in enumerate(kinds):
            accuracy = table[method].get(kind, MeanStd(None, None))
            text = "–" if accuracy.mean is None else f"{accuracy.mean:.1f}"
            colour = "white" if dark[row, column] else "black"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_yticks(range(len(ranked)), [f"{name} ({np.mean(row):.1f})" for name, row in ranked.items()])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, label="rank", shrink=0.8).ax.invert_yaxis()
    axes.set_title("accuracy (%), coloured by rank; in brackets the mean rank", fontsize=10, loc="left")
    return figure

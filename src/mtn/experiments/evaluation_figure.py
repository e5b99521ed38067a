"""The figure of an evaluation: the most confused classes, what they are taken for, their recall and precision."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtn.experiments.evaluation import ClassScore, Evaluation
from mtn.experiments.plotting import COLOURS, style_axes
from mtn.runtime.text import printable, shorten

SHOWN = 12
"""Classes at the most."""
LONGEST_LABEL = 22
"""Characters of a class's name."""


@mpl.rc_context({"text.parse_math": False})  # a class may be called "$5 to $10"
def plot(evaluation: Evaluation) -> Figure:
    """Draw the confusion matrix of the classes that are confused most often, a row a class, and their scores beside it.

    Where fewer classes are confused, those with the most samples fill the rows.
    """
    classes = _most_confused(evaluation)
    size = 0.42 * len(classes)
    figure = Figure(figsize=(size + 5.6, size + 2.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[size + 0.6, 2.2])
    _draw_matrix(left, evaluation, classes)
    _draw_scores(right, classes)
    figure.suptitle(_headline(evaluation, len(classes)), fontsize=10, x=0.01, ha="left")
    return figure


def _most_confused(evaluation: Evaluation) -> list[ClassScore]:
    """Both classes of the most frequent confusions, then those with the most samples, in the order of their labels."""
    pairs = [label for confusion in evaluation.confusions for label in (confusion.label, confusion.answer)]
    by_size = sorted(evaluation.classes, key=lambda score: -score.samples)
    measured = {score.label for score in by_size}
    ranked = [label for label in dict.fromkeys([*pairs, *(score.label for score in by_size)]) if label in measured]
    return [score for score in evaluation.classes if score.label in ranked[:SHOWN]]


def _draw_matrix(axes: Axes, evaluation: Evaluation, classes: list[ClassScore]) -> None:
    """Draw the number of samples of each class (row) that were answered with each class; the last column, if need be:
    with a class that is not shown.
    """
    labels = [score.label for score in classes]
    counts = np.zeros((len(classes), len(classes) + 1), dtype=int)
    for row, score in enumerate(classes):
        counts[row, row] = score.right
    for confusion in evaluation.confusions:
        if confusion.label in labels:
            column = labels.index(confusion.answer) if confusion.answer in labels else len(labels)
            counts[labels.index(confusion.label), column] += confusion.samples
    names = [shorten(printable(label), LONGEST_LABEL) for label in labels]
    columns = [*names, "another"] if counts[:, -1].any() else names
    counts = counts[:, : len(columns)]
    shares = counts / counts.sum(1, keepdims=True).clip(min=1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(counts):
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xticks(range(len(columns)), columns, fontsize=8, rotation=45, ha="right")
    axes.set_xlabel("answered")
    axes.set_ylabel("class of the sample")
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.6)
    axes.tick_params(which="minor", length=0)


def _draw_scores(axes: Axes, classes: list[ClassScore]) -> None:
    """Draw recall and precision of each class in per cent."""
    rows = np.arange(len(classes))
    recall = [100 * score.recall for score in classes]
    precision = [np.nan if score.precision is None else 100 * score.precision for score in classes]
    axes.plot(recall, rows, "o", color=COLOURS[0], label="recall", markersize=6, clip_on=False)
    axes.plot(precision, rows, "D", color=COLOURS[1], label="precision", markersize=4, clip_on=False)
    axes.set_xlim(0, 100)
    axes.set_xlabel("%")
    axes.tick_params(axis="y", which="both", length=0, labelleft=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8, handletextpad=0.1)
    style_axes(axes, grid="both")


def _headline(evaluation: Evaluation, shown: int) -> str:
    if evaluation.accuracy is None:
        return "no sample of a known class"
    total = len(evaluation.classes)
    which = f"the {shown} most confused of {total} classes" if shown < total else f"{total} classes"
    return f"accuracy {100 * evaluation.accuracy:.1f} % on {evaluation.samples} samples; {which}"

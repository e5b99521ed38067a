"""The paper's qualitative figure: queries, their nearest exemplars, and how similar each is."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mtn.evidence import Evidence, Neighbour
from mtn.experiments.plotting import COLOURS, GREY

BEFORE, AFTER, ATTENTION = COLOURS[5], COLOURS[0], COLOURS[4]
"""Colours of the bars of a neighbour."""
SAME, OTHER = COLOURS[2], GREY
"""Colours of a neighbour's label: of the predicted class, of another one."""
LABEL_WIDTH = 14
"""Characters of a label in a line."""
SENTENCE_WIDTH, SENTENCE_LINES = 17, 7
"""Characters of a sentence in a line, and its lines."""

Preview = np.ndarray | str
"""What is shown of a sample: an image (H,W or H,W,3 of uint8), or its sentence."""


@mpl.rc_context({"text.parse_math": False})  # a class may be called "$5 to $10"
def plot(
    evidence: Sequence[Evidence],
    images: Mapping[Any, Preview] | None = None,
    query_images: Sequence[Preview] | None = None,
    notes: Sequence[str] | None = None,
) -> Figure:
    """One row a query: its image, then its neighbours with their images (by id), labels and similarities.

    A sentence is written where an image would be; under a prediction are its probability and novelty, or `notes`.
    """
    images = images or {}
    columns = 1 + max((len(answer.neighbours) for answer in evidence), default=0)
    with_images = bool(images) or query_images is not None
    height = (2.35 if with_images else 1.35) * len(evidence) + 0.55
    figure = Figure(figsize=(1.15 * columns + 0.4, height), layout="constrained")
    ratios = ([1.1, 0.9] if with_images else [1.0]) * len(evidence)
    grid = figure.subplots(len(ratios), columns, squeeze=False, gridspec_kw={"height_ratios": ratios})
    image_rows, bar_rows = (grid[::2], grid[1::2]) if with_images else (None, grid)
    for row, answer in enumerate(evidence):
        note = f"p = {answer.probability:.2f}\nnovelty {answer.novelty:.2f}" if notes is None else notes[row]
        _draw_prediction(bar_rows[row, 0], answer, note)
        if image_rows is not None:
            _draw_preview(image_rows[row, 0], None if query_images is None else query_images[row], None)
            image_rows[row, 0].set_title("query", fontsize=9)
        for column, neighbour in enumerate(answer.neighbours, 1):
            image_axes = None if image_rows is None else image_rows[row, column]
            same = neighbour.label == answer.prediction
            _draw_neighbour(image_axes, bar_rows[row, column], neighbour, images.get(neighbour.id), same)
        for unused in range(1 + len(answer.neighbours), columns):
            for axes in grid[:, unused].reshape(len(evidence), -1)[row]:
                axes.axis("off")
    bars = ((BEFORE, "similarity of features"), (AFTER, "once adapted"), (ATTENTION, "attention"))
    handles = [Patch(color=colour, label=label) for colour, label in bars]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def wrap_label(label: Any) -> str:
    """A label in at most two lines, narrow enough for its column."""
    return textwrap.fill(str(label).replace("_", " "), LABEL_WIDTH, max_lines=2, placeholder=" …")


def _draw_prediction(axes: Axes, answer: Evidence, note: str) -> None:
    axes.axis("off")
    label = wrap_label(answer.prediction)
    axes.text(0.5, 1.0, label, ha="center", va="top", fontsize=10, weight="bold")
    below = 0.6 if len(label) <= LABEL_WIDTH else 0.5
    axes.text(0.5, below, note, ha="center", va="top", fontsize=8, linespacing=1.5)


def _draw_neighbour(
    image_axes: Axes | None, bar_axes: Axes, neighbour: Neighbour, preview: Preview | None, same: bool
) -> None:
    """Draw an exemplar's image, if there are images, and its similarities; a tick marks the predicted class."""
    label = wrap_label(neighbour.label)
    colour, text = (SAME, f"✓ {label}") if same else (OTHER, label)
    _draw_bars(bar_axes, neighbour)
    if image_axes is None:
        bar_axes.set_xlabel(text, fontsize=9, color=colour)
    else:
        _draw_preview(image_axes, preview, colour)
        image_axes.set_title(text, fontsize=9, color=colour)


def _draw_preview(axes: Axes, preview: Preview | None, colour: str | None) -> None:
    axes.set(xticks=[], yticks=[])
    if isinstance(preview, str):
        sentence = textwrap.fill(preview, SENTENCE_WIDTH, max_lines=SENTENCE_LINES, placeholder=" …")
        axes.text(0.5, 0.5, sentence, ha="center", va="center", fontsize=7.5, clip_on=True, transform=axes.transAxes)
    elif preview is not None:
        axes.imshow(preview, cmap="gray", vmin=0, vmax=255)
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1))
    for spine in axes.spines.values():
        spine.set(visible=preview is not None, color=colour or "black", linewidth=2.0 if colour == SAME else 1.0)


def _draw_bars(axes: Axes, neighbour: Neighbour) -> None:
    values = [(neighbour.before, BEFORE), (neighbour.after, AFTER), (neighbour.attention, ATTENTION)]
    known = [(value, colour) for value, colour in values if value is not None]
    axes.set(xlim=(-0.7, 2.7), ylim=(min(0, *(value for value, _ in known)), 1.3), xticks=[], yticks=[])
    for x, (value, colour) in enumerate(known):
        axes.bar(x, value, color=colour, width=0.85)
        axes.text(x, max(value, 0) + 0.04, f"{value:.2f}".replace("0.", ".", 1), ha="center", fontsize=7)
    axes.axhline(0, color="black", linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)

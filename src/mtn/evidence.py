"""What an answer rests on, and the paper's qualitative figure of it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mtn.report import COLOURS

BEFORE, AFTER, ATTENTION = COLOURS[5], COLOURS[0], COLOURS[4]
SAME, OTHER = COLOURS[2], "#666666"
WIDE = 14
"""Characters of a label in a line."""
LINE, LINES = 17, 7
"""Characters of a sentence in a line, and lines of it."""

Look = np.ndarray | str
"""What is shown of a sample: H,W or H,W,3 of uint8, or its sentence."""


@dataclass(frozen=True)
class Neighbour:
    """A remembered sample near the query."""

    id: Any
    label: Any
    before: float  # cosine of the features
    after: float | None  # cosine of the adapted tokens; None for a method without a transformer
    attention: float | None  # weight of the query's attention, mean over the heads of the last block


@dataclass(frozen=True)
class Evidence:
    """An answer with its neighbours, nearest first."""

    prediction: Any
    probability: float
    novelty: float
    neighbours: list[Neighbour]


@mpl.rc_context({"text.parse_math": False})  # a class may be called "$5 to $10"
def plot(
    evidence: Sequence[Evidence],
    images: Mapping[Any, Look] | None = None,
    query_images: Sequence[Look] | None = None,
    notes: Sequence[str] | None = None,
) -> Figure:
    """One row a query: its image, then its neighbours with their images (by id), labels and similarities.

    A sentence stands where an image would; under an answer its probability and novelty, or a note of the caller's.
    """
    images = images or {}
    columns = 1 + max((len(one.neighbours) for one in evidence), default=0)
    shown = bool(images) or query_images is not None
    figure = Figure(
        figsize=(1.15 * columns + 0.4, (2.35 if shown else 1.35) * len(evidence) + 0.55), layout="constrained"
    )
    ratios = ([1.1, 0.9] if shown else [1.0]) * len(evidence)
    grid = figure.subplots(len(ratios), columns, squeeze=False, gridspec_kw={"height_ratios": ratios})
    pictures, rows = (grid[::2], grid[1::2]) if shown else (None, grid)
    for row, one in enumerate(evidence):
        note = f"p = {one.probability:.2f}\nnovelty {one.novelty:.2f}" if notes is None else notes[row]
        _answer(rows[row, 0], one, note)
        if pictures is not None:
            _picture(pictures[row, 0], None if query_images is None else query_images[row], None)
            pictures[row, 0].set_title("query", fontsize=9)
        for place in range(1, columns):
            bars = rows[row, place]
            if place > len(one.neighbours):
                for axes in grid[:, place].reshape(len(evidence), -1)[row]:
                    axes.axis("off")
                continue
            near = one.neighbours[place - 1]
            same = near.label == one.prediction
            colour, label = (SAME, f"✓ {wrapped(near.label)}") if same else (OTHER, wrapped(near.label))
            _bars(bars, near)
            if pictures is None:
                bars.set_xlabel(label, fontsize=9, color=colour)
            else:
                _picture(pictures[row, place], images.get(near.id), colour)
                pictures[row, place].set_title(label, fontsize=9, color=colour)
    named = ((BEFORE, "similarity of features"), (AFTER, "once adapted"), (ATTENTION, "attention"))
    handles = [Patch(color=colour, label=label) for colour, label in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def wrapped(label: Any) -> str:
    """In at most two lines that fit beside each other's."""
    return textwrap.fill(str(label).replace("_", " "), WIDE, max_lines=2, placeholder=" …")


def _answer(axes: Axes, one: Evidence, note: str) -> None:
    axes.axis("off")
    label = wrapped(one.prediction)
    axes.text(0.5, 1.0, label, ha="center", va="top", fontsize=10, weight="bold")
    below = 0.6 if len(label) <= WIDE else 0.5
    axes.text(0.5, below, note, ha="center", va="top", fontsize=8, linespacing=1.5)


def _picture(axes: Axes, image: Look | None, colour: str | None) -> None:
    axes.set(xticks=[], yticks=[])
    if isinstance(image, str):
        sentence = textwrap.fill(image, LINE, max_lines=LINES, placeholder=" …")
        axes.text(0.5, 0.5, sentence, ha="center", va="center", fontsize=7.5, clip_on=True, transform=axes.transAxes)
    elif image is not None:
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1))
    for side in axes.spines.values():
        side.set(visible=image is not None, color=colour or "black", linewidth=2.0 if colour == SAME else 1.0)


def _bars(axes: Axes, near: Neighbour) -> None:
    values = [(near.before, BEFORE), (near.after, AFTER), (near.attention, ATTENTION)]
    known = [(value, colour) for value, colour in values if value is not None]
    axes.set(xlim=(-0.7, 2.7), ylim=(min(0, *(value for value, _ in known)), 1.3), xticks=[], yticks=[])
    for place, (value, colour) in enumerate(known):
        axes.bar(place, value, color=colour, width=0.85)
        axes.text(place, max(value, 0) + 0.04, f"{value:.2f}".replace("0.", ".", 1), ha="center", fontsize=7)
    axes.axhline(0, color="black", linewidth=0.8)
    for side in axes.spines.values():
        side.set_visible(False)

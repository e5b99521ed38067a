"""What an answer rests on, and the paper's qualitative figure of it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtn.report import COLOURS

BEFORE, AFTER, ATTENTION = COLOURS[5], COLOURS[0], COLOURS[4]
SAME, OTHER = COLOURS[2], "#666666"
WIDE = 14
"""Characters of a label in a line."""


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


def plot(
    evidence: Sequence[Evidence],
    images: Mapping[Any, np.ndarray] | None = None,
    query_images: Sequence[np.ndarray] | None = None,
    notes: Sequence[str] | None = None,
) -> Figure:
    """One row a query: its image, then its neighbours with their images (by id), labels and similarities.

    Under an answer stand its probability and novelty, or a note of the caller's.
    """
    images = images or {}
    columns = 1 + max((len(one.neighbours) for one in evidence), default=0)
    shown = bool(images) or query_images is not None
    height = 2.35 if shown else 1.35
    figure = Figure(figsize=(1.15 * columns + 0.4, height * len(evidence) + 0.55), layout="constrained")
    ratios = ([1.1, 0.9] if shown else [0.15, 0.9]) * len(evidence)
    grid = figure.subplots(2 * len(evidence), columns, squeeze=False, gridspec_kw={"height_ratios": ratios})
    for row, one in enumerate(evidence):
        picture, bars = grid[2 * row], grid[2 * row + 1]
        _picture(picture[0], None if query_images is None else query_images[row], None)
        picture[0].set_title("query", fontsize=9)
        bars[0].axis("off")
        bars[0].text(0.5, 1.0, wrapped(one.prediction), ha="center", va="top", fontsize=10, weight="bold")
        note = f"p = {one.probability:.2f}\nnovelty {one.novelty:.2f}" if notes is None else notes[row]
        bars[0].text(
            0.5,
            0.6 if len(wrapped(one.prediction)) <= WIDE else 0.5,
            note,
            ha="center",
            va="top",
            fontsize=8,
            linespacing=1.5,
        )
        for place in range(1, columns):
            if place > len(one.neighbours):
                picture[place].axis("off")
                bars[place].axis("off")
                continue
            near = one.neighbours[place - 1]
            colour = SAME if near.label == one.prediction else OTHER
            _picture(picture[place], images.get(near.id), colour)
            mark = "✓ " if near.label == one.prediction else ""
            picture[place].set_title(f"{mark}{wrapped(near.label)}", fontsize=9, color=colour)
            _bars(bars[place], near)
    handles = [
        figure.axes[0].bar([0], [0], color=colour, label=label)
        for colour, label in ((BEFORE, "similarity of features"), (AFTER, "once adapted"), (ATTENTION, "attention"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def wrapped(label: Any) -> str:
    """In at most two lines that fit beside each other's."""
    return textwrap.fill(str(label).replace("_", " "), WIDE, max_lines=2, placeholder=" …")


def _picture(axes: Axes, image: np.ndarray | None, colour: str | None) -> None:
    axes.set(xticks=[], yticks=[])
    if image is not None:
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

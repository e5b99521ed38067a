"""What the figures of a report share: colours, accuracy curves, labels at the ends of lines, files."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtn.methods import METHODS
from mtn.storage import files

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
MARKERS = "osD^vP*"
GREY = "#666666"


class LineEnd(NamedTuple):
    """The last point of a line, and the label that goes there in the colour of the line."""

    x: float
    y: float
    label: str
    colour: str


def method_style(method: str) -> tuple[str, str]:
    """Colour and marker of a method, the same in every figure.

    A method of the package has the style of its position in the table of methods; one of the user's has one of the
    remaining styles, by a hash of its name. Markers advance after each round of colours, so that 49 positions have 49
    styles.
    """
    known, styles = list(METHODS), len(COLOURS) * len(MARKERS)
    hashed = len(known) + zlib.crc32(method.encode()) % (styles - len(known))
    index = known.index(method) if method in METHODS else hashed
    return COLOURS[index % len(COLOURS)], MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def plot_accuracy(
    axes: Axes, results: Sequence[dict[str, Any]], label: str, style: tuple[str, str], markersize: float
) -> LineEnd:
    """Draw accuracy over seen classes against their number: the mean of runs and a band of one standard deviation."""
    colour, marker = style
    x = np.cumsum(results[0]["classes_per_task"])
    y = np.array([result["accuracy"] for result in results], dtype=float)
    mean = y.mean(0)
    axes.plot(x, mean, color=colour, marker=marker, markersize=markersize, linewidth=1.8)
    if len(results) > 1:
        std = y.std(0, ddof=1)
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    return LineEnd(float(x[-1]), float(mean[-1]), label, colour)


def style_axes(axes: Axes, grid: Literal["y", "both"] = "y") -> None:
    """Show grid lines, and no frame at the top and right; with rows of categories (grid = "both") none at the left."""
    hidden = ["top", "right"] if grid == "y" else ["top", "right", "left"]
    axes.spines[hidden].set_visible(False)
    axes.grid(axis=grid, color="#dddddd" if grid == "y" else "#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)


def label_line_ends(axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write each line's label behind its last point, moved up or down where labels would overlap."""
    low, high = axes.get_ylim()
    heights = separate([end.y for end in ends], (high - low) * 0.055)
    for end, height in zip(ends, heights, strict=True):
        axes.annotate(
            end.label,
            (end.x, height),
            xytext=(9, 0),
            textcoords="offset points",
            color=end.colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )


def separate(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved as little as needed for each to be `gap` from the next, in the same order.

    Positions that are too close become a group around their mean, which may then be too close to the next group.
    """
    groups: list[tuple[list[int], float]] = []
    for index in np.argsort(positions, kind="stable").tolist():
        members, centre = [index], positions[index]
        while groups and centre - groups[-1][1] < gap * (len(members) + len(groups[-1][0])) / 2:
            members = groups.pop()[0] + members
            centre = float(np.mean([positions[member] for member in members]))
        groups.append((members, centre))
    separated = [0.0] * len(positions)
    for members, centre in groups:
        for rank, member in enumerate(members):
            separated[member] = centre + gap * (rank - (len(members) - 1) / 2)
    return separated


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG and as SVG; the same results give the same file."""
    with mpl.rc_context({"svg.hashsalt": "mtn"}):
        files.write(path.with_suffix(".svg"), lambda to: figure.savefig(to, format="svg", metadata={"Date": None}))
    files.write(path.with_suffix(".png"), lambda to: figure.savefig(to, format="png", dpi=160))

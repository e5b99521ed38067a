"""What the figures of a report share: colours, accuracy curves, labels at the ends of lines, files."""

import functools
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from mtn.methods import METHODS
from mtn.storage import files

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
OFTEN_SHOWN = dict(zip(("mtn", "practical", "ssil", "slda", "knn", "ranpac", "joint"), COLOURS, strict=True))
"""The methods that have it."""
PALETTE_SIZE = 160
"""Colours in all: those of the package's methods, and others for methods of one's own."""
MARKERS = "osD^vP*"
GREY = "#666666"
OKLAB_1 = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB_2 = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""Linear sRGB -> the responses of the eye's cones; their cube roots -> lightness and the two axes of colour."""
Style = tuple[str, str]
"""Colour and marker."""


class LineEnd(NamedTuple):
    """The last point of a line, and the label that goes there in the colour of the line."""

    x: float
    y: float
    label: str
    colour: str


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """Colour and marker of each method; the colours are distinct, and the same in every figure.

    A method of the package has the colour of its place in the table of methods. One of the user's has one of the others
    by a hash of its name, or the next one where another method in the same figure has it.
    """
    free, others = palette()[len(COLOURS) :], [name for name in METHODS if name not in OFTEN_SHOWN]
    own, rest = dict(zip(others, free, strict=False)), free[len(others) :]
    styles: dict[str, Style] = {}
    for method in sorted(methods):
        number = zlib.crc32(method.encode())
        colour = OFTEN_SHOWN.get(method) or own.get(method)
        if colour is None:
            taken = {used for used, _ in styles.values()}
            colour = next(one for one in rest[number % len(rest) :] + rest if one not in taken)
        place = list(METHODS).index(method) if method in METHODS else number
        styles[method] = colour, MARKERS[place % len(MARKERS)]
    return styles


@functools.cache
def palette() -> tuple[str, ...]:
    """Colours to be seen on white: those of Okabe and Ito, then always the one that is farthest from all before it.

    Distances are Euclidean in Oklab, where equal distances look equal (Ottosson 2020).
    """
    lightness, chroma, hue = np.meshgrid(np.arange(0.4, 0.76, 0.05), np.arange(0.04, 0.26, 0.03), np.arange(0, 360, 6))
    angle = np.deg2rad(hue)
    candidates = np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], -1).reshape(-1, 3)
    linear = np.linalg.solve(OKLAB_2, candidates.T) ** 3
    linear = np.linalg.solve(OKLAB_1, linear).T
    inside = ((linear >= 0) & (linear <= 1)).all(1)
    candidates, linear = candidates[inside], linear[inside]
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    chosen = list(COLOURS)
    distance = np.min([np.linalg.norm(candidates - _oklab(colour), axis=1) for colour in (*COLOURS, "#FFFFFF")], 0)
    while len(chosen) < PALETTE_SIZE:
        best = int(distance.argmax())
        chosen.append(to_hex(srgb[best]).upper())
        distance = np.minimum(distance, np.linalg.norm(candidates - candidates[best], axis=1))
    return tuple(chosen)


def _oklab(colour: str) -> np.ndarray:
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    found: np.ndarray = OKLAB_2 @ np.cbrt(OKLAB_1 @ linear)
    return found


def plot_accuracy(
    axes: Axes, results: Sequence[dict[str, Any]], label: str, style: Style, markersize: float
) -> LineEnd:
    """Draw accuracy over seen classes against their number: the mean of runs and a band of one standard deviation."""
    colour, marker = style
    x = progress_axis(results)[0]
    y = np.array([result["accuracy"] for result in results], dtype=float)
    mean = y.mean(0)
    axes.plot(x, mean, color=colour, marker=marker, markersize=markersize, linewidth=1.8)
    if len(results) > 1:
        std = y.std(0, ddof=1)
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    return LineEnd(float(x[-1]), float(mean[-1]), label, colour)


def progress_axis(results: Sequence[dict[str, Any]]) -> tuple[np.ndarray, str]:
    """Where accuracies are drawn, and the name of the axis: classes seen, or tasks if some of them bring no class."""
    sizes = np.array(results[0]["classes_per_task"])
    return (np.cumsum(sizes), "classes seen") if sizes.all() else (np.arange(1, len(sizes) + 1), "tasks")


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

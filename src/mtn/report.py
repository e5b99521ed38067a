"""Results -> tables and the accuracy curve."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from mtn import checkpoint
from mtn.methods import METHODS
from mtn.stream import order_name

Result = dict[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind readers too."""
MARKERS = "osD^vP*"


def _after_base(values: list[float | None]) -> float | None:
    """Mean over the tasks after the first."""
    known = [value for value in values[1:] if value is not None]
    return float(np.mean(known)) if known else None


COLUMNS = {
    "average": lambda r: r["average_incremental_accuracy"],
    "without base": lambda r: r["average_without_base"],
    "last": lambda r: r["last_accuracy"],
    "newest": lambda r: _after_base(r["newest_accuracy"]),
    "old": lambda r: _after_base(r["old_accuracy"]),
    "forgetting": lambda r: r["forgetting"],
    "seconds": lambda r: r["seconds"]["training"] + r["seconds"]["retrieval"],
    "ms a query": lambda r: r["seconds"]["per_1000_queries"],
    "M floats": lambda r: r["kept"]["total"] / 1e6,
    "MB": lambda r: r["kept"]["mb"],
}
FIXED = ("M floats", "MB")  # the same for every run
RANKED = ("average", "without base", "last", "newest", "old")  # the best and the second best are marked
DIGITS = {"seconds": 0, "ms a query": 2, "M floats": 2}
LEGEND = (
    "Per cent. average: mean accuracy over all tasks, the base among them; newest, old: accuracy on the newest task's "
    "classes and on all earlier ones, mean over the tasks after the base; seconds: of training and retrieval; "
    "ms a query: of answering, search included; M floats: numbers kept between tasks (exemplars, weights, statistics), "
    "in millions; ±: standard deviation over runs (seeds and class orders)."
)


@dataclass(frozen=True)
class Cell:
    """A number of a table: mean and, with more than one run, standard deviation."""

    mean: float | None
    std: float | None

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 1, sign: str = " ± ") -> str:
        if self.mean is None:
            return "–"
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f"{sign}{self.std:.{digits}f}")


def cells(results: Sequence[Result]) -> dict[str, dict[str, Cell]]:
    """Method -> column -> cell, over that method's runs (seeds and class orders)."""
    methods = list(dict.fromkeys(result["method"] for result in results))
    return {method: summary([result for result in results if result["method"] == method]) for method in methods}


def summary(results: Sequence[Result]) -> dict[str, Cell]:
    """Column -> cell, over runs of one kind."""
    return {
        name: _cell([column(result) for result in results], spread=name not in FIXED)
        for name, column in COLUMNS.items()
    }


def _cell(values: list[float | None], spread: bool) -> Cell:
    known = [value for value in values if value is not None]
    std = float(np.std(known, ddof=1)) if spread and len(known) > 1 else None
    return Cell(float(np.mean(known)) if known else None, std)


def rich_table(results: Sequence[Result]) -> Table:
    """The columns that fit into 80 characters; the best in bold, the second best underlined."""
    table = Table(title=headline(results), caption=LEGEND, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    shown = ("average", "last", "newest", "old", "seconds", "M floats")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    rows = cells(results)
    marks = ranks(rows)
    styles = {1: "bold", 2: "underline"}
    for method, row in rows.items():
        written = [row[name].text(DIGITS.get(name, 1), "±") for name in shown]
        table.add_row(
            method,
            *(Text(w, styles.get(marks.get((method, name), 0), "")) for w, name in zip(written, shown, strict=True)),
        )
    return table


def ranks(rows: Mapping[str, Mapping[str, Cell]], columns: Sequence[str] = RANKED) -> dict[tuple[str, str], int]:
    """(method, column) -> 1 for the best, 2 for the second best; `joint`, which sees all data, is out of the race.

    As in sports: who is printed with the same number shares the place, and after two best there is no second.
    """
    found: dict[tuple[str, str], int] = {}
    for name in columns:
        racing = {method: row[name].mean for method, row in rows.items() if method != "joint"}
        printed = {method: round(mean, DIGITS.get(name, 1)) for method, mean in racing.items() if mean is not None}
        places = {method: 1 + sum(other > mine for other in printed.values()) for method, mine in printed.items()}
        found |= {(method, name): place for method, place in places.items() if place <= 2}
    return found if len(rows) > 2 else {}


def rich_tasks(result: Result) -> Table:
    """A run task by task."""
    table = Table(title=f"{result['method']} on {headline([result])}")
    for name in ("task", "classes", "accuracy", "newest", "old"):
        table.add_column(name, justify="right")
    classes = np.cumsum(result["classes_per_task"])
    columns = (result["accuracy"], result["newest_accuracy"], result["old_accuracy"])
    for index, row in enumerate(zip(*columns, strict=True)):
        table.add_row(str(index + 1), str(classes[index]), *(str(Cell(value, None)) for value in row))
    return table


def markdown(results: Sequence[Result]) -> str:
    """Every column; the best in bold, the second best in italics."""
    rows = cells(results)
    marks, signs = ranks(rows), {1: "**", 2: "_"}
    lines = [f"**{headline(results)}**", "", f"| method | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for method, row in rows.items():
        signed = [
            (signs.get(marks.get((method, name), 0), ""), cell.text(DIGITS.get(name, 1))) for name, cell in row.items()
        ]
        lines.append(f"| {method} | {' | '.join(sign + text + sign for sign, text in signed)} |")
    return "\n".join([*lines, "", LEGEND, ""])


def headline(results: Sequence[Result]) -> str:
    """Data, protocol, seeds and, if there are several, class orders in a line."""
    first = results[0]
    base, *rest = first["classes_per_task"]
    steps = f"{len(rest)} x {rest[0]}" if len(set(rest)) == 1 else " + ".join(map(str, rest))
    memory = first["config"]["memory"]
    budget = f"M = {memory['total']:,}" if memory["total"] else f"{memory['per_class']} exemplars a class"
    split = "" if first["config"]["stream"]["evaluate"] == "test" else ", validation split"
    seeds = sorted({result["seed"] for result in results})
    said = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    orders = dict.fromkeys(order_name(result["config"]["stream"]["order"]) for result in results)
    said += f", class orders {', '.join(orders)}" if len(orders) > 1 else ""
    return f"{Path(first['data']).stem}: {base}{f' + {steps}' if rest else ''} classes, {budget}{split}, {said}"


def write(results: Sequence[Result], out: Path, name: str) -> None:
    """The table as Markdown, the curve as PNG and SVG."""
    checkpoint.write_text(out / f"{name}.md", markdown(results))
    save(curve(results), out / "curve")


def save(figure: Figure, path: Path) -> None:
    """As PNG and as SVG; the same results give the same file."""
    with mpl.rc_context({"svg.hashsalt": "mtn"}):
        checkpoint.write(path.with_suffix(".svg"), lambda to: figure.savefig(to, format="svg", metadata={"Date": None}))
    checkpoint.write(path.with_suffix(".png"), lambda to: figure.savefig(to, format="png", dpi=160))


def curve(results: Sequence[Result]) -> Figure:
    """Accuracy over all seen classes against their number; a line a method, its band one standard deviation."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    ends = []
    for method in dict.fromkeys(result["method"] for result in results):
        mine = [result for result in results if result["method"] == method]
        x = np.cumsum(mine[0]["classes_per_task"])
        y = np.array([result["accuracy"] for result in mine], dtype=float)
        (colour, marker), mean = style(method), y.mean(0)
        axes.plot(x, mean, color=colour, marker=marker, markersize=5, linewidth=1.8)
        if len(mine) > 1:
            std = y.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
        ends.append((float(x[-1]), float(mean[-1]), f"{method} (average {mean.mean():.1f})", colour))
    label_ends(axes, ends)
    axes.set_xlabel("classes seen")
    axes.set_ylabel("accuracy over seen classes (%)")
    axes.set_title(headline(results), fontsize=10, loc="left", parse_math=False)
    plain(axes)
    return figure


def plain(axes: Axes) -> None:
    """No frame where nothing is measured; lines to read heights by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def style(method: str) -> tuple[str, str]:
    """Colour and marker of a method, the same in every figure.

    By its place in the table, one of your own by its name, behind the table. The two cycle at different paces, so that
    49 places give 49 styles.
    """
    table, styles = list(METHODS), len(COLOURS) * len(MARKERS)
    own = len(table) + zlib.crc32(method.encode()) % (styles - len(table))
    place = table.index(method) if method in METHODS else own
    return COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """A text in the colour of its line behind the line's last point (x, y), moved apart where they would overlap."""
    low, high = axes.get_ylim()
    places = apart([y for _, y, _, _ in ends], (high - low) * 0.055)
    for (x, _, text, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            text,
            (x, place),
            xytext=(9, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places moved as little as it takes for each to be `gap` from the next; their order stays.

    Those that are too close become a group around their mean, which may then be too close to the next group.
    """
    groups: list[tuple[list[int], float]] = []
    for index in np.argsort(places, kind="stable").tolist():
        members, centre = [index], places[index]
        while groups and centre - groups[-1][1] < gap * (len(members) + len(groups[-1][0])) / 2:
            members = groups.pop()[0] + members
            centre = float(np.mean([places[member] for member in members]))
        groups.append((members, centre))
    found = [0.0] * len(places)
    for members, centre in groups:
        for place, member in enumerate(members):
            found[member] = centre + gap * (place - (len(members) - 1) / 2)
    return found

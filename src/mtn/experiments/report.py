"""Tables and the accuracy curve of a list of results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from mtn.experiments.plotting import (
    label_line_ends,
    method_styles,
    plot_accuracy,
    progress_axis,
    save_figure,
    style_axes,
)
from mtn.experiments.values import Result, describe_values
from mtn.storage import files
from mtn.stream import order_name


def _after_base(values: list[float | None]) -> float | None:
    """Mean over the tasks after the first."""
    known = [value for value in values[1:] if value is not None]
    return float(np.mean(known)) if known else None


COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "average": lambda r: r["average_incremental_accuracy"],
    "without base": lambda r: r["average_without_base"],
    "last": lambda r: r["last_accuracy"],
    "newest": lambda r: _after_base(r["newest_accuracy"]),
    "old": lambda r: _after_base(r["old_accuracy"]),
    "forgetting": lambda r: r["forgetting"],
    "seconds": lambda r: r["seconds"]["training"] + r["seconds"]["retrieval"],
    "ms a query": lambda r: r["seconds"]["per_1000_queries"],
    "million floats": lambda r: r["kept"]["total"] / 1e6,
    "MB": lambda r: r["kept"]["mb"],
}
FIXED = ("million floats", "MB")
"""Columns without a standard deviation: the same for every run."""
RANKED = ("average", "without base", "last", "newest", "old")
"""Columns whose best and second best are marked."""
DIGITS = {"seconds": 0, "ms a query": 2, "million floats": 2}
"""Digits after the point; 1 in all other columns."""
SHORT = ("average", "last", "newest", "old", "seconds", "million floats")
"""Columns that fit into 80 characters."""
MEANINGS = {
    ("average",): "mean accuracy over all tasks, the base among them",
    ("without base",): "the same over the tasks after the base",
    ("last",): "accuracy after the last task",
    ("newest", "old"): (
        "accuracy on the newest task's classes and on all earlier ones, mean over the tasks after the base"
    ),
    ("forgetting",): "how far each task is below its best, mean over tasks",
    ("seconds",): "of training and retrieval",
    ("ms a query",): "of answering, search included",
    ("million floats",): "numbers kept between tasks (exemplars, weights, statistics), in millions",
    ("MB",): "their size in megabytes",
}
"""What columns say."""


def legend(columns: Iterable[str], spread: bool) -> str:
    """Explains the columns of a table, and ± where a number has a spread."""
    shown = list(columns)
    groups = {tuple(name for name in names if name in shown): text for names, text in MEANINGS.items()}
    meanings = [f"{', '.join(names)}: {text}" for names, text in groups.items() if names]
    meanings += ["±: standard deviation over runs (seeds and class orders)"] if spread else []
    return f"Per cent. {'; '.join(meanings)}."


@dataclass(frozen=True)
class MeanStd:
    """A number of a table: mean and, with more than one run, sample standard deviation."""

    mean: float | None
    std: float | None

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 1, sign: str = " ± ") -> str:
        """As it is printed, `sign` between mean and standard deviation."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f"{sign}{self.std:.{digits}f}")


def summarise_methods(results: Sequence[Result]) -> dict[str, dict[str, MeanStd]]:
    """Method -> column -> mean and deviation over that method's runs (seeds and class orders)."""
    return {method: summarise_runs(runs) for method, runs in _by_method(results).items()}


def summarise_runs(results: Sequence[Result]) -> dict[str, MeanStd]:
    """Column -> mean and deviation over runs of one kind."""
    return {
        name: mean_std([column(result) for result in results], with_std=name not in FIXED)
        for name, column in COLUMNS.items()
    }


def _by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result["method"], []).append(result)
    return groups


def mean_std(values: list[float | None], with_std: bool) -> MeanStd:
    """Of the values that are known."""
    known = [value for value in values if value is not None]
    std = float(np.std(known, ddof=1)) if with_std and len(known) > 1 else None
    return MeanStd(float(np.mean(known)) if known else None, std)


def _labels(results: Sequence[Result]) -> dict[str, str]:
    """Method -> its name in a table, which says whether its values were searched for."""
    tuned = {result["method"] for result in results if result["config"].get("tuned")}
    return {method: f"{method} (tuned)" if method in tuned else method for method in _by_method(results)}


def rich_table(results: Sequence[Result]) -> Table:
    """The columns that fit into 80 characters; the best in bold, the second best underlined."""
    summaries = summarise_methods(results)
    caption = "\n".join([legend(SHORT, _has_spread(summaries)), *describe_values(results)])
    table = Table(title=headline(results), caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for name in SHORT:
        table.add_column(name, justify="right", no_wrap=True)
    ranks, styles, labels = top_two(summaries), {1: "bold", 2: "underline"}, _labels(results)
    for method, row in summaries.items():
        texts = {name: row[name].text(DIGITS.get(name, 1), "±") for name in SHORT}
        table.add_row(
            labels[method], *(Text(text, styles.get(ranks.get((method, name), 0), "")) for name, text in texts.items())
        )
    return table


def top_two(
    summaries: Mapping[str, Mapping[str, MeanStd]], columns: Sequence[str] = RANKED
) -> dict[tuple[str, str], int]:
    """(method, column) -> 1 for the best, 2 for the second best; `joint`, which trains on all data, is left out.

    Standard competition ranking: equal printed numbers share a rank, and after two that are best there is no second.
    """
    ranks: dict[tuple[str, str], int] = {}
    for name in columns:
        means = {method: row[name].mean for method, row in summaries.items() if method != "joint"}
        printed = {method: round(mean, DIGITS.get(name, 1)) for method, mean in means.items() if mean is not None}
        for method, value in printed.items():
            rank = 1 + sum(other > value for other in printed.values())
            if rank <= 2:
                ranks[method, name] = rank
    return ranks if len(summaries) > 2 else {}


def rich_tasks(result: Result) -> Table:
    """The accuracies of a run, a row a task."""
    table = Table(title=f"{result['method']} on {headline([result])}")
    for name in ("task", "classes", "accuracy", "newest", "old"):
        table.add_column(name, justify="right")
    classes = np.cumsum(result["classes_per_task"])
    columns = (result["accuracy"], result["newest_accuracy"], result["old_accuracy"])
    for index, row in enumerate(zip(*columns, strict=True)):
        table.add_row(str(index + 1), str(classes[index]), *(str(MeanStd(value, None)) for value in row))
    return table


def markdown(results: Sequence[Result]) -> str:
    """A table of every column; the best in bold, the second best in italics."""
    summaries = summarise_methods(results)
    ranks, signs, labels = top_two(summaries), {1: "**", 2: "_"}, _labels(results)
    lines = [f"**{headline(results)}**", "", f"| method | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for method, row in summaries.items():
        texts = []
        for name, value in row.items():
            sign = signs.get(ranks.get((method, name), 0), "")
            texts.append(sign + value.text(DIGITS.get(name, 1)) + sign)
        lines.append(f"| {labels[method]} | {' | '.join(texts)} |")
    own = [f"- {line}" for line in describe_values(results)]
    lines += ["", *(["Values that differ:", "", *own] if own else []), *([""] if own else [])]
    return "\n".join([*lines, legend(COLUMNS, _has_spread(summaries)), ""])


def _has_spread(summaries: Mapping[str, Mapping[str, MeanStd]]) -> bool:
    return any(value.std is not None for row in summaries.values() for value in row.values())


def headline(results: Sequence[Result]) -> str:
    """One line with data, protocol, seeds and, if there are several, class orders."""
    first = results[0]
    about = describe_protocol(first["classes_per_task"], first["config"])
    seeds = sorted({result["seed"] for result in results})
    runs = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    orders = dict.fromkeys(order_name(result["config"]["stream"]["order"]) for result in results)
    runs += f", class orders {', '.join(orders)}" if len(orders) > 1 else ""
    return f"{Path(first['data']).stem}: {about}, {runs}"


def describe_protocol(sizes: Sequence[int], config: Mapping[str, Any]) -> str:
    """How classes come, the budget of exemplars, and the split unless it is that for tests, of a dumped `Config`."""
    base, *rest = sizes
    stream, memory = config["stream"], config["memory"]
    steps = f"{len(rest)} x {rest[0]}" if len(set(rest)) == 1 else " + ".join(map(str, rest))
    classes = f"{base}{f' + {steps}' if rest else ''} classes"
    if (kind := stream.get("kind", "blocks")) != "blocks":
        classes = f"{kind}, {sum(sizes)} classes in {len(sizes)} tasks"
    budget = f"M = {memory['total']:,}" if memory["total"] else f"{memory['per_class']} exemplars a class"
    return f"{classes}, {budget}{'' if stream['evaluate'] == 'test' else ', validation split'}"


def write(results: Sequence[Result], out: Path, name: str) -> None:
    """Write the table as Markdown and the curve as PNG and SVG."""
    files.write_text(out / f"{name}.md", markdown(results))
    save_figure(curve(results), out / "curve")


def curve(results: Sequence[Result]) -> Figure:
    """Draw accuracy over all seen classes against their number: a line a method, a band of one standard deviation."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    ends, groups = [], _by_method(results)
    styles = method_styles(groups)
    for method, runs in groups.items():
        average = np.array([result["accuracy"] for result in runs], dtype=float).mean(0).mean()
        ends.append(plot_accuracy(axes, runs, f"{method} (average {average:.1f})", styles[method], markersize=5))
    label_line_ends(axes, ends)
    axes.set_xlabel(progress_axis(results)[1])
    axes.set_ylabel("accuracy over seen classes (%)")
    axes.set_title(headline(results), fontsize=10, loc="left", parse_math=False)
    style_axes(axes)
    return figure

"""The tables of a report, and the rows of its CSV files, from the results of grid points."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mtn.experiments.paper.grid import PointResults, paper_table1
from mtn.experiments.paper.qualitative import QualitativeExamples
from mtn.experiments.paper.size import differences
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.report import COLUMNS, DIGITS, MeanStd, summarise_runs, top_two

NOT_RUN = "not run"

Rows = list[list[Any]]
"""Rows of a CSV file, the header first."""


class TableCell(NamedTuple):
    """A text; rank 1 and 2 mark the best and the second best of a column."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class ReportTable:
    """A table of a report."""

    title: str
    header: list[str]
    rows: list[list[TableCell]]
    words: bool = False  # sentences in its cells, rather than numbers


def average_tables(target: str, points: Sequence[PointResults]) -> list[ReportTable]:
    """Average accuracy, series against what is varied, a table a block; with the paper's numbers where it has any."""
    values, varied = sorted({point.point.value for point in points}), TARGETS[target].varied
    if len(values) == 1 and target != "table1":
        return []  # the table of all columns has the same numbers
    tables = []
    for block in dict.fromkeys(point.point.block for point in points):
        printed = paper_table1().get(block, {}) if target == "table1" else {}
        header = [TARGETS[target].series, *(f"{varied} = {value:,}" for value in values)]
        header += [f"the paper's, {data}\nL = 50 / 100 / 250" for data in printed]
        series: dict[str, dict[str, PointResults]] = {}
        for point in points:
            if point.point.block == block:
                series.setdefault(point.point.series, {})[str(point.point.value)] = point
        columns = [str(value) for value in values]
        averages = {name: {key: _average(one) for key, one in row.items()} for name, row in series.items()}
        ranks = top_two(averages, columns)
        rows = [
            [
                TableCell(name),
                *(TableCell(_average_text(row[key]), ranks.get((name, key), 0)) for key in columns),
                *(TableCell(column.get(name, "–")) for column in printed.values()),
            ]
            for name, row in series.items()
        ]
        tables.append(ReportTable(block, header, rows))
    return tables


def detail_tables(target: str, points: Sequence[PointResults]) -> list[ReportTable]:
    """Every column of what was run; the best and second best among equal L, or over all values of what is varied."""
    series, varied = TARGETS[target].series, TARGETS[target].varied
    groups: dict[int, list[PointResults]] = {}
    for point in points:
        if point.results:
            groups.setdefault(point.point.value if varied == "L" else 0, []).append(point)
    rows: list[list[TableCell]] = []
    for _, group in sorted(groups.items()):
        summaries = {_key(point): summarise_runs(point.results) for point in group}
        ranks = top_two({key: row for key, row in summaries.items() if not key.startswith("joint")})
        for point in group:
            key, own = _key(point), point.point
            name = f"{own.series}, {own.block}" if target == "size" and own.block else own.series
            numbers = [
                TableCell(number.text(DIGITS.get(name, 1)), ranks.get((key, name), 0))
                for name, number in summaries[key].items()
            ]
            rows.append([TableCell(name), TableCell(f"{own.value:,}"), TableCell(str(len(point.results))), *numbers])
    return [ReportTable("every column", [series, varied, "runs", *COLUMNS], rows)] if rows else []


def difference_tables(target: str, points: Sequence[PointResults]) -> list[ReportTable]:
    """Of `size`: differences on average and after the last task, with their spread over seeds."""
    if target != "size":
        return []
    values = sorted({point.point.value for point in points})
    header = ["difference", "", *(f"{value:,} images" for value in values)]
    titles = {"average": "differences of average accuracy", "last": "differences of accuracy after the last task"}
    found = []
    for column, title in titles.items():
        rows = [
            [TableCell(name), TableCell(block), *(TableCell(_signed(line.get(value))) for value in values)]
            for block, lines in differences(points, column).items()
            for name, line in lines.items()
        ]
        found += [ReportTable(title, header, rows)] if rows else []
    return found


def _signed(number: MeanStd | None) -> str:
    return NOT_RUN if number is None or number.mean is None else f"{'+' * (number.mean >= 0)}{number.text()}"


def examples_table(examples: QualitativeExamples) -> ReportTable:
    """Queries, MTN's and k-NN's predictions and the nearest exemplars."""
    header = ["query", "class, MTN's answer", "k-NN's answer", "nearest exemplars: class, similarity before → after"]
    rows = []
    for number, truth, knn, answer in zip(
        examples.ids, examples.truth, examples.knn_predictions, examples.evidence, strict=True
    ):
        near = "; ".join(f"{one.label} {one.before:.2f} → {one.after:.2f}" for one in answer.neighbours)
        preview = examples.preview(number)
        query = textwrap.shorten(preview, 200, placeholder=" …") if isinstance(preview, str) else str(number)
        rows.append([TableCell(text) for text in (query, truth, knn, near)])
    return ReportTable("", header, rows, words=True)


def _key(point: PointResults) -> str:
    return f"{point.point.series}/{point.point.block}/{point.point.value}"


def _average(point: PointResults) -> MeanStd:
    return summarise_runs(point.results)["average"]


def _average_text(point: PointResults) -> str:
    return _average(point).text() if point.results else NOT_RUN


def missing_notes(target: str, points: Sequence[PointResults]) -> list[str]:
    """Why numbers are missing, a line a series, and how to get those that only take long."""
    varied, notes = TARGETS[target].varied, []
    without_images = dict.fromkeys(point.point.block for point in points if not point.point.runs)
    for series in dict.fromkeys(point.point.series for point in points):
        missing = [point for point in points if point.point.series == series and point.note]
        reasons = [
            f"{varied} = {one.point.value:,} ({len(one.results)} of {len(one.point.runs)} runs): {one.note}"
            for one in missing
        ]
        long = [one.point.value for one in missing if one.note.startswith("about")]
        hint = f"; --also '{target}/{series}/{long[0]}' runs it" if long else ""
        notes += [f"{series}, {'; '.join(reasons)}{hint}"] if reasons else []
    images = "it needs images, and more time than --fast has"
    return [*(f"{block}: {NOT_RUN}, {images}" for block in without_images), *notes]


def summary_rows(points: Sequence[PointResults]) -> Rows:
    """Means and standard deviations, a row a grid point."""
    statistics = [f"{name} {statistic}" for name in COLUMNS for statistic in ("mean", "std")]
    rows: Rows = [["block", "series", "at", "runs", *statistics, "note"]]
    for point in points:
        own = point.point
        numbers = [value for one in summarise_runs(point.results).values() for value in (one.mean, one.std)]
        rows.append([own.block, own.series, own.value, len(point.results), *numbers, point.note or None])
    return rows


def run_rows(points: Sequence[PointResults]) -> Rows:
    """Every column, a row a run."""
    rows: Rows = [["block", "series", "at", "seed", *COLUMNS]]
    for point in points:
        own = point.point
        for result in point.results:
            numbers = [column(result) for column in COLUMNS.values()]
            rows.append([own.block, own.series, own.value, result["seed"], *numbers])
    return rows


def task_rows(points: Sequence[PointResults]) -> Rows:
    """Accuracies, a row a task of a run."""
    rows: Rows = [["series", "at", "seed", "task", "classes", "accuracy", "newest", "old"]]
    names = ("classes_per_task", "accuracy", "newest_accuracy", "old_accuracy")
    for point in points:
        for result in point.results:
            seen = 0
            for task, (classes, *accuracies) in enumerate(zip(*(result[name] for name in names), strict=True), 1):
                seen += classes
                rows.append([point.point.series, point.point.value, result["seed"], task, seen, *accuracies])
    return rows


def example_rows(examples: QualitativeExamples) -> Rows:
    """A row a neighbour of a query."""
    rows: Rows = [["query", "class", "knn", "mtn", "rank", "exemplar", "label", "before", "after", "attention"]]
    for number, truth, knn, answer in zip(
        examples.ids, examples.truth, examples.knn_predictions, examples.evidence, strict=True
    ):
        for rank, near in enumerate(answer.neighbours, 1):
            similarities = (near.before, near.after, near.attention)
            rows.append([number, truth, knn, answer.prediction, rank, near.id, near.label, *similarities])
    return rows

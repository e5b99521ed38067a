"""Measured points -> a folder a target (Markdown, CSV, PNG, SVG) and one page of them all that needs nothing else."""

import base64
import csv
import html
import io
import string
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mtn import checkpoint, figures
from mtn.grid import TARGETS, Measured, Setting, paper
from mtn.qualitative import Examples
from mtn.report import COLUMNS, DIGITS, LEGEND, RANKED, Cell, ranks, save, summary
from mtn.version import __version__

NOT_RUN = "not run"
MANY = 15
"""Rows from which on a table is folded."""

Rows = list[list[Any]]
"""Of a CSV file, the header first."""


@dataclass(frozen=True)
class Table:
    """Text in rows; 1 and 2 mark the best and the second best of a column."""

    title: str
    header: list[str]
    rows: list[list[tuple[str, int]]]
    words: bool = False  # in its cells, rather than numbers


@dataclass(frozen=True)
class Section:
    """What a target's folder and its part of the page are made of."""

    target: str
    tables: list[Table]
    figure: Figure
    aggregated: Rows  # means and standard deviations
    drawn: Rows  # what the figure shows
    notes: list[str]
    command: str


def measured_section(target: str, measured: Sequence[Measured], command: str) -> Section:
    """Of a target that is made of numbers."""
    tables = [*_averages(target, measured), *_details(target, measured)]
    drawn = _by_task(measured) if target == "tasks" else _by_run(measured)
    figure, notes = figures.draw(target, measured), _notes(target, measured)
    return Section(target, tables, figure, _aggregated(measured), drawn, notes, command)


def examples_section(found: Examples, measured: Sequence[Measured], command: str) -> Section:
    """Of the queries that k-NN gets wrong and MTN right."""
    header = ["query", "class, MTN's answer", "k-NN's answer", "nearest exemplars: class, similarity before → after"]
    rows: list[list[tuple[str, int]]] = []
    drawn: Rows = [["query", "class", "knn", "mtn", "rank", "exemplar", "label", "before", "after", "attention"]]
    for number, truth, voted, one in zip(found.ids, found.truth, found.voted, found.evidence, strict=True):
        near = "; ".join(f"{n.label} {n.before:.2f} → {n.after:.2f}" for n in one.neighbours)
        look = found.looks(number)
        query = textwrap.shorten(look, 200, placeholder=" …") if isinstance(look, str) else str(number)
        rows.append([(text, 0) for text in (query, truth, voted, near)])
        for rank, n in enumerate(one.neighbours, 1):
            drawn.append([number, truth, voted, one.prediction, rank, n.id, n.label, n.before, n.after, n.attention])
    note = (
        f"Of {found.asked:,} test queries after the last task MTN alone gets {found.gained:,} right, k-NN alone "
        f"{found.lost:,}. Shown are queries of the first kind, drawn at random, one a class, among those with an "
        "exemplar of the right class within the nearest five; ✓ marks that class."
    )
    figure, table = figures.examples(found), Table("", header, rows, words=True)
    return Section("qualitative", [table], figure, _aggregated(measured), drawn, [note], command)


def write(section: Section, out: Path) -> None:
    """Its folder, with its part of the page."""
    folder = out / section.target
    checkpoint.make_folder(folder)
    save(section.figure, folder / "figure")
    checkpoint.write_text(folder / "table.csv", _csv(section.aggregated))
    checkpoint.write_text(folder / "data.csv", _csv(section.drawn))
    checkpoint.write_text(folder / "table.md", _markdown(section))
    checkpoint.write_text(folder / "section.html", _html(section, (folder / "figure.svg").read_bytes()))


def index(out: Path, setting: Setting, data: str | None = None) -> Path:
    """The page: every section there is, in the paper's order."""
    there = {name: out / name / "section.html" for name in TARGETS}
    parts = {name: file.read_text("utf-8") for name, file in there.items() if file.exists()}
    links = " · ".join(f'<a href="#{name}">{html.escape(TARGETS[name].title)}</a>' for name in parts)
    stream, memory = setting.config.stream, setting.config.memory
    about = (
        f"{setting.classes:,} classes: {stream.first:,} first, then L a task, L = {', '.join(map(str, setting.steps))} "
        f"(L = {setting.middle} where something else is varied); M = {memory.total:,} exemplars; mtn {__version__}. "
    )
    fast = "Fast grid: a small transformer and few steps show that everything works. It reproduces nothing."
    filled = {
        "data": html.escape(data or Path(stream.paths[0]).name),
        "about": about + fast * setting.fast,
        "links": links,
        "sections": "\n".join(parts.values()),
        "legend": html.escape(LEGEND),
    }
    template = resources.files("mtn").joinpath("page.html").read_text("utf-8")
    checkpoint.write_text(out / "index.html", string.Template(template).substitute(filled))
    return out / "index.html"


# ---- tables


def _averages(target: str, measured: Sequence[Measured]) -> list[Table]:
    """Lines against places, a table a block, the paper's numbers beside ours where it prints any."""
    places, across = sorted({one.point.at for one in measured}), TARGETS[target].at
    if len(places) == 1 and target != "table1":
        return []  # the table of all columns says it
    tables = []
    for block in dict.fromkeys(one.point.block for one in measured):
        own = [one for one in measured if one.point.block == block]
        printed = paper().get(block, {}) if target == "table1" else {}
        header = [TARGETS[target].series, *(f"{across} = {place:,}" for place in places)]
        header += [f"the paper's, {data}\nL = 50 / 100 / 250" for data in printed]
        cells = {name: {str(one.point.at): one for one in own if one.point.series == name} for name in _names(own)}
        means = {name: {at: _average(one) for at, one in row.items()} for name, row in cells.items()}
        marks = ranks(means, [str(place) for place in places])
        rows = [
            [
                (name, 0),
                *((_text(row[str(place)]), marks.get((name, str(place)), 0)) for place in places),
                *((column.get(name, "–"), 0) for column in printed.values()),
            ]
            for name, row in cells.items()
        ]
        tables.append(Table(block, header, rows))
    return tables


def _details(target: str, measured: Sequence[Measured]) -> list[Table]:
    """Every column of what was run. Best and second best among equal L, or over the knob that is varied."""
    about, known = TARGETS[target], [one for one in measured if one.results]
    groups = {one.point.at if about.at == "L" else 0: None for one in known}
    rows: list[list[tuple[str, int]]] = []
    for group in sorted(groups):
        own = [one for one in known if about.at != "L" or one.point.at == group]
        cells = {_key(one): summary(one.results) for one in own}
        racing = {key: row for key, row in cells.items() if not key.startswith("joint")}
        marks = ranks(racing)
        rows += [
            [
                (one.point.series, 0),
                (f"{one.point.at:,}", 0),
                (str(len(one.results)), 0),
                *(
                    (cell.text(DIGITS.get(name, 1)), marks.get((_key(one), name), 0) if name in RANKED else 0)
                    for name, cell in cells[_key(one)].items()
                ),
            ]
            for one in own
        ]
    return [Table("every column", [about.series, about.at, "runs", *COLUMNS], rows)] if rows else []


def _key(one: Measured) -> str:
    return f"{one.point.series}/{one.point.block}/{one.point.at}"


def _names(measured: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(one.point.series for one in measured))


def _average(one: Measured) -> Cell:
    return summary(one.results)["average"]


def _text(one: Measured) -> str:
    return _average(one).text() if one.results else NOT_RUN


def _notes(target: str, measured: Sequence[Measured]) -> list[str]:
    """Why cells are empty, a line a series, and how to fill those that only take long."""
    at, notes = TARGETS[target].at, []
    absent = dict.fromkeys(one.point.block for one in measured if not one.point.runs)
    for name in _names(measured):
        own = [one for one in measured if one.point.series == name and one.note]
        why = [f"{at} = {one.point.at:,} ({len(one.results)} of {len(one.point.runs)} runs): {one.note}" for one in own]
        ask = [one for one in own if one.note.startswith("about")]
        how = f"; --also '{target}/{name}/{ask[0].point.at}' runs it" if ask else ""
        notes += [f"{name}, {'; '.join(why)}{how}"] if why else []
    return [*(f"{block}: {NOT_RUN}, it needs images, and more time than --fast has" for block in absent), *notes]


# ---- files


def _aggregated(measured: Sequence[Measured]) -> Rows:
    header = ["block", "series", "at", "runs", *(f"{name} {of}" for name in COLUMNS for of in ("mean", "std")), "note"]
    rows: Rows = [header]
    for one in measured:
        cells = summary(one.results).values()
        numbers = [value for cell in cells for value in (cell.mean, cell.std)]
        rows.append([one.point.block, one.point.series, one.point.at, len(one.results), *numbers, one.note or None])
    return rows


def _by_run(measured: Sequence[Measured]) -> Rows:
    rows: Rows = [["block", "series", "at", "seed", *COLUMNS]]
    for one in measured:
        for result in one.results:
            numbers = [column(result) for column in COLUMNS.values()]
            rows.append([one.point.block, one.point.series, one.point.at, result["seed"], *numbers])
    return rows


def _by_task(measured: Sequence[Measured]) -> Rows:
    rows: Rows = [["series", "at", "seed", "task", "classes", "accuracy", "newest", "old"]]
    for one in measured:
        for result in one.results:
            seen = 0
            columns = (
                result["classes_per_task"],
                result["accuracy"],
                result["newest_accuracy"],
                result["old_accuracy"],
            )
            for task, (classes, *accuracies) in enumerate(zip(*columns, strict=True), 1):
                seen += classes
                rows.append([one.point.series, one.point.at, result["seed"], task, seen, *accuracies])
    return rows


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _markdown(section: Section) -> str:
    about, signs = TARGETS[section.target], {0: "", 1: "**", 2: "_"}
    lines = [f"# {about.title}", "", about.about, ""]
    for table in section.tables:
        lines += [f"**{table.title}**", ""] if table.title else []
        lines += [
            _line(name.replace("\n", ", ") for name in table.header),
            "|---|" + ("---|" if table.words else "---:|") * (len(table.header) - 1),
        ]
        lines += [_line(signs[place] + text + signs[place] for text, place in row) for row in table.rows]
        lines.append("")
    lines += ["![](figure.png)", "", f"    {section.command}", "", *(f"- {note}" for note in section.notes), "", LEGEND]
    return "\n".join(lines) + "\n"


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


# ---- the page


def _html(section: Section, svg: bytes) -> str:
    """A figure is never so small that its text cannot be read: it is scrolled instead."""
    title, target = html.escape(TARGETS[section.target].title), section.target
    links = ", ".join(f'<a href="{target}/{file}">{file}</a>' for file in ("data.csv", "table.csv", "figure.svg"))
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    size = (
        f"min-width: {5 * section.figure.get_figwidth():.0f}rem; max-width: {6 * section.figure.get_figwidth():.0f}rem"
    )
    return "\n".join(
        [
            f'<section id="{target}">\n<h2>{title}</h2>\n<p>{html.escape(TARGETS[target].about)}</p>',
            f'<figure>\n<div class="wide"><img src="{source}" alt="{title}" style="{size}"></div>',
            f"<figcaption>Data: {links}<pre>{html.escape(section.command)}</pre></figcaption>\n</figure>",
            *map(_html_table, section.tables),
            f"<ul>{''.join(f'<li>{html.escape(note)}</li>' for note in section.notes)}</ul>\n</section>\n",
        ]
    )


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name).replace(chr(10), '<br>')}</th>" for name in table.header)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in table.rows)
    kind = ' class="words"' * table.words
    whole = f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    if len(table.rows) >= MANY:
        return f"<details><summary>{html.escape(table.title)}</summary>{whole}</details>"
    return (f"<h3>{html.escape(table.title)}</h3>" if table.title else "") + whole


def _html_cell(cell: tuple[str, int]) -> str:
    text, place = html.escape(cell[0]), cell[1]
    if text == NOT_RUN:
        return f'<td class="none">{text}</td>'
    return f"<td>{({1: '<b>{}</b>', 2: '<u>{}</u>'}.get(place, '{}')).format(text)}</td>"

"""Write a report: a folder a target (Markdown, CSV, PNG, SVG), and one page of all targets that needs no other file."""

import base64
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from mtn.experiments.paper import figures, tables
from mtn.experiments.paper.grid import GridSetup, PointResults
from mtn.experiments.paper.qualitative import QualitativeExamples
from mtn.experiments.paper.tables import ReportTable, Rows
from mtn.experiments.paper.targets import TARGETS
from mtn.experiments.plotting import save_figure
from mtn.experiments.report import legend
from mtn.experiments.templates import TEMPLATES
from mtn.storage import files
from mtn.version import __version__

MANY_ROWS = 15
"""Tables with so many rows are folded on the page."""


@dataclass(frozen=True)
class ReportSection:
    """What a target's folder and its section of the page are made of."""

    target: str
    tables: list[ReportTable]
    figure: Figure
    summary: Rows  # means and standard deviations
    data: Rows  # what the figure shows
    notes: list[str]
    command: str

    @property
    def legend(self) -> str:
        """Explains the columns of its tables of numbers; empty if it has none."""
        numbers = [table for table in self.tables if not table.words]
        columns = ["average", *(name for table in numbers for name in table.header)]
        spread = any("±" in cell.text for table in numbers for row in table.rows for cell in row)
        return legend(columns, spread) if numbers else ""


def measured_section(target: str, points: Sequence[PointResults], command: str) -> ReportSection:
    """The section of a target that is made of numbers."""
    return ReportSection(
        target,
        [
            *tables.difference_tables(target, points),
            *tables.average_tables(target, points),
            *tables.detail_tables(target, points),
        ],
        figures.draw_target(target, points),
        tables.summary_rows(points),
        tables.task_rows(points) if target == "tasks" else tables.run_rows(points),
        tables.missing_notes(target, points),
        command,
    )


def examples_section(examples: QualitativeExamples, points: Sequence[PointResults], command: str) -> ReportSection:
    """The section of queries that k-NN gets wrong and MTN right."""
    note = (
        f"Of {examples.queries:,} test queries after the last task MTN alone gets {examples.mtn_only:,} right, k-NN "
        f"alone {examples.knn_only:,}. Shown are queries of the first kind, drawn at random, one a class, among those "
        "with an exemplar of the right class within the nearest five; ✓ marks that class."
    )
    return ReportSection(
        "qualitative",
        [tables.examples_table(examples)],
        figures.draw_examples(examples),
        tables.summary_rows(points),
        tables.example_rows(examples),
        [note],
        command,
    )


def write_section(section: ReportSection, out: Path) -> str:
    """Write the folder of a target and return its section of the page, in HTML."""
    folder = out / section.target
    files.make_folder(folder)
    save_figure(section.figure, folder / "figure")
    files.write_text(folder / "table.csv", _csv(section.summary))
    files.write_text(folder / "data.csv", _csv(section.data))
    files.write_text(folder / "table.md", _markdown(section))
    svg = base64.b64encode((folder / "figure.svg").read_bytes()).decode()
    return TEMPLATES.get_template("paper/section.html").render(
        section=section,
        about=TARGETS[section.target],
        svg=svg,
        width=section.figure.get_figwidth(),
        many_rows=MANY_ROWS,
        not_run=tables.NOT_RUN,
    )


def write_page(out: Path, setup: GridSetup, new: dict[str, str], data: str | None = None) -> Path:
    """Write the page with new sections in place of those it had, in the order of the targets; return its path."""
    sections = read_sections(out) | new
    text = TEMPLATES.get_template("paper/page.html").render(
        data=data or Path(setup.config.stream.paths[0]).name,
        setup=setup,
        version=__version__,
        titles={name: about.title for name, about in TARGETS.items() if name in sections},
        sections=[Markup(sections[name]) for name in TARGETS if name in sections],
    )
    files.write_text(out / "index.html", text)
    return out / "index.html"


def read_sections(out: Path) -> dict[str, str]:
    """Target -> its section, in HTML, of the page in `out`."""
    path = out / "index.html"
    text = path.read_text("utf-8") if path.exists() else ""
    pattern = r'<section id="(\w+)">.*?</section>\n'  # texts are escaped: no such tag is within a section
    return {match[1]: match[0] for match in re.finditer(pattern, text, re.DOTALL)}


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _markdown(section: ReportSection) -> str:
    about, signs = TARGETS[section.target], {0: "", 1: "**", 2: "_"}
    lines = [f"# {about.title}", "", about.description, ""]
    for table in section.tables:
        lines += [f"**{table.title}**", ""] if table.title else []
        lines += [
            _markdown_row(name.replace("\n", ", ") for name in table.header),
            "|---|" + ("---|" if table.words else "---:|") * (len(table.header) - 1),
        ]
        lines += [_markdown_row(signs[cell.rank] + cell.text + signs[cell.rank] for cell in row) for row in table.rows]
        lines.append("")
    lines += ["![](figure.png)", "", f"    {section.command}", "", *(f"- {note}" for note in section.notes), ""]
    return "\n".join([*lines, section.legend]).rstrip() + "\n"


def _markdown_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"

"""What commands print: lines, tables, JSON, progress bars, and one line when they are interrupted."""

import csv
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtn.errors import InputError
from mtn.runtime.text import printable, printable_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mtn.runtime.progress import Progress


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """Progress bars on stderr, so that stdout has the answer alone."""
    from rich.console import Console

    from mtn.runtime.progress import bar

    with bar(Console(stderr=True)) as progress:
        yield progress


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C into one line that says how to resume, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_line(f"interrupted; run the same command again to go on from what is in {folder}", err=True)
        raise typer.Exit(130) from None


def list_skipped(skipped: Sequence[str]) -> None:
    """A line on stderr for each sample that could not be used."""
    for line in skipped:
        print_line(f"left out: {line}", err=True)


def percent(share: float | None) -> str | None:
    """0.5 as `50.0 %`."""
    return None if share is None else f"{100 * share:.1f} %"


def rounded(values: Iterable[float | None]) -> list[str | None]:
    """Three digits of each number."""
    return [None if value is None else f"{value:.3f}" for value in values]


def print_line(text: str, err: bool = False) -> None:
    """One line, in which names from files, as those of classes, can do no more than be read."""
    typer.echo(printable(text), err=err)


def print_above_bars(text: str) -> None:
    """One line while progress bars may be shown: they replace `sys.stdout`, which typer looks behind."""
    sys.stdout.write(f"{printable(text)}\n")


def print_json(value: dict[str, Any]) -> None:
    """One object on one line."""
    typer.echo(printable_json(json.dumps(value, ensure_ascii=False, default=str)))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], indent: str = "") -> None:
    """Columns as wide as their widest cell, `-` where there is no value."""
    texts = [["-" if cell is None else printable(cell) for cell in row] for row in rows]
    lines = [header, *([indent + text[0], *text[1:]] for text in texts)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write records with the same keys as CSV, a row each, or by the suffix .json as a list of objects."""
    from mtn.storage import files

    def fill(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            if path.suffix.lower() == ".json":
                json.dump(records, file, ensure_ascii=False, indent=1, default=str)
                return
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)

    files.write(path, fill)


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a figure in the format of the suffix."""
    from mtn.storage import files

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for what the font does not have
            files.write(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=130))
    except OSError as error:
        raise InputError(f"--out: {path} cannot be written: {error.strerror}") from None

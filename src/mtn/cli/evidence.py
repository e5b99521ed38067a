"""What `mtn explain` prints of an answer."""

import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtn.cli.output import print_line, print_table, rounded
from mtn.runtime.text import printable, shorten

if TYPE_CHECKING:
    from mtn.evidence import Evidence, Neighbour

WIDTH = 120
"""Columns where the terminal does not say how many it has."""
NARROWEST = 30
"""Columns for a text, however wide the others are."""
INDENT = "  "


def print_evidence(name: str, answer: "Evidence") -> None:
    """The answer, the parts of its score, and tables of the exemplars."""
    asked = name if answer.text in (None, name) else f"{name}, {answer.text}"
    found = f"{answer.prediction}, p = {answer.probability:.3f}, novelty {answer.novelty:.3f}"
    print_line(f"{_fit(asked, len(found) + 2)}: {found}")
    print_line(f"{INDENT}score {answer.score:.2f} = {_sum(answer.shares)}")
    if answer.margins:
        lead = sum(answer.margins.values())
        print_line(f"{INDENT}ahead of {answer.runner_up} by {lead:.2f} = {_sum(answer.margins)}")
    if answer.agreement is not None:
        print_line(f"{INDENT}{answer.agreement}")
    _print_exemplars("neighbour", answer.neighbours)
    if answer.own:
        _print_exemplars(f"further {answer.prediction}", answer.own)


def _sum(parts: Mapping[str, float]) -> str:
    """`prototype 3.10 + query itself 0.20 - query with neighbours 1.00`."""
    terms = " ".join(f"{'-' if value < 0 else '+'} {name} {abs(value):.2f}" for name, value in parts.items())
    return terms.removeprefix("+ ")


def _print_exemplars(title: str, exemplars: "Sequence[Neighbour]") -> None:
    """One row each; columns that none of them has are left out, a text is cut to what is left of the line."""
    columns: dict[str, Sequence[str | None]] = {
        title: [str(near.id) for near in exemplars],
        "label": [str(near.label) for near in exemplars],
        "similarity": rounded(near.before for near in exemplars),
        "once adapted": rounded(near.after for near in exemplars),
        "attention": rounded(near.attention for near in exemplars),
    }
    columns = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    texts = [near.text for near in exemplars]
    if any(text is not None for text in texts):
        used = sum(2 + max(len(name), *(len(printable(cell)) for cell in cells)) for name, cells in columns.items())
        columns["text"] = [None if text is None else _fit(text, used + len(INDENT)) for text in texts]
    header = [INDENT + title, *list(columns)[1:]]
    print_table(header, list(zip(*columns.values(), strict=True)), indent=INDENT)


def _fit(text: str, used: int) -> str:
    """A text on one line, cut to what is left beside so many columns."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    return shorten(printable(" ".join(text.split())), max(width - used, NARROWEST))

"""The paper's qualitative figure: queries, their nearest exemplars, and how similar each is."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mtn.evidence import Evidence, Neighbour
from mtn.experiments.plotting import COLOURS, GREY
from mtn.runtime.text import printable, shorten

BEFORE, AFTER, ATTENTION = COLOURS[5], COLOURS[0], COLOURS[4]
"""Colours of the bars of a neighbour."""
SAME, OTHER = COLOURS[2], GREY
"""Colours of a neighbour's label: of the predicted class, of another one."""
LABEL_WIDTH = 14
"""Characters of a label in a line."""
SENTENCE_WIDTH, SENTENCE_LINES = 17, 7
"""Characters of a sentence in a line, and its lines."""
FIRST_COLUMN = 2
"""Width of the first column in those of a neighbour, where it has the parts of the score."""
MOST_OWN = 3
"""Exemplars of the predicted class behind neighbours that disagree."""

Preview = np.ndarray | str
"""What is shown of a sample: an image (H,W or H,W,3 of uint8), or its sentence."""


@mpl.rc_context({"text.parse_math": False})  # a class may be called "$5 to $10"
def plot(
    evidence: Sequence[Evidence],
    images: Mapping[Any, Preview] | None = None,
    query_images: Sequence[Preview] | None = None,
    notes: Sequence[str] | None = None,
) -> Figure:
    """One row a query: its image, then its neighbours with their images (by id), labels and similarities.

    A sentence is written where an image would be. Under a prediction are its probability and novelty, or `notes`, and
    what each part of the method adds to its lead on the runner-up. Where the neighbours disagree, a line says so, and
    the nearest exemplars of the predicted class stand behind them.
    """
    images, asked = images or {}, query_images if query_images is not None else [answer.text for answer in evidence]
    previews = {near.id: images.get(near.id, near.text) for answer in evidence for near in answer.shown()}
    with_previews = any(preview is not None for preview in (*previews.values(), *asked))
    near, own = (max(map(len, parts)) for parts in zip(*map(_exemplars, evidence), strict=True))
    widths = [FIRST_COLUMN if any(answer.margins for answer in evidence) else 1, *[1] * (near + own)]
    heights = [(2.35 if with_previews else 1.35) + (0.3 if answer.agreement else 0) for answer in evidence]
    figure = Figure(figsize=(1.15 * sum(widths) + 0.4, sum(heights) + 0.55), layout="constrained")
    rows = figure.subfigures(len(evidence), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, (part, answer) in enumerate(zip(rows, evidence, strict=True)):
        note = f"p = {answer.probability:.2f}\nnovelty {answer.novelty:.2f}" if notes is None else notes[row]
        ratios = {"height_ratios": [1.1, 0.9] if with_previews else [1.0], "width_ratios": widths}
        grid = part.subplots(2 if with_previews else 1, len(widths), squeeze=False, gridspec_kw=ratios)
        _draw_query(grid[:, 0], answer, note, asked[row], widths[0])
        neighbours, nearest_own = _exemplars(answer)
        for column, neighbour in (*enumerate(neighbours, 1), *enumerate(nearest_own, 1 + near)):
            _draw_neighbour(grid[:, column], neighbour, previews[neighbour.id], neighbour.label == answer.prediction)
        for column in (*range(1 + len(neighbours), 1 + near), *range(1 + near + len(nearest_own), len(widths))):
            for axes in grid[:, column]:
                axes.axis("off")
        if answer.agreement is not None:
            behind = f" At the right: the next {len(nearest_own)} of its class." if nearest_own else ""
            part.suptitle(printable(answer.agreement) + behind, fontsize=9)
    adapted = any(near.after is not None for answer in evidence for near in answer.neighbours)
    bars = ((BEFORE, "similarity of features"), (AFTER, "once adapted"), (ATTENTION, "attention"))
    handles = [Patch(color=colour, label=label) for colour, label in (bars if adapted else bars[:1])]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _exemplars(answer: Evidence) -> tuple[list[Neighbour], list[Neighbour]]:
    """The neighbours, and the exemplars of the predicted class behind them."""
    return answer.neighbours, answer.own[:MOST_OWN]


def wrap_label(label: Any, width: int = 1) -> str:
    """A label in at most two lines, narrow enough for its columns."""
    return textwrap.fill(_spaced(label), width * LABEL_WIDTH, max_lines=2, placeholder=" …")


def _spaced(label: Any) -> str:
    """A label as it is drawn everywhere in the figure: `book_flight` is read as two words."""
    return printable(str(label).replace("_", " "))


def _draw_query(axes: np.ndarray, answer: Evidence, note: str, preview: Preview | None, width: int) -> None:
    """Draw what was asked, if anything is drawn, and the answer with the parts of its lead."""
    if len(axes) == 2:
        _draw_preview(axes[0], preview, None, width)
        axes[0].set_title("query", fontsize=9)
    axes[-1].axis("off")
    label = wrap_label(answer.prediction, width)
    axes[-1].text(0.5, 1.0, label, ha="center", va="top", fontsize=10, weight="bold")
    two_lines = "\n" in label
    if answer.margins:
        lines, below, size = [note.replace("\n", ", "), *_lead(answer)], 0.65 if two_lines else 0.82, 7
    else:
        lines, below, size = [note], 0.5 if two_lines else 0.6, 8
    axes[-1].text(0.5, below, "\n".join(lines), ha="center", va="top", fontsize=size, linespacing=1.4)


def _lead(answer: Evidence) -> list[str]:
    """Its lead on the runner-up, and what each part of the method adds to it."""
    over = shorten(_spaced(answer.runner_up), 2 * LABEL_WIDTH)
    parts = [f"{value:+.2f} {printable(name)}" for name, value in answer.margins.items()]
    return [f"{sum(answer.margins.values()):+.2f} over {over}:", *parts]


def _draw_neighbour(axes: np.ndarray, neighbour: Neighbour, preview: Preview | None, same: bool) -> None:
    """Draw an exemplar's image, if there are images, and its similarities; a tick marks the predicted class."""
    label = wrap_label(neighbour.label)
    colour, text = (SAME, f"✓ {label}") if same else (OTHER, label)
    _draw_bars(axes[-1], neighbour)
    if len(axes) == 1:
        axes[0].set_xlabel(text, fontsize=9, color=colour)
    else:
        _draw_preview(axes[0], preview, colour)
        axes[0].set_title(text, fontsize=9, color=colour)


def _draw_preview(axes: Axes, preview: Preview | None, colour: str | None, width: int = 1) -> None:
    axes.set(xticks=[], yticks=[])
    if isinstance(preview, str):
        line = printable(" ".join(preview.split()))
        sentence = textwrap.fill(line, width * SENTENCE_WIDTH, max_lines=SENTENCE_LINES, placeholder=" …")
        axes.text(0.5, 0.5, sentence, ha="center", va="center", fontsize=7.5, clip_on=True, transform=axes.transAxes)
    elif preview is not None:
        axes.imshow(preview, cmap="gray", vmin=0, vmax=255)
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1))
    for spine in axes.spines.values():
        spine.set(visible=preview is not None, color=colour or "black", linewidth=2.0 if colour == SAME else 1.0)


def _draw_bars(axes: Axes, neighbour: Neighbour) -> None:
    values = [(neighbour.before, BEFORE), (neighbour.after, AFTER), (neighbour.attention, ATTENTION)]
    known = [(value, colour) for value, colour in values if value is not None]
    axes.set(xlim=(-0.7, 2.7), ylim=(min(0, *(value for value, _ in known)), 1.3), xticks=[], yticks=[])
    for x, (value, colour) in enumerate(known):
        axes.bar(x, value, color=colour, width=0.85)
        axes.text(x, max(value, 0) + 0.04, f"{value:.2f}".replace("0.", ".", 1), ha="center", fontsize=7)
    axes.axhline(0, color="black", linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)

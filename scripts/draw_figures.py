"""Draw the figures of the manual: python scripts/draw_figures.py [FOLDER]

SVG without a background. Text stands in boxes of their own colour, and lines are grey: readable on white and on black.
"""

import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "explanation" / "figures"
QUERY, MEMORY, NETWORK, HEAD, GREY, LINE = "#b3541e", "#2c6e9e", "#5a4fa8", "#2f7a4f", "#5d6470", "#868c98"
TASKS = (MEMORY, "#8a5a9e", QUERY)
"""Of the classes that came with the first, the second and the third task."""


class Drawing:
    """Shapes on a canvas; places are of the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str, radius: int = 6) -> None:
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{colour}"/>'
        )

    def text(
        self, x: float, y: float, text: str, colour: str = "#ffffff", size: int = 15, anchor: str = "middle"
    ) -> None:
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str, *lines: str, size: int = 15) -> None:
        """A box with lines of text in its middle."""
        self.rectangle(x, y, width, height, colour)
        step = size * 1.3
        first = y + height / 2 + size * 0.36 - step * (len(lines) - 1) / 2
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + number * step, line, size=size)

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through points, with a head at the last one."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2" {HEAD_MARK}/>')

    def vector(self, x: float, y: float, colour: str, seed: int) -> None:
        """A feature vector: eight cells of different strength."""
        for cell in range(8):
            strength = 0.35 + 0.65 * ((seed * 37 + cell * 53) % 11) / 10
            place = f'x="{x + cell * 9:g}" y="{y:g}"'
            self.shapes.append(f'<rect {place} width="8" height="16" fill="{colour}" opacity="{strength:.2f}"/>')

    def write(self, path: Path) -> None:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img"'
        font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"'
        lines = [f"{head} {font}>", f"<title>{escape(self.title)}</title>", MARKER, *self.shapes, "</svg>"]
        path.write_text("\n".join(lines) + "\n", "utf-8")


HEAD_MARK = 'marker-end="url(#head)"'
MARKER = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/></marker></defs>'
)


def architecture() -> Drawing:
    """Query and k exemplars -> transformer -> head."""
    it = Drawing(
        960, 400, "A query and its k nearest exemplars go through a transformer; the adapted query goes to a head"
    )
    it.box(20, 40, 130, 60, QUERY, "query x")
    it.arrow((150, 70), (185, 70))
    it.box(187, 40, 120, 60, GREY, "encoder", "(frozen)")
    it.arrow((307, 70), (350, 70))
    it.vector(354, 62, QUERY, 1)
    it.text(390, 50, "q", LINE, 16)
    it.arrow((430, 70), (520, 70))
    it.box(20, 180, 287, 40, MEMORY, "memory: at most M exemplars")
    for row in range(4):
        for column in range(3):
            chosen = (row, column) in {(0, 1), (1, 2), (3, 0)}
            it.vector(32 + column * 92, 236 + row * 34, MEMORY if chosen else LINE, 3 * row + column + 2)
    it.arrow((390, 84), (390, 200), (311, 200))
    it.box(326, 128, 128, 30, GREY, "nearest by cosine", size=13)
    for number, (row, column) in enumerate([(0, 1), (1, 2), (3, 0)]):
        y = 248 + number * 44
        it.vector(430, y, MEMORY, 3 * row + column + 2)
        it.arrow((316, y + 8), (424, y + 8))
        it.arrow((506, y + 8), (520, y + 8))
    it.text(466, 384, "k neighbours", LINE, 14)
    it.box(524, 40, 150, 336, NETWORK, "transformer", "", "1 + k tokens", "attend to", "each other")
    it.arrow((674, 70), (716, 70))
    it.vector(720, 62, QUERY, 6)
    it.text(756, 50, "adapted query", LINE, 14)
    it.arrow((796, 70), (826, 70))
    it.box(828, 40, 112, 60, HEAD, "linear head")
    for number, (name, share) in enumerate([("cat", 0.86), ("dog", 0.3), ("fox", 0.18), ("owl", 0.08)]):
        y = 150 + number * 34
        it.text(812, y + 15, name, LINE, 14, "end")
        it.rectangle(820, y, max(6, 120 * share), 20, HEAD, 3)
    it.arrow((884, 100), (884, 142))
    it.text(880, 308, "a score for every", LINE, 14)
    it.text(880, 326, "class seen so far", LINE, 14)
    return it


def task() -> Drawing:
    """What happens to the memory and to the model in each task."""
    it = Drawing(
        960, 420, "The life of a task: samples come, the memory makes room, the model trains, all classes are tested"
    )
    steps = [
        ("1  samples come", "of new classes"),
        ("2  memory", "makes room"),
        ("3  neighbours and", "old scores, once"),
        ("4  training steps", "128 new, 32 old"),
        ("5  test on every", "class so far"),
    ]
    for number, lines in enumerate(steps):
        colour = (QUERY, MEMORY, GREY, NETWORK, HEAD)[number]
        it.box(20 + number * 188, 20, 168, 64, colour, *lines, size=14)
        if number:
            it.arrow((number * 188, 52), (20 + number * 188 - 3, 52))
    it.arrow((856, 84), (856, 110), (104, 110), (104, 88))
    it.text(480, 130, "and so on with the next task", LINE, 14)
    it.text(20, 172, "the memory after each task: never more than M exemplars", LINE, 15, "start")
    for tasks in (1, 2, 3):
        x, each = 20 + (tasks - 1) * 316, 264 / (tasks + 1)
        it.text(x, 204, f"after task {tasks}", LINE, 14, "start")
        edge = x
        for number in range(tasks):
            width = each * 2 if number == 0 else each  # the base task has half of the classes
            label = ("base", "task 2", "task 3")[number]
            it.box(edge, 214, width - 3, 44, TASKS[number], label, size=14)
            edge += width
    it.text(20, 300, "the separated softmax in step 4", LINE, 15, "start")
    it.box(20, 312, 420, 40, TASKS[2], "a new sample is compared with new classes only")
    it.box(20, 358, 420, 40, TASKS[0], "a replayed sample is compared with old classes only")
    it.box(470, 312, 470, 40, NETWORK, "distillation: old scores stay near those of the model before")
    it.box(470, 358, 470, 40, HEAD, "at test time one answer over all classes, task unknown")
    return it


def packages() -> Drawing:
    """The layers of the import contract in pyproject.toml, top to bottom."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    layers = [layer.strip("()").split(" | ") for layer in contract["layers"]]
    science = {"model", "losses", "memory", "neighbours", "training", "batches", "inference", "stream", "protocols"}
    science |= {"methods", "calibration", "evidence", "samples"}
    outer = {"cli", "serve", "export", "experiments", "classifier", "recipes"}
    it = Drawing(720, 34 * len(layers) + 50, "The packages of the code: each imports only from those below it")
    it.text(24, 26, "each package imports only from those below it", LINE, 14, "start")
    for row, names in enumerate(layers):
        width = 560 / len(names)
        for place, name in enumerate(names):
            colour = QUERY if name in outer else NETWORK if name in science else MEMORY
            it.box(24 + place * width, 40 + row * 34, width - 6, 29, colour, name, size=14)
    for row, (colour, name) in enumerate([(QUERY, "interfaces"), (NETWORK, "the method"), (MEMORY, "foundations")]):
        it.box(596, 40 + row * 46, 112, 40, colour, name, size=12)
    it.arrow((650, 200), (650, 34 * len(layers) + 30))
    return it


def main(folder: Path) -> None:
    """Write the three figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (architecture, task, packages):
        draw().write(folder / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURES)

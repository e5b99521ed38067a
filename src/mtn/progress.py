"""How long work tells that it goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress
from rich.console import Console

from mtn import ranks

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def silent(what: str, done: int, of: int) -> None:
    """Says nothing."""


class Rate(progress.ProgressColumn):
    """So many a second."""

    def render(self, task: progress.Task) -> str:
        return f"{task.speed:.0f}/s" if task.speed and task.speed >= 1 else ""


@contextmanager
def bar(console: Console) -> Iterator[Progress]:
    """A line for each thing that goes on: what, how far, how long still."""
    text = progress.TextColumn("{task.description}")
    shown = (progress.BarColumn(), progress.MofNCompleteColumn())
    times = (Rate(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    unseen = not console.is_terminal or ranks.rank() > 0
    with progress.Progress(text, *shown, *times, console=console, transient=True, disable=unseen) as it:
        lines: dict[str, tuple[Any, str]] = {}

        def say(what: str, done: int, of: int) -> None:
            who, _, doing = what.rpartition(" · ")
            line, shown = lines.get(who) or (it.add_task(what, total=of), what)
            if what != shown:
                it.reset(line, description=what, total=of)
            it.update(line, completed=done, total=of, visible=not (done == of and doing.endswith("testing")))
            lines[who] = line, what

        yield say

"""Progress of long work: the callback that everything reports to, and the bars that show it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from mtn.runtime import distributed

Progress = Callable[[str, int, int], None]
"""Called with a description of the work, how much of it is done, and the total."""


def silent(description: str, done: int, total: int) -> None:
    """Report nothing."""


class Rate(progress.ProgressColumn):
    """Items per second."""

    def render(self, task: progress.Task) -> str:
        """The rate, or nothing while it is below one."""
        return f"{task.speed:.0f}/s" if task.speed and task.speed >= 1 else ""


@contextmanager
def bar(console: Console) -> Iterator[Progress]:
    """A bar for each piece of work under way; a description `job · step` belongs to the bar of its job."""
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("·"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
    )
    hidden = not console.is_terminal or distributed.rank() > 0
    with progress.Progress(*columns, console=console, transient=True, disable=hidden) as display:
        bars: dict[str, tuple[progress.TaskID, str]] = {}

        def update(description: str, done: int, total: int) -> None:
            job, _, step = description.rpartition(" · ")
            bar_id, shown = bars.get(job) or (display.add_task(description, total=total), description)
            if description != shown:
                display.reset(bar_id, description=description, total=total)
            visible = not (done == total and step.endswith("testing"))
            display.update(bar_id, completed=done, total=total, visible=visible)
            bars[job] = bar_id, description

        yield update


@contextmanager
def shown_progress(progress: bool | Progress) -> Iterator[Progress]:
    """The function to report to: the caller's, a bar on the terminal, or one that does nothing."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield silent
    else:
        with bar(Console(stderr=True)) as report:
            yield report

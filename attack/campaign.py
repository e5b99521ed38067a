"""What every campaign counts: tries, failures, the worst memory and the worst wait; and the table of all of them."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAX_SAVED = 50
"""Failures of a campaign that are written to disk; further ones are counted."""
SHOWN = 10
"""Failures of a campaign that are printed."""


@dataclass
class Campaign:
    """The tries of one kind of attack, bounded in number and time."""

    name: str
    tries: int
    seconds: float
    seed: int
    failures_folder: Path
    scratch: Path
    only: int | None = None  # the number of the one try to repeat
    done: int = 0
    failures: list[str] = field(default_factory=list)
    memory_mb: float = 0.0
    wait_ms: float = 0.0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def spent(self) -> float:
        """Seconds since the campaign began, or that it took."""
        return (self.ended or time.monotonic()) - self.began

    def numbers(self, first: int = 0, stop: int | None = None) -> Iterator[int]:
        """The numbers of the tries from `first` to before `stop`, until the time is over."""
        numbers = range(first, self.tries if stop is None else stop)
        for number in numbers if self.only is None else [self.only] if self.only in numbers else []:
            if self.over():
                return
            yield number

    def over(self) -> bool:
        """Whether the campaign has had its time."""
        return self.spent > self.seconds

    def rng(self, number: int) -> random.Random:
        """The random numbers of a try: the same for the same seed and number, whatever was tried before."""
        return random.Random(f"{self.seed} {self.name} {number}")

    def measured(self, memory_mb: float = 0.0, wait_ms: float = 0.0) -> None:
        """Note how much memory was taken, and how long an answer was waited for."""
        self.memory_mb, self.wait_ms = max(self.memory_mb, memory_mb), max(self.wait_ms, wait_ms)

    def fail(self, number: int, reason: str, evidence: Mapping[str, bytes] | None = None) -> None:
        """Note a failure, and write what was sent into a folder of its own."""
        self.failures.append(f"try {number}: {reason}")
        if len(self.failures) > MAX_SAVED:
            return
        folder = self.failures_folder / f"{self.name}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        repeat = f"python -m attack --only {self.name} --seed {self.seed} --try {number}"
        with (folder / "what.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{reason}\n\nto repeat: {repeat}\n")
        for name, content in (evidence or {}).items():
            (folder / Path(name).name).write_bytes(content)

    def report(self) -> Iterator[str]:
        """Lines about what went wrong, or was left out."""
        for failure in self.failures[:SHOWN]:
            yield f"{self.name}, {failure.splitlines()[0][:300]}"
        if len(self.failures) > SHOWN:
            yield f"{self.name}: {len(self.failures) - SHOWN} more failures"
        if self.only is None and self.done < self.tries:
            yield f"{self.name}: {self.done} of {self.tries} tries in the {self.seconds:.0f} s it was given"


def table(campaigns: Sequence[Campaign]) -> str:
    """The figures of all campaigns, in Markdown."""
    lines = [
        "| campaign | tries | failures | worst memory (MB) | worst wait (ms) | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for campaign in campaigns:
        figures = (campaign.done, len(campaign.failures), campaign.memory_mb, campaign.wait_ms, campaign.spent)
        lines.append(
            f"| {campaign.name} | " + " | ".join(f"{figure:,.0f}".replace(",", " ") for figure in figures) + " |"
        )
    return "\n".join(lines)

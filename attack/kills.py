"""Commands and the service, killed with SIGKILL at random moments and started again.

What is there in the end must be what an undisturbed process leaves. Half of the kills come after a random time, half
just before a random change of the folder: a file opened for writing, a rename, a removal.
"""

import hashlib
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attack import killed_service, material
from attack.campaign import Campaign
from attack.processes import Process, call, command, count_writes, forking, killed_at_write
from mtn import MTNClassifier, recipe
from mtn.data import extraction
from mtn.experiments.run import run
from mtn.storage.tensors import load_tensors

TRIES = 1000
MINUTES = 25.0
NAME = "kills"
LIVES = 3
"""Kills of one piece of work at the most, before it may end."""
END_SECONDS = 60.0
"""In which work that nothing disturbs must end."""
TIMES = ("seconds", "processor_seconds", "train_samples_per_second", "peak_memory_mb", "versions")
"""What differs between two runs of the same configuration."""
SHARES = {"run": 0.35, "learn": 0.15, "forget": 0.15, "extract": 0.2, "service": 0.15}
"""Of the kills."""
NUMBERS = 1_000_000
"""Tries of each kind are numbered from a multiple of this on."""
SHARD = 8
"""Items of a shard here, so that a small extraction has several."""


class Victim(Protocol):
    """Work in a folder that can be killed and started again."""

    def prepare(self, folder: Path) -> None:
        """Make what the work starts from."""

    def work(self, folder: Path) -> None:
        """Do all of it, or what is left; in a process of its own."""

    codes: tuple[int, ...]  # exit codes with which the work may end

    def check(self, folder: Path, whole: Path) -> str | None:
        """What is wrong after a kill, before the work is done again."""

    def complete(self, folder: Path) -> bool:
        """Whether the work must not be started again, as it would be done twice."""

    def outcome(self, folder: Path) -> Any:
        """What is there when the work has ended, to be compared with that of undisturbed work."""

    def finish(self, folder: Path, whole: Path) -> str | None:
        """Do what is left in a process of its own; what is wrong, if anything is."""


def attack(campaign: Campaign) -> None:
    """Kill each kind of work its share of times."""
    extraction.SHARD = SHARD
    victims: dict[str, Victim] = {"run": Run(campaign.scratch), "learn": Learn(campaign.scratch)}
    victims |= {"forget": Forget(campaign.scratch), "extract": Extract(campaign.scratch)}
    for index, (kind, share) in enumerate(SHARES.items()):
        wanted, first = max(1, math.ceil(share * campaign.tries)), index * NUMBERS
        if campaign.only is not None and not first <= campaign.only < first + NUMBERS:
            continue
        scratch = campaign.scratch / kind
        scratch.mkdir()
        if kind == "service":
            _repeat(campaign, first, wanted, killed_service.prepare(scratch, campaign))
        else:
            _repeat(campaign, first, wanted, Killer(victims[kind], scratch, campaign, kind).survive)
    campaign.measured(memory_mb=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


def _repeat(campaign: Campaign, first: int, wanted: int, survive: Callable[[int, random.Random, int], int]) -> None:
    """Call `survive` with the number of a try, its random numbers and the kills left, until there are enough kills."""
    kills = 0
    for number in itertools.count(first) if campaign.only is None else [campaign.only]:
        if kills >= wanted or campaign.over():
            return
        hits = survive(number, campaign.rng(number), wanted - kills)
        kills += hits
        campaign.done += hits


class Killer:
    """Kills a victim's work, and compares what is there in the end with what undisturbed work leaves."""

    def __init__(self, victim: Victim, scratch: Path, campaign: Campaign, kind: str) -> None:
        self.victim, self.scratch, self.campaign, self.kind = victim, scratch, campaign, kind
        self.whole = scratch / "whole"
        victim.prepare(self.whole)
        writes, start = forking.Value("i", 0), time.monotonic()
        process = Process(_counting, writes, self.whole, victim.work, self.whole, log=scratch / "whole.log")
        if process.wait(END_SECONDS) != 0:
            raise RuntimeError(f"undisturbed {kind} fails: {process.output()}")
        self.seconds, self.writes = time.monotonic() - start, writes.value
        self.expected = victim.outcome(self.whole)

    def survive(self, number: int, rng: random.Random, left: int) -> int:
        """Kill one piece of work up to LIVES times, then let it end; returns the number of kills."""
        folder, log = self.scratch / f"work-{number}", self.scratch / f"work-{number}.log"
        self.victim.prepare(folder)
        kills, problem = 0, None
        for _ in range(min(rng.randint(1, LIVES), left)):
            code = self._kill(folder, log, rng)
            if code == -signal.SIGKILL:
                kills += 1
            elif code not in self.victim.codes:
                problem = f"exit code {code}"
            problem = problem or self.victim.check(folder, self.whole)
            if problem or code != -signal.SIGKILL or self.victim.complete(folder):
                break
        start = time.monotonic()
        problem = problem or self.victim.finish(folder, self.whole)
        self.campaign.measured(wait_ms=1000 * (time.monotonic() - start))
        if problem is None and (outcome := self.victim.outcome(folder)) != self.expected:
            problem = f"it ends with something else: {str(outcome)[:500]} instead of {str(self.expected)[:500]}"
        if problem:
            listing = "\n".join(sorted(str(file.relative_to(folder)) for file in folder.rglob("*")))
            evidence = {"log.txt": log.read_bytes() if log.exists() else b"", "files.txt": listing.encode()}
            self.campaign.fail(number, f"{self.kind} after {kills} kills: {problem}", evidence)
        shutil.rmtree(folder)
        log.unlink(missing_ok=True)
        return max(kills, 1 if problem else 0)

    def _kill(self, folder: Path, log: Path, rng: random.Random) -> int:
        """Start the work and kill it; its exit code."""
        if rng.random() < 0.5:
            write = rng.randint(1, self.writes)
            process = Process(killed_at_write, write, folder, self.victim.work, folder, log=log)
            code = process.wait(END_SECONDS)
            return process.kill() if code is None else code
        process = Process(self.victim.work, folder, log=log)
        code = process.wait(rng.uniform(0.0, self.seconds))
        return process.kill() if code is None else code


def _counting(writes: Any, folder: Path, work: Callable[[Path], None], argument: Path) -> None:
    def on_write(count: int) -> None:
        writes.value = count

    count_writes(folder, on_write)
    work(argument)


def _run_to_the_end(work: Callable[[Path], None], folder: Path, codes: tuple[int, ...] = (0,)) -> str | None:
    """Do the work undisturbed; what is wrong if it does not end with one of these exit codes."""
    process = Process(work, folder, log=folder.with_name(f"{folder.name}.log"))
    code = process.wait(END_SECONDS)
    if code is None:
        process.kill()
        return f"started again, it has not ended after {END_SECONDS:.0f} s"
    return None if code in codes else f"started again, it ends with {code}: {process.output().strip()[-300:]}"


class Run:
    """`mtn run`; also with a state saved at every step."""

    codes: tuple[int, ...] = (0,)

    def __init__(self, scratch: Path) -> None:
        self.recipe = material.write_recipe(scratch / "run.toml", material.write_arrays(scratch / "run.npz"))

    def prepare(self, folder: Path) -> None:
        """A run makes its folder itself."""
        folder.mkdir()

    def work(self, folder: Path) -> None:
        """With a state after every step, as the command writes every 30 seconds."""
        run(recipe(str(self.recipe)), folder / "run", save_every=0.0)

    def check(self, folder: Path, whole: Path) -> str | None:
        """Nothing can be said of half a run."""

    def complete(self, folder: Path) -> bool:
        """A run that has ended gives its result again."""
        return False

    def finish(self, folder: Path, whole: Path) -> str | None:
        """By the command."""
        words = ["run", str(self.recipe), "--out", str(folder / "run")]
        return _run_to_the_end(lambda _: command(words), folder)

    def outcome(self, folder: Path) -> Any:
        """The result without its times, and the tensors of the last state, bit for bit."""
        result = json.loads((folder / "run" / "result.json").read_text())
        tensors = load_tensors(folder / "run" / "state.safetensors")[0]
        digests = {name: _digest(tensor.contiguous().numpy().tobytes()) for name, tensor in tensors.items()}
        return {name: value for name, value in result.items() if name not in TIMES} | {"tensors": digests}


class Learn:
    """`mtn learn` on a model: after a kill it is the old one or the new one."""

    words = ("learn", "more.npz")
    codes: tuple[int, ...] = (0,)

    def __init__(self, scratch: Path) -> None:
        self.base = scratch / f"{self.words[0]}-base"
        self.base.mkdir()
        call(material.write_model, self.base / "model")
        x, y = material.X[material.KNOWN :], material.LABELS[material.KNOWN :]
        np.savez(self.base / "more.npz", x=x, y=y)
        self.old = _answers(self.base)
        self.new: tuple[str, ...] | None = None

    def prepare(self, folder: Path) -> None:
        """A model, and more data for it."""
        shutil.copytree(self.base, folder)

    def work(self, folder: Path) -> None:
        """Inside of the folder, so that the work is the same in each."""
        os.chdir(folder)
        command([self.words[0], "model", self.words[1]])

    def check(self, folder: Path, whole: Path) -> str | None:
        """The model opens, and answers as the old or the new one does."""
        try:
            self.new = self.new or _answers(whole)
            answers = _answers(folder)
        except RuntimeError as error:
            return f"after a kill the model does not open: {error}"
        return None if answers in (self.old, self.new) else "after a kill it is neither the old nor the new model"

    def complete(self, folder: Path) -> bool:
        """If the kill came after the model was in place: it would learn everything twice."""
        return _answers(folder) != self.old

    def finish(self, folder: Path, whole: Path) -> str | None:
        """The same command, unless all is learned."""
        return None if self.complete(folder) else _run_to_the_end(self.work, folder)

    def outcome(self, folder: Path) -> Any:
        """All answers and classes, bit for bit."""
        return _answers(folder)


class Forget(Learn):
    """`mtn forget`: in the end nothing of the class is in any file, whenever the kill came."""

    words = ("forget", "class 1")
    codes: tuple[int, ...] = (0, 2)  # once the class is gone it is an error to forget it

    def complete(self, folder: Path) -> bool:
        """It may be said again: when the class is gone already, the command refuses, after it has cleaned up."""
        return False

    def finish(self, folder: Path, whole: Path) -> str | None:
        """The same command."""
        return _run_to_the_end(self.work, folder, (0,) if _answers(folder) == self.old else self.codes)

    def outcome(self, folder: Path) -> Any:
        """Also whether a file has a vector or the name of the class that is forgotten, or is not one of the model's.

        The card for people may be missing: the next save writes it.
        """
        model = folder / "model"
        content = b"".join(file.read_bytes() for file in model.iterdir())
        vectors = material.X[material.LABELS == "class 1"]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        left = [row for row in (*vectors, *unit) if row.tobytes()[:12] in content]
        named = b"class 1" in content
        files = sorted(file.name for file in model.iterdir() if file.name not in (".lock", "README.md"))
        return (*_answers(folder), f"{len(left)} vectors left, named: {named}", *files)


class Extract:
    """`mtn extract`: the same bytes."""

    codes: tuple[int, ...] = (0,)

    def __init__(self, scratch: Path) -> None:
        self.data = material.write_sentences(scratch / "sentences.json", copies=6)

    def prepare(self, folder: Path) -> None:
        """The command makes its folder itself."""
        folder.mkdir()

    def work(self, folder: Path) -> None:
        """By the command."""
        command(["extract", str(self.data), "--encoder", "hashing", "--out", str(folder / "store")])

    def check(self, folder: Path, whole: Path) -> str | None:
        """Nothing can be said of half a store."""

    def complete(self, folder: Path) -> bool:
        """A store that is complete stays as it is."""
        return False

    def finish(self, folder: Path, whole: Path) -> str | None:
        """The same command."""
        return _run_to_the_end(self.work, folder)

    def outcome(self, folder: Path) -> Any:
        """The content of every file."""
        files = sorted((folder / "store").iterdir())
        return {file.name: _digest(file.read_bytes()) for file in files if file.name != ".lock"}


def _answers(folder: Path) -> tuple[str, ...]:
    """The classes of the model and a digest of all its probabilities, from a process of its own."""
    answers: tuple[str, ...] = call(_read_answers, folder / "model")
    return answers


def _read_answers(folder: Path) -> tuple[str, ...]:
    classifier = MTNClassifier.load(folder)
    probabilities, novelty = classifier.assess(material.TEST)
    return (*map(str, classifier.classes_), _digest(probabilities.tobytes() + novelty.tobytes()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]

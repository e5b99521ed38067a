"""Damaged files, read in a warm process: the right answer or one `InputError`, in time and within bounds of memory.

Nothing that a file says may import a module, start a program, open a connection, or read a file beside it.
"""

import gc
import os
import random
import resource
import shutil
import socket
import sys
import time
import traceback
import unicodedata
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attack import mutations
from attack.campaign import Campaign
from attack.processes import MEGABYTE, forking, resident_mb
from attack.targets import TARGETS, Files, Target
from mtn.errors import InputError

NAME = "damage"
TRIES = 10_000
MINUTES = 15.0
BATCH = 500
"""Tries of one process."""
START_SECONDS = 120.0
"""In which a process has read all undamaged files: libraries are loaded then, and the right answers known."""
TRY_SECONDS = 20.0
MAX_MB = 768.0
"""By which a try may make the process grow."""
ADDRESS_SPACE = 4096 * MEGABYTE
"""That a process may take beside what it has: allocations beyond it fail."""
REWRITTEN = 0.4
"""Share of the tries in which checksums are right, of targets that have some."""
FORBIDDEN = (
    "socket.connect",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
)
"""Audit events that no file may cause."""
MARKER = "the payload ran"
"""The file that the payload makes when it is imported or called."""
PAYLOAD_CODE = """
def run(*_, **__):
    open({marker!r}, "w").close()
    return []

run()
"""


def attack(campaign: Campaign) -> None:
    """Damage files and read them, some at a time in one process."""
    base = campaign.scratch / "base"
    _call_make(base)
    marker = str(campaign.scratch / MARKER)
    (campaign.scratch / "attack_payload.py").write_text(PAYLOAD_CODE.format(marker=marker))
    (campaign.scratch / "canary.txt").write_text("nobody may read this\n")
    numbers = list(range(campaign.tries)) if campaign.only is None else [campaign.only]
    while numbers and not campaign.over():
        done = _run_batch(campaign, base, numbers[:BATCH])
        campaign.done += done
        numbers = numbers[done:]


def _call_make(base: Path) -> None:
    """Make all undamaged files, in a process of its own."""
    process = forking.Process(target=_make, args=(base,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError("the files to damage cannot be made")


def _make(base: Path) -> None:
    for name, target in TARGETS.items():
        (base / name).mkdir(parents=True)
        os.chdir(base / name)
        target.make(base / name)


def _run_batch(campaign: Campaign, base: Path, numbers: Sequence[int]) -> int:
    """Let a process do these tries; returns how many of them were done."""
    here, there = forking.Pipe()
    process = forking.Process(target=_work, args=(there, campaign, base, numbers))
    process.start()
    there.close()
    done = 0
    try:
        if not here.poll(START_SECONDS) or here.recv() != "ready":
            raise RuntimeError("undamaged files are not read")
        while done < len(numbers) and not campaign.over():
            if not here.poll(TRY_SECONDS):
                reason = f"no answer after {TRY_SECONDS:.0f} s"
                campaign.fail(numbers[done], reason, _evidence(campaign, base, numbers[done]))
                return done + 1
            seconds, grown, problem = here.recv()
            campaign.measured(grown, 1000 * seconds)
            if problem:
                campaign.fail(numbers[done], problem, _evidence(campaign, base, numbers[done]))
            done += 1
    except EOFError:
        process.join()
        reason = f"the process died, exit code {process.exitcode}"
        campaign.fail(numbers[done], reason, _evidence(campaign, base, numbers[done]))
        return done + 1
    finally:
        process.kill()
        process.join()
        here.close()
    return done


def _evidence(campaign: Campaign, base: Path, number: int) -> Files:
    """The files of a try that are not as they were."""
    folder = campaign.scratch / "evidence"
    name, _ = damage(campaign.rng(number), base, folder, 1)
    changed = {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    original = {file.name: file.read_bytes() for file in (base / name).rglob("*") if file.is_file()}
    return {file: content for file, content in changed.items() if original.get(file) != content}


def damage(rng: random.Random, base: Path, folder: Path, port: int) -> tuple[str, bool]:
    """Put damaged files into a folder: the name of the target, and whether its checksums are right all the same."""
    name = rng.choices(list(TARGETS), [target.weight for target in TARGETS.values()])[0]
    target = TARGETS[name]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base / name, folder)
    if target.rewrite is not None and rng.random() < REWRITTEN:
        target.rewrite(folder, rng, port)
        return name, True
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock"]
    file = rng.choice(files)
    file.write_bytes(mutations.damaged(file.name, file.read_bytes(), rng))
    return name, False


class Watch:
    """Notes what a try does that it must not do."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self.canary, self.marker = str(folder / "canary.txt"), folder / MARKER
        self.on = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        sys.addaudithook(self._hook)

    @property
    def port(self) -> int:
        """Where nobody may connect to."""
        return int(self.listener.getsockname()[1])

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN or (event == "open" and isinstance(arguments[0], str) and self._is_canary(arguments[0])):
            self.seen.append(f"{event} {arguments[0]!r}")

    def _is_canary(self, path: str) -> bool:
        return path.endswith("canary.txt") and os.path.abspath(path) == self.canary

    def take(self) -> list[str]:
        """What was seen since the last time."""
        seen, self.seen = self.seen, []
        if self.marker.exists():
            self.marker.unlink()
            sys.modules.pop("attack_payload", None)  # so that the next import runs it again
            seen.append("code that the file names was run")
        try:
            connection, _ = self.listener.accept()
            connection.close()
            seen.append("a connection to the address that the file names")
        except BlockingIOError:
            pass
        return seen


def _work(pipe: Connection, campaign: Campaign, base: Path, numbers: Sequence[int]) -> None:
    """Do some tries; sends of each: seconds, megabytes by which the process grew, and what is wrong."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    warnings.simplefilter("ignore")
    folder = campaign.scratch / "work"
    watch = Watch(campaign.scratch)
    sys.path.insert(0, str(campaign.scratch))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + ADDRESS_SPACE, pages + ADDRESS_SPACE))
    expected = {name: _undamaged(target, base / name, folder) for name, target in TARGETS.items()}
    gc.freeze()  # collecting the libraries' objects again and again would take most of the time
    pipe.send("ready")
    for number in numbers:
        name, rewritten = damage(campaign.rng(number), base, folder, watch.port)
        target = TARGETS[name]
        _reset_peak()
        before, start = resident_mb(os.getpid()), time.monotonic()
        os.chdir(folder)
        watch.on = True
        problem = _read(target, folder, expected[name] if target.exact and not rewritten else None)
        watch.on = False
        os.chdir(campaign.scratch)
        seconds, grown = time.monotonic() - start, max(resident_mb(os.getpid(), peak=True) - before, 0.0)
        if rewritten and not target.polite:
            problem = None
        if seen := watch.take():
            problem = f"it does what a file must not make it do: {seen[:3]}"
        if grown > MAX_MB:
            problem = problem or f"it took {grown:.0f} MB"
        pipe.send((seconds, grown, None if problem is None else f"{name}: {problem}"))


def _undamaged(target: Target, base: Path, folder: Path) -> Any:
    """The right answer; of a copy, since reading may write."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    os.chdir(folder)
    return target.read(folder)


def _read(target: Target, folder: Path, expected: Any) -> str | None:
    """What is wrong with how damaged files are read."""
    try:
        answer = target.read(folder)
    except InputError as error:
        lines = str(error)
        odd = [letter for letter in lines if unicodedata.category(letter) == "Cc"]
        return f"the error has control characters: {lines[:300]!r}" if odd else None
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        return f"{type(error).__name__} instead of InputError: {str(error)[:200]!r}\n{trace[-3000:]}"
    if expected is not None and answer != expected:
        return f"another answer without an error: {str(answer)[:300]}"
    return None


def _reset_peak() -> None:
    """Let the peak of resident memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")

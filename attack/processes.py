"""Processes forked from this one, which has loaded torch and mtn already: a command starts in milliseconds."""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which an optimiser imports when it is made: seconds, in each process that teaches

from mtn.cli import main
from mtn.experiments import report  # noqa: F401 (so that the commands find it loaded)

torch.set_num_threads(1)

forking = multiprocessing.get_context("fork")

WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")
"""Audit events of calls that change a folder; opening a file for writing is another."""
MEGABYTE = 2**20


class Process:
    """A forked process whose output goes into a file."""

    def __init__(self, function: Callable[..., object], *arguments: Any, log: Path) -> None:
        self.log = log
        self._process = forking.Process(target=_with_output, args=(log, function, arguments))
        self._process.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if the process still runs."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> int:
        """Send SIGKILL; the exit code, which is another one if the process had ended before."""
        self._process.kill()
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def output(self) -> str:
        """What the process has printed so far."""
        return self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""


def _with_output(log: Path, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    function(*arguments)


def command(words: list[str]) -> None:
    """Run an `mtn` command in this process."""
    sys.argv = ["mtn", *words]
    main.main()


def call(function: Callable[..., Any], *arguments: Any, seconds: float = 120.0) -> Any:
    """What a function gives in a process of its own: this process stays as it is, without threads."""
    here, there = forking.Pipe(duplex=False)
    process = forking.Process(target=_answer, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            raise TimeoutError(f"no answer after {seconds:.0f} s")
        ok, answer = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if not ok:
        raise RuntimeError(answer)
    return answer


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except Exception:
        pipe.send((False, traceback.format_exc()))


def count_writes(folder: Path, on_write: Callable[[int], None]) -> None:
    """From now on, call `on_write` with 1, 2, ... before each call of this process that changes something in a folder.

    Through an audit hook of the interpreter, so nothing of the program is replaced.
    """
    prefix, count = str(folder), 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            writes = isinstance(arguments[0], str) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        else:
            writes = event in WRITES
        if writes and os.path.abspath(os.fsdecode(arguments[0])).startswith(prefix):
            count += 1
            on_write(count)

    sys.addaudithook(hook)


def killed_at_write(number: int, folder: Path, function: Callable[..., object], *arguments: Any) -> None:
    """Run a function and send SIGKILL to this process just before its n-th change of the folder."""

    def on_write(count: int) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    count_writes(folder, on_write)
    function(*arguments)


def resident_mb(pid: int, peak: bool = False) -> float:
    """Resident memory of a process, or the most it had so far; 0 if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    name = "VmHWM:" if peak else "VmRSS:"
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def until(true: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
    """Wait until something is true; whether it became so in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(pause)
    return False

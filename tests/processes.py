"""Processes that tests start and kill, from one that has imported what they need: a start takes no seconds."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from mtn.cli import main
from mtn.config import Config
from mtn.experiments.run import run

starting = multiprocessing.get_context("forkserver")
starting.set_forkserver_preload(["mtn.cli.main", "mtn.serve.app", "mtn.experiments.run", "torch._dynamo"])


def start(function: Callable[..., Any], *arguments: Any) -> Any:
    """A started process of a function that can be imported; in the environment of now, not of the first process."""
    process = starting.Process(target=_call, args=(dict(os.environ), function, *arguments))
    process.start()
    return process


def _call(environment: dict[str, str], function: Callable[..., Any], *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def kill(process: Any) -> None:
    """End a process that has not ended yet, at once."""
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def command(words: list[str], folder: Path) -> None:
    """`mtn` with these words, in a folder."""
    os.chdir(folder)
    sys.argv = ["mtn", *words]
    main.main()


class RunProcess:
    """A run in a process of its own, which saves its state all the time and tells each step."""

    def __init__(self, config: Config, out: Path) -> None:
        self._steps, steps = starting.Pipe(duplex=False)
        self._process = start(_run, config, out, steps)
        steps.close()

    def wait(self, steps: int) -> None:
        """Until it has told so many steps."""
        for _ in range(steps):
            self._steps.recv_bytes()

    def kill(self) -> None:
        kill(self._process)

    def end(self) -> int:
        """Let it do what is left; its exit code."""
        try:
            while True:
                self.wait(1)
        except EOFError:
            self._process.join()
        return int(self._process.exitcode)


def _run(config: Config, out: Path, steps: Connection) -> None:
    torch.set_num_threads(1)
    run(config, out, lambda *_: steps.send_bytes(b"."), save_every=0.05)

"""The service, killed while it is taught: every accepted sample is learned once."""

import http.client
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attack import material
from attack.campaign import Campaign
from attack.processes import Process, call, until
from attack.server import Server
from mtn import MTNClassifier

LIVES = 4
"""Kills of one service before it may learn all it owes."""
LEARN_SECONDS = 120.0
"""In which a service that nothing disturbs must have learned what it owes."""
VECTORS = np.random.default_rng(8).standard_normal((5000, material.DIMENSION)).astype(np.float32)


class Lessons:
    """What was sent. A lesson that got no answer is sent again with its key, to the next service."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows = [0]  # of the lesson that has no answer yet
        self.expected: list[str] = []  # ids of the accepted samples

    def send(self, server: Server) -> None:
        """Send the next lesson."""
        lesson = {"vectors": VECTORS[self.rows].tolist(), "labels": [f"new {row % 5}" for row in self.rows]}
        key = {"idempotency-key": f"rows {self.rows}"}
        status, answer = server.ask("POST", "/learn", lesson, **key)
        if status == 429:  # too many wait
            return
        if status != 202:
            raise AssertionError(f"a lesson is answered with {status}: {answer}")
        self.expected += [f"{answer['job']}-{row}" for row in range(len(self.rows))]
        first = self.rows[-1] + 1
        self.rows = list(range(first, first + self.rng.randint(1, 3)))


def prepare(scratch: Path, campaign: Campaign) -> Callable[[int, random.Random, int], int]:
    """What kills one service after the other."""
    base = scratch / "base"
    call(material.write_model, base, "mtn", 10, 2000)

    def survive(number: int, rng: random.Random, left: int) -> int:
        folder = Path(shutil.copytree(base, scratch / f"model-{number}"))
        lessons, kills = Lessons(rng), 0
        problem = None
        try:
            for life in range(min(rng.randint(2, LIVES), left)):
                kills += _kill(folder, lessons, rng, of_worker=life == 1)
            start = time.monotonic()
            problem = _finish(folder, lessons, campaign) or call(_check, folder, lessons.expected)
            campaign.measured(wait_ms=1000 * (time.monotonic() - start))
        except (AssertionError, RuntimeError) as error:
            problem = str(error)
        if problem:
            evidence = {"log.txt": folder.with_name(f"{folder.name}.log").read_bytes()}
            campaign.fail(number, f"service after {kills} kills: {problem}", evidence)
        shutil.rmtree(folder)
        return max(kills, 1)

    return survive


def _kill(folder: Path, lessons: Lessons, rng: random.Random, of_worker: bool) -> int:
    """Start a service, teach it, and kill it, or first the process that learns; returns the number of kills."""
    server, kills = Server(folder), 0
    killer = Process(_kill_later, server.process.pid, rng.uniform(0.0, 1.5), log=server.log)
    with suppress(OSError, http.client.HTTPException):
        if until(lambda: not server.alive() or server.ready(), 30):
            while server.alive():
                lessons.send(server)
                worker = server.worker() if of_worker else None
                if worker is not None:
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
                        of_worker, kills = False, 1
                time.sleep(0.03)
    killer.wait(30)
    code = server.process.kill()
    if code != -signal.SIGKILL:
        raise AssertionError(f"the service ended by itself with {code}: {server.process.output()[-500:]}")
    return kills + 1


def _kill_later(pid: int, seconds: float) -> None:
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


def _finish(folder: Path, lessons: Lessons, campaign: Campaign) -> str | None:
    """Start the service once more, and let it learn what it owes."""
    with Server(folder) as server:
        lessons.send(server)
        learned = until(lambda: server.ask("GET", "/model")[1]["waiting"] == 0, LEARN_SECONDS, 0.05)
        campaign.measured(memory_mb=server.peak_memory_mb())
    return None if learned else f"it has not learned what it owes in {LEARN_SECONDS:.0f} s"


def _check(folder: Path, expected: list[str]) -> str | None:
    """Whether each accepted sample is in the memory once, and was learned once."""
    classifier: Any = MTNClassifier.load(folder)
    ids = sorted(exemplar.id for exemplar in classifier.memory_ if isinstance(exemplar.id, str))
    learned = sum(entry["samples"] for entry in classifier.history_) - material.KNOWN
    if ids == sorted(expected) and learned == len(expected):
        return None
    lost, more = sorted(set(expected) - set(ids)), sorted(set(ids) - set(expected))
    return f"{len(expected)} samples were accepted, {learned} learned; lost {lost[:5]}, not expected {more[:5]}"

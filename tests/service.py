"""A real server process for tests, and models for it that learn in no time."""

import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from conftest import cluster_arrays
from mtn import MTNClassifier, cli
from mtn.serve import app

ARRAYS = cluster_arrays()
TRAIN, LABELS = ARRAYS["x_train"], np.array([f"class {label:02}" for label in ARRAYS["y_train"]])
TEST, TRUE = ARRAYS["x_test"], np.array([f"class {label:02}" for label in ARRAYS["y_test"]])
QUICK = {"method.size": "small", "train.epochs": 1}

starting = multiprocessing.get_context("forkserver")
"""Servers are processes of their own, from one that has imported what they need: a start takes no seconds."""
starting.set_forkserver_preload(["mtn.cli", "mtn.serve.app"])


def write_model(folder: Path, steps: int, memory: int = 2000, method: str = "mtn") -> Path:
    """Six classes; a lesson takes so many steps."""
    settings = QUICK | {"train.min_steps": steps}
    MTNClassifier(method, memory=memory, k=5, settings=settings).fit(TRAIN[:180], LABELS[:180]).save(folder)
    return folder


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(words: list[str], undo: float, log: Path) -> None:
    """`mtn serve` in a process of its own."""
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    app.UNDO = undo
    sys.argv = ["mtn", *words]
    cli.main()


class Service:
    """`with Service(folder) as service`: up when entered, gone when left."""

    def __init__(self, folder: Path, *options: str, undo: float = 1.0, token: str | None = None) -> None:
        self.folder, self.options, self.undo, self.port = folder, options, undo, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=self.url, timeout=30, headers=headers)
        self.log = folder.parent / f"{folder.name}.log"

    def __enter__(self) -> "Service":
        words = ["serve", str(self.folder), "--port", str(self.port), *self.options]
        self.process = starting.Process(target=run, args=(words, self.undo, self.log))
        self.process.start()
        self.until(lambda: self.client.get("/readyz").status_code == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.terminate()
        self.process.join(20)
        stopped = not self.process.is_alive()
        self.process.kill()
        assert stopped, self.log.read_text()[-3000:]

    def until(self, true: Any, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if true():
                    return
            except httpx.TransportError:
                assert self.process.is_alive(), self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"nothing after {seconds} s:\n{self.log.read_text()[-3000:]}")

    def finish(self, job: str) -> dict[str, Any]:
        """The job, once it is no longer open."""
        self.until(lambda: self.client.get(f"/jobs/{job}").json()["state"] not in ("waiting", "running"))
        answer: dict[str, Any] = self.client.get(f"/jobs/{job}").json()
        return answer

    def known(self) -> dict[Any, int]:
        """Examples remembered of each class."""
        return {one["label"]: one["exemplars"] for one in self.client.get("/classes").json()["classes"]}

    def learn(self, x: np.ndarray, labels: list[Any], **options: Any) -> httpx.Response:
        return self.client.post("/learn", json={"vectors": x.tolist(), "labels": labels}, **options)

    def answers(self, x: np.ndarray) -> list[dict[str, Any]]:
        answer = self.client.post("/predict", json={"vectors": x.tolist()})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["answers"]
        return found

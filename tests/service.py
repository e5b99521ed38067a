"""A real server process for tests, and models for it that learn in no time."""

import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from cluster_data import LABELS, TRAIN
from mtn import MTNClassifier
from mtn.cli import main
from mtn.serve import teaching
from processes import start

RAW = {"content-type": "application/octet-stream"}
QUICK = {"method.size": "small", "train.epochs": 1}
PATIENCE = 120
"""Seconds to wait for a process or an answer: a busy machine takes long, and no test is about how long."""


def write_model(folder: Path, steps: int, memory: int = 2000, method: str = "mtn") -> Path:
    """Save a model of six classes that takes `steps` steps to learn whatever it is taught next."""
    settings = QUICK | {"train.min_steps": 1}
    classifier = MTNClassifier(method, memory=memory, k=5, settings=settings).fit(TRAIN[:180], LABELS[:180])
    learner = classifier.state_.learner
    train = learner.config.train.model_copy(update={"min_steps": steps})
    learner.config = learner.config.model_copy(update={"train": train})
    classifier.save(folder)
    return folder


def free_port() -> int:
    """A TCP port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(words: list[str], undo: float, log: Path) -> None:
    """`mtn serve` in a process of its own."""
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    teaching.UNDO_SECONDS = undo
    sys.argv = ["mtn", *words]
    main.main()


class Service:
    """`with Service(folder) as service`: up when entered, gone when left."""

    def __init__(self, folder: Path, *options: str, undo: float = 1.0, token: str | None = None) -> None:
        self.folder, self.options, self.undo, self.port = folder, options, undo, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE, headers=headers)
        self.log = folder.parent / f"{folder.name}.log"

    def __enter__(self) -> "Service":
        words = ["serve", str(self.folder), "--port", str(self.port), *self.options]
        self.process = start(run, words, self.undo, self.log)
        self.until(lambda: self.client.get("/readyz").status_code == 200)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        stopped = not self.process.is_alive()
        self.process.kill()
        assert stopped, self.log.read_text()[-3000:]

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Wait until the condition holds; requests may fail meanwhile, as long as the process lives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except httpx.TransportError:
                assert self.process.is_alive(), self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"not so after {seconds} s:\n{self.log.read_text()[-3000:]}")

    def finish(self, job: str) -> dict[str, Any]:
        """The job, once it is no longer open."""
        self.until(lambda: self.client.get(f"/jobs/{job}").json()["state"] not in ("waiting", "running"))
        answer: dict[str, Any] = self.client.get(f"/jobs/{job}").json()
        return answer

    def known(self) -> dict[Any, int]:
        """Exemplars of each class."""
        return {entry["label"]: entry["exemplars"] for entry in self.client.get("/classes").json()["classes"]}

    def learn(self, x: np.ndarray, labels: list[Any], **options: Any) -> httpx.Response:
        """Send labelled vectors N,D."""
        return self.client.post("/learn", json={"vectors": x.tolist(), "labels": labels}, **options)

    def answers(self, x: np.ndarray) -> list[dict[str, Any]]:
        """Predictions for vectors N,D."""
        response = self.client.post("/predict", json={"vectors": x.tolist()})
        assert response.status_code == 200, response.text
        predictions: list[dict[str, Any]] = response.json()["answers"]
        return predictions


def snapshot(service: Service) -> tuple[Any, ...]:
    """The files of the model and what the service says of it: equal if nothing has changed."""
    files = [file for file in sorted(service.folder.iterdir()) if file.is_file() and file.name != ".lock"]
    digests = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    looks = [service.client.get(path).json() for path in ("/classes", "/model")]
    return *digests, *looks

"""A service whose disk is full, or whose processes die."""

import asyncio
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_data import LABELS, TEST, TRAIN
from mtn.errors import InputError
from mtn.serve import engine, serve, worker
from mtn.serve.journal import MAX_TRIES, Journal, LabelledSamples
from service import Service, write_model

# ---- a disk that is full, or cannot be written


class Disk:
    """A filesystem of a few megabytes in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __enter__(self) -> "Disk":
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(self.folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_stops_teaching_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    service = Service(write_model(disk.folder / "model", steps=1))
    service.log = tmp_path / "log"
    samples = TRAIN[LABELS == "class 07"]
    with service:
        disk.fill()
        refused = [service.learn(samples, ["new"] * len(samples)), service.client.delete("/classes/class%2000")]
        assert [answer.status_code for answer in refused] == [507, 507]
        assert all("disk is full" in answer.json()["error"] for answer in refused)
        time.sleep(engine.RETRY_SECONDS)
        assert service.client.get("/readyz").status_code == 503
        assert service.answers(TEST[:3]) and service.client.get("/healthz").status_code == 200
        disk.free()
        service.until(lambda: service.client.get("/readyz").status_code == 200, 10)
        job = service.learn(samples, ["new"] * len(samples)).json()["job"]
        assert service.finish(job)["state"] == "done" and service.known()["new"] == len(samples)


def test_a_disk_that_fills_up_during_a_lesson_delays_it(disk: Disk, tmp_path: Path) -> None:
    service = Service(write_model(disk.folder / "model", steps=300))
    service.log = tmp_path / "log"
    samples = TRAIN[LABELS == "class 07"]
    with service:
        job = service.learn(samples, ["new"] * len(samples)).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        disk.fill()
        service.until(lambda: '"event": "hindered"' in service.log.read_text())
        assert service.client.get("/readyz").status_code == 503
        assert service.client.get(f"/jobs/{job}").json()["state"] == "running"
        disk.free()
        assert service.finish(job)["state"] == "done" and service.known()["new"] == len(samples)
        service.until(lambda: service.client.get("/readyz").status_code == 200, 10)
    assert "Traceback" not in service.log.read_text() and '"trace"' not in service.log.read_text()


def test_a_service_on_a_read_only_disk_does_not_start(disk: Disk) -> None:
    write_model(disk.folder / "model", steps=1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
    with pytest.raises(InputError, match="Read-only file system"):
        serve(disk.folder / "model", "127.0.0.1", 0, None)
    subprocess.run(["mount", "-o", "remount,rw", str(disk.folder)], check=True)
    (disk.folder / "model" / "journal").mkdir()
    disk.fill()
    with pytest.raises(InputError, match="cannot be written"):
        Journal(disk.folder / "model" / "journal" / "journal.sqlite")


# ---- processes that die


class Lessons:
    """An engine with real processes; a lesson of the class "fatal" ends its worker process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes, teach = folder.parent / "sizes", worker.teach

        def teach_or_die(classifier: Any, batch: worker.TeachingBatch, progress: Any) -> bool:
            with self.sizes.open("a") as file:
                file.write(f"{len(batch.jobs)}\n")
            if any("fatal" in samples.labels for samples in batch.samples):
                os._exit(9)
            return teach(classifier, batch, progress)

        monkeypatch.setattr(worker, "teach", teach_or_die)  # before the processes are forked
        self.supervisor = worker.Supervisor(folder)
        self.journal = Journal(folder / "journal.sqlite")
        self.folder = folder

    def run(self, labels: list[str]) -> tuple[list[str], list[int]]:
        """The states of jobs of one label each, and how many jobs each worker process was given."""
        jobs = [self.journal.learn(LabelledSamples(TRAIN[:1], [label])) for label in labels]

        async def work() -> list[str]:
            service = engine.Engine(self.folder, self.journal, self.supervisor)
            service.start()
            while self.journal.waiting():
                await asyncio.sleep(0.05)
            found = [self.journal.find(job.id) for job in jobs]
            await service.stop()
            return [job.state for job in found if job is not None]

        states = asyncio.run(work())
        return states, [int(line) for line in self.sizes.read_text().split()]


@pytest.mark.parametrize("index", [0, 21, 63])
def test_a_batch_whose_process_dies_is_halved(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["class 00"] * 64
    labels[index] = "fatal"
    states, sizes = Lessons(write_model(tmp_path / "model", steps=1), monkeypatch).run(labels)
    assert [number for number, state in enumerate(states) if state != "done"] == [index] and states[index] == "failed"
    assert len(sizes) <= 1 + math.log2(64) + MAX_TRIES + 1, sizes


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only its exit code is left."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[tuple[Service, int, int]]:
    """A service in the middle of a lesson that takes long; its supervisor and its worker process."""
    service = Service(write_model(tmp_path / "model", steps=1_000_000))
    service.__enter__()
    try:
        job = service.learn(TRAIN[:1], ["new"]).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        (supervisor,) = children(service.process.pid)
        (worker_process,) = children(supervisor)
        yield service, supervisor, worker_process
    finally:
        with suppress(AssertionError):
            service.__exit__()


def plain_lines(service: Service) -> list[str]:
    """Of the log, without the line of the command."""
    return [line for line in service.log.read_text().splitlines()[1:] if not line.startswith("{")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_a_server_that_dies_leaves_no_process_and_no_traceback(
    how: signal.Signals, learning: tuple[Service, int, int]
) -> None:
    service, supervisor, worker_process = learning
    os.kill(service.process.pid, how)
    service.until(lambda: has_ended(supervisor) and has_ended(worker_process), 20)
    assert plain_lines(service) == []


def test_a_worker_ends_by_itself_when_nobody_ends_it(learning: tuple[Service, int, int]) -> None:
    service, supervisor, worker_process = learning
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(service.process.pid, signal.SIGKILL)
    service.until(lambda: has_ended(worker_process), 20)
    os.kill(supervisor, signal.SIGCONT)
    service.until(lambda: has_ended(supervisor), 20)
    assert plain_lines(service) == []


def test_a_worker_ends_with_its_supervisor(learning: tuple[Service, int, int]) -> None:
    service, supervisor, worker_process = learning
    os.kill(supervisor, signal.SIGKILL)
    service.until(lambda: has_ended(worker_process), 20)
    service.until(lambda: service.client.get("/readyz").status_code == 503, 20)
    assert service.answers(TEST[:1]) and plain_lines(service) == []


# ---- a journal that is damaged


def test_a_journal_whose_index_lacks_a_job_is_one_line(tmp_path: Path) -> None:
    """The state of a job is another one in the table than in its index: found when the file is opened, not later."""
    file = tmp_path / "journal.sqlite"
    journal = Journal(file)
    journal.learn(LabelledSamples(np.zeros((1, 3), np.float32), ["a"]))
    journal.close()
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(b"waiting")] + b"waitinh" + content[content.rindex(b"waiting") + 7 :])
    with pytest.raises(InputError, match=r"journal\.sqlite is damaged"):
        Journal(file)

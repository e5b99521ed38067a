"""A job -> a new model on disk, in a process of its own that gives way to everything else.

The nurse is forked before the server has threads, and forks a process for each lesson: it starts at once, its memory
is the system's again when it ends, and whatever ends it ends nothing else. If the server goes, so do they.
"""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from mtn import store
from mtn.classifier import MTNClassifier
from mtn.errors import InputError, Passing
from mtn.inputs import Inputs
from mtn.progress import Progress
from mtn.serve.journal import Job, Material

NICENESS = 10
"""A tenth of what the server gets where both want the same core."""
EVERY = 0.1
"""Seconds between two words of progress."""

_forking = multiprocessing.get_context("fork")


class Lesson(NamedTuple):
    """Jobs that are done in one go, with what those that teach have to teach."""

    jobs: Sequence[Job]
    materials: Sequence[Material]


class Outcome(NamedTuple):
    """How a lesson ended: refused, because of what was to be learned; hindered, by something that may pass."""

    kind: Literal["done", "refused", "hindered", "died"]
    error: str = ""


class Gone(Exception):
    """There is no worker any more."""


class Worker:
    """The server's end."""

    def __init__(self, folder: Path) -> None:
        self._pipe, theirs = _forking.Pipe()
        self._nurse = _forking.Process(target=_nurse, args=(theirs, self._pipe, folder), name="mtn-nurse")
        self._nurse.start()
        theirs.close()

    def do(self, lesson: Lesson, say: Progress) -> Outcome:
        """Returns when the model on disk has changed, or will not."""
        outcome = Outcome("died", "learning broke off")
        try:
            self._pipe.send(lesson)
            while (told := self._pipe.recv()) is not None:
                if isinstance(told, Outcome):
                    outcome = told
                else:
                    say(*told)
        except (EOFError, OSError):
            raise Gone from None
        return outcome

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        return self._nurse.is_alive()

    def stop(self) -> None:
        """Whatever it is at: what it has not done it will do when the server is started again."""
        with suppress(OSError):
            self._pipe.send(None)
        self._nurse.join()


def _nurse(pipe: Connection, servers: Connection, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the server decides
    servers.close()  # else the pipe would not end with the server
    while (lesson := _next(pipe)) is not None:
        pupil = _forking.Process(target=_study, args=(pipe, folder, lesson), name="mtn-lesson")
        pupil.start()
        if pipe in wait([pipe, pupil.sentinel]):  # the server is gone, or wants to go
            pupil.kill()
            return
        pupil.join()
        pipe.send(None)


def _next(pipe: Connection) -> Lesson | None:
    try:
        lesson: Lesson | None = pipe.recv()
    except (EOFError, OSError):
        return None
    return lesson


def _study(pipe: Connection, folder: Path, lesson: Lesson) -> None:
    os.nice(NICENESS)
    torch.set_num_threads(1)
    pipe.send(change(folder, lesson, _seldom(pipe)))


def change(folder: Path, lesson: Lesson, say: Progress) -> Outcome:
    """Load, learn or forget, save. The moment model.json is renamed, the jobs are done: it names them."""
    try:
        with store.hold(folder):
            classifier = MTNClassifier.load(folder)
            try:
                changed = _teach(classifier, lesson, say) if lesson.materials else _forget(classifier, lesson.jobs[0])
            except Passing:
                raise
            except InputError as error:
                return Outcome("refused", str(error))
            if changed:
                classifier.save(folder)
            else:
                classifier._learner.memory.settle()  # a kill, or a lost server, came between saving and this
    except (InputError, OSError) as error:  # a lock, a full disk, a lost server
        return Outcome("hindered", str(error))
    return Outcome("done")


def _forget(classifier: MTNClassifier, job: Job) -> bool:
    assert job.forgets is not None
    if job.forgets not in classifier.classes_.tolist():  # a kill came between saving and the journal's word of it
        return False
    classifier.forget(job.forgets)
    return True


def _teach(classifier: MTNClassifier, lesson: Lesson, say: Progress) -> bool:
    """Each job once: those that the model's history names were learned before a kill."""
    learned = {job for entry in getattr(classifier, "history_", ()) for job in entry.get("jobs", ())}
    new = [(job, part) for job, part in zip(*lesson, strict=True) if job.id not in learned]
    if not new:
        return False
    images = [part.thumbnails for _, part in new if part.thumbnails is not None]
    classifier.progress = say
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")  # classes of one sample are welcome
        classifier.partial_fit(
            Inputs(np.concatenate([part.vectors for _, part in new]), source=classifier.source_),
            [label for _, part in new for label in part.labels],
            ids=[f"{job.id}-{place}" for job, part in new for place in range(len(part))],
            thumbnails=np.concatenate(images) if images else None,
        )
    classifier.progress = False
    classifier.history_[-1]["jobs"] = [job.id for job, _ in new]
    return True


def _seldom(pipe: Connection) -> Progress:
    said = 0.0

    def say(what: str, done: int, of: int) -> None:
        nonlocal said
        if time.monotonic() - said >= EVERY or done == of:
            said = time.monotonic()
            pipe.send((what, done, of))

    return say

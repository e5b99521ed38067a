"""Jobs -> a new model on disk, in a process of its own that gives way to everything else.

The supervisor process is forked before the server has threads, and forks a worker process for each batch of jobs: that
starts at once, its memory is the system's again when it ends, and a crash of it ends nothing else. If the server ends,
so do they.
"""

import errno
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from mtn.classifier import MTNClassifier
from mtn.classifier.saving import release_unsaved
from mtn.data.inputs import Inputs
from mtn.errors import InputError, NotPermittedError, UnavailableError
from mtn.runtime.progress import Progress
from mtn.serve import observe
from mtn.serve.journal import Change, Job, LabelledSamples
from mtn.storage.model_folder import hold_model_folder

NICENESS = 10
"""Of the worker process: it gets a tenth of what the server gets where both want the same core."""
PROGRESS_SECONDS = 0.1
"""Between two messages of progress."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)

_forking = multiprocessing.get_context("fork")


MEANWHILE = "the model has changed in the meantime: look again, and try again if it is still to be done"
"""Of a change that no longer can be done. The journal keeps it for a week: it names no class."""


class TeachingBatch(NamedTuple):
    """Jobs that are done in one call: those that teach with their samples, or one that changes, without any."""

    jobs: Sequence[Job]
    samples: Sequence[LabelledSamples]


class Outcome(NamedTuple):
    """How a batch ended: refused, because of its samples; hindered, by what may pass; died, with its process."""

    kind: Literal["done", "refused", "hindered", "died"]
    error: str = ""
    by_disk: bool = False


class SupervisorGone(Exception):
    """The supervisor process has ended."""


class Supervisor:
    """The server's handle of the supervisor process."""

    def __init__(self, folder: Path, milvus: str | None = None) -> None:
        self._pipe, other_end = _forking.Pipe()
        arguments = (other_end, self._pipe, folder, milvus)
        self._process = _forking.Process(target=_supervise, args=arguments, name="mtn-supervisor")
        self._process.start()
        other_end.close()

    def run(self, batch: TeachingBatch, progress: Progress) -> Outcome:
        """Returns when the model on disk has changed, or will not."""
        outcome = Outcome("died", "learning broke off")
        try:
            self._pipe.send(batch)
            while (message := self._pipe.recv()) is not None:
                if isinstance(message, Outcome):
                    outcome = message
                else:
                    progress(*message)
        except (EOFError, OSError):
            raise SupervisorGone from None
        return outcome

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether batches can still be run."""
        return self._process.is_alive()

    def stop(self) -> None:
        """End both processes at once: jobs that are not done are done when the server is started again."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join()


def _supervise(pipe: Connection, servers_end: Connection, folder: Path, milvus: str | None) -> None:
    """The supervisor process: a worker process for each batch, until the server stops it or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the server decides
    servers_end.close()  # else the pipe would not end with the server
    while (batch := _receive(pipe)) is not None:
        worker = _forking.Process(target=_work, args=(pipe, folder, batch, milvus), name="mtn-worker")
        worker.start()
        if pipe in wait([pipe, worker.sentinel]):  # the server has ended, or wants to end
            worker.kill()
            return
        worker.join()
        with suppress(OSError):  # the server may have ended: then nothing more is received
            pipe.send(None)


def _receive(pipe: Connection) -> TeachingBatch | None:
    """The next batch; None when there will be no more."""
    try:
        batch: TeachingBatch | None = pipe.recv()
    except (EOFError, OSError):
        return None
    return batch


def _work(pipe: Connection, folder: Path, batch: TeachingBatch, milvus: str | None) -> None:
    """The worker process."""
    threading.Thread(target=_end_with_server, args=(pipe,), daemon=True).start()
    os.nice(NICENESS)
    torch.set_num_threads(1)
    try:
        pipe.send(apply_batch(folder, batch, _throttled(pipe), milvus))
    except ConnectionError:  # the server has ended
        pass
    except Exception:
        observe.log.exception("learning broke off")


def _end_with_server(pipe: Connection) -> None:
    """End this process as soon as the server or the supervisor process has ended, or the server wants to end."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    wait([pipe, supervisor.sentinel])
    os._exit(1)


def apply_batch(folder: Path, batch: TeachingBatch, progress: Progress, milvus: str | None = None) -> Outcome:
    """Load, learn or change, save. The moment model.json is renamed, the jobs are done: it names them."""
    try:
        with hold_model_folder(folder):
            classifier = MTNClassifier.load(folder, milvus=milvus)
            try:
                changed = teach(classifier, batch, progress) if batch.samples else _change(classifier, batch.jobs[0])
            except UnavailableError:
                raise
            except InputError as error:
                return Outcome("refused", str(error))
            if changed:
                classifier.save(folder)
            elif classifier.__sklearn_is_fitted__():
                release_unsaved(classifier.state_)  # a kill, or a lost server, came between saving and this
    except (InputError, OSError) as error:  # a lock, a full disk, a lost server
        return Outcome("hindered", str(error), _is_of_disk(error) or _is_of_disk(error.__context__))
    return Outcome("done")


def _is_of_disk(error: BaseException | None) -> bool:
    """Whether a disk is full or cannot be written."""
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _done(classifier: MTNClassifier) -> set[str]:
    """Jobs that the history names: they were done before a kill, and each is done once."""
    return {job for entry in getattr(classifier, "history_", ()) for job in entry.get("jobs", ())}


def _change(classifier: MTNClassifier, job: Job) -> bool:
    """Whether the classifier changed."""
    change = job.change
    assert change is not None
    if job.id in _done(classifier) or _is_gone(classifier, change):
        return False
    try:
        _apply(classifier, change)
    except (UnavailableError, NotPermittedError):
        raise
    except InputError:  # its message has names, which a job that failed does not keep
        raise InputError(MEANWHILE) from None
    classifier.annotate(jobs=[*classifier.history_[-1].get("jobs", ()), job.id])
    return True


def _is_gone(classifier: MTNClassifier, change: Change) -> bool:
    """Whether what is to go is no longer there."""
    if change.kind == "forget":
        return change.target not in classifier.classes_.tolist()
    return change.kind == "remove" and change.target not in classifier.state_.ids()


def _apply(classifier: MTNClassifier, change: Change) -> None:
    target, label = change.target, change.label
    assert target is not None
    if change.kind == "forget":
        classifier.forget(target)
    elif change.kind == "rename":
        assert label is not None
        classifier.rename(target, label)
    else:
        assert isinstance(target, str | int)  # an id
        classifier.remove_exemplar(target) if label is None else classifier.relabel_exemplar(target, label)


def teach(classifier: MTNClassifier, batch: TeachingBatch, progress: Progress, *, polish: bool = True) -> bool:
    """Whether the classifier changed."""
    done = _done(classifier)
    new = [(job, samples) for job, samples in zip(*batch, strict=True) if job.id not in done]
    if not new:
        return False
    images = [samples.thumbnails for _, samples in new if samples.thumbnails is not None]
    texts = [text for _, samples in new for text in samples.texts or [""] * len(samples)]
    classifier.progress = progress
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")  # classes of one sample are welcome
        classifier.partial_fit(
            Inputs(
                np.concatenate([samples.vectors for _, samples in new]),
                source=classifier.source_,
                texts=texts,
            ),
            [label for _, samples in new for label in samples.labels],
            ids=[f"{job.id}-{row}" for job, samples in new for row in range(len(samples))],
            thumbnails=np.concatenate(images) if images else None,
            polish=polish,
        )
    classifier.progress = False
    classifier.annotate(jobs=[job.id for job, _ in new])
    return True


def _throttled(pipe: Connection) -> Progress:
    """Sends progress, but not at every step."""
    latest = 0.0

    def send(what: str, done: int, of: int) -> None:
        nonlocal latest
        if time.monotonic() - latest >= PROGRESS_SECONDS or done == of:
            latest = time.monotonic()
            pipe.send((what, done, of))

    return send

"""Queries that arrive together -> one pass of the model; jobs of the journal -> a new model that replaces the old one.

Nothing here depends on HTTP.
"""

import asyncio
import copy
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from mtn.classifier import Id, Label, MTNClassifier, as_queries
from mtn.errors import InputError
from mtn.evidence import Evidence
from mtn.runtime.progress import silent
from mtn.serve import observe
from mtn.serve.journal import MAX_TRIES, MAX_WAITING, Job, Journal, NoStorage
from mtn.serve.worker import Outcome, Supervisor, TeachingBatch, teach
from mtn.storage.archive import Archive

MAX_ROWS = 1024
"""Vectors of a request."""
PASS_ROWS = 64
"""Vectors of a pass: a request of one vector waits for two passes at most, however large the others are."""
MAX_WAITING_ROWS = 8 * MAX_ROWS
"""Vectors that wait for a pass: beyond this, requests are refused."""
TOP = 5
"""Classes of an answer."""
UNDO_SECONDS = 10.0
"""In which forgetting a class can be undone."""
MOST_COPIED = 2**27
"""Numbers of a memory that is copied to answer while a lesson is learned: 512 MB."""
RETRY_SECONDS = 1.0
"""Before jobs that were hindered are tried again, and before the disk is looked at again."""


InputKind = Literal["vectors", "images", "texts"]
INPUT_KINDS: dict[str | None, InputKind] = {None: "vectors", "image": "images", "text": "texts"}
LabelType = Literal["string", "integer", "number", "boolean"]
LABEL_TYPES: dict[str, LabelType] = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""Types of labels, as JSON calls them."""


class Busy(Exception):
    """Too many queries wait already."""


class Answer(NamedTuple):
    """The likeliest classes with their probabilities; how novel the query is, and whether it is called unknown."""

    top: list[tuple[Label, float]]
    novelty: float
    unknown: bool


class Explanation(NamedTuple):
    """What an answer rests on, with the pictures of its neighbours by id."""

    evidence: Evidence
    pictures: dict[Id, np.ndarray]
    unknown: bool


class JobProgress(NamedTuple):
    """How far a job is that is being done."""

    doing: str = "starting"
    done: int = 0
    of: int = 1


class LoadedModel:
    """A classifier that stays as it is, with what is read from it often. It may have been taught nothing yet."""

    def __init__(self, name: str, classifier: MTNClassifier) -> None:
        self.name, self.classifier = name, classifier
        reader = self.classifier.reader()
        self.takes: InputKind = INPUT_KINDS[reader.kind]
        self.taught = self.classifier.__sklearn_is_fitted__()
        self.state = self.classifier.state_ if self.taught else None
        self.label_type = None if self.state is None else LABEL_TYPES[self.state.label_kind]
        self.width: int = self.classifier.n_features_in_ if self.taught else reader.requested_encoder().dimension
        self.counts: dict[Label, int] = dict(self.classifier.state_.exemplar_counts()) if self.taught else {}
        self.labels: list[Label] = list(self.counts)
        self.history: list[dict[str, Any]] = self.classifier.history_ if self.taught else []
        self.thumbnails: dict[Id, np.ndarray] = self.classifier.thumbnails_ if self.taught else {}
        if reader.kind is not None:
            reader.encoder_for(reader.kind)  # now, and not when the first picture comes
        if self.labels:
            self.answer(np.ones((1, self.width), np.float32))  # the first pass is a slow one

    @staticmethod
    def load(folder: Path, encoder: str | None = None, milvus: str | None = None) -> "LoadedModel":
        """The model of a folder."""
        return LoadedModel(folder.resolve().name, MTNClassifier.load(folder, encoder, milvus))

    def answering_meanwhile(self, batch: TeachingBatch) -> "LoadedModel | None":
        """A model that knows what a batch teaches without having been trained; None: that is not to be had.

        It is never saved. A memory in Milvus, which is not of this process alone, stays as it is; a large one would
        take its memory twice.
        """
        if self.state is None or self.state.memory.location or self.state.memory.store.shape.numel() > MOST_COPIED:
            return None
        classifier = copy.copy(self.classifier)
        try:
            return LoadedModel(self.name, classifier) if teach(classifier, batch, silent, polish=False) else None
        except InputError:  # the lesson itself will say so
            return None

    @property
    def encoder_name(self) -> str | None:
        """Of the encoder that made the model's vectors."""
        name: str | None = self.classifier.source_.get("encoder", {}).get("name")
        return name

    def room(self) -> dict[str, Any]:
        """Exemplars, and how many there may be, in total or of a class."""
        if not self.taught:
            return {"exemplars": 0, "total": self.classifier.memory, "per_class": None}
        memory: dict[str, Any] = self.classifier.info()["memory"]
        return memory

    def parse_label(self, text: str) -> Label:
        """A label of the type of the model's labels."""
        return self.classifier.state_.parse_label(text) if self.taught else text

    def answer(self, x: np.ndarray) -> list[Answer]:
        """x is N,D."""
        if not self.taught:
            raise InputError("this model has been taught nothing yet: teach it something first")
        probability, novelty = self.classifier.assess(as_queries(x))
        count = min(TOP, len(self.labels))
        best = np.argpartition(-probability, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(probability, best, 1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, 1)
        return [
            Answer(
                [(self.labels[column], float(probability[row, column])) for column in best[row]],
                value,
                self.is_unknown(value),
            )
            for row, value in enumerate(novelty.tolist())
        ]

    def explain(self, x: np.ndarray) -> list[Explanation]:
        """x is N,D."""
        if not self.taught:
            raise InputError("this model has been taught nothing yet: teach it something first")
        return [
            Explanation(
                evidence,
                {near.id: self.thumbnails[near.id] for near in evidence.shown() if near.id in self.thumbnails},
                self.is_unknown(evidence.novelty),
            )
            for evidence in self.classifier.explain(x)
        ]

    def is_unknown(self, novelty: float) -> bool:
        """Whether a query of this novelty is like nothing the model knows."""
        threshold = self.classifier.threshold_
        return threshold is not None and novelty > threshold


@dataclass(eq=False)
class PendingRequest:
    """N,D rows that no pass has taken yet, the answers so far, and the future that waits for all of them."""

    rows: np.ndarray
    future: asyncio.Future[Sequence[Any]]
    answers: list[Any] = field(default_factory=list)


class RequestBatcher:
    """Rows that arrive while a pass runs go into the next ones, together; all requests have equal shares of a pass."""

    def __init__(self, run: Callable[[np.ndarray], Sequence[Any]], thread: ThreadPoolExecutor) -> None:
        self._run_pass, self._thread = run, thread
        self._waiting: list[PendingRequest] = []
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(len(request.rows) for request in self._waiting)

    async def __call__(self, x: np.ndarray) -> Sequence[Any]:
        """The answers to N,D rows."""
        if len(self) + len(x) > MAX_WAITING_ROWS:
            raise Busy
        future: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingRequest(x, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        """Pass after pass, as long as requests wait."""
        while shares := self._next_shares():
            try:
                x = np.concatenate([rows for _, rows in shares])
                observe.ROWS.observe(len(x))
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._run_pass, x)
            except Exception as error:
                for request, _ in shares:
                    if not request.future.done():
                        request.future.set_exception(error)
            else:
                for request, rows in shares:
                    request.answers += answers[: len(rows)]
                    answers = answers[len(rows) :]
                    if not len(request.rows) and not request.future.done():
                        request.future.set_result(request.answers)
        self._running = None

    def _next_shares(self) -> list[tuple[PendingRequest, np.ndarray]]:
        """Requests with their rows of the next pass, without those nobody waits for any more."""
        self._waiting = [request for request in self._waiting if len(request.rows) and not request.future.done()]
        room, shares = PASS_ROWS, []
        for index, request in enumerate(self._waiting[:PASS_ROWS]):
            share = room // (min(len(self._waiting), PASS_ROWS) - index)
            shares.append((request, request.rows[:share]))
            request.rows = request.rows[share:]
            room -= len(shares[-1][1])
        return shares


class Engine:
    """Answers queries, and has the journal's jobs done."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        supervisor: Supervisor,
        encoder: str | None = None,
        milvus: str | None = None,
    ) -> None:
        self.folder, self.journal, self.supervisor = folder, journal, supervisor
        self.load_model = partial(LoadedModel.load, folder, encoder, milvus)
        self.model = self.load_model()
        self.progress: dict[str, JobProgress] = {}  # of the jobs that are being done, by id
        self.thread = ThreadPoolExecutor(1, "mtn-model")  # one pass at a time
        self.parsing = asyncio.Semaphore(2)  # parts of JSON at a time: their threads share the interpreter with passes
        self.unpacking = asyncio.Semaphore(2)  # pictures are large: few requests at a time
        self.answer = RequestBatcher(lambda x: self.model.answer(x), self.thread)
        self.explain = RequestBatcher(lambda x: self.model.explain(x), self.thread)
        self.downloads: set[Archive] = set()  # under way
        self._new_jobs = asyncio.Event()
        self._teaching: asyncio.Task[None] | None = None
        self._suspects = 0  # of the jobs that wait, so many of the first have one that fails among them
        self._disk_problem: str | None = None  # that hinders the jobs which are being done
        self._disk_check: tuple[float, str | None] = (-math.inf, None)  # when, and what the problem was

    def start(self) -> None:
        """Begin to do jobs."""
        self._teaching = asyncio.create_task(self._teach())

    async def stop(self) -> None:
        """End at once; jobs that are not done stay in the journal."""
        if self._teaching is not None:
            self._teaching.cancel()
        self.supervisor.stop()
        self.thread.shutdown()
        self.journal.close()

    async def problem(self) -> str | None:
        """Why it cannot answer and learn; None if it can."""
        if self._teaching is None or self._teaching.done() or not self.supervisor.alive():
            return "learning has stopped: start the service again"
        checked, problem = self._disk_check
        if time.monotonic() - checked >= RETRY_SECONDS:  # everybody may ask: the disk is not written more often
            self._disk_check = time.monotonic(), problem
            problem = await asyncio.to_thread(self._check_disk)
            self._disk_check = time.monotonic(), problem
        problem = self._disk_problem or problem
        return None if problem is None else "the disk is full or cannot be written: learning goes on once it can be"

    def _check_disk(self) -> str | None:
        try:
            self.journal.check_disk()
        except NoStorage as error:
            return str(error)
        return None

    def wake(self) -> None:
        """The journal has a new job."""
        self._new_jobs.set()

    async def _teach(self) -> None:
        """Goes on after any error, such as a full disk, as long as the supervisor process is alive."""
        failed = False
        while self.supervisor.alive():
            try:
                if failed:
                    await asyncio.to_thread(self.journal.reopen)
                    failed, self._disk_problem = False, None
                await self._next()
            except Exception as error:
                failed = True
                if isinstance(error, NoStorage):
                    self._disk_problem = str(error)
                    observe.log_event("hindered", error=str(error))
                else:
                    observe.log.exception("learning")
                await asyncio.sleep(RETRY_SECONDS)

    async def _next(self) -> None:
        """Do the jobs that are due, or wait for some."""
        most = max(1, self._suspects // 2) if self._suspects else MAX_WAITING
        jobs = await asyncio.to_thread(self.journal.take, most)
        if jobs:
            await self._do(jobs)
            return
        due = await asyncio.to_thread(self.journal.next_due)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._new_jobs.wait(), None if due is None else max(due - time.time(), 0.01))
        self._new_jobs.clear()

    async def _do(self, jobs: list[Job]) -> None:
        self.progress = {job.id: JobProgress() for job in jobs}
        samples = [await asyncio.to_thread(self.journal.samples, job) for job in jobs if job.change is None]
        batch = TeachingBatch(jobs, samples)
        meanwhile = await asyncio.to_thread(self.model.answering_meanwhile, batch) if samples else None
        self.model = meanwhile or self.model
        outcome = await asyncio.to_thread(self.supervisor.run, batch, self._set_progress)
        while outcome.kind == "hindered":
            self._disk_problem = outcome.error if outcome.by_disk else None
            observe.log_event("hindered", error=outcome.error)
            await asyncio.sleep(RETRY_SECONDS)
            outcome = await asyncio.to_thread(self.supervisor.run, batch, self._set_progress)
        self._disk_problem = None
        if outcome.kind == "done" or meanwhile is not None:
            self.model = await asyncio.to_thread(self.load_model)
        await asyncio.to_thread(self._record, jobs, outcome)
        self.progress = {}
        observe.LESSONS.labels(outcome.kind).inc()
        observe.log_event("lesson", jobs=[job.id for job in jobs], outcome=outcome.kind, error=outcome.error)

    def _record(self, jobs: list[Job], outcome: Outcome) -> None:
        """Jobs that failed together are halved until the one that fails is found; that is tried a few times if it ended
        its process."""
        if outcome.kind == "done":
            self._suspects = max(0, self._suspects - len(jobs))
        else:
            self._suspects = len(jobs) if len(jobs) > 1 else 0
        if outcome.kind == "done":
            self.journal.finish(jobs)
        elif len(jobs) > 1:
            self.journal.reopen()
        elif outcome.kind == "died" and jobs[0].tries + 1 < MAX_TRIES:
            self.journal.retry(jobs)
        else:
            self.journal.fail(jobs[0], outcome.error)

    def _set_progress(self, doing: str, done: int, of: int) -> None:
        self.progress = dict.fromkeys(self.progress, JobProgress(doing, done, of))

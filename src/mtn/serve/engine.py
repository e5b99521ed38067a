"""Questions that arrive together -> one pass of the model; a model learned elsewhere takes the place of the one before.

The file knows nothing of HTTP.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from mtn.classifier import Id, Label, MTNClassifier, asked
from mtn.commands import about
from mtn.errors import InputError
from mtn.evidence import Evidence
from mtn.serve import observe
from mtn.serve.journal import TRIES, Job, Journal
from mtn.serve.worker import Lesson, Outcome, Worker

MOST_ROWS = 1024
"""Vectors of a request, and of a pass."""
MOST_WAITING = 8 * MOST_ROWS
"""Vectors that wait for a pass: beyond this, nothing more is taken."""
TOP = 5
"""Classes of an answer."""
UNDO = 10.0
"""Seconds in which forgetting a class can be undone."""
PAUSE = 1.0
"""Seconds before what was hindered is tried again."""


Takes = Literal["vectors", "images", "texts"]
TAKES: dict[str | None, Takes] = {None: "vectors", "image": "images", "text": "texts"}


class Busy(Exception):
    """Too many questions wait already."""


class Answer(NamedTuple):
    """The likeliest classes with their probabilities, and how little the query is like anything known."""

    top: list[tuple[Label, float]]
    novelty: float
    unknown: bool


class Explanation(NamedTuple):
    """What an answer rests on, with the pictures of its neighbours."""

    evidence: Evidence
    pictures: list[np.ndarray | None]
    unknown: bool


class Progress(NamedTuple):
    """How far the lesson is that goes on."""

    doing: str = "starting"
    done: int = 0
    of: int = 1


class Served:
    """A classifier that stays as it is, and what is asked of it often. It may have been taught nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.classifier = MTNClassifier.load(folder)
        reader = self.classifier.reader()
        self.takes: Takes = TAKES[reader.kind]
        self.taught = self.classifier.__sklearn_is_fitted__()
        self.width: int = self.classifier.n_features_in_ if self.taught else reader.any().dimension
        self.labels: list[Label] = self.classifier.classes_.tolist() if self.taught else []
        known = about(self.classifier)["classes"] if self.taught else []
        self.counts: dict[Label, int] = {one["label"]: one["exemplars"] for one in known}
        if reader.kind is not None:
            reader.load(reader.kind)  # now, and not when the first picture comes
        if self.labels:
            self.answer(np.ones((1, self.width), np.float32))  # the first pass is a slow one

    @cached_property
    def thumbnails(self) -> dict[Id, np.ndarray]:
        return self.classifier.thumbnails_

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.classifier.history_ if self.taught else []

    def label(self, text: str) -> Label:
        """Of the type of the labels so far."""
        return self.classifier._typed(text) if self.taught else text

    def answer(self, x: np.ndarray) -> list[Answer]:
        """x is N,D."""
        if not self.taught:
            raise InputError("nothing has been taught yet")
        shares, novelty = self.classifier.assess(asked(x))
        count = min(TOP, len(self.labels))
        best = np.argpartition(-shares, count - 1, axis=1)[:, :count]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(shares, best, 1), axis=1, kind="stable"), 1)
        return [
            Answer([(self.labels[place], float(shares[row, place])) for place in best[row]], new, self.unknown(new))
            for row, new in enumerate(novelty.tolist())
        ]

    def explain(self, x: np.ndarray) -> list[Explanation]:
        if not self.taught:
            raise InputError("nothing has been taught yet")
        return [
            Explanation(one, [self.thumbnails.get(near.id) for near in one.neighbours], self.unknown(one.novelty))
            for one in self.classifier.explain(x)
        ]

    def unknown(self, novelty: float) -> bool:
        return self.classifier.threshold_ is not None and novelty > self.classifier.threshold_


Asked = tuple[np.ndarray, asyncio.Future[Sequence[Any]]]
"""Rows, and who waits for their answers."""


class Together:
    """Rows that arrive while a pass runs go into the next one, together."""

    def __init__(self, ask: Callable[[np.ndarray], Sequence[Any]], thread: ThreadPoolExecutor) -> None:
        self._ask, self._thread = ask, thread
        self._waiting: list[Asked] = []
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._waiting)

    async def __call__(self, x: np.ndarray) -> Sequence[Any]:
        if len(self) + len(x) > MOST_WAITING:
            raise Busy
        future: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((x, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while batch := self._next():
            try:
                x = np.concatenate([rows for rows, _ in batch])
                observe.ROWS.observe(len(x))
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, x)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for rows, future in batch:
                    mine, answers = answers[: len(rows)], answers[len(rows) :]
                    if not future.done():
                        future.set_result(mine)
        self._running = None

    def _next(self) -> list[Asked]:
        """As many as fit into a pass, without those nobody waits for any more."""
        batch: list[Asked] = []
        rows = 0
        while self._waiting and (not batch or rows + len(self._waiting[0][0]) <= MOST_ROWS):
            one = self._waiting.pop(0)
            if not one[1].done():
                batch.append(one)
                rows += len(one[0])
        return batch


class Engine:
    """Answers, and learns what the journal owes."""

    def __init__(self, folder: Path, journal: Journal, worker: Worker) -> None:
        self.folder, self.journal, self.worker = folder, journal, worker
        self.served = Served(folder)
        self.progress: dict[str, Progress] = {}  # of the jobs that are being learned
        self.thread = ThreadPoolExecutor(1, "mtn-model")  # one pass at a time
        self.unpacking = asyncio.Semaphore(2)  # pictures are large: few requests at a time
        self.answer = Together(lambda x: self.served.answer(x), self.thread)
        self.explain = Together(lambda x: self.served.explain(x), self.thread)
        self._news = asyncio.Event()
        self._teaching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._teaching = asyncio.create_task(self._teach())

    async def stop(self) -> None:
        if self._teaching is not None:
            self._teaching.cancel()
        self.worker.stop()
        self.thread.shutdown()
        self.journal.close()

    def ready(self) -> bool:
        return self._teaching is not None and not self._teaching.done() and self.worker.alive()

    def wake(self) -> None:
        """The journal has something new."""
        self._news.set()

    async def _teach(self) -> None:
        """Goes on whatever happens, a full disk for example, as long as there is a worker."""
        while self.worker.alive():
            try:
                await self._next()
            except Exception:
                observe.log.exception("learning")
                await asyncio.sleep(PAUSE)
                await asyncio.to_thread(self.journal.reopen)

    async def _next(self) -> None:
        jobs = await asyncio.to_thread(self.journal.take)
        if jobs:
            await self._do(jobs)
            return
        due = await asyncio.to_thread(self.journal.next_due)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), None if due is None else max(due - time.time(), 0.01))
        self._news.clear()

    async def _do(self, jobs: list[Job]) -> None:
        self.progress = {job.id: Progress() for job in jobs}
        materials = [await asyncio.to_thread(self.journal.material, job) for job in jobs if job.forgets is None]
        outcome = await asyncio.to_thread(self.worker.do, Lesson(jobs, materials), self._say)
        while outcome.kind == "hindered":
            observe.say("hindered", error=outcome.error)
            await asyncio.sleep(PAUSE)
            outcome = await asyncio.to_thread(self.worker.do, Lesson(jobs, materials), self._say)
        if outcome.kind == "done":
            self.served = await asyncio.to_thread(Served, self.folder)
        await asyncio.to_thread(self._record, jobs, outcome)
        self.progress = {}
        observe.LESSONS.labels(outcome.kind).inc()
        observe.say("lesson", jobs=[job.id for job in jobs], outcome=outcome.kind, error=outcome.error)

    def _record(self, jobs: list[Job], outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.journal.finish(jobs)
        elif len(jobs) > 1 or (outcome.kind == "died" and jobs[0].tries + 1 < TRIES):
            self.journal.retry(jobs)
        else:
            self.journal.fail(jobs[0], outcome.error)

    def _say(self, doing: str, done: int, of: int) -> None:
        self.progress = dict.fromkeys(self.progress, Progress(doing, done, of))

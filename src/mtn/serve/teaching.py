"""The routes that change what the model knows: each writes a job to the journal, and answers once it is on disk."""

import asyncio
import time
from contextlib import suppress
from typing import Annotated

from fastapi import Header, HTTPException, Path, Query, Request

from mtn.classifier import Label
from mtn.classifier.labels import check_labels
from mtn.errors import InputError
from mtn.serve import body, remembered, rights
from mtn.serve.answers import JobStatus
from mtn.serve.engine import UNDO_SECONDS, Engine
from mtn.serve.journal import Change, Job, request_digest
from mtn.serve.rights import Serving, problems

readers, teachers = rights.readers(), rights.teachers()

Key = Annotated[
    str | None, Header(alias="idempotency-key", min_length=1, max_length=200, description="The same key, the same job.")
]
Number = Annotated[int, Path(ge=0, le=body.MAX_INTEGER, description="As `GET /exemplars` lists it.")]


@teachers.post("/learn", status_code=202, responses=problems(409, 413, 415, 429, 507))
async def learn(
    request: Request,
    engine: Serving,
    label: Annotated[str | None, Query(description="Of all samples, where the body has no labels.")] = None,
    key: Key = None,
) -> JobStatus:
    """Accept samples. They are on disk when the answer comes, and learned when the job is done."""
    samples = await body.read_samples(request, engine, label)
    images = b"" if samples.thumbnails is None else samples.thumbnails.tobytes()
    digest = request_digest(samples.vectors.tobytes(), repr(samples.labels), images)
    job = await asyncio.to_thread(engine.journal.learn, samples, key, digest)
    engine.wake()
    return status(job, engine)


@readers.get("/jobs/{job}", responses=problems(404))
async def find_job(job: str, engine: Serving) -> JobStatus:
    """How far a job is."""
    known = await asyncio.to_thread(engine.journal.find, job)
    if known is None:
        raise HTTPException(404, "there is no such job")
    return status(known, engine)


def status(job: Job, engine: Engine) -> JobStatus:
    """A job as clients see it."""
    current = engine.progress.get(job.id)
    return JobStatus(
        job=job.id,
        kind="learn" if job.change is None else job.change.kind,
        state=job.state,
        doing=None if current is None else current.doing,
        progress=1.0 if job.state == "done" else 0.0 if current is None else current.done / max(current.of, 1),
        samples=len(job.labels),
        forgets=job.forgets,
        seconds_to_undo=seconds_until(job.due) if job.forgets is not None and job.state == "waiting" else None,
        error=job.error,
    )


def seconds_until(due: float) -> float:
    """From now to a time since 1970."""
    return round(max(due - time.time(), 0.0), 1)


# ---- classes


@teachers.delete("/classes/{name:path}", status_code=202, responses=problems(404, 409, 429, 507))
async def forget(name: str, engine: Serving) -> JobStatus:
    """Forget a class, in a few seconds: until then it can be undone, then it is final."""
    job = await asyncio.to_thread(engine.journal.forget, known_class(engine, name), UNDO_SECONDS)
    engine.wake()
    return status(job, engine)


@teachers.post("/classes/{name:path}/undo", responses=problems(404, 409, 507))
async def undo(name: str, engine: Serving) -> JobStatus:
    """Keep a class that was to be forgotten."""
    job = await asyncio.to_thread(engine.journal.undo, known_class(engine, name))
    if job is None:
        raise HTTPException(409, "there is nothing to undo, or it is too late")
    return status(job, engine)


@teachers.patch("/classes/{name:path}", status_code=202, responses=problems(404, 409, 429, 507))
async def rename(
    name: str, engine: Serving, label: Annotated[str, Query(description="The new name.")], key: Key = None
) -> JobStatus:
    """Give a class another name. No answer changes but for the name."""
    old, new = known_class(engine, name), body.parse_label(engine.model, label)
    if new in engine.model.labels:
        raise HTTPException(409, f"there is a class {new!r} already")
    check_labels([new], [label for label in engine.model.labels if label != old])
    return await _correct(engine, Change("rename", old, new), key)


def known_class(engine: Engine, name: str) -> Label:
    """The label of this class; 404 if there is none."""
    with suppress(InputError):
        label = engine.model.parse_label(name)
        if label in engine.model.labels:
            return label
    raise HTTPException(404, f"there is no class {name[:200]!r}")


# ---- exemplars


@teachers.patch("/exemplars/{number}", status_code=202, responses=problems(404, 409, 429, 507))
async def relabel(
    number: Number, engine: Serving, label: Annotated[str, Query(description="A class that is known.")], key: Key = None
) -> JobStatus:
    """Say that a remembered example is of another known class. What was trained follows at the next lesson."""
    exemplar = _exemplar(engine, number)
    return await _correct(engine, Change("relabel", exemplar.id, known_class(engine, label)), key)


@teachers.delete("/exemplars/{number}", status_code=202, responses=problems(404, 409, 429, 507))
async def remove(number: Number, engine: Serving, key: Key = None) -> JobStatus:
    """Take one example out of the memory, with its picture or sentence."""
    return await _correct(engine, Change("remove", _exemplar(engine, number).id), key)


def _exemplar(engine: Engine, number: int) -> remembered.Remembered:
    state = engine.model.state
    found = None if state is None else remembered.find(state, number)
    if found is None:
        raise HTTPException(404, f"no example with the number {number} is remembered")
    return found


async def _correct(engine: Engine, change: Change, key: str | None) -> JobStatus:
    digest = request_digest(change.kind, repr(change.target), repr(change.label))
    job = await asyncio.to_thread(engine.journal.correct, change, key, digest)
    engine.wake()
    return status(job, engine)

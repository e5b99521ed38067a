"""The routes that tell what the model knows and how the service is, and give the model away."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from prometheus_client import generate_latest
from starlette.concurrency import iterate_in_threadpool
from starlette.types import Receive, Scope, Send

from mtn.classifier import ClassifierState, Label
from mtn.serve import body, observe, remembered, rights
from mtn.serve.answers import Classes, Exemplar, Exemplars, Facts, Health, Known, Past, Room
from mtn.serve.rights import MayTeach, Serving, problems
from mtn.serve.teaching import known_class, seconds_until
from mtn.storage.archive import Archive

MAX_HISTORY = 200
MAX_LISTED = 60
"""Exemplars of an answer."""
MAX_DOWNLOADS = 2
"""At a time."""

anybody, readers, teachers = APIRouter(), rights.readers(), rights.teachers()


@readers.get("/classes")
async def classes(engine: Serving) -> Classes:
    """What is known, with the number of examples remembered of each."""
    loaded, leaving = engine.model, await asyncio.to_thread(engine.journal.forgetting)
    return Classes(
        classes=[
            Known(
                label=label,
                exemplars=loaded.counts[label],
                seconds_to_undo=seconds_until(leaving[label]) if label in leaving else None,
            )
            for label in loaded.labels
        ]
    )


@readers.get("/exemplars", responses=problems(404))
async def exemplars(
    engine: Serving,
    label: Annotated[str, Query(description="A class that is known.")],
    start: Annotated[int, Query(ge=0, le=body.MAX_INTEGER, description="The place of the first one.")] = 0,
    count: Annotated[int, Query(ge=1, le=MAX_LISTED, description="At most so many.")] = 24,
) -> Exemplars:
    """What is remembered of a class, page by page: pictures or sentences where they were kept."""
    model, known = engine.model, known_class(engine, label)
    assert model.state is not None
    found = await asyncio.to_thread(_listed, model.state, known, start, count)
    return Exemplars(total=model.counts[known], exemplars=found)


def _listed(state: ClassifierState, label: Label, start: int, count: int) -> list[Exemplar]:
    found = remembered.of_class(state, label, start, count)
    return [Exemplar(number=one.number, id=one.id, picture=body.data_url(one.picture), text=one.text) for one in found]


@readers.get("/model")
async def model(engine: Serving, may_teach: MayTeach) -> Facts:
    """What the model is called and takes, how full its memory is, and how well it knew what it was taught."""
    loaded = engine.model
    return Facts(
        name=loaded.name,
        takes=loaded.takes,
        encoder=loaded.encoder_name,
        features=loaded.width,
        labels=loaded.label_type,
        may_teach=may_teach,
        classes=len(loaded.labels),
        memory=Room(**loaded.room()),
        waiting=await asyncio.to_thread(engine.journal.waiting),
        lessons=len(loaded.history),
        history=[Past(**_plain(entry)) for entry in loaded.history[-MAX_HISTORY:]],
    )


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry.get(name) for name in Past.model_fields}


# ---- the model itself


class ZipResponse(StreamingResponse):
    """A model, sent part by part; `downloads` are those under way, and it is one of them."""

    media_type = "application/zip"

    def __init__(self, archive: Archive, downloads: set[Archive]) -> None:
        self._archive, self._downloads = archive, downloads
        headers = {"content-disposition": f'attachment; filename="{archive.name}.zip"'}
        super().__init__(self._parts(), headers=headers)

    def _parts(self) -> AsyncIterator[bytes]:
        return iterate_in_threadpool(self._archive.parts())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whether it was sent or broke off, the files are closed."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._archive.close()
            self._downloads.discard(self._archive)


@teachers.get(
    "/model/download", response_class=Response, responses={200: {"content": {"application/zip": {}}}, **problems(503)}
)
async def download(engine: Serving) -> Response:
    """The model as a zip file of its folder, with all that it remembers; the service's journal is not part of it."""
    if len(engine.downloads) >= MAX_DOWNLOADS:
        raise HTTPException(503, "others are downloading the model: try again in a moment", {"retry-after": "5"})
    archive = await asyncio.to_thread(Archive, engine.folder)
    engine.downloads.add(archive)
    return ZipResponse(archive, engine.downloads)


# ---- the service


@readers.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(engine: Serving) -> Response:
    """Figures for Prometheus."""
    observe.WAITING.set(await asyncio.to_thread(engine.journal.waiting))
    observe.CLASSES.set(len(engine.model.labels))
    observe.EXEMPLARS.set(sum(engine.model.counts.values()))
    return Response(generate_latest(observe.REGISTRY), media_type="text/plain; version=0.0.4")


@anybody.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@anybody.get("/readyz", responses=problems(503))
async def readyz(engine: Serving) -> Health:
    """It can answer questions and learn."""
    if problem := await engine.problem():
        raise HTTPException(503, problem)
    return Health(status="ready")

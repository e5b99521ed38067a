"""The routes: each reads a request, asks the engine or the journal, and answers."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException as PlainHTTPException
from starlette.requests import ClientDisconnect

from mtn.classifier import Label
from mtn.commands import about
from mtn.datasets import glyphs
from mtn.errors import InputError, Passing
from mtn.serve import body, observe
from mtn.serve.answers import (
    Classes,
    Example,
    Examples,
    Facts,
    Guess,
    Guesses,
    Health,
    Known,
    Near,
    Past,
    Problem,
    Reason,
    Reasons,
    Room,
    Share,
    Task,
)
from mtn.serve.engine import UNDO, Answer, Busy, Engine, Explanation, Served
from mtn.serve.guard import Right, Tokens
from mtn.serve.journal import Full, Job, Reused, digest

MOST_EXPLAINED = 32
SHOWN_LESSONS = 200
EXAMPLES = 24
PAGE = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/docs.js": ("docs.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

# ---- who asks: as coroutines, since FastAPI hands plain functions to threads


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


Serving = Annotated[Engine, Depends(_engine)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _allow(request: Request, bearer: HTTPAuthorizationCredentials | None, right: Right) -> None:
    tokens: Tokens = request.app.state.tokens
    tokens.allow(None if bearer is None else bearer.credentials, right)


async def reader(request: Request, bearer: Bearer) -> None:
    _allow(request, bearer, "read")


async def teacher(request: Request, bearer: Bearer) -> None:
    _allow(request, bearer, "teach")


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


open_ = APIRouter()
readers = APIRouter(dependencies=[Depends(reader)], responses=_problems(401, 422))
teachers = APIRouter(dependencies=[Depends(teacher)], responses=_problems(401, 403, 422))


# ---- ask


@readers.post("/predict", response_model=Guesses, responses=_problems(413, 415, 503))
async def predict(request: Request, engine: Serving) -> Response:
    """The likeliest classes of each vector or picture."""
    answers = await engine.answer(await body.question(request, engine))
    # written here: what FastAPI is given it goes through once more, and this is what is asked most
    guesses = Guesses(answers=[_guess(answer) for answer in answers])
    return Response(guesses.model_dump_json(), media_type=body.JSON)


def _guess(answer: Answer) -> Guess:
    top = [Share(label=label, probability=share) for label, share in answer.top]
    best = top[0]
    return Guess(
        label=best.label,
        probability=best.probability,
        unknown=answer.unknown,
        novelty=_finite(answer.novelty),
        top=top,
    )


@readers.post("/explain", responses=_problems(413, 415, 503))
async def explain(request: Request, engine: Serving) -> Reasons:
    """What each answer rests on: the remembered examples nearest to it."""
    answers = await engine.explain(await body.question(request, engine, MOST_EXPLAINED))
    return Reasons(answers=await asyncio.to_thread(lambda: [_reason(answer) for answer in answers]))


def _reason(answer: Explanation) -> Reason:
    why = answer.evidence
    near = [
        Near(**vars(one), picture=body.picture(image))
        for one, image in zip(why.neighbours, answer.pictures, strict=True)
    ]
    return Reason(
        label=why.prediction,
        probability=why.probability,
        unknown=answer.unknown,
        novelty=_finite(why.novelty),
        neighbours=near,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# ---- teach and forget


@teachers.post("/learn", status_code=202, responses=_problems(409, 413, 415, 429))
async def learn(
    request: Request,
    engine: Serving,
    label: Annotated[str | None, Query(description="Of all samples, where the body has no labels.")] = None,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Task:
    """Accept samples. They are on disk when the answer comes, and learned when the job is done."""
    material = await body.material(request, engine, label)
    leaving = await asyncio.to_thread(engine.journal.forgetting)
    for one in material.labels:
        if one in leaving:
            raise HTTPException(409, f"{one!r} is being forgotten: undo that first, or wait until it is done")
    images = b"" if material.thumbnails is None else material.thumbnails.tobytes()
    content = digest(material.vectors.tobytes(), repr(material.labels), images)
    job = await asyncio.to_thread(engine.journal.learn, material, idempotency_key, content)
    engine.wake()
    return _task(job, engine)


@readers.get("/jobs/{job}", responses=_problems(404))
async def find_job(job: str, engine: Serving) -> Task:
    """How far a job is."""
    found = await asyncio.to_thread(engine.journal.find, job)
    if found is None:
        raise HTTPException(404, "there is no such job")
    return _task(found, engine)


def _task(job: Job, engine: Engine) -> Task:
    at = engine.progress.get(job.id)
    return Task(
        job=job.id,
        state=job.state,
        doing=None if at is None else at.doing,
        progress=1.0 if job.state == "done" else 0.0 if at is None else at.done / max(at.of, 1),
        samples=len(job.labels),
        forgets=job.forgets,
        seconds_to_undo=_left(job.due) if job.forgets is not None and job.state == "waiting" else None,
        error=job.error,
    )


def _left(due: float) -> float:
    return round(max(due - time.time(), 0.0), 1)


@teachers.delete("/classes/{name:path}", status_code=202, responses=_problems(404, 429))
async def forget(name: str, engine: Serving) -> Task:
    """Forget a class, in a few seconds: until then it can be undone, then it is final."""
    job = await asyncio.to_thread(engine.journal.forget, _known(engine, name), UNDO)
    engine.wake()
    return _task(job, engine)


@teachers.post("/classes/{name:path}/undo", responses=_problems(404, 409))
async def undo(name: str, engine: Serving) -> Task:
    """Keep a class that was to be forgotten."""
    job = await asyncio.to_thread(engine.journal.undo, _known(engine, name))
    if job is None:
        raise HTTPException(409, "there is nothing to undo, or it is too late")
    return _task(job, engine)


def _known(engine: Engine, name: str) -> Label:
    """The class of this name."""
    with suppress(InputError):
        label = engine.served.label(name)
        if label in engine.served.labels:
            return label
    raise HTTPException(404, f"no class {name[:200]!r}")


# ---- look


@readers.get("/classes")
async def classes(engine: Serving) -> Classes:
    """What is known, with the number of examples remembered of each."""
    served, leaving = engine.served, await asyncio.to_thread(engine.journal.forgetting)
    return Classes(
        classes=[
            Known(
                label=label,
                exemplars=served.counts[label],
                seconds_to_undo=_left(leaving[label]) if label in leaving else None,
            )
            for label in served.labels
        ]
    )


@readers.get("/model")
async def model(engine: Serving) -> Facts:
    """What the model takes, how full its memory is, and how well it knew what it was taught."""
    served = engine.served
    return Facts(
        takes=served.takes,
        features=served.width,
        classes=len(served.labels),
        memory=_room(served),
        waiting=await asyncio.to_thread(engine.journal.waiting),
        lessons=len(served.history),
        history=[Past(**_plain(entry)) for entry in served.history[-SHOWN_LESSONS:]],
    )


def _room(served: Served) -> Room:
    if not served.taught:
        return Room(exemplars=0, total=served.classifier.memory, per_class=None)
    return Room(**about(served.classifier)["memory"])


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in Past.model_fields}


@readers.get("/examples")
async def examples(engine: Serving) -> Examples:
    """Embedded pictures to try: of classes the model knows, and of some it does not."""
    if engine.served.classifier.source_.get("encoder", {}).get("name") != "glyph":
        return Examples(examples=[])
    known = frozenset(map(str, engine.served.labels))
    return Examples(examples=await asyncio.to_thread(_examples, known))


@cache
def _named() -> dict[str, int]:
    return {glyphs.class_name(one): place for place, one in enumerate(glyphs.class_characters())}


def _examples(known: frozenset[str]) -> list[Example]:
    seen = [name for name in _named() if name in known][: 2 * EXAMPLES // 3]
    new = [name for name in _named() if name not in known][: EXAMPLES - len(seen)]
    return [Example(label=name, picture=_drawn(_named()[name])) for name in (*seen, *new)]


@cache
def _drawn(label: int) -> str:
    return body.picture(glyphs.render("test", label)[0]) or ""


@readers.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(engine: Serving) -> Response:
    """Figures for Prometheus."""
    observe.WAITING.set(await asyncio.to_thread(engine.journal.waiting))
    observe.CLASSES.set(len(engine.served.labels))
    observe.EXEMPLARS.set(sum(engine.served.counts.values()))
    return Response(generate_latest(observe.REGISTRY), media_type="text/plain; version=0.0.4")


@open_.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@open_.get("/readyz", responses=_problems(503))
async def readyz(engine: Serving) -> Health:
    """It can answer questions and learn."""
    if not engine.ready():
        raise HTTPException(503, "learning has stopped: start the service again")
    return Health(status="ready")


# ---- the application


def make(engine: Engine, tokens: Tokens) -> FastAPI:
    app = FastAPI(title="mtn", version="1", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.engine, app.state.tokens = engine, tokens
    for path, (name, kind) in FILES.items():
        app.add_api_route(path, _file(PAGE / name, kind), include_in_schema=False)
    for router in (readers, teachers, open_):
        app.include_router(router)
    _describe(app, engine.served)
    for error, status, text in REFUSALS:
        app.add_exception_handler(error, _refusal(status, text))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.engine.start()
    yield
    await app.state.engine.stop()


def _file(path: Path, kind: str) -> Any:
    content = path.read_bytes()

    async def send() -> Response:
        return Response(content, media_type=kind)

    return send


def _refusal(status: int, text: str | None) -> Any:
    async def handler(request: Request, error: Any) -> JSONResponse:
        detail = text or getattr(error, "detail", None) or str(error)
        headers = getattr(error, "headers", None) or ({"retry-after": "1"} if status in (429, 503) else None)
        problem = {"error": detail, "request": request.state.request_id}
        return JSONResponse(problem, getattr(error, "status_code", status), headers)

    return handler


REFUSALS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (PlainHTTPException, 400, None),
    (RequestValidationError, 422, "a parameter is missing, or not what it must be"),
    (InputError, 422, None),
    (Passing, 503, "the memory cannot be reached: ask again in a moment"),
    (Busy, 503, "too many questions wait already: ask again in a moment"),
    (Full, 429, "too many lessons wait already: teach again in a moment"),
    (Reused, 409, "this Idempotency-Key came with something else before"),
    (ClientDisconnect, 400, "the request broke off"),
    (Exception, 500, "something went wrong here"),
)


BODIES: dict[str, type[BaseModel]] = {"/predict": body.Question, "/explain": body.Question, "/learn": body.Lesson}


def _describe(app: FastAPI, served: Served) -> None:
    """Bodies are read by hand, so they are described by hand: with the width of this model's vectors."""
    schema = app.openapi()
    for path, kind in BODIES.items():
        schema["paths"][path]["post"]["requestBody"] = {"required": True, "content": _contents(kind, served)}


def _contents(kind: type[BaseModel], served: Served) -> dict[str, Any]:
    described = kind.model_json_schema()
    wanted, other = ("texts", "vectors") if served.takes == "texts" else ("vectors", "texts")
    (listed,) = (one for one in described["properties"][wanted]["anyOf"] if one["type"] == "array")
    if wanted == "vectors":
        listed["items"] |= {"minItems": served.width, "maxItems": served.width}
    described["properties"] = {name: one for name, one in described["properties"].items() if name != other}
    described["properties"][wanted] = listed
    described["required"] = [*described.get("required", ()), wanted]
    binary = {"schema": {"type": "string", "format": "binary"}}
    files = {"type": "object", "properties": {"picture": {"type": "array", "items": binary["schema"]}}}
    schemas = {body.JSON: {"schema": described}, body.PARTS: {"schema": files}}
    return {kind: schemas.get(kind, binary) for kind in body.kinds(served)}

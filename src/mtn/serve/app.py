"""The routes: each reads a request, asks the engine or the journal, and answers."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
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
from mtn.data import glyphs
from mtn.errors import InputError, UnavailableError
from mtn.serve import body, json_body, observe
from mtn.serve.answers import (
    Classes,
    Example,
    ExamplePictures,
    Facts,
    Guess,
    Guesses,
    Health,
    JobStatus,
    Known,
    Near,
    Past,
    Problem,
    Reason,
    Reasons,
    Room,
    Share,
)
from mtn.serve.engine import UNDO_SECONDS, Answer, Busy, Engine, Explanation, LoadedModel
from mtn.serve.guard import Right, Tokens
from mtn.serve.journal import Job, JournalFull, KeyReused, NoStorage, request_digest

MAX_EXPLAINED = 32
MAX_HISTORY = 200
MAX_EXAMPLES = 24
PAGE = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/docs.js": ("docs.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

# ---- the rights of a request: coroutines, since FastAPI runs plain functions in threads


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


Serving = Annotated[Engine, Depends(_engine)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _allow(request: Request, bearer: HTTPAuthorizationCredentials | None, right: Right) -> None:
    tokens: Tokens = request.app.state.tokens
    tokens.allow(None if bearer is None else bearer.credentials, right)


async def reader(request: Request, bearer: Bearer) -> None:
    """An error unless the request may read."""
    _allow(request, bearer, "read")


async def teacher(request: Request, bearer: Bearer) -> None:
    """An error unless the request may teach."""
    _allow(request, bearer, "teach")


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


anybody = APIRouter()
readers = APIRouter(dependencies=[Depends(reader)], responses=_problems(401, 422))
teachers = APIRouter(dependencies=[Depends(teacher)], responses=_problems(401, 403, 422))


# ---- answers


@readers.post("/predict", response_model=Guesses, responses=_problems(413, 415, 503))
async def predict(request: Request, engine: Serving) -> Response:
    """The likeliest classes of each vector or picture."""
    answers = await engine.answer((await body.read_queries(request, engine)).x)
    # serialised here: FastAPI would validate the answer once more, and this route is the busiest
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
    asked = await body.read_queries(request, engine, MAX_EXPLAINED)
    answers = await engine.explain(asked.x)
    texts: Sequence[str | None] = asked.texts or [None] * len(answers)
    return Reasons(answers=await asyncio.to_thread(lambda: list(map(_reason, answers, texts))))


def _reason(answer: Explanation, text: str | None) -> Reason:
    facts = vars(answer.evidence)
    near = {
        name: [Near(**vars(one), picture=body.data_url(answer.pictures.get(one.id))) for one in facts[name]]
        for name in ("neighbours", "own")
    }
    label, novelty = facts["prediction"], _finite(facts["novelty"])
    return Reason(**facts | near | {"label": label, "novelty": novelty, "unknown": answer.unknown, "text": text})


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# ---- teach and forget


@teachers.post("/learn", status_code=202, responses=_problems(409, 413, 415, 429, 507))
async def learn(
    request: Request,
    engine: Serving,
    label: Annotated[str | None, Query(description="Of all samples, where the body has no labels.")] = None,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> JobStatus:
    """Accept samples. They are on disk when the answer comes, and learned when the job is done."""
    samples = await body.read_samples(request, engine, label)
    leaving = await asyncio.to_thread(engine.journal.forgetting)
    for name in samples.labels:
        if name in leaving:
            raise HTTPException(409, f"{name!r} is being forgotten: undo that first, or wait until it is done")
    images = b"" if samples.thumbnails is None else samples.thumbnails.tobytes()
    digest = request_digest(samples.vectors.tobytes(), repr(samples.labels), images)
    job = await asyncio.to_thread(engine.journal.learn, samples, idempotency_key, digest)
    engine.wake()
    return _status(job, engine)


@readers.get("/jobs/{job}", responses=_problems(404))
async def find_job(job: str, engine: Serving) -> JobStatus:
    """How far a job is."""
    known = await asyncio.to_thread(engine.journal.find, job)
    if known is None:
        raise HTTPException(404, "there is no such job")
    return _status(known, engine)


def _status(job: Job, engine: Engine) -> JobStatus:
    current = engine.progress.get(job.id)
    return JobStatus(
        job=job.id,
        state=job.state,
        doing=None if current is None else current.doing,
        progress=1.0 if job.state == "done" else 0.0 if current is None else current.done / max(current.of, 1),
        samples=len(job.labels),
        forgets=job.forgets,
        seconds_to_undo=_seconds_until(job.due) if job.forgets is not None and job.state == "waiting" else None,
        error=job.error,
    )


def _seconds_until(due: float) -> float:
    return round(max(due - time.time(), 0.0), 1)


@teachers.delete("/classes/{name:path}", status_code=202, responses=_problems(404, 429, 507))
async def forget(name: str, engine: Serving) -> JobStatus:
    """Forget a class, in a few seconds: until then it can be undone, then it is final."""
    job = await asyncio.to_thread(engine.journal.forget, _known(engine, name), UNDO_SECONDS)
    engine.wake()
    return _status(job, engine)


@teachers.post("/classes/{name:path}/undo", responses=_problems(404, 409, 507))
async def undo(name: str, engine: Serving) -> JobStatus:
    """Keep a class that was to be forgotten."""
    job = await asyncio.to_thread(engine.journal.undo, _known(engine, name))
    if job is None:
        raise HTTPException(409, "there is nothing to undo, or it is too late")
    return _status(job, engine)


def _known(engine: Engine, name: str) -> Label:
    """The label of this class; 404 if there is none."""
    with suppress(InputError):
        label = engine.model.parse_label(name)
        if label in engine.model.labels:
            return label
    raise HTTPException(404, f"no class {name[:200]!r}")


# ---- look up


@readers.get("/classes")
async def classes(engine: Serving) -> Classes:
    """What is known, with the number of examples remembered of each."""
    loaded, leaving = engine.model, await asyncio.to_thread(engine.journal.forgetting)
    return Classes(
        classes=[
            Known(
                label=label,
                exemplars=loaded.counts[label],
                seconds_to_undo=_seconds_until(leaving[label]) if label in leaving else None,
            )
            for label in loaded.labels
        ]
    )


@readers.get("/model")
async def model(engine: Serving) -> Facts:
    """What the model takes, how full its memory is, and how well it knew what it was taught."""
    loaded = engine.model
    return Facts(
        takes=loaded.takes,
        features=loaded.width,
        classes=len(loaded.labels),
        memory=Room(**loaded.room()),
        waiting=await asyncio.to_thread(engine.journal.waiting),
        lessons=len(loaded.history),
        history=[Past(**_plain(entry)) for entry in loaded.history[-MAX_HISTORY:]],
    )


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in Past.model_fields}


@readers.get("/examples")
async def examples(engine: Serving) -> ExamplePictures:
    """Embedded pictures to try: of classes the model knows, and of some it does not."""
    if engine.model.encoder_name != "glyph":
        return ExamplePictures(examples=[])
    known = frozenset(map(str, engine.model.labels))
    return ExamplePictures(examples=await asyncio.to_thread(_examples, known))


@cache
def _glyph_classes() -> dict[str, int]:
    """Indices of the embedded classes by name."""
    return {glyphs.class_name(character): index for index, character in enumerate(glyphs.class_characters())}


def _examples(known: frozenset[str]) -> list[Example]:
    seen = [name for name in _glyph_classes() if name in known][: 2 * MAX_EXAMPLES // 3]
    new = [name for name in _glyph_classes() if name not in known][: MAX_EXAMPLES - len(seen)]
    return [Example(label=name, picture=_glyph_picture(_glyph_classes()[name])) for name in (*seen, *new)]


@cache
def _glyph_picture(class_index: int) -> str:
    return body.data_url(glyphs.render("test", class_index)[0]) or ""


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


@anybody.get("/readyz", responses=_problems(503))
async def readyz(engine: Serving) -> Health:
    """It can answer questions and learn."""
    if problem := await engine.problem():
        raise HTTPException(503, problem)
    return Health(status="ready")


# ---- the application


def make_app(engine: Engine, tokens: Tokens) -> FastAPI:
    """The application, to be put behind a Guard."""
    app = FastAPI(title="mtn", version="1", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.engine, app.state.tokens = engine, tokens
    for path, (name, kind) in FILES.items():
        app.add_api_route(path, _file(PAGE / name, kind), include_in_schema=False)
    for router in (readers, teachers, anybody):
        app.include_router(router)
    _describe(app, engine.model)
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
    (UnavailableError, 503, "the memory cannot be reached: ask again in a moment"),
    (Busy, 503, "too many questions wait already: ask again in a moment"),
    (JournalFull, 429, "too many lessons wait already: teach again in a moment"),
    (NoStorage, 507, "the disk is full or cannot be written: nothing was accepted"),
    (KeyReused, 409, "this Idempotency-Key came with something else before"),
    (ClientDisconnect, 400, "the request broke off"),
    (Exception, 500, "something went wrong here"),
)


BODIES: dict[str, type[BaseModel]] = {
    "/predict": json_body.Question,
    "/explain": json_body.Question,
    "/learn": json_body.TeachingRequest,
}


def _describe(app: FastAPI, model: LoadedModel) -> None:
    """Describe the bodies of requests, which FastAPI does not read itself, with the width of this model's vectors."""
    schema = app.openapi()
    for path, kind in BODIES.items():
        schema["paths"][path]["post"]["requestBody"] = {"required": True, "content": _contents(kind, model)}


def _contents(kind: type[BaseModel], model: LoadedModel) -> dict[str, Any]:
    """The schema of a body for each content type that the model takes."""
    described = kind.model_json_schema()
    wanted, other = ("texts", "vectors") if model.takes == "texts" else ("vectors", "texts")
    (listed,) = (option for option in described["properties"][wanted]["anyOf"] if option["type"] == "array")
    if wanted == "vectors":
        listed["items"] |= {"minItems": model.width, "maxItems": model.width}
    described["properties"] = {name: field for name, field in described["properties"].items() if name != other}
    described["properties"][wanted] = listed
    described["required"] = [*described.get("required", ()), wanted]
    binary = {"schema": {"type": "string", "format": "binary"}}
    files = {"type": "object", "properties": {"picture": {"type": "array", "items": binary["schema"]}}}
    schemas = {body.JSON: {"schema": described}, body.PARTS: {"schema": files}}
    return {kind: schemas.get(kind, binary) for kind in body.content_types(model)}

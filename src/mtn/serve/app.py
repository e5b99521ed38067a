"""The application: the routes, the page's files, and the description of both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel

from mtn.serve import asking, body, json_body, looking, teaching
from mtn.serve.engine import Engine, LoadedModel
from mtn.serve.guard import Tokens
from mtn.serve.refusals import REFUSALS, handler

PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ADDRESSES = {"index.html": "/", "docs.html": "/docs"}
"""Of files whose address is not their name."""
ROUTERS = (
    asking.readers,
    looking.readers,
    looking.teachers,
    teaching.readers,
    teaching.teachers,
    looking.anybody,
)


def make_app(engine: Engine, tokens: Tokens) -> FastAPI:
    """The application, to be put behind a Guard."""
    app = FastAPI(title="mtn", version="1", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.engine, app.state.tokens = engine, tokens
    for file in sorted(file for file in PAGE.iterdir() if file.suffix in KINDS):
        path = ADDRESSES.get(file.name, f"/{file.name}")
        app.add_api_route(path, _file(file), include_in_schema=False)
    for router in ROUTERS:
        app.include_router(router)
    _describe(app, engine.model)
    for error, status, text in REFUSALS:
        app.add_exception_handler(error, handler(status, text))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.engine.start()
    yield
    await app.state.engine.stop()


def _file(path: Path) -> Any:
    content, kind = path.read_bytes(), KINDS[path.suffix]

    async def send() -> Response:
        return Response(content, media_type=kind)

    return send


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

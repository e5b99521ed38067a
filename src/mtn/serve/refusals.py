"""What goes wrong -> an answer of one sentence, the same for the page and for programs."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from mtn.errors import InputError, UnavailableError
from mtn.serve.engine import Busy
from mtn.serve.journal import ClassChanging, JournalFull, KeyReused, NoStorage

PLAIN = {
    HTTPStatus.NOT_FOUND.phrase: "there is nothing at this address: /docs lists what there is",
    HTTPStatus.METHOD_NOT_ALLOWED.phrase: "this address does not take this kind of request: /docs lists what it takes",
}
"""Sentences for what the framework says in two words."""


def sentence(problem: Mapping[str, Any]) -> str:
    """The first of pydantic's problems with a request, in words."""
    limits, kind = problem.get("ctx", {}), problem["type"]
    if kind == "json_invalid":
        return "the body is not JSON"
    if not problem["loc"]:
        return "the body must be a JSON object"
    name = _name(problem["loc"])
    if kind in ("too_long", "string_too_long"):
        unit = "entries" if kind == "too_long" else "characters"
        return f"{name} is too long: it may have at most {limits['max_length']:,} {unit}"
    rules = {
        "missing": "is missing",
        "extra_forbidden": "is not known here",
        "too_short": "must not be empty",
        "string_too_short": "must not be empty",
        "string_type": "must be text",
        "list_type": "must be a list",
        "int_parsing": "must be a whole number",
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "less_than_equal": f"must be at most {limits.get('le'):,}" if "le" in limits else "",
    }
    return f"{name} {rules.get(kind, 'is not of the right type')}"


def _name(place: tuple[int | str, ...]) -> str:
    """A field or a parameter as a person would call it: the second of `texts` is sentence 2."""
    field, *rest = (part for part in place if part not in ("query", "path", "header"))
    entries = {"vectors": "vector", "texts": "sentence", "labels": "label"}
    if rest and isinstance(rest[0], int) and field in entries:
        return f"{entries[str(field)]} {rest[0] + 1}"
    return f"`{str(field)[:40]}`"


def _of_parameters(error: Exception) -> str:
    assert isinstance(error, RequestValidationError)
    return sentence(error.errors()[0])


def handler(status: int, text: str | None) -> Any:
    """A function that answers an exception with a status and a sentence: the given one, or the exception's own."""

    async def handle(request: Request, error: Any) -> JSONResponse:
        detail = text or getattr(error, "detail", None) or str(error)
        if isinstance(error, RequestValidationError):
            detail = _of_parameters(error)
        headers = getattr(error, "headers", None) or ({"retry-after": "1"} if status in (429, 503) else None)
        problem = {"error": PLAIN.get(detail, detail), "request": request.state.request_id}
        return JSONResponse(problem, getattr(error, "status_code", status), headers)

    return handle


REFUSALS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (HTTPException, 400, None),
    (RequestValidationError, 422, None),
    (InputError, 422, None),
    (UnavailableError, 503, "the memory cannot be reached: ask again in a moment"),
    (Busy, 503, "too many questions are waiting already: ask again in a moment"),
    (JournalFull, 429, "too many lessons are waiting already: teach again in a moment"),
    (NoStorage, 507, "the disk is full or cannot be written: nothing was accepted"),
    (KeyReused, 409, "this Idempotency-Key came with another request before"),
    (ClassChanging, 409, None),
    (ClientDisconnect, 400, "the request broke off"),
    (Exception, 500, "something went wrong here"),
)

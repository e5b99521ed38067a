"""What a route needs beside its request: the engine, and the right to read or to teach.

All are coroutines, since FastAPI runs plain functions in threads.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from mtn.serve.answers import Problem
from mtn.serve.engine import Engine
from mtn.serve.guard import Right, Tokens


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


Serving = Annotated[Engine, Depends(_engine)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _allow(request: Request, bearer: HTTPAuthorizationCredentials | None, right: Right) -> None:
    tokens: Tokens = request.app.state.tokens
    tokens.allow(None if bearer is None else bearer.credentials, right)


async def _may_teach(request: Request, bearer: Bearer) -> bool:
    tokens: Tokens = request.app.state.tokens
    return "teach" in tokens.held(None if bearer is None else bearer.credentials)


MayTeach = Annotated[bool, Depends(_may_teach)]
"""Whether whoever asks may teach too."""


async def _reader(request: Request, bearer: Bearer) -> None:
    _allow(request, bearer, "read")


async def _teacher(request: Request, bearer: Bearer) -> None:
    _allow(request, bearer, "teach")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the description: what a refusal with one of these looks like."""
    return {status: {"model": Problem} for status in statuses}


def readers() -> APIRouter:
    """A router for routes that need a token to read."""
    return APIRouter(dependencies=[Depends(_reader)], responses=problems(401, 422))


def teachers() -> APIRouter:
    """A router for routes that need a token to teach."""
    return APIRouter(dependencies=[Depends(_teacher)], responses=problems(401, 403, 422))

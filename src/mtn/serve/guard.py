"""Around the application: limits of size and time, hosts and origins, tokens, and headers of every answer (ASGI)."""

import asyncio
import hmac
import ipaddress
import json
import re
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtn.errors import InputError
from mtn.serve import observe

Right = Literal["read", "teach"]

MAX_BYTES = 16 * 2**20
"""Of a request's body."""
MAX_SECONDS = 30.0
"""From a request's head to its answer; and from each part of an answer that has many to the next."""
DOWNLOAD_SECONDS = 600.0
"""From a request's head to the end of an answer that has many parts."""
IDLE_SECONDS = 10.0
"""Between two parts of a body."""
TOO_LARGE = f"this is too much at once: a request may have at most {MAX_BYTES // 2**20} MB"
MAX_DISCARDED = 4 * MAX_BYTES
"""Bytes of a body that nobody needs any more, read so that its client can read the answer."""
DISCARD_SECONDS = 10.0
SHORTEST_TOKEN = 16
"""In characters."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass(frozen=True)
class Tokens:
    """Digests of tokens with their rights. Without any, everybody may do everything: for loopback alone."""

    rights: tuple[tuple[bytes, Right], ...] = ()

    def held(self, given: str | None) -> set[Right]:
        """The rights of a token. It is compared with every token in full: the time taken reveals nothing."""
        if not self.rights:
            return {"read", "teach"}
        digest = sha256((given or "").encode()).digest()
        return {granted for known, granted in self.rights if hmac.compare_digest(known, digest)}

    def allow(self, given: str | None, right: Right) -> None:
        """An error unless the token has the right; whoever may teach may read."""
        held = self.held(given)
        if not held:
            raise HTTPException(
                401,
                "this service needs a token: send it as Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )
        if right == "teach" and "teach" not in held:
            raise HTTPException(403, "this token may ask, but not teach, change or download")


def read_tokens(file: Path) -> Tokens:
    """Lines `read TOKEN` and `teach TOKEN`; whoever may teach may read."""
    try:
        readable, text = stat.S_IMODE(file.stat().st_mode) & 0o007, file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file: {file} cannot be read: {error}") from None
    if readable:
        raise InputError(f"--token-file: everybody on this machine may read {file}: chmod 600 {file}")
    rights: list[tuple[bytes, Right]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ("read", "teach") or len(words[1]) < SHORTEST_TOKEN:
            rule = f"must be `read TOKEN` or `teach TOKEN`, a token at least {SHORTEST_TOKEN} characters long"
            raise InputError(f"--token-file: {file}, line {number}: {rule}")
        right: Right = "read" if words[0] == "read" else "teach"
        rights.append((sha256(words[1].encode()).digest(), right))
    if not rights:
        raise InputError(f"--token-file: {file} holds no token")
    return Tokens(tuple(rights))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _part(url: str, part: str) -> str:
    """A part of a URL as `urlsplit` names it; empty if there is none."""
    try:
        return getattr(urlsplit(url), part) or ""
    except ValueError:
        return ""


class Guard:
    """An ASGI application around another one: nothing that one sends or raises goes out unchecked."""

    def __init__(self, app: ASGIApp, loopback: bool) -> None:
        self.app, self.loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        error: BaseException | None = None
        start = time.perf_counter()
        try:
            self._check(exchange.headers)
            async with asyncio.timeout(MAX_SECONDS) as exchange.deadline:
                await self.app(exchange.scope, exchange.receive, exchange.send)
        except HTTPException as refused:
            await exchange.refuse(refused.status_code, refused.detail)
        except TimeoutError:
            await exchange.refuse(503 if exchange.received else 408, f"this took longer than {MAX_SECONDS:.0f} seconds")
        except Exception as unexpected:
            error = unexpected
            await exchange.refuse(500, "something went wrong here")
        finally:
            observe.log_request(exchange.facts(), start, error)

    def _check(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.loopback and ("@" in host or not is_loopback(_part(f"//{host}", "hostname"))):  # DNS rebinding
            raise HTTPException(421, "this service answers to its loopback address only")
        if origin is not None and _part(origin, "netloc") != host:  # a page of another site
            raise HTTPException(403, "pages of other sites may not use this service")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BYTES:
            raise HTTPException(413, TOO_LARGE)


class Exchange:
    """One request, and the answer to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.id = given if re.fullmatch(r"[\w-]{1,64}", given, re.ASCII) else secrets.token_hex(8)
        self._method: str = scope["method"]
        answered_as = "GET" if self._method == "HEAD" else self._method  # uvicorn leaves out the body of the answer
        self.scope = {**scope, "method": answered_as, "state": {**scope.get("state", {}), "request_id": self.id}}
        self._bytes, self._status = 0, 0
        self.received = False  # the whole body
        self.deadline: asyncio.Timeout | None = None
        self._begun = time.monotonic()

    async def receive(self) -> Message:
        """A part of the request; an error if the body is too large or its client has fallen silent."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                message = await self._next_part()
        except TimeoutError:
            raise HTTPException(408, f"nothing has come for {IDLE_SECONDS:.0f} seconds") from None
        if self._bytes > MAX_BYTES:
            raise HTTPException(413, TOO_LARGE)
        return message

    async def _next_part(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self.received = not message.get("more_body", False)
        return message

    async def _discard_rest(self) -> None:
        """Read what is left of the body: a connection closed before would be reset, and the answer lost with it.

        A client that waits for 100 Continue has sent no body yet, and one that fell silent will send no more.
        """
        awaits_continue = "expect" in self.headers and not self._bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.received and not awaits_continue and self._bytes <= MAX_DISCARDED:
                    await self._next_part()

    async def send(self, message: Message) -> None:
        """A part of the answer, with the headers of every answer."""
        if message["type"] == "http.response.start":
            if message["status"] != 408:
                await self._discard_rest()
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in (HEADERS | {"x-request-id": self.id}).items():
                headers[name] = value
        await self._send(message)
        if message.get("more_body"):
            self._extend_deadline()

    def _extend_deadline(self) -> None:
        """Give a client that takes part after part more time, but not for ever."""
        assert self.deadline is not None
        left = self._begun + DOWNLOAD_SECONDS - time.monotonic()
        self.deadline.reschedule(asyncio.get_running_loop().time() + min(MAX_SECONDS, left))

    async def refuse(self, status: int, error: str) -> None:
        """Answer with an error, unless an answer has begun already."""
        if self._status:
            return
        body = json.dumps({"error": error, "request": self.id}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def facts(self) -> dict[str, Any]:
        """For the log: the route, never the path, which may name a class."""
        method = self._method if self._method in METHODS else "other"
        route = getattr(self.scope.get("route"), "path", "none")
        return {"request": self.id, "method": method, "route": route, "status": self._status, "bytes": self._bytes}

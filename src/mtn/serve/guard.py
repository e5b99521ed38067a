"""Who may come in, how much they may bring, how long they may stay; what every answer carries. An ASGI application."""

import asyncio
import hmac
import ipaddress
import json
import re
import secrets
import stat
import time
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

MOST_BYTES = 16 * 2**20
"""Of a request's body."""
MOST_SECONDS = 30.0
"""From a request's head to the end of its answer."""
SHORTEST = 16
"""Characters of a token."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass(frozen=True)
class Tokens:
    """Digests of tokens with their rights. Without any, everybody may do everything: for loopback alone."""

    rights: tuple[tuple[bytes, Right], ...] = ()

    def allow(self, given: str | None, right: Right) -> None:
        """An error unless the token has the right. Every token is compared in full: time tells nothing."""
        if not self.rights:
            return
        digest = sha256((given or "").encode()).digest()
        held = {one for own, one in self.rights if hmac.compare_digest(own, digest)}
        if not held:
            raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
        if right == "teach" and "teach" not in held:
            raise HTTPException(403, "this token may ask, not teach")


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
        if len(words) != 2 or words[0] not in ("read", "teach") or len(words[1]) < SHORTEST:
            rule = f"must be `read TOKEN` or `teach TOKEN`, a token at least {SHORTEST} characters long"
            raise InputError(f"--token-file: {file}, line {number}: {rule}")
        rights.append((sha256(words[1].encode()).digest(), words[0]))  # type: ignore[arg-type]
    if not rights:
        raise InputError(f"--token-file: {file} holds no token")
    return Tokens(tuple(rights))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _part(url: str, part: str) -> str:
    try:
        return getattr(urlsplit(url), part) or ""
    except ValueError:
        return ""


class Guard:
    """Around the application, so that nothing it sends or raises goes out as it is."""

    def __init__(self, app: ASGIApp, loopback: bool) -> None:
        self.app, self.loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        visit = Visit(scope, receive, send)
        error: BaseException | None = None
        start = time.perf_counter()
        try:
            self._check(visit.headers)
            async with asyncio.timeout(MOST_SECONDS):
                await self.app(scope, visit.receive, visit.send)
        except HTTPException as refused:
            await visit.refuse(refused.status_code, refused.detail)
        except TimeoutError:
            await visit.refuse(503 if visit.whole else 408, f"this took longer than {MOST_SECONDS:.0f} seconds")
        except Exception as unexpected:
            error = unexpected
            await visit.refuse(500, "something went wrong here")
        finally:
            observe.request(visit.facts(), start, error)

    def _check(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.loopback and not is_loopback(_part(f"//{host}", "hostname")):  # a name that was bent to us
            raise HTTPException(421, "this service answers to its loopback address only")
        if origin is not None and _part(origin, "netloc") != host:  # another site's page in somebody's browser
            raise HTTPException(403, "pages of other sites may not use this service")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MOST_BYTES:
            raise HTTPException(413, f"a body may have at most {MOST_BYTES} bytes")


class Visit:
    """One request, and the answer to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.id = given if re.fullmatch(r"[\w-]{1,64}", given, re.ASCII) else secrets.token_hex(8)
        scope["state"] = {**scope.get("state", {}), "request_id": self.id}
        self._bytes, self._status = 0, 0
        self.whole = False  # the body has come

    async def receive(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self._bytes > MOST_BYTES:
            raise HTTPException(413, f"a body may have at most {MOST_BYTES} bytes")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in (HEADERS | {"x-request-id": self.id}).items():
                headers[name] = value
        await self._send(message)

    async def refuse(self, status: int, error: str) -> None:
        """Unless an answer is on its way already."""
        if self._status:
            return
        body = json.dumps({"error": error, "request": self.id}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def facts(self) -> dict[str, Any]:
        """For the log: the route, never the path, which may name a class."""
        method, route = self._scope["method"], getattr(self._scope.get("route"), "path", "none")
        known = method if method in METHODS else "other"
        return {"request": self.id, "method": known, "route": route, "status": self._status, "bytes": self._bytes}

"""Connections that send no request are closed in time, and make room for those that do."""

import asyncio
import select
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
HEAD_SECONDS = 10.0
"""For the head of a request, from the opening of the connection or the end of the answer before."""
CATCH_UP_SECONDS = 0.05
"""For the event loop to read what has come, before a connection is refused because all others have sent something."""
FLUSH_SECONDS = 30.0
"""For a client to read what is left of an answer when its connection is closed."""


class Connection(H11Protocol):
    """Uvicorn's connection with a limit on the time for a head.

    Where there are too many connections, the one that has kept the service waiting longest is dropped: first those
    without a request, then those whose body is not complete. If all requests are complete, the new one is refused; if
    what others have sent is not read yet, that is decided a moment later.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting_since = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._await_head()
        self._make_room(at_once=len(self.connections) > 2 * MAX_CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answering:
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins the next request if its head has come already
        if not self.answering:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """Whether the head of a request has come, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._stop_timer()
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close(self) -> None:
        self.transport.close()  # once the client has read what was written
        self._timer = self.loop.call_later(FLUSH_SECONDS, self.transport.abort)

    def _make_room(self, at_once: bool) -> None:
        """Drop others while there are too many; if none can be dropped, refuse this one, at once or after a moment."""
        while self in self.connections and len(self.connections) > MAX_CONNECTIONS:
            if self._drop_one():
                continue
            if at_once:
                self.limit_concurrency = 0  # uvicorn answers 503 and closes the connection
            else:
                self.loop.call_later(CATCH_UP_SECONDS, self._make_room, True)
            return

    def _drop_one(self) -> bool:
        """Whether there was a connection that could be dropped."""
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        waiting = [other for other in others if not other.answering or other.cycle.more_body]
        for other in sorted(waiting, key=lambda other: (other.answering, other._waiting_since)):
            if not other._has_unread_data():
                self.connections.discard(other)
                other.transport.abort()
                return True
        return False

    def _has_unread_data(self) -> bool:
        """Whether something has come since the event loop last looked: then it is not the client that is waited for."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

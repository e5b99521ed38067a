"""Raw HTTP over asyncio: whatever bytes are sent, and what comes back."""

import asyncio
import time
from contextlib import suppress
from typing import NamedTuple

ANSWER_SECONDS = 40.0
"""The service gives a request 30 seconds."""


class Answer(NamedTuple):
    """What came back: nothing, or a status with headers and a body."""

    status: int | None
    head: str
    body: bytes
    ms: float
    error: str = ""


async def exchange(port: int, content: bytes, finished: bool = True, close: bool = False) -> Answer:
    """Send bytes over a connection of their own and read one answer; if not `finished`, hang up instead.

    With `close` the other side learns that no more will come: what is no whole request would be waited for. A service
    may take that for a client that has gone, so it needs no answer.
    """
    start = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return Answer(None, "", b"", 0.0, f"cannot connect: {error}")
    sending = asyncio.create_task(_send(writer, content, close))
    try:
        if not finished:
            await sending
            return Answer(None, "", b"", 0.0)
        async with asyncio.timeout(ANSWER_SECONDS):
            status, head, body = await read_answer(reader, bodiless=content.startswith(b"HEAD "))
        return Answer(status, head, body, 1000 * (time.perf_counter() - start))
    except TimeoutError:
        return Answer(None, "", b"", 1000 * (time.perf_counter() - start), f"no answer after {ANSWER_SECONDS:.0f} s")
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        return Answer(None, "", b"", 1000 * (time.perf_counter() - start), f"{type(error).__name__}: {error}")
    finally:
        sending.cancel()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, content: bytes, close: bool) -> None:
    """All of it, unless the other side closes."""
    with suppress(OSError):
        writer.write(content)
        await writer.drain()
        if close:
            writer.write_eof()


async def read_answer(reader: asyncio.StreamReader, bodiless: bool = False) -> tuple[int, str, bytes]:
    """Status, head and body; an answer to HEAD has none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(maxsplit=2)[1])
    lengths = [line.partition(":")[2] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths and not bodiless else b""
    return status, head, body

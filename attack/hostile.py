"""Hostile requests: no 5xx but those that are promised, an answer wherever HTTP allows one, a service that lives on."""

import asyncio
import statistics
import time
from pathlib import Path

from attack import material, requests
from attack.campaign import Campaign
from attack.processes import call, until
from attack.requests import READ, TEACH, Request
from attack.server import Server
from attack.wire import Answer, exchange, read_answer

NAME = "hostile"
TRIES = 20_000
MINUTES = 10.0
AT_ONCE = 16
BLOCK = 500
"""Requests between two looks at whether all is well."""
PROMISED = (503, 507)
"""Too much waits; the disk is full."""
HEALTH_SECONDS = 5.0
SEALED = ("x-content-type-options: nosniff", "content-security-policy: default-src 'none'")
"""In every answer of the application."""
MAX_GROWTH_MB = 400.0
"""By which a service may grow, for whatever it is sent."""
TIMED = 400
"""Requests with each kind of wrong token."""


def attack(campaign: Campaign) -> None:
    """Send requests to a service with tokens, and to one of images without."""
    scratch = campaign.scratch
    tokens = scratch / "tokens"
    tokens.write_text(f"read {READ}\nteach {TEACH}\n")
    tokens.chmod(0o600)
    call(material.write_model, scratch / "vectors")
    call(material.write_image_model, scratch / "images")
    with (
        Server(scratch / "vectors", "--token-file", str(tokens), token=TEACH) as vectors,
        Server(scratch / "images") as images,
    ):
        servers = {"vectors": vectors, "images": images}
        before = {name: server.memory_mb() for name, server in servers.items()}
        numbers = list(campaign.numbers())
        for start in range(0, len(numbers), BLOCK):
            if campaign.over():
                break
            block = numbers[start : start + BLOCK]
            asyncio.run(_send(campaign, servers, block))
            campaign.done += len(block)
            _check_health(campaign, servers, block)
        for name, server in servers.items():
            peak = server.peak_memory_mb()
            campaign.measured(memory_mb=peak)
            if peak - before[name] > MAX_GROWTH_MB:
                campaign.fail(-1, f"the service of {name} took {before[name]:.0f} MB at first, later {peak:.0f} MB")
        if campaign.only is None:
            _check_timing(campaign, vectors, max(200, round(TIMED * min(1.0, 10 * campaign.tries / TRIES))))


async def _send(campaign: Campaign, servers: dict[str, Server], numbers: list[int]) -> None:
    """A block of requests, some at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def send(number: int) -> None:
        async with room:
            request = requests.make(campaign.rng(number))
            port = servers[request.server].port
            answer = await exchange(port, request.content, request.finished, close=not request.answered)
            campaign.measured(wait_ms=answer.ms)
            problem = _problem(request, answer, campaign.scratch)
            if problem:
                shown = f"{answer.status} {answer.error}\n{answer.head}{answer.body[:2000]!r}".encode()
                evidence = {"request.bin": request.content[: 2**20], "answer.txt": shown}
                campaign.fail(number, f"{request.kind}: {problem}", evidence)

    await asyncio.gather(*map(send, numbers))


def _problem(request: Request, answer: Answer, scratch: Path) -> str | None:
    """What is wrong with an answer."""
    if not request.finished:
        return answer.error or None
    if answer.status is None:
        quiet = not request.answered and not answer.error.startswith(("no answer", "cannot connect"))
        return None if quiet else answer.error
    if answer.status >= 500 and answer.status not in PROMISED:
        return f"status {answer.status}"
    if request.refused and not 400 <= answer.status < 500 and answer.status not in PROMISED:
        return f"status {answer.status}, it was to be refused"
    head = answer.head.lower()
    if "x-request-id" in head and not all(line in head for line in SEALED):
        return "a header that every answer has is missing"
    inside = [word for word in (str(scratch), "Traceback", "site-packages") if word in answer.body.decode("latin-1")]
    return f"the answer tells of the inside: {inside}" if inside else None


def _check_health(campaign: Campaign, servers: dict[str, Server], block: list[int]) -> None:
    """Each service is alive, answers soon, and knows the classes it knew."""
    for name, server in servers.items():
        start = time.monotonic()
        if not server.alive():
            raise RuntimeError(
                f"the service of {name} has died in {block[0]} to {block[-1]}: {server.process.output()}"
            )
        if not until(server.ready, HEALTH_SECONDS):
            campaign.fail(block[-1], f"after tries {block[0]} to {block[-1]} the service of {name} is not ready")
        campaign.measured(wait_ms=1000 * (time.monotonic() - start))
        known = {entry["label"] for entry in server.ask("GET", "/classes")[1]["classes"]}
        original = {"box", "line"} if name == "images" else set(material.LABELS[: material.KNOWN].tolist())
        if not original <= known:
            campaign.fail(block[-1], f"after tries {block[0]} to {block[-1]} classes are gone: {original - known}")


def _check_timing(campaign: Campaign, server: Server, count: int) -> None:
    """A wrong token that begins like a right one takes as long as any other."""
    near, far = TEACH[:-1] + "x", "x" * len(TEACH)
    times: dict[str, list[float]] = {near: [], far: []}

    async def measure() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(count):
            for token, taken in times.items():
                start = time.perf_counter()
                writer.write(
                    f"GET /model HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n".encode()
                )
                status, _, _ = await read_answer(reader)
                taken.append(1000 * (time.perf_counter() - start))
                if status != 401:
                    campaign.fail(-1, f"a wrong token is answered with {status}")
        writer.close()

    asyncio.run(measure())
    medians = [statistics.median(taken) for taken in times.values()]
    if abs(medians[0] - medians[1]) > max(0.3, 0.25 * min(medians)):
        campaign.fail(-1, f"a token that is nearly right takes {medians[0]:.3f} ms, another {medians[1]:.3f} ms")

"""Many clients at once, while the service is taught: all are answered, and memory does not grow with their number."""

import asyncio
import json
import time

from attack import material
from attack.campaign import Campaign
from attack.processes import call
from attack.server import Server
from attack.wire import read_answer

NAME = "load"
TRIES = 100_000
MINUTES = 10.0
CLIENTS = 32
WAIT_SECONDS = 30.0
"""That an answer may take."""
LESSON_PAUSE = 0.5
"""Seconds between the end of a lesson and the next."""
WATCH_PAUSE = 1.0
"""Seconds between two looks at the memory."""
MAX_GROWTH_MB = 300.0
"""By which the service may grow after the first tenth of the requests."""
ASKED = 0.9
"""Share of the questions that are for an answer; the others look around."""
LOOKS = ("/classes", "/model", "/metrics", "/healthz")


def attack(campaign: Campaign) -> None:
    """Ask with all clients, and teach one lesson after the other."""
    call(material.write_model, campaign.scratch / "model", "mtn", 30)
    with Server(campaign.scratch / "model") as server:
        asyncio.run(_Load(campaign, server).run())
        if not server.alive():
            campaign.fail(0, "the service has died")


class _Load:
    """The clients of one service."""

    def __init__(self, campaign: Campaign, server: Server) -> None:
        self.campaign, self.server = campaign, server
        self.numbers = campaign.numbers()
        self.lessons = 0
        self.early_mb = 0.0
        self.late_mb = 0.0

    async def run(self) -> None:
        """All clients until every request is sent."""
        beside = [asyncio.create_task(self.teach()), asyncio.create_task(self.watch())]
        await asyncio.gather(*(self.client() for _ in range(min(CLIENTS, self.campaign.tries))))
        for task in beside:
            task.cancel()
        for outcome in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(outcome, Exception):
                self.campaign.fail(0, f"{type(outcome).__name__}: {outcome}")
        if self.late_mb - self.early_mb > MAX_GROWTH_MB:
            self.campaign.fail(0, f"the service grew from {self.early_mb:.0f} to {self.late_mb:.0f} MB")

    async def client(self) -> None:
        """One connection after the other: each is used for some hundred requests."""
        left = 0
        writer: asyncio.StreamWriter | None = None
        for number in self.numbers:
            rng = self.campaign.rng(number)
            if left == 0 or writer is None:
                if writer is not None:
                    writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
                left = rng.randint(1, 400)
            left -= 1
            request = self.request(number)
            start = time.perf_counter()
            problem = None
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    writer.write(request)
                    status, _, body = await read_answer(reader)
                if status != 200:
                    problem = f"status {status}: {body[:300]!r}"
            except (OSError, EOFError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {error}"
                left = 0
            self.campaign.measured(wait_ms=1000 * (time.perf_counter() - start))
            self.campaign.done += 1
            if problem:
                self.campaign.fail(number, problem, {"request.bin": request})
        if writer is not None:
            writer.close()

    def request(self, number: int) -> bytes:
        """A question, or a look around."""
        rng = self.campaign.rng(number)
        if rng.random() > ASKED:
            return f"GET {rng.choice(LOOKS)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        row = rng.randrange(len(material.TEST))
        rows = material.TEST[row : row + rng.choice((1, 1, 1, 4))]
        path = "/explain" if rng.random() < 0.02 else "/predict"
        if rng.random() < 0.5:
            kind, body = "application/octet-stream", rows.tobytes()
        else:
            kind, body = "application/json", json.dumps({"vectors": rows.tolist()}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def teach(self) -> None:
        """One lesson after the other, of classes that come again and again."""
        while True:
            label = f"new {self.lessons % 3}"
            lesson = {"vectors": material.X[-4:].tolist(), "labels": [label] * 4}
            job = (await self.ask("POST /learn", lesson))["job"]
            while (status := await self.ask(f"GET /jobs/{job}"))["state"] in ("waiting", "running"):
                await asyncio.sleep(0.1)
            if status["state"] != "done":
                raise RuntimeError(f"a lesson is {status['state']}: {status['error']}")
            self.lessons += 1
            await asyncio.sleep(LESSON_PAUSE)

    async def ask(self, what: str, content: object = None) -> dict[str, str]:
        """The JSON of an answer, over a connection of its own."""
        body = b"" if content is None else json.dumps(content).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        kind = "content-type: application/json\r\n" if body else ""
        head = f"{what} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(WAIT_SECONDS):
            status, _, answer = await read_answer(reader)
        writer.close()
        if status not in (200, 202):
            raise RuntimeError(f"{what}: status {status}, {answer[:300]!r}")
        values: dict[str, str] = json.loads(answer)
        return values

    async def watch(self) -> None:
        """Look at the memory of the service now and then."""
        while True:
            self.campaign.measured(memory_mb=self.server.peak_memory_mb())
            self.late_mb = self.server.memory_mb()
            if self.campaign.done < self.campaign.tries / 10:
                self.early_mb = self.late_mb
            await asyncio.sleep(WATCH_PAUSE)

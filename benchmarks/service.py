"""The service under load from a second process: latency of one vector, throughput, learning meanwhile, memory.

python benchmarks/service.py MODEL [--seconds 30] [--requests 100000]

MODEL is a folder that `python benchmarks/service.py --make MODEL` makes: 1 000 glyph classes, 20 000 exemplars. The
service runs on a copy of it.
"""

import argparse
import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from mtn import MTNClassifier
from mtn.data import glyphs

RATE, BATCH, EACH = 50, 64, 20
CLIENTS, PARTS = 32, 10
EARLY = 0.002
"""Seconds before a request is due that its client wakes: timers of the event loop are up to a millisecond late."""


class Client:
    """HTTP by hand: a client that takes longer than the service would measure itself."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []  # since when

    async def ask(self, x: np.ndarray) -> bytes:
        return await self.send("POST /predict", x.tobytes(), "application/octet-stream")

    async def send(self, what: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        reader, writer = await self.connection()
        head = f"{what} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(answer.lower().split("content-length: ")[1].split("\r\n")[0])
        content = await reader.readexactly(length)
        assert answer.split()[1] in ("200", "202"), content
        self.free.append((time.monotonic(), reader, writer))
        return content

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A free one, unless it is idle for so long that the service may close it."""
        while self.free:
            since, reader, writer = self.free.pop()
            if time.monotonic() - since < 2:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port)


def make(folder: Path) -> None:
    data = glyphs.prepare(1000)
    y, images, names = (np.load(data / f"{name}.npy") for name in ("y_train", "images_train", "names"))
    rows = np.concatenate([np.flatnonzero(y == label)[:EACH] for label in range(1000)])
    MTNClassifier(memory=20_000, encoder="glyph").fit(images[rows], names[y[rows]].tolist()).save(folder)


def start(model: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mtn", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            urlopen(f"http://127.0.0.1:{port}/readyz").close()
            return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service does not start")


async def at_a_rate(client: Client, x: np.ndarray, seconds: float) -> list[float]:
    """Milliseconds of requests sent at fixed times, whether or not those before are answered."""
    taken: list[float] = []

    async def one(row: int, due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter() - EARLY, 0))
        while time.perf_counter() < due:
            await asyncio.sleep(0)
        await client.ask(x[row : row + 1])
        taken.append(1000 * (time.perf_counter() - due))  # from when it was due: a stall counts for all it delays

    begin = time.perf_counter() + 0.1
    await asyncio.gather(*(one(number % len(x), begin + number / RATE) for number in range(int(seconds * RATE))))
    return taken


async def in_batches(client: Client, x: np.ndarray, seconds: float) -> float:
    """Vectors a second, two requests at a time."""
    count, end = 0, time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end:
            row = int(count % (len(x) - BATCH))
            await client.ask(x[row : row + BATCH])
            count += BATCH

    await asyncio.gather(one(), one())
    return count / seconds


async def while_learning(client: Client, x: np.ndarray, new: np.ndarray, seconds: float) -> list[float]:
    """The same as `at_a_rate` while one lesson after the other goes on."""
    lessons = 0

    async def teach() -> None:
        nonlocal lessons
        while True:
            lesson = {"vectors": new.tolist(), "labels": [f"new {lessons}"] * len(new)}
            job = json.loads(await client.send("POST /learn", json.dumps(lesson).encode()))["job"]
            while json.loads(await client.send(f"GET /jobs/{job}"))["state"] in ("waiting", "running"):
                await asyncio.sleep(0.5)
            lessons += 1

    teaching = asyncio.create_task(teach())
    await asyncio.sleep(1)
    taken = await at_a_rate(client, x, seconds)
    teaching.cancel()
    print(f"  lessons finished meanwhile: {lessons}")
    return taken


async def many(client: Client, x: np.ndarray, requests: int) -> None:
    numbers = iter(range(requests))

    async def one() -> None:
        for number in numbers:
            row = number % len(x)
            await client.ask(x[row : row + 1])

    await asyncio.gather(*(one() for _ in range(CLIENTS)))


async def memory(pid: int, client: Client, x: np.ndarray, requests: int) -> None:
    begin = time.perf_counter()
    for part in range(PARTS):
        await many(client, x, requests // PARTS)
        done = (part + 1) * requests // PARTS
        print(f"resident after {done} requests: {resident(pid):.1f} MB", flush=True)
    print(f"one vector, {CLIENTS} at a time: {requests / (time.perf_counter() - begin):.0f} requests/s")


def resident(pid: int) -> float:
    """MB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def show(what: str, taken: list[float]) -> None:
    p50, p99 = np.percentile(taken, [50, 99])
    print(f"{what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(taken)} requests")


async def load(pid: int, port: int, seconds: float, requests: int) -> None:
    data = glyphs.prepare(1000)
    x, new = (np.load(data / f"x_{split}.npy").astype(np.float32) for split in ("test", "val"))
    client = Client(port)
    await many(client, x, 200)
    show(f"one vector, {RATE} requests/s, quiet", await at_a_rate(client, x, seconds))
    print(f"batches of {BATCH}: {await in_batches(client, x, seconds):.0f} vectors/s")
    show(f"one vector, {RATE} requests/s, learning", await while_learning(client, x, new[:EACH], seconds))
    while json.loads(await client.send("GET /model"))["waiting"]:  # a new model has a size of its own
        await asyncio.sleep(0.5)
    await memory(pid, client, x, requests)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--requests", type=int, default=100_000)
    given = parser.parse_args()
    if given.make:
        make(given.model)
        return
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = start(Path(shutil.copytree(given.model, Path(scratch) / "model")), port)
        try:
            asyncio.run(load(process.pid, port, given.seconds, given.requests))
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()

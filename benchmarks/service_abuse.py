"""Ten bodies of 16 MB at once: how long other clients wait, and how much memory the service takes for them.

python benchmarks/service_abuse.py [--seconds 5]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from mtn import MTNClassifier
from service import resident, start

WIDTH, CLASSES, EACH = 1024, 20, 20
SIZE, AT_ONCE, RATE = 16 * 2**20, 10, 40
PORT = 8765
AIM_MS, AIM_MB = 250, 200


def fill(start: str, item: str, end: str, size: int = SIZE) -> bytes:
    """A body of `size` bytes with as many items as fit."""
    count = (size - len(start) - len(end)) // len(item)
    return (start + item * count).removesuffix(",").encode() + end.encode()


def bodies() -> dict[str, bytes]:
    """What somebody could send."""
    row = "[" + ",".join(f"{number:.9f}" for number in np.random.default_rng(0).random(WIDTH)) + "],"
    return {
        "one row": fill('{"vectors": [[', "0,", "]]}"),
        "rows of one": fill('{"vectors": [', "[0],", "]}"),
        "empty rows": fill('{"vectors": [', "[],", "]}"),
        "nested": fill("", "[", ""),
        "labels": fill('{"labels": [', "0,", "]}"),
        "empty texts": fill('{"texts": [', '"",', "]}"),
        "one text": fill('{"texts": ["', "\\n", '"]}'),
        "fields": fill("{", '"":0,', "}"),
        "spaces": fill('{"vectors":', " ", "[]}"),
        "good rows": fill('{"vectors": [', row, "]}", min(SIZE, 1020 * len(row))),
        "bad last row": fill('{"vectors": [', row, "[0]]}", min(SIZE, 1020 * len(row))),
    }


async def send(content: bytes, path: str = "/predict") -> tuple[int, bytes]:
    """The status and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    kind = "application/octet-stream" if len(content) == 4 * WIDTH else "application/json"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode())
    try:
        for first in range(0, len(content), 2**18):  # in pieces: this client shall not stall itself
            writer.write(content[first : first + 2**18])
            await writer.drain()
        answer = await reader.read()
    except ConnectionError:
        return 0, b"the connection was reset"
    finally:
        writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


async def wait_for_answers(seconds: float) -> list[float]:
    """Milliseconds of one vector each, sent at fixed times, whether or not those before are answered."""
    vector = np.random.default_rng(1).standard_normal(WIDTH).astype("<f4").tobytes()
    taken: list[float] = []

    async def ask(due: float) -> None:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        status, content = await send(vector)
        assert status == 200, content
        taken.append(1000 * (time.perf_counter() - due))

    begin = time.perf_counter() + 0.1
    await asyncio.gather(*(ask(begin + number / RATE) for number in range(int(seconds * RATE))))
    return taken


async def peak(pid: int, done: asyncio.Event) -> float:
    """The largest resident memory in MB until the event."""
    most = resident(pid)
    while not done.is_set():
        most = max(most, resident(pid))
        await asyncio.sleep(0.005)
    return most


async def attack(pid: int, seconds: float) -> None:
    """Print both figures for each kind of body, and the worst of all."""
    await wait_for_answers(1)
    worst_ms = worst_mb = 0.0
    before = resident(pid)
    print(f"{'':14} {'status':>8} {'p99':>8} {'growth':>10}")
    print(f"{'quiet':14} {'':>8} {np.percentile(await wait_for_answers(seconds), 99):5.0f} ms")
    for name, content in bodies().items():
        done = asyncio.Event()
        watching = asyncio.create_task(peak(pid, done))
        waiting = asyncio.create_task(wait_for_answers(seconds))
        await asyncio.sleep(0.5)
        answers = await asyncio.gather(*(send(content) for _ in range(AT_ONCE)))
        p99 = float(np.percentile(await waiting, 99))
        done.set()
        growth = await watching - before
        worst_ms, worst_mb = max(worst_ms, p99), max(worst_mb, growth)
        status = ",".join(sorted({str(status) for status, _ in answers}))
        print(f"{name:14} {status:>8} {p99:5.0f} ms {growth:7.0f} MB", flush=True)
    print(f"worst: p99 {worst_ms:.0f} ms (aim {AIM_MS}), resident memory + {worst_mb:.0f} MB (aim {AIM_MB})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLASSES * EACH, WIDTH)).astype(np.float32)
    settings = {"method.size": "small", "train.epochs": 1}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        MTNClassifier(memory=CLASSES * EACH, settings=settings).fit(x, np.repeat(np.arange(CLASSES), EACH)).save(model)
        process = start(model, PORT)
        try:
            asyncio.run(attack(process.pid, seconds))
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()

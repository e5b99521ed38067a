"""What a client of the service can do to the others: silent connections, large bodies, guessed tokens."""

import asyncio
import functools
import hmac
import itertools
import json
import os
import random
import signal
import socket
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from mtn.errors import InputError
from mtn.serve import body, connection, engine, guard, json_body
from service import Service, write_model

JSON = {"content-type": "application/json"}
SLACK = 5.0
"""Seconds that a busy machine may take longer."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """No test changes its model."""
    with Service(write_model(tmp_path_factory.mktemp("abused") / "model", steps=1)) as service:
        yield service


def connect(service: Service, head: str = "") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    client.sendall(head.encode())
    return client


def still_open(client: socket.socket, sent: bytes = b"") -> bool:
    """Whether the service has not closed the connection."""
    client.setblocking(False)
    try:
        client.send(sent)
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def seconds_to_answer(service: Service) -> float:
    """Of a new client, the best of a few tries: a busy machine may hold up one of them."""

    def measure() -> float:
        start = time.monotonic()
        with urllib.request.urlopen(f"{service.url}/model", timeout=60) as answer:
            assert answer.status == 200 and json.load(answer)["classes"] == 6
        return time.monotonic() - start

    return min(measure() for _ in range(3))


# ---- connections that send nothing, or not enough


GET = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_HEAD = "POST /predict HTTP/1.1\r\nhost: localhost\r\nx-slow: "
NO_BODY = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"


@pytest.mark.parametrize("sent", ["", HALF_HEAD, NO_BODY], ids=["nothing", "half a head", "no body"])
def test_another_client_is_answered_while_300_send(sent: str, service: Service) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(service, sent)) for _ in range(300)]
        assert seconds_to_answer(service) < 1.0
        remaining = sum(map(still_open, clients))
        assert remaining > 200, "dropped more than it had to"


def test_a_service_that_is_behind_reads_what_has_come_before_it_refuses_anybody(service: Service) -> None:
    """It was stopped: all connections came at once, and what each of them sent."""
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(connect(service, NO_BODY))
            asking = stack.enter_context(connect(service, GET))
            os.kill(service.process.pid, signal.SIGCONT)
            assert asking.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        os.kill(service.process.pid, signal.SIGCONT)


def test_an_upload_is_not_dropped_for_silent_connections(service: Service) -> None:
    with ExitStack() as stack, connect(service, NO_BODY.replace("99", "32")) as uploading:
        for _ in range(600):
            stack.enter_context(connect(service))
        uploading.sendall(b'{"vectors": [[1, 2, 3]], "x": 0}')
        assert uploading.recv(100).startswith(b"HTTP/1.1 422")


def test_connections_that_keep_it_waiting_are_closed(service: Service) -> None:
    """A byte now and then does not help, neither in a head nor after an answer; a body may not fall silent."""
    start = time.monotonic()
    with ExitStack() as stack:
        silent, head, body, answered = (
            stack.enter_context(connect(service, sent)) for sent in ("", HALF_HEAD, NO_BODY, GET)
        )
        assert answered.recv(100_000).startswith(b"HTTP/1.1 200")
        closed: dict[socket.socket, float] = {}
        while len(closed) < 3 and time.monotonic() < start + connection.HEAD_SECONDS + SLACK:
            time.sleep(0.2)
            for client in {silent, head, answered} - set(closed):
                if not still_open(client, b"" if client is silent else b"x"):
                    closed[client] = time.monotonic() - start
        assert len(closed) == 3 and min(closed.values()) > connection.HEAD_SECONDS - 1
        body.settimeout(guard.IDLE_SECONDS + SLACK)
        assert body.recv(100).startswith(b"HTTP/1.1 408")


# ---- answers that arrive


@pytest.mark.parametrize("path", ["/", "/app.js", "/healthz", "/model"])
def test_head_is_get_without_a_body(path: str, service: Service) -> None:
    get, head = service.client.get(path), service.client.head(path)
    assert (get.status_code, head.status_code) == (200, 200)
    assert head.content == b"" and head.headers["content-length"] == get.headers["content-length"]
    service.until(lambda: f'"method": "HEAD", "route": "{path}", "status": 200' in service.log.read_text())


@pytest.mark.parametrize("megabytes", [17, 40])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "image/png", "application/json"])
def test_what_is_too_large_gets_an_answer(kind: str, megabytes: int, service: Service) -> None:
    """A client that reads only after it has sent everything, and wants the connection closed, as urllib does."""
    part = b"--x\r\nContent-Disposition: form-data; name=picture; filename=a\r\n\r\n" + bytes(megabytes << 20)
    for content in (part, iter([part])):  # with a length and in chunks
        request = urllib.request.Request(f"{service.url}/predict", data=content, headers={"content-type": kind})
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code in ((413,) if content is part else (413, 415, 422))
        assert set(json.load(refused.value)) == {"error", "request"}


def test_who_awaits_100_continue_is_refused_before_sending(service: Service) -> None:
    head = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: {2**30}\r\nexpect: 100-continue\r\n\r\n"
    with connect(service, head) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 413")


# ---- bodies that would take much memory or time


SIZE = guard.MAX_BYTES
HOSTILE = {
    "one row": ('{"vectors": [[', "0,", "0]]}"),
    "rows of one": ('{"vectors": [', "[0],", "[0]]}"),
    "empty rows": ('{"vectors": [', "[],", "[]]}"),
    "good rows": ('{"vectors": [', "[" + "0.123456789," * 15 + "0],", "[0]]}"),
    "one number": ('{"vectors": [[', "1", "]]}"),
    "nested": ("", "[", ""),
    "nested in a field": ('{"vectors": ', "[", ""),
    "objects": ("", '{"a":', ""),
    "labels": ('{"labels": [', "0,", "0]}"),
    "long labels": ('{"labels": [', '"' + "x" * 4000 + '",', "0]}"),
    "empty texts": ('{"texts": [', '"",', '""]}'),
    "one text": ('{"texts": ["', "\\n", '"]}'),
    "a text without end": ('{"texts": ["', "x", ""),
    "fields": ("{", '"":0,', '"":0}'),
    "one field": ('{"', "x", '":0}'),
    "spaces": ('{"vectors":', " ", "[]}"),
    "digits": ("", "1", ""),
}


def hostile(kind: str) -> bytes:
    """A body of 16 MB."""
    start, item, end = HOSTILE[kind]
    return (start + item * ((SIZE - len(start) - len(end)) // len(item)) + end).encode()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_body_is_refused_before_it_is_parsed(kind: str) -> None:
    content, reader, read = hostile(kind), json_body.JsonReader(16), 0
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            for read in range(0, len(content), body.PART_BYTES):
                reader.feed(content[read : read + body.PART_BYTES])
            reader.finish(json_body.Question)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < json_body.MAX_REST + 2 * 2**20
    assert read < 1.1 * json_body.MAX_REST or kind == "spaces"


def test_a_body_in_parts_is_what_it_is_as_a_whole() -> None:
    """Whatever is valid gives the numbers that one call of the parser gives, wherever it is cut."""
    rng = random.Random(3)
    labels = ["a", 'b"[]{},:\\', "\u00e4\u6f22\U0001f600", " ", 7, 0.5, True]
    for trial in range(200):
        width, rows = rng.randint(1, 5), rng.randint(1, 6)
        numbers = (0, -1, 0.1, 1e-45, -3.4e38, 12345678901234567890, 1e22)
        given = {
            "vectors": [[rng.choice(numbers) for _ in range(width)] for _ in range(rows)],
            "labels": [rng.choice(labels) for _ in range(rows)],
        }
        fields = rng.sample(list(given.items()), 2)
        text = json.dumps(dict(fields), indent=rng.choice([None, 1, 9]), ensure_ascii=rng.random() < 0.5)
        content = text.replace("vectors", rng.choice(["vectors", "v\\u0065ctors"])).encode()
        expected = json_body.TeachingRequest.model_validate_json(content)
        cuts = sorted(rng.randrange(len(content)) for _ in range(trial % 9))
        reader = json_body.JsonReader(width)
        for first, last in itertools.pairwise([0, *cuts, len(content)]):
            reader.feed(content[first:last])
        found = reader.finish(json_body.TeachingRequest)
        assert isinstance(found, json_body.TeachingRequest) and found.labels == expected.labels
        assert np.array_equal(np.stack(reader.rows), np.array(expected.vectors, np.float64).astype(np.float32))


NOT_VECTORS = [
    '{"vectors": [[1, 2]], "vectors": [[1, 2]]}', '{"vectors": [[1, 2]], "vectors": null, "texts": ["a"]}', "1 2",
    '{"vectors": [[1, 2}', '{"vectors": [["]", 2]]}', '{"vectors": [[1, 2]] [[1, 2]]}', '{"vectors": [1 [1, 2]]}',
    '{"vectors": {"x": [1, 2]}}', '{"vectors": [[1, true]]}', '{"vectors": [[1 2, 3]]}', '{"vectors": [[1, NaN]]}',
    '{"vectors": [[1,, 2]]}', '{"vectors": [[[1, 2]]]}', '[{"vectors": [[1, 2]]}]', '{"vectors": [[1, 2]]',
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_VECTORS)
def test_what_is_not_json_of_vectors_is_refused(text: str) -> None:
    for cut in range(len(text)):
        reader = json_body.JsonReader(2)
        with pytest.raises(InputError):
            reader.feed(text[:cut].encode())
            reader.feed(text[cut:].encode())
            reader.finish(json_body.Question)


def peak_memory(service: Service) -> float:
    """The most resident memory that the server ever had, in MB."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_ten_hostile_bodies_take_little_memory(service: Service) -> None:
    before = peak_memory(service)
    for kind in ("empty rows", "labels", "good rows"):
        with ThreadPoolExecutor(10) as pool:
            post = functools.partial(service.client.post, content=hostile(kind), headers=JSON)
            answers = pool.map(post, ["/predict"] * 10)
        assert {answer.status_code for answer in answers} == {422}
    assert peak_memory(service) - before < 100


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    sizes: list[int] = []

    def run(x: np.ndarray) -> list[float]:
        sizes.append(len(x))
        return x[:, 0].tolist()  # type: ignore[no-any-return]

    async def ask() -> None:
        with ThreadPoolExecutor(1) as thread:
            batcher = engine.RequestBatcher(run, thread)
            rows = np.arange(2048, dtype=np.float32)[:, None]
            large = [asyncio.create_task(batcher(part)) for part in (rows[:1024], rows[1024:])]
            await asyncio.sleep(0)
            small = [asyncio.create_task(batcher(rows[index : index + 1])) for index in range(100)]
            assert [(await task)[0] for task in small] == list(range(100))
            assert len(sizes) <= 5 and max(sizes) <= engine.PASS_ROWS and not any(task.done() for task in large)
            assert [answer for task in large for answer in await task] == rows[:, 0].tolist()

    asyncio.run(ask())


# ---- tokens


def test_comparing_tokens_takes_the_same_work_whatever_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every known digest is compared in full, by a function whose time does not depend on where they differ."""
    known = [f"token number {number} of some" for number in range(5)]
    tokens = guard.Tokens(tuple((sha256(token.encode()).digest(), "read") for token in known))
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair) or compare(*pair))
    for given in (*known, None, "", "x", known[0][:-1], known[0][:-1] + "x", "token" * 10_000, "\xff"):
        compared.clear()
        with suppress(HTTPException):
            tokens.allow(given, "read")
        digest = sha256((given or "").encode()).digest()
        assert compared == [(right, digest) for right, _ in tokens.rights]


def test_the_time_of_a_wrong_token_does_not_tell_how_wrong_it_is() -> None:
    """Lower quartiles of many measurements in turns; the best of some tries, for a busy machine."""
    right = "0123456789abcdef" * 4
    tokens = guard.Tokens(((sha256(right.encode()).digest(), "read"),))
    at_its_start, at_its_end = "x" + right[1:], right[:-1] + "x"

    def measure(given: str) -> int:
        start = time.perf_counter_ns()
        with suppress(HTTPException):
            tokens.allow(given, "read")
        return time.perf_counter_ns() - start

    def difference() -> float:
        times = [
            (measure(at_its_start), *(measure(at_its_end) for _ in range(2)), measure(at_its_start))
            for _ in range(2500)
        ]
        first, last = np.quantile(np.array(times)[:, [[0, 3], [1, 2]]], 0.25, axis=(0, 2))
        return float(abs(first - last) / first)

    assert any(difference() < 0.02 for _ in range(10))

"""The service under abuse: silent and half-open connections, huge bodies, a full disk, deaths, foreign host names."""

import asyncio
import functools
import hmac
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from playwright.sync_api import Page, sync_playwright
from starlette.exceptions import HTTPException

from cluster_data import LABELS, TEST, TRAIN
from mtn import MTNClassifier
from mtn.errors import InputError
from mtn.serve import body, connection, engine, guard, json_body, serve, worker
from mtn.serve.journal import MAX_TRIES, Journal, LabelledSamples
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


# ---- a disk that is full, or cannot be written


class Disk:
    """A filesystem of a few megabytes in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __enter__(self) -> "Disk":
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(self.folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_stops_teaching_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    service = Service(write_model(disk.folder / "model", steps=1))
    service.log = tmp_path / "log"
    samples = TRAIN[LABELS == "class 07"]
    with service:
        disk.fill()
        refused = [service.learn(samples, ["new"] * len(samples)), service.client.delete("/classes/class%2000")]
        assert [answer.status_code for answer in refused] == [507, 507]
        assert all("disk is full" in answer.json()["error"] for answer in refused)
        time.sleep(engine.RETRY_SECONDS)
        assert service.client.get("/readyz").status_code == 503
        assert service.answers(TEST[:3]) and service.client.get("/healthz").status_code == 200
        disk.free()
        service.until(lambda: service.client.get("/readyz").status_code == 200, 10)
        job = service.learn(samples, ["new"] * len(samples)).json()["job"]
        assert service.finish(job)["state"] == "done" and service.known()["new"] == len(samples)


def test_a_disk_that_fills_up_during_a_lesson_delays_it(disk: Disk, tmp_path: Path) -> None:
    service = Service(write_model(disk.folder / "model", steps=600))
    service.log = tmp_path / "log"
    samples = TRAIN[LABELS == "class 07"]
    with service:
        job = service.learn(samples, ["new"] * len(samples)).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        disk.fill()
        service.until(lambda: '"event": "hindered"' in service.log.read_text())
        assert service.client.get("/readyz").status_code == 503
        assert service.client.get(f"/jobs/{job}").json()["state"] == "running"
        disk.free()
        assert service.finish(job)["state"] == "done" and service.known()["new"] == len(samples)
        service.until(lambda: service.client.get("/readyz").status_code == 200, 10)
    assert "Traceback" not in service.log.read_text() and '"trace"' not in service.log.read_text()


def test_a_service_on_a_read_only_disk_does_not_start(disk: Disk) -> None:
    write_model(disk.folder / "model", steps=1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
    with pytest.raises(InputError, match="Read-only file system"):
        serve(disk.folder / "model", "127.0.0.1", 0, None)
    subprocess.run(["mount", "-o", "remount,rw", str(disk.folder)], check=True)
    (disk.folder / "model" / "journal").mkdir()
    disk.fill()
    with pytest.raises(InputError, match="cannot be written"):
        Journal(disk.folder / "model" / "journal" / "journal.sqlite")


# ---- processes that die


class Lessons:
    """An engine with real processes; a lesson of the class "fatal" ends its worker process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes, teach = folder.parent / "sizes", worker._teach

        def teach_or_die(classifier: Any, batch: worker.TeachingBatch, progress: Any) -> bool:
            with self.sizes.open("a") as file:
                file.write(f"{len(batch.jobs)}\n")
            if any("fatal" in samples.labels for samples in batch.samples):
                os._exit(9)
            return teach(classifier, batch, progress)

        monkeypatch.setattr(worker, "_teach", teach_or_die)  # before the processes are forked
        self.supervisor = worker.Supervisor(folder)
        self.journal = Journal(folder / "journal.sqlite")
        self.folder = folder

    def run(self, labels: list[str]) -> tuple[list[str], list[int]]:
        """The states of jobs of one label each, and how many jobs each worker process was given."""
        jobs = [self.journal.learn(LabelledSamples(TRAIN[:1], [label])) for label in labels]

        async def work() -> list[str]:
            service = engine.Engine(self.folder, self.journal, self.supervisor)
            service.start()
            while self.journal.waiting():
                await asyncio.sleep(0.05)
            found = [self.journal.find(job.id) for job in jobs]
            await service.stop()
            return [job.state for job in found if job is not None]

        states = asyncio.run(work())
        return states, [int(line) for line in self.sizes.read_text().split()]


@pytest.mark.parametrize("index", [0, 21, 63])
def test_a_batch_whose_process_dies_is_halved(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["class 00"] * 64
    labels[index] = "fatal"
    states, sizes = Lessons(write_model(tmp_path / "model", steps=1), monkeypatch).run(labels)
    assert [number for number, state in enumerate(states) if state != "done"] == [index] and states[index] == "failed"
    assert len(sizes) <= 1 + math.log2(64) + MAX_TRIES + 1, sizes


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only its exit code is left."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[tuple[Service, int, int]]:
    """A service in the middle of a lesson that takes long; its supervisor and its worker process."""
    folder = write_model(tmp_path / "model", steps=1)
    classifier = MTNClassifier.load(folder)
    learner = classifier.state_.learner
    train = learner.config.train.model_copy(update={"min_steps": 1_000_000})
    learner.config = learner.config.model_copy(update={"train": train})
    classifier.save(folder)
    service = Service(folder)
    service.__enter__()
    try:
        job = service.learn(TRAIN[:1], ["new"]).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        (supervisor,) = children(service.process.pid)
        (worker_process,) = children(supervisor)
        yield service, supervisor, worker_process
    finally:
        with suppress(AssertionError):
            service.__exit__()


def plain_lines(service: Service) -> list[str]:
    """Of the log, without the line of the command."""
    return [line for line in service.log.read_text().splitlines()[1:] if not line.startswith("{")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_a_server_that_dies_leaves_no_process_and_no_traceback(
    how: signal.Signals, learning: tuple[Service, int, int]
) -> None:
    service, supervisor, worker_process = learning
    os.kill(service.process.pid, how)
    service.until(lambda: has_ended(supervisor) and has_ended(worker_process), 20)
    assert plain_lines(service) == []


def test_a_worker_ends_by_itself_when_nobody_ends_it(learning: tuple[Service, int, int]) -> None:
    service, supervisor, worker_process = learning
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(service.process.pid, signal.SIGKILL)
    service.until(lambda: has_ended(worker_process), 20)
    os.kill(supervisor, signal.SIGCONT)
    service.until(lambda: has_ended(supervisor), 20)
    assert plain_lines(service) == []


def test_a_worker_ends_with_its_supervisor(learning: tuple[Service, int, int]) -> None:
    service, supervisor, worker_process = learning
    os.kill(supervisor, signal.SIGKILL)
    service.until(lambda: has_ended(worker_process), 20)
    service.until(lambda: service.client.get("/readyz").status_code == 503, 20)
    assert service.answers(TEST[:1]) and plain_lines(service) == []


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
    """Medians of many interleaved measurements; the best of a few tries, for a busy machine."""
    right = "0123456789abcdef" * 4
    tokens = guard.Tokens(((sha256(right.encode()).digest(), "read"),))
    wrong = {"at its start": "x" + right[1:], "at its end": right[:-1] + "x"}

    def measure(given: str) -> int:
        start = time.perf_counter_ns()
        with suppress(HTTPException):
            tokens.allow(given, "read")
        return time.perf_counter_ns() - start

    def difference() -> float:
        times = np.array([[measure(given) for given in wrong.values()] for _ in range(5000)])
        first, last = np.median(times, axis=0)
        return float(abs(first - last) / first)

    assert min(difference() for _ in range(5)) < 0.02


# ---- pages of strangers in a real browser


CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def stranger(service: Service) -> Iterator[Page]:
    """A page of http://evil.test, whose name leads to this machine: DNS rebinding, after the page was loaded."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        rules = "--host-resolver-rules=MAP evil.test 127.0.0.1"
        own_defence = "--disable-features=LocalNetworkAccessChecks"  # newer browsers have one, others must not need it
        arguments = ["--no-sandbox", rules, own_defence]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_context().new_page()
        page.set_default_timeout(120_000)
        page.route("**/stranger.html", lambda route: route.fulfill(content_type="text/html", body="<p>hello"))
        page.goto(f"http://evil.test:{service.port}/stranger.html")  # this one answer is not the service's
        assert page.inner_text("p") == "hello"
        yield page
        browser.close()


FETCH = """async ([url, method, mode, content]) => {
    const options = {method, mode, body: content, headers: {"content-type": "text/plain"}};
    try {
        const answer = await fetch(url, options);
        return [answer.status, answer.type, await answer.text()];
    } catch (error) {
        return [0, String(error), ""];
    }
}"""
ATTEMPTS = [
    *(("GET", path) for path in ("/", "/model", "/classes", "/metrics", "/openapi.json", "/healthz", "/readyz")),
    *(("POST", path) for path in ("/predict", "/explain", "/learn?label=evil", "/classes/class%2000/undo")),
    ("DELETE", "/classes/class%2000"),
]


@pytest.mark.parametrize(("method", "path"), ATTEMPTS)
def test_a_rebound_name_is_refused(method: str, path: str, stranger: Page, service: Service) -> None:
    """To the browser both are one site: nothing but the service's check of the host keeps the page out."""
    before = service.known()
    content = None if method == "GET" else json.dumps({"vectors": TEST[:1].tolist(), "labels": ["evil"]})
    status, _, text = stranger.evaluate(FETCH, [path, method, "same-origin", content])
    assert (status, json.loads(text)["error"]) == (421, "this service answers to its loopback address only")
    assert service.known() == before and service.client.get("/model").json()["waiting"] == 0


def test_a_rebound_name_shows_no_page(stranger: Page, service: Service) -> None:
    page = stranger.context.new_page()
    answer = page.goto(f"http://evil.test:{service.port}/")
    assert answer is not None and answer.status == 421 and page.locator("#summary").count() == 0
    page.close()


@pytest.mark.parametrize(("method", "path"), ATTEMPTS)
@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_another_site_reads_and_changes_nothing(
    mode: str, method: str, path: str, stranger: Page, service: Service
) -> None:
    """The page asks for the service by its own address, as any page may try."""
    before = service.known()
    content = None if method == "GET" else json.dumps({"vectors": TEST[:1].tolist(), "labels": ["evil"]})
    status, _, text = stranger.evaluate(FETCH, [service.url + path, method, mode, content])
    assert (status, text) == (0, "")
    assert service.known() == before and service.client.get("/model").json()["waiting"] == 0


def test_a_form_of_another_site_teaches_nothing(stranger: Page, service: Service) -> None:
    page = stranger.context.new_page()
    form = f'<form method=post enctype=text/plain action="{service.url}/learn?label=evil"><input name=a></form>'
    page.route("**/stranger.html", lambda route: route.fulfill(content_type="text/html", body=form))
    page.goto(f"http://evil.test:{service.port}/stranger.html")
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    assert "pages of other sites may not use this service" in page.content()
    assert "evil" not in service.known() and service.client.get("/model").json()["waiting"] == 0
    page.close()

"""The service as its clients meet it: a real process that is asked, taught, killed, and lied to."""

import hashlib
import io
import itertools
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest
import schemathesis
from PIL import Image
from schemathesis.specs.openapi.checks import positive_data_acceptance

from mtn import MTNClassifier, encoders
from mtn.errors import InputError
from mtn.serve import body, guard, serve
from mtn.serve.engine import MOST_ROWS
from mtn.serve.journal import MOST_WAITING, Full, Journal, Material, Reused
from service import LABELS, QUICK, TEST, TRAIN, TRUE, Service, write_model

READ, TEACH = "a-token-that-may-read", "a-token-that-may-teach"
RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Tests that share it teach it classes of their own."""
    with Service(write_model(tmp_path_factory.mktemp("service") / "model", steps=200)) as service:
        yield service


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """It was taught pictures."""
    folder = tmp_path_factory.mktemp("seer") / "model"
    drawings = [drawing(shape, seed) for shape in ("box", "line") for seed in range(8)]
    it = MTNClassifier("mtn", memory=200, k=5, settings=QUICK, encoder="glyph")
    it.fit(drawings, ["box"] * 8 + ["line"] * 8).save(folder)
    with Service(folder) as service:
        yield service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """It wants tokens; its client may teach."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"# who\nread {READ}\nteach {TEACH}\n")
    tokens.chmod(0o600)
    with Service(write_model(folder / "model", steps=1), "--token-file", str(tokens), token=TEACH) as service:
        yield service


def drawing(shape: str, seed: int) -> Image.Image:
    pixels, rng = np.zeros((32, 32), np.uint8), np.random.default_rng(seed)
    top, left = rng.integers(4, 9, 2)
    pixels[top : top + 18, left : left + (18 if shape == "box" else 3)] = 255
    if shape == "box":
        pixels[top + 4 : top + 14, left + 4 : left + 14] = 0
    return Image.fromarray((pixels * 0.8 + rng.integers(0, 50, pixels.shape)).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


# ---- asked, taught


def test_it_answers_explains_learns_and_forgets(service: Service) -> None:
    client, classifier = service.client, MTNClassifier.load(service.folder)
    answers = service.answers(TEST[:20])
    shares, novelty = classifier.assess(TEST[:20])
    assert [one["label"] for one in answers] == classifier.predict(TEST[:20]).tolist()
    assert [one["probability"] for one in answers] == pytest.approx(shares.max(1).tolist())
    assert [one["novelty"] for one in answers] == pytest.approx(novelty.tolist())
    assert [one["unknown"] for one in answers] == (novelty > classifier.threshold_).tolist()
    assert all(len(one["top"]) == 5 and one["top"][0]["label"] == one["label"] for one in answers)
    raw = client.post("/predict", content=TEST[:20].tobytes(), headers=RAW)
    assert raw.json()["answers"] == answers

    (why,) = client.post("/explain", json={"vectors": TEST[:1].tolist()}).json()["answers"]
    (expected,) = classifier.explain(TEST[:1])
    assert (why["label"], len(why["neighbours"])) == (expected.prediction, 5)
    assert why["neighbours"][0]["id"] == expected.neighbours[0].id and why["neighbours"][0]["picture"] is None

    new, name = TRAIN[LABELS == "class 06"], "the%20seventh"
    answer = service.learn(new, ["the seventh"] * len(new))
    assert answer.status_code == 202 and answer.json()["samples"] == len(new)
    done = service.finish(answer.json()["job"])
    assert (done["state"], done["progress"]) == ("done", 1.0)
    seventh = service.answers(TEST[TRUE == "class 06"])
    assert [one["label"] for one in seventh].count("the seventh") >= 8
    counts = {one["label"]: one["exemplars"] for one in client.get("/classes").json()["classes"]}
    facts = client.get("/model").json()
    assert counts["the seventh"] == 30 and facts["classes"] == len(counts)
    assert facts["memory"] == {"exemplars": sum(counts.values()), "total": 2000, "per_class": None}

    leaving = client.delete(f"/classes/{name}")
    assert leaving.status_code == 202 and leaving.json()["seconds_to_undo"] > 0.5
    assert client.delete(f"/classes/{name}").json()["job"] == leaving.json()["job"]
    assert service.learn(new[:1], ["the seventh"]).status_code == 409
    assert client.post(f"/classes/{name}/undo").json()["state"] == "undone"
    assert client.post(f"/classes/{name}/undo").status_code == 409
    time.sleep(service.undo + 0.2)
    assert "the seventh" in service.known()
    assert service.finish(client.delete(f"/classes/{name}").json()["job"])["state"] == "done"
    assert "the seventh" not in service.known() and client.delete(f"/classes/{name}").status_code == 404
    # nothing of what is forgotten is in any file, the journal's among them
    files = b"".join(file.read_bytes() for file in service.folder.rglob("*") if file.is_file())
    unit = new / np.linalg.norm(new, axis=1, keepdims=True)
    assert not any(row.tobytes()[:16] in files for row in (*new, *unit)) and b"the seventh" not in files


def test_what_arrives_together_is_answered_in_one_pass(service: Service) -> None:
    def passes() -> dict[str, float]:
        lines = [line.split() for line in service.client.get("/metrics").text.splitlines()]
        return {line[0]: float(line[1]) for line in lines if line[0] in ("mtn_pass_rows_sum", "mtn_pass_rows_count")}

    alone, before = MTNClassifier.load(service.folder).predict(TEST[:60]).tolist(), passes()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda row: service.answers(TEST[row : row + 1])[0]["label"], range(60)))
    rows, count = (passes()[name] - before[name] for name in ("mtn_pass_rows_sum", "mtn_pass_rows_count"))
    assert answers == alone and rows == 60 > count


def test_it_answers_with_the_old_model_while_it_learns(service: Service) -> None:
    asked = TEST[TRUE == "class 07"]
    job = service.learn(TRAIN[LABELS == "class 07"], ["the eighth"] * 30).json()["job"]
    service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
    labels = {one["label"] for one in service.answers(asked)}
    assert service.client.get(f"/jobs/{job}").json()["state"] == "running" and "the eighth" not in labels
    assert service.finish(job)["state"] == "done"
    assert "the eighth" in {one["label"] for one in service.answers(asked)}


def test_pictures_are_asked_about_taught_and_shown(seer: Service) -> None:
    client, box, kind = seer.client, png(drawing("box", 100)), {"content-type": "image/png"}
    facts = client.get("/model").json()
    assert (facts["takes"], facts["features"]) == ("images", 256)
    assert client.post("/predict", content=box, headers=kind).json()["answers"][0]["label"] == "box"
    several = {"files": [("picture", ("../../x", png(drawing(one, 50)))) for one in ("box", "line")]}
    assert [one["label"] for one in client.post("/predict", **several).json()["answers"]] == ["box", "line"]
    (why,) = client.post("/explain", content=box, headers=kind).json()["answers"]
    assert all(near["picture"].startswith("data:image/png;base64,") for near in why["neighbours"])
    lines = [np.array(drawing("line", seed)) for seed in range(6)]
    crosses = [png(Image.fromarray(line | line.T)) for line in lines]
    files = [("picture", (f"{seed}.png", content)) for seed, content in enumerate(crosses)]
    job = client.post("/learn", params={"label": "cross/../√"}, files=files).json()["job"]
    assert seer.finish(job)["state"] == "done"
    answer = client.post("/predict", content=crosses[0], headers=kind)
    assert answer.json()["answers"][0]["label"] == "cross/../√"
    assert seer.finish(client.delete("/classes/cross%2F..%2F√").json()["job"])["state"] == "done"


def test_a_model_that_was_taught_nothing_is_taught_from_here(tmp_path: Path) -> None:
    classifier = MTNClassifier("mtn", memory=50, k=5, settings=QUICK, encoder="hashing")
    encoder = encoders.load("hashing")
    classifier.source_ = {"encoder": encoder.identity(), "kind": encoder.kind}
    classifier.save(tmp_path / "model")
    with Service(tmp_path / "model") as service:
        client, asked = service.client, {"texts": ["where is my parcel"]}
        facts = client.get("/model").json()
        assert (facts["takes"], facts["classes"], facts["memory"]["total"]) == ("texts", 0, 50)
        assert client.post("/predict", json=asked).status_code == client.post("/explain", json=asked).status_code == 422
        assert client.delete("/classes/none").status_code == 404 and client.get("/metrics").status_code == 200
        texts = [f"{start} is my parcel" for start in ("where", "when", "here")] + ["pay the bill", "a bill to pay"]
        job = client.post("/learn", json={"texts": texts, "labels": ["post"] * 3 + ["money"] * 2}).json()["job"]
        assert service.finish(job)["state"] == "done"
        assert client.post("/predict", json=asked).json()["answers"][0]["label"] == "post"
        assert len(client.post("/explain", json=asked).json()["answers"][0]["neighbours"]) == 5
        assert client.post("/predict", json={"texts": [""]}).status_code == 422
        assert client.post("/predict", json={"texts": ["x" * 2001]}).status_code == 422
        assert client.post("/predict", content=b"x", headers={"content-type": "image/png"}).status_code == 415
        assert (client.get("/model").json()["takes"], client.get("/model").json()["classes"]) == ("texts", 2)


def test_a_key_makes_a_lesson_one(service: Service) -> None:
    key, ten = {"headers": {"idempotency-key": "once"}}, TRAIN[LABELS == "class 08"][:10]
    first = service.learn(ten, ["the ninth"] * 10, **key)
    again = service.learn(ten, ["the ninth"] * 10, **key)
    assert (again.status_code, again.json()["job"]) == (202, first.json()["job"])
    assert service.learn(ten[:9], ["the ninth"] * 9, **key).status_code == 409
    service.finish(first.json()["job"])
    assert service.learn(ten, ["the ninth"] * 10, **key).json()["state"] == "done"
    assert service.known()["the ninth"] == 10


def test_what_cannot_be_learned_fails_alone(tmp_path: Path) -> None:
    """BiC needs two exemplars of each class: that a memory of 12 is too small shows only when classes are learned."""
    folder = write_model(tmp_path / "model", steps=1, memory=12, method="bic")
    with Service(folder) as service:
        jobs = [service.learn(TRAIN[:1], ["class 00"]).json()["job"]]
        jobs.append(service.learn(TRAIN[180:270:10], LABELS[180:270:10].tolist()).json()["job"])
        jobs.append(service.learn(TRAIN[1:2], ["class 00"]).json()["job"])
        ends = [service.finish(job) for job in jobs]
    assert [end["state"] for end in ends] == ["done", "failed", "done"]
    assert "exemplars of each class" in ends[1]["error"] and str(folder) not in ends[1]["error"]


# ---- nothing lost


def processes(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in found]


def test_a_lesson_whose_process_dies_is_learned_all_the_same(service: Service) -> None:
    (nurse,) = processes(service.process.pid)
    job = service.learn(TRAIN[LABELS == "class 09"], ["the tenth"] * 30).json()["job"]
    service.until(lambda: processes(nurse))
    os.kill(processes(nurse)[0], signal.SIGKILL)
    assert service.finish(job)["state"] == "done" and service.known()["the tenth"] == 30


def test_told_to_stop_it_stops_whatever_it_learns(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", steps=1)
    facts = json.loads((folder / "model.json").read_text())
    facts["configuration"]["train"]["min_steps"] = 1_000_000
    (folder / "model.json").write_text(json.dumps(facts))
    with Service(folder) as service:
        job = service.learn(TRAIN[:1], ["new"]).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        (nurse,) = processes(service.process.pid)
        pupil = processes(nurse)
    assert pupil and not any(Path(f"/proc/{one}").exists() for one in (nurse, *pupil))


def test_killed_at_any_moment_every_accepted_sample_is_learned_once(tmp_path: Path) -> None:
    """Twelve times: two servers side by side, so that it takes half the time."""
    folders = [write_model(tmp_path / name, steps=60) for name in ("one", "other")]
    with ThreadPoolExecutor(2) as pool:
        assert min(pool.map(lambda place: survive(folders[place], 6, random.Random(place)), range(2))) >= 12


def survive(folder: Path, kills: int, rng: random.Random) -> int:
    """Samples that were sent, killed in between. What got no answer is sent again, with its key, to the next server."""
    vectors = np.random.default_rng(8).standard_normal((10_000, TRAIN.shape[1])).astype(np.float32)
    sent: list[list[int]] = [[0]]  # rows of each lesson; the last one has no answer yet
    jobs: list[str] = []

    def send(service: Service) -> None:
        rows = sent[-1]
        labels, key = [f"new {row % 5}" for row in rows], {"idempotency-key": f"rows {rows}"}
        answer = service.learn(vectors[rows], labels, headers=key)
        assert answer.status_code == 202, answer.text
        jobs.append(answer.json()["job"])
        sent.append([rows[-1] + 1 + more for more in range(rng.randint(1, 3))])
        time.sleep(0.02)

    for _ in range(kills):
        with Service(folder) as service:
            killer = threading.Timer(rng.uniform(0.0, 1.5), service.process.kill)
            killer.start()
            with suppress(httpx.TransportError):
                while True:
                    send(service)
            killer.join()
    with Service(folder) as service:
        send(service)
        service.until(lambda: service.client.get("/model").json()["waiting"] == 0)
    classifier = MTNClassifier.load(folder)
    expected = [f"{job}-{place}" for job, rows in zip(jobs, sent, strict=False) for place in range(len(rows))]
    assert sorted(one.id for one in classifier.memory_ if isinstance(one.id, str)) == sorted(expected)
    assert sum(entry["samples"] for entry in classifier.history_) == 180 + len(expected)
    return len(expected)


def test_the_journal_bounds_its_queue_and_knows_its_keys(tmp_path: Path) -> None:
    journal, one = Journal(tmp_path / "journal.sqlite"), Material(np.ones((1, 3), np.float32), ["a"])
    first = journal.learn(one, "key", "digest")
    with pytest.raises(Reused):
        journal.learn(one, "key", "another")
    for _ in range(MOST_WAITING - 1):
        journal.learn(one)
    with pytest.raises(Full):
        journal.learn(one)
    assert journal.learn(one, "key", "digest").id == first.id
    taken = journal.take()
    assert len(taken) == MOST_WAITING and journal.take() == []
    journal.close()
    again = Journal(tmp_path / "journal.sqlite")  # what ran when the server was killed waits again
    assert len(again.take()) == MOST_WAITING
    again.retry(taken[:2])
    assert [job.tries for job in again.take()] == [1] and again.material(taken[0]).vectors.tolist() == [[1, 1, 1]]


# ---- who may


def test_only_loopback_is_open_without_a_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(InputError, match="--token-file"):
            serve(tmp_path, host, 8000, None)
    cases = {
        "": "no token",
        "read short": "16 characters",
        "write " + READ: "must be",
        f"read {READ} {READ}": "must be",
    }
    for text, rule in cases.items():
        tokens.write_text(text)
        tokens.chmod(0o600)
        with pytest.raises(InputError, match=rule):
            serve(tmp_path, "0.0.0.0", 8000, tokens)
    tokens.write_text(f"read {READ}")
    tokens.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        guard.read_tokens(tokens)
    with pytest.raises(InputError, match="cannot be read"):
        guard.read_tokens(tmp_path / "none")
    with pytest.raises(InputError, match="no model"):
        serve(tmp_path / "none", "127.0.0.1", 8000, None)


@pytest.mark.parametrize("missing", ["uvicorn", "python_multipart"])
def test_what_has_to_be_installed_is_said(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf"serve needs {missing}: pip install 'mtn\[serve\]'"):
        serve(tmp_path, "127.0.0.1", 8000, None)


def test_a_second_server_of_a_model_is_refused(service: Service) -> None:
    command = [sys.executable, "-m", "mtn", "serve", str(service.folder), "--port", str(service.port + 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "another process is at work" in done.stderr


def test_tokens_open_what_they_are_for(guarded: Service) -> None:
    vectors = {"vectors": TEST[:1].tolist()}
    ask: list[tuple[str, str, Any]] = [("POST", "/predict", vectors), ("POST", "/explain", vectors)]
    ask += [("GET", path, None) for path in ("/classes", "/model", "/metrics", "/examples")]
    teach = [("POST", "/learn", {}), ("DELETE", "/classes/none", None), ("POST", "/classes/none/undo", None)]
    for token, may_ask, may_teach in ((None, 401, 401), ("wrong" * 5, 401, 401), (READ, 200, 403), (TEACH, 200, None)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        for verb, path, content in ask:
            assert httpx.request(verb, guarded.url + path, json=content, headers=headers).status_code == may_ask
        for verb, path, content in teach:
            status = httpx.request(verb, guarded.url + path, json=content, headers=headers).status_code
            assert status == may_teach if may_teach else status in (404, 422)
    for path in (
        "/",
        "/app.js",
        "/style.css",
        "/docs",
        "/docs.js",
        "/icon.svg",
        "/openapi.json",
        "/healthz",
        "/readyz",
    ):
        assert httpx.get(guarded.url + path).status_code == 200
    basic = httpx.get(guarded.url + "/model", headers={"authorization": f"Basic {READ}"})
    assert basic.status_code == 401 and basic.headers["www-authenticate"] == "Bearer"


def test_strange_hosts_and_other_sites_are_refused(guarded: Service) -> None:
    get = guarded.client.get
    assert get("/model", headers={"host": "evil.example"}).status_code == 421
    assert get("/model", headers={"host": "[::1"}).status_code == 421
    assert get("/model", headers={"host": "localhost:80"}).status_code == 200
    for origin in ("http://evil.example", "null", "http://[", f"http://127.0.0.1:{guarded.port + 1}"):
        assert get("/model", headers={"origin": origin}).status_code == 403
    own = get("/model", headers={"origin": guarded.url})
    assert own.status_code == 200 and not any("access-control" in name for name in own.headers)


def test_answers_are_sealed_and_tell_nothing_of_the_inside(guarded: Service) -> None:
    answers = [
        guarded.client.get(path) for path in ("/", "/nothing", "/model", "/openapi.json", "/classes/../../etc/passwd")
    ]
    answers.append(guarded.client.post("/predict", content=b"{", headers={"content-type": "application/json"}))
    answers.append(guarded.client.get("/", headers={"host": "evil.example"}))
    for answer in answers:
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff" and "server" not in answer.headers
        inside = (str(guarded.folder), "Traceback", "uvicorn", "fastapi", "pydantic", np.__version__)
        assert not [word for word in inside if word in answer.text or word in str(answer.headers)]
    assert guarded.client.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert guarded.client.get("/healthz", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"
    lines = [json.loads(line) for line in guarded.log.read_text().splitlines() if line.startswith("{")]
    mine = [line for line in lines if line.get("request") == "mine-1"]
    assert mine[0]["route"] == "/healthz" and mine[0]["status"] == 200 and mine[0]["ms"] >= 0


# ---- lied to


def state(service: Service) -> tuple[Any, ...]:
    files = [file for file in sorted(service.folder.iterdir()) if file.is_file() and file.name != ".lock"]
    digests = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    looks = [service.client.get(path).json() for path in ("/classes", "/model")]
    return *digests, *looks


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is huge."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1_000_000, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def text_bomb() -> bytes:
    whole = png(drawing("box", 0))
    text = chunk(b"zTXt", b"x\0\0" + zlib.compress(b"\0" * 200_000_000, 9))
    return whole[:33] + text + whole[33:]


NAN, HUGE = float("nan"), 3.4e38
WRONG_JSON: list[Any] = [
    b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"vectors": NaN}', b"[" * 100_000, b'{"vectors": [[1e999]]}',
    {"vectors": []}, {"vectors": [[]]}, {"vectors": [[1, 2]]}, {"vectors": "text"}, {"vectors": [["a"] * 16]},
    {"vectors": [[1] * 16, [1] * 15]}, {"vectors": [[None] * 16]}, {"vectors": {"a": 1}}, {"texts": ["words"]},
    {"vectors": [[1] * 16], "more": 1}, {"vectors": [[1e300] * 16]}, {"vectors": [[0] * 16] * (MOST_ROWS + 1)},
    {"vectors": [[1] * 16], "texts": ["both"]}, {"__proto__": {}}, 7, "text", {"vectors": [[[1] * 16]]},
]  # fmt: skip
WRONG_LABELS: list[Any] = [
    None, [], ["a", "b"], [""], [" "], ["."], [".."], ["a\0b"], ["\x1b[31m"], ["a" * 201], [None], [["a"]], {"a": 1},
    "a",
]  # fmt: skip
RAW_BODIES = [
    b"", b"\0", b"\0" * 63, b"\0" * 65, np.full(16, NAN, "<f4").tobytes(), np.full(16, np.inf, "<f4").tobytes(),
    b"\0" * (64 * (MOST_ROWS + 1)),
]  # fmt: skip


def test_lies_are_refused_and_change_nothing(guarded: Service) -> None:
    client, before = guarded.client, state(guarded)
    answers = []
    for path in ("/predict", "/explain", "/learn?label=x"):
        for wrong in WRONG_JSON:
            content = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
            answers.append(client.post(path, content=content, headers={"content-type": "application/json"}))
        answers += [client.post(path, content=content, headers=RAW) for content in RAW_BODIES]
        for kind in (
            "text/plain",
            "image/png",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
            "x",
        ):
            answers.append(client.post(path, content=b"x" * 100, headers={"content-type": kind}))
        answers += [client.post(path), client.put(path, content=b"{}")]
    for labels in WRONG_LABELS:
        answers.append(client.post("/learn", json={"vectors": TEST[:1].tolist(), "labels": labels}))
    answers.append(client.post("/learn", content=TEST[:1].tobytes(), headers=RAW))
    answers.append(client.post("/learn?label=" + "%00", content=TEST[:1].tobytes(), headers=RAW))
    for key in ("", "k" * 201):
        content = {"vectors": TEST[:1].tolist(), "labels": ["x"]}
        answers.append(client.post("/learn", json=content, headers={"idempotency-key": key}))
    for name in ("none", "..%2F..%2Fetc%2Fpasswd", "%00", "%ff%fe", "class%2000/undo", "a" * 5000, ""):
        answers.append(client.delete(f"/classes/{name}"))
        answers.append(client.post(f"/classes/{name}/undo"))
        answers.append(client.get(f"/jobs/{name}"))
    strange = [one for one in answers if not 400 <= one.status_code < 500 or "error" not in one.json()]
    assert not strange, [
        (one.request.url, one.request.content[:80], one.status_code, one.text[:200]) for one in strange
    ]
    fine = [client.post("/predict", json={"vectors": [[value] * 16]}) for value in (0, 1e-45, HUGE, -HUGE)]
    assert [one.status_code for one in fine] == [200] * 4
    assert state(guarded) == before


def test_bad_pictures_are_refused_and_change_nothing(seer: Service) -> None:
    whole = png(drawing("box", 0))
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    wrong = [
        b"", b"x", whole[:20], whole[:100], whole[:-30], whole[:60] + bytes(40) + whole[100:], text_bomb(), svg,
        bomb(60_000, 60_000), bomb(10_000, 5_001), bomb(2**31 - 1, 2**31 - 1), b"%!PS\n(/etc/passwd) run",
        b"GIF89a" + bytes(20), b"\xff\xd8\xff\xe0" + bytes(50), b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"P6 9999 9999 255\n",
        b"II*\0" + b"\xff" * 40,
    ]  # fmt: skip
    before, client = state(seer), seer.client
    for path in ("/predict", "/explain", "/learn?label=x"):
        for number, content in enumerate(wrong):
            one = client.post(path, content=content, headers={"content-type": "image/png"})
            many = client.post(path, files=[("picture", ("ok.png", whole)), ("picture", ("../" * 9 + "x", content))])
            assert (one.status_code, many.status_code) == (422, 422), (path, number, one.text, many.text)
            assert "/etc" not in one.text and "0x" not in one.text
        many = client.post(path, files=[("picture", ("a", whole))] * (body.MOST_ITEMS + 1))
        assert 400 <= many.status_code < 500
        assert 400 <= client.post(path, files={}, data={"picture": "text"}).status_code < 500
        for broken in (b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=picture; filename=a\r\n\r\nabc", b""):
            kind = {"content-type": "multipart/form-data; boundary=x"}
            assert 400 <= client.post(path, content=broken, headers=kind).status_code < 500
    assert state(seer) == before


def test_a_request_that_breaks_off_is_no_failure(guarded: Service) -> None:
    head = f"POST /learn?label=x HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TEACH}\r\ncontent-length: 64\r\n"
    for kind in ("application/json", "application/octet-stream"):
        with socket.create_connection(("127.0.0.1", guarded.port)) as one:
            one.sendall(f"{head}content-type: {kind}\r\nx-request-id: broken\r\n\r\n".encode() + b"{" * 10)
            time.sleep(0.2)
    guarded.until(lambda: guarded.log.read_text().count('"request": "broken"') == 2)
    lines = [json.loads(line) for line in guarded.log.read_text().splitlines() if "broken" in line]
    assert [line["status"] for line in lines] == [400, 400] and guarded.known()


def test_too_much_is_refused(guarded: Service) -> None:
    limit, client = guard.MOST_BYTES, guarded.client
    assert client.post("/predict", content=bytes(limit + 1), headers=RAW).status_code == 413
    pieces = (bytes(2**20) for _ in range(limit // 2**20 + 2))  # without a length told beforehand
    with suppress(httpx.WriteError):  # it does not read on
        assert client.post("/predict", content=pieces, headers=RAW).status_code == 413
    many = {"vectors": TEST[:40].tolist()}
    assert client.post("/explain", json=many).status_code == 422
    assert client.post("/predict", json=many).status_code == 200


def test_the_description_holds(guarded: Service) -> None:
    """What it allows and what it does not: no answer is a failure of the server, and all are as described.

    It cannot say all that is wrong: how many bytes a vector has, which numbers are beyond float32.
    """
    headers = {"Authorization": f"Bearer {TEACH}"}
    found = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json")
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    operations = [one.ok() for one in found.get_all_operations()]
    assert len(operations) == 12
    for operation, mode in itertools.product(operations, modes):
        with suppress(hypothesis.errors.Unsatisfiable):  # nothing is wrong that has nothing to be wrong in

            @hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def holds(case: schemathesis.Case) -> None:
                case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

            holds()

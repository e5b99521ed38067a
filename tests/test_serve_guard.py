"""Whom the service answers, and that nothing it is sent breaks or changes it."""

import itertools
import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cluster_data import TEST
from mtn.errors import InputError
from mtn.serve import guard, serve
from mtn.serve.engine import MAX_ROWS
from service import PATIENCE, RAW, Service, snapshot, write_model

READ, TEACH = "a-token-that-may-read", "a-token-that-may-teach"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """It wants tokens; its client may teach."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"# who\nread {READ}\nteach {TEACH}\n")
    tokens.chmod(0o600)
    with Service(write_model(folder / "model", steps=1), "--token-file", str(tokens), token=TEACH) as service:
        yield service


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
    with pytest.raises(InputError, match=rf"serve needs {missing}: pip install '.*\[serve\]'"):
        serve(tmp_path, "127.0.0.1", 8000, None)


def test_tokens_open_what_they_are_for(guarded: Service) -> None:
    def ask(verb: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(verb, guarded.url + path, timeout=PATIENCE, **options)  # without the client's token

    vectors = {"vectors": TEST[:1].tolist()}
    questions: list[tuple[str, str, Any]] = [("POST", "/predict", vectors), ("POST", "/explain", vectors)]
    questions += [("GET", path, None) for path in ("/classes", "/model", "/metrics", "/examples")]
    questions.append(("GET", "/exemplars?label=class%2000", None))
    teach = [("POST", "/learn", {}), ("DELETE", "/classes/none", None), ("POST", "/classes/none/undo", None)]
    teach += [(verb, f"/exemplars/{2**40}?label=x", None) for verb in ("PATCH", "DELETE")]
    teach += [("PATCH", "/classes/none?label=x", None)]
    for token, may_ask, may_teach in ((None, 401, 401), ("wrong" * 5, 401, 401), (READ, 200, 403), (TEACH, 200, None)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        for verb, path, content in questions:
            assert ask(verb, path, json=content, headers=headers).status_code == may_ask
        for verb, path, content in teach:
            status = ask(verb, path, json=content, headers=headers).status_code
            assert status == may_teach if may_teach else status in (404, 422)
        assert ask("GET", "/model/download", headers=headers).status_code == (may_teach or 200)
    for path in (
        "/",
        "/app.js",
        "/page.js",
        "/style.css",
        "/docs",
        "/docs.js",
        "/icon.svg",
        "/openapi.json",
        "/healthz",
        "/readyz",
    ):
        assert ask("GET", path).status_code == 200
    basic = ask("GET", "/model", headers={"authorization": f"Basic {READ}"})
    assert basic.status_code == 401 and basic.headers["www-authenticate"] == "Bearer"


def test_strange_hosts_and_other_sites_are_refused(guarded: Service) -> None:
    get = guarded.client.get
    assert get("/model", headers={"host": "evil.example"}).status_code == 421
    assert get("/model", headers={"host": "[::1"}).status_code == 421
    assert get("/model", headers={"host": "evil.example:80@localhost"}).status_code == 421
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


NAN, HUGE = float("nan"), 3.4e38


WRONG_JSON: list[Any] = [
    b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"vectors": NaN}', b"[" * 100_000, b'{"vectors": [[1e999]]}',
    {"vectors": []}, {"vectors": [[]]}, {"vectors": [[1, 2]]}, {"vectors": "text"}, {"vectors": [["a"] * 16]},
    {"vectors": [[1] * 16, [1] * 15]}, {"vectors": [[None] * 16]}, {"vectors": {"a": 1}}, {"texts": ["words"]},
    {"vectors": [[1] * 16], "more": 1}, {"vectors": [[1e300] * 16]}, {"vectors": [[0] * 16] * (MAX_ROWS + 1)},
    {"vectors": [[1] * 16], "texts": ["both"]}, {"__proto__": {}}, 7, "text", {"vectors": [[[1] * 16]]},
]  # fmt: skip


WRONG_LABELS: list[Any] = [
    None, [], ["a", "b"], [""], [" "], ["."], [".."], ["a\0b"], ["\x1b[31m"], ["a" * 201], [None], [["a"]], {"a": 1},
    "a",
]  # fmt: skip


RAW_BODIES = [
    b"", b"\0", b"\0" * 63, b"\0" * 65, np.full(16, NAN, "<f4").tobytes(), np.full(16, np.inf, "<f4").tobytes(),
    b"\0" * (64 * (MAX_ROWS + 1)),
]  # fmt: skip


def test_lies_are_refused_and_change_nothing(guarded: Service) -> None:
    client, before = guarded.client, snapshot(guarded)
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
    assert snapshot(guarded) == before


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
    limit, client = guard.MAX_BYTES, guarded.client
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
    found = schemathesis.openapi.from_url(f"{guarded.url}/openapi.json", timeout=PATIENCE)
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    operations = [one.ok() for one in found.get_all_operations()]
    assert len(operations) == 17
    for operation, mode in itertools.product(operations, modes):
        with suppress(hypothesis.errors.Unsatisfiable):  # nothing is wrong that has nothing to be wrong in

            @hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def holds(case: schemathesis.Case) -> None:
                case.call_and_validate(headers=headers, timeout=PATIENCE, excluded_checks=[positive_data_acceptance])

            holds()

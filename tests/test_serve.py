"""The service as its clients meet it: a real process that is asked, taught and killed."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

import http_examples
from cluster_data import LABELS, TEST, TRAIN, TRUE
from mtn import MTNClassifier, encoders
from mtn.serve.journal import MAX_WAITING, SCHEMA, Journal, JournalFull, KeyReused, LabelledSamples
from mtn.storage.model_folder import checksum
from service import PATIENCE, QUICK, RAW, Service, write_model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Tests that share it teach it classes of their own."""
    with Service(write_model(tmp_path_factory.mktemp("service") / "model", steps=200)) as service:
        yield service


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


def test_the_examples_of_the_manual_with_vectors(service: Service, tmp_path: Path) -> None:
    asked, names = TEST[:3].tolist(), ["by curl"] * 3
    (tmp_path / "question.json").write_text(json.dumps({"vectors": asked}))
    (tmp_path / "lesson.json").write_text(json.dumps({"vectors": asked, "labels": names}))
    (tmp_path / "vectors.f32").write_bytes(TEST[:3].astype("<f4").tobytes())
    predicted, raw, why, _ = (
        http_examples.send(service, line, tmp_path) for line in http_examples.section("Vectors")[0]
    )
    assert predicted == raw and len(why["answers"]) == 3 and "by curl" in service.known()
    left = http_examples.run_python(service, "Vectors", X=TEST[:3])
    assert len(left["answers"]) == 3 and "new class" in service.known()
    for name in ("by curl", "new class"):
        assert service.finish(service.client.delete(f"/classes/{name}").json()["job"])["state"] == "done"


def test_a_model_that_was_taught_nothing_is_taught_from_here(tmp_path: Path) -> None:
    classifier = MTNClassifier("mtn", memory=50, k=5, settings=QUICK, encoder="hashing")
    encoder = encoders.load_encoder("hashing")
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
        (why,) = client.post("/explain", json=asked).json()["answers"]
        assert (why["text"], len(why["neighbours"])) == (texts[0], 5)
        assert why["neighbours"][0]["text"] == texts[0] and {near["text"] for near in why["neighbours"]} == set(texts)
        assert sum(why["shares"].values()) == pytest.approx(why["score"], abs=1e-5) and why["runner_up"] == "money"
        assert client.post("/predict", json={"texts": [""]}).status_code == 422
        assert client.post("/predict", json={"texts": ["x" * 2001]}).status_code == 422
        for line in http_examples.section("Sentences")[0]:
            http_examples.send(service, line, tmp_path)
        left = http_examples.run_python(service, "Sentences")
        assert left["why"]["neighbours"][0]["text"] and {"music", "light"} <= set(service.known())
        assert client.post("/predict", content=b"x", headers={"content-type": "image/png"}).status_code == 415
        assert (client.get("/model").json()["takes"], client.get("/model").json()["classes"]) == ("texts", 4)
        assert service.finish(client.delete("/classes/post").json()["job"])["state"] == "done"
        files = b"".join(file.read_bytes() for file in service.folder.rglob("*") if file.is_file())
        assert b"my parcel" not in files and b"pay the bill" in files


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
    (supervisor,) = processes(service.process.pid)
    job = service.learn(TRAIN[LABELS == "class 09"], ["the tenth"] * 30).json()["job"]
    service.until(lambda: processes(supervisor))
    os.kill(processes(supervisor)[0], signal.SIGKILL)
    assert service.finish(job)["state"] == "done" and service.known()["the tenth"] == 30


def test_told_to_stop_it_stops_whatever_it_learns(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", steps=1)
    facts = json.loads((folder / "model.json").read_text())
    facts["configuration"]["train"]["min_steps"] = 1_000_000
    (folder / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    with Service(folder) as service:
        job = service.learn(TRAIN[:1], ["new"]).json()["job"]
        service.until(lambda: service.client.get(f"/jobs/{job}").json()["doing"] == "training")
        (supervisor,) = processes(service.process.pid)
        workers = processes(supervisor)
    assert workers and not any(Path(f"/proc/{one}").exists() for one in (supervisor, *workers))


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
    journal, one = Journal(tmp_path / "journal.sqlite"), LabelledSamples(np.ones((1, 3), np.float32), ["a"])
    first = journal.learn(one, "key", "digest")
    with pytest.raises(KeyReused):
        journal.learn(one, "key", "another")
    for _ in range(MAX_WAITING - 1):
        journal.learn(one)
    with pytest.raises(JournalFull):
        journal.learn(one)
    assert journal.learn(one, "key", "digest").id == first.id
    taken = journal.take()
    assert len(taken) == MAX_WAITING and journal.take() == []
    journal.close()
    again = Journal(tmp_path / "journal.sqlite")  # what ran when the server was killed waits again
    assert len(again.take()) == MAX_WAITING
    again.retry(taken[:2])
    assert [job.tries for job in again.take()] == [1] and again.samples(taken[0]).vectors.tolist() == [[1, 1, 1]]


def test_the_journal_has_sentences_until_they_are_learned_and_takes_that_of_an_earlier_version(tmp_path: Path) -> None:
    file, texts = tmp_path / "journal.sqlite", ["a secret sentence", "🙂 another"]
    with sqlite3.connect(file) as old:
        old.executescript(SCHEMA.replace(",\n    texts TEXT", ""))
    old.close()
    journal = Journal(file)
    job = journal.learn(LabelledSamples(np.ones((2, 3), np.float32), ["a", "b"], texts=texts))
    journal.close()
    assert b"a secret sentence" in file.read_bytes()
    journal = Journal(file)
    assert journal.take() == [job] and journal.samples(job).texts == texts
    journal.finish([job])
    content = b"".join(part.read_bytes() for part in tmp_path.iterdir())
    assert b"sentence" not in content and "🙂".encode() not in content
    journal.close()


def test_a_second_server_of_a_model_is_refused(service: Service) -> None:
    command = [sys.executable, "-m", "mtn", "serve", str(service.folder), "--port", str(service.port + 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "another process is at work" in done.stderr

"""What a service is told to change of what it knows: names, examples; and the model that it gives away."""

import asyncio
import io
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.types import Message, Receive, Scope, Send

from cluster_data import LABELS, TEST, TRAIN
from mtn import MTNClassifier
from mtn.errors import InputError
from mtn.serve import guard
from mtn.serve.journal import Change, ClassChanging, Job, Journal, KeyReused, LabelledSamples
from mtn.serve.looking import MAX_DOWNLOADS
from mtn.serve.worker import MEANWHILE, TeachingBatch, apply_batch
from mtn.storage.archive import Archive
from mtn.storage.model_folder import checksum
from service import QUICK, Service, snapshot

STRANGE = ["../x", "1", 1, "a\u202eb", "<b>", "é" * 300, "", "%2e", *range(100, 112)]
"""Ids as strangers give them."""


def write_strange(folder: Path) -> Path:
    """A model of two classes of ten vectors, with pictures and odd ids."""
    rows = [*np.flatnonzero(LABELS == "class 00")[:10], *np.flatnonzero(LABELS == "class 01")[:10]]
    pictures = np.arange(20 * 64, dtype=np.uint8).reshape(20, 8, 8)
    it = MTNClassifier("mtn", memory=100, k=5, settings=QUICK | {"train.min_steps": 1})
    it.fit(TRAIN[rows], ["one/two"] * 10 + ["other"] * 10, ids=STRANGE, thumbnails=pictures).save(folder)
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(write_strange(tmp_path_factory.mktemp("changes") / "my model")) as service:
        yield service


def listed(service: Service, label: str, **options: int) -> list[dict[str, Any]]:
    page = service.client.get("/exemplars", params={"label": label, **options}).json()
    return page["exemplars"]  # type: ignore[no-any-return]


def test_examples_are_listed_moved_and_removed_and_classes_renamed(service: Service) -> None:
    client = service.client
    facts = client.get("/model").json()
    assert (facts["name"], facts["labels"], facts["encoder"]) == ("my model", "string", None)
    first = listed(service, "one/two")
    assert len(first) == 10 and all(one["picture"].startswith("data:image/png;base64,") for one in first)
    assert {(type(one["id"]), one["id"]) for one in first + listed(service, "other")} == {(type(i), i) for i in STRANGE}
    assert [one["number"] for one in listed(service, "one/two", start=4, count=3)] == [
        one["number"] for one in first[4:7]
    ]
    assert listed(service, "one/two", start=10) == [] == listed(service, "one/two", start=2**53)

    numbers = {repr(one["id"]): one["number"] for one in first}
    number, text = numbers["1"], numbers["'1'"]
    done = client.patch(f"/exemplars/{number}", params={"label": "other"})  # the id 1, not "1"
    assert (done.status_code, done.json()["kind"]) == (202, "relabel")
    assert service.finish(done.json()["job"])["state"] == "done" and service.known() == {"one/two": 9, "other": 11}
    assert 1 in [one["id"] for one in listed(service, "other")] and "1" in [
        one["id"] for one in listed(service, "one/two")
    ]
    done = client.delete(f"/exemplars/{text}", headers={"idempotency-key": "gone"})
    assert service.finish(done.json()["job"])["state"] == "done" and service.known() == {"one/two": 8, "other": 11}
    assert client.delete(f"/exemplars/{text}").status_code == 404
    assert len(MTNClassifier.load(service.folder).thumbnails_) == 19

    key = {"idempotency-key": "once"}
    before = service.answers(TEST[:20])
    done = client.patch("/classes/one%2Ftwo", params={"label": "<i>ü"}, headers=key)
    assert service.finish(done.json()["job"])["state"] == "done"
    assert service.known() == {"<i>ü": 8, "other": 11}
    after = service.answers(TEST[:20])
    assert [one["probability"] for one in after] == [one["probability"] for one in before]
    assert {one["label"] for one in after} <= {"<i>ü", "other"}
    again = client.patch("/classes/%3Ci%3Eü", params={"label": "one/two"}, headers=key)  # the key came with another
    assert again.status_code == 409
    done = client.patch("/classes/%3Ci%3Eü", params={"label": "one/two"})
    assert service.finish(done.json()["job"])["state"] == "done"


def test_a_sentence_that_is_removed_is_in_no_file_any_more(tmp_path: Path) -> None:
    """Taught by the service and removed by it: not in the model, not in the journal, not in the log."""
    folder, secret = tmp_path / "model", "my number is 4921 zebra"
    MTNClassifier("knn", k=1, encoder="hashing").fit(["lamp on", "play jazz"], ["light", "music"]).save(folder)

    def found() -> set[str]:
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        return {file.name.partition("-")[0] for file in files if b"4921 zebra" in file.read_bytes()}

    with Service(folder) as service:
        taught = service.client.post("/learn", json={"texts": [secret, "light please"], "labels": ["light", "light"]})
        assert service.finish(taught.json()["job"])["state"] == "done"
        assert any(found())
        (number,) = [one["number"] for one in listed(service, "light") if one["text"] == secret]
        removed = service.client.delete(f"/exemplars/{number}")
        assert service.finish(removed.json()["job"])["state"] == "done"
        assert {one["text"] for one in listed(service, "light")} == {"lamp on", "light please"}
        assert not found()
        assert b"light please" in b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())
    assert not found()


def test_what_cannot_be_changed_is_refused_in_words_and_changes_nothing(service: Service) -> None:
    client, before = service.client, snapshot(service)
    number = listed(service, "other")[0]["number"]
    wrong = [
        (client.patch("/classes/none", params={"label": "x"}), 404, "there is no class 'none'"),
        (client.patch("/classes/other", params={"label": "one/two"}), 409, "there is a class 'one/two' already"),
        (client.patch("/classes/other", params={"label": "other"}), 409, "already"),
        (client.patch("/classes/other", params={"label": "one/two\u200b"}), 422, "must look different"),
        (client.patch("/classes/other", params={"label": "a\0"}), 422, "visible characters"),
        (client.patch("/classes/other", params={"label": "a" * 201}), 422, "1 to 200"),
        (client.patch("/classes/other"), 422, "`label` is missing"),
        (client.patch(f"/exemplars/{number}", params={"label": "none"}), 404, "there is no class 'none'"),
        (client.patch("/exemplars/999", params={"label": "other"}), 404, "number 999"),
        (client.patch("/exemplars/x", params={"label": "other"}), 422, "`number` must be a whole number"),
        (client.delete("/exemplars/-1"), 422, "`number` must be at least 0"),
        (client.delete(f"/exemplars/{2**63}"), 422, "`number` must be at most"),
        (client.get("/exemplars", params={"label": "none"}), 404, "there is no class 'none'"),
        (client.get("/exemplars"), 422, "`label` is missing"),
        (client.get("/exemplars", params={"label": "other", "count": 61}), 422, "`count` must be at most 60"),
        (client.get("/exemplars", params={"label": "other", "start": -1}), 422, "`start` must be at least 0"),
        (client.get("/nothing"), 404, "there is nothing at this address"),
        (client.put("/exemplars/1"), 405, "does not take this kind of request"),
    ]
    for answer, status, words in wrong:
        assert answer.status_code == status and words in answer.json()["error"], answer.text
    assert snapshot(service) == before


WRONG_BODIES = [
    (b"{", "the body is not JSON"),
    (b"7", "the body must be a JSON object"),
    (b"{}", "`labels` is missing"),
    (b'{"labels": ["a"]}', "the body must have `vectors` or `texts`, and not both"),
    (b'{"texts": [""], "labels": ["a"]}', "sentence 1 must not be empty"),
    (b'{"texts": ["a", 7], "labels": ["a"]}', "sentence 2 must be text"),
    (b'{"texts": ["%s"], "labels": ["a"]}' % (b"x" * 2001), "sentence 1 is too long: it may have at most 2,000"),
    (b'{"texts": [], "labels": ["a"]}', "`texts` must not be empty"),
    (b'{"texts": ["hello"], "labels": ["a"]}', "this model takes vectors, got sentences"),
    (b'{"vectors": [[1, 2]], "labels": ["a"]}', "a vector of this model has 16 numbers, got 2 in vector 1"),
    (b'{"vectors": [[%s"a"]], "labels": ["a"]}' % (b"1, " * 15), "vector 1 must be a list of finite numbers"),
    (b'{"labels": "a"}', "`labels` must be a list"),
    (b'{"labels": [null]}', "label 1"),
    (b'{"labels": ["a"], "more": 1}', "`more` is not known here"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), WRONG_BODIES)
def test_what_is_wrong_with_a_body_is_said_in_words(content: bytes, words: str, service: Service) -> None:
    answer = service.client.post("/learn", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and answer.json()["error"].startswith(words), answer.text


def test_a_class_that_is_about_to_lose_its_name_is_left_alone(service: Service) -> None:
    """Whatever is asked of it would be done to a class of another name, or to none."""
    client = service.client
    service.undo, leaving = 1.0, client.delete("/classes/other")
    number = listed(service, "one/two")[0]["number"]
    for answer in (
        client.patch("/classes/other", params={"label": "another"}),
        client.patch(f"/exemplars/{number}", params={"label": "other"}),
        service.learn(TRAIN[:1], ["other"]),
    ):
        assert answer.status_code == 409 and "'other' is being forgotten: undo that first" in answer.json()["error"]
    assert leaving.status_code == 202 and client.post("/classes/other/undo").status_code == 200


def test_the_model_is_downloaded_whole_and_nothing_else(service: Service) -> None:
    (service.folder / "mine.txt").write_text("private")
    answer = service.client.get("/model/download")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="my-model.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = {name.partition("/")[2].partition("-")[0] for name in archive.namelist()}
        assert names == {"model.json", "README.md", "weights", "memory"} and archive.testzip() is None
        archive.extractall(service.folder.parent / "copy")
    copy = MTNClassifier.load(service.folder.parent / "copy" / "my-model")
    assert copy.predict(TEST[:20]).tolist() == [one["label"] for one in service.answers(TEST[:20])]
    again = [service.client.get("/model/download").status_code for _ in range(MAX_DOWNLOADS + 1)]
    assert set(again) == {200} and service.client.head("/model/download").status_code == 200


# ---- without a server


def test_an_archive_is_of_one_state_whatever_is_saved_meanwhile(tmp_path: Path) -> None:
    folder = write_strange(tmp_path / "model")
    first = Archive(folder)
    MTNClassifier.load(folder).forget("other").save(folder)
    content = b"".join(first.parts())
    first.close()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(tmp_path / "copy")
    assert MTNClassifier.load(tmp_path / "copy" / "model").classes_.tolist() == ["one/two", "other"]
    (folder / "README.md").write_text("# A classifier of something else")  # not of this state
    with zipfile.ZipFile(io.BytesIO(b"".join(Archive(folder).parts()))) as archive:
        assert not any("README" in name for name in archive.namelist())
    facts = json.loads((folder / "model.json").read_text()) | {"memory": {"uri": "http://x", "name": "y"}}
    (folder / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    with pytest.raises(InputError, match="Milvus"):
        Archive(folder)
    (folder / "model.json").unlink()
    with pytest.raises(InputError):
        Archive(folder)


def test_an_answer_of_many_parts_may_take_longer_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(guard, "DOWNLOAD_SECONDS", 0.6)

    def sent(pauses: list[float]) -> int:
        """Parts that have left, if the application takes so long for each."""
        parts: list[Message] = []

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for pause in pauses:
                await asyncio.sleep(pause)
                await send({"type": "http.response.body", "body": b"part", "more_body": True})

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            parts.append(message)

        scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], "path": "/"}
        asyncio.run(guard.Guard(application, loopback=True)(scope, receive, send))
        return sum(message["type"] == "http.response.body" for message in parts)

    assert sent([0.1] * 4) == 4
    assert sent([0.1, 0.4, 0.1]) == 1
    assert 3 <= sent([0.1] * 20) <= 6


def apply(folder: Path, change: Change, id: str) -> str:
    return apply_batch(folder, TeachingBatch([Job(id, "running", 0.0, 0, None, [], change)], []), lambda *_: None).error


def test_a_change_that_was_saved_before_a_kill_is_not_made_again(tmp_path: Path) -> None:
    """The journal has it done again; the model names it."""
    folder = write_strange(tmp_path / "model")
    changes = [Change("rename", "other", "new"), Change("relabel", "../x", "new"), Change("remove", 1)]
    for number, change in enumerate(changes):
        assert apply(folder, change, f"job {number}") == ""
        content = (folder / "model.json").read_bytes()
        assert apply(folder, change, f"job {number}") == "" and (folder / "model.json").read_bytes() == content
    assert apply(folder, changes[2], "another") == "", "what is gone already needs no removing"
    assert apply(folder, changes[0], "another") == MEANWHILE
    it = MTNClassifier.load(folder)
    assert dict(it.state_.exemplar_counts()) == {"new": 11, "one/two": 8} and len(it.history_) == 1


def test_the_journal_keeps_no_name_longer_than_it_is_needed(tmp_path: Path) -> None:
    file, one = tmp_path / "journal.sqlite", LabelledSamples(np.ones((1, 3), np.float32), ["secret"])
    journal = Journal(file)
    journal.fail(journal.learn(one), "no")
    with pytest.raises(ClassChanging, match="renamed: wait"):
        journal.correct(Change("rename", "secret", "secret 2"), "key", "digest")
        journal.learn(one)
    with pytest.raises(KeyReused):
        journal.correct(Change("remove", 3), "key", "other digest")
    (renaming,) = journal.take()
    journal.finish([renaming])
    assert json.loads(sqlite3.connect(file).execute("SELECT labels FROM jobs").fetchone()[0]) == ["secret 2"]
    journal.forget("secret 2", 10.0)
    assert journal.undo("secret 2") is not None
    journal.forget("secret 2", 0.0)
    journal.fail(journal.correct(Change("remove", "secret 3")), MEANWHILE)
    journal.finish(journal.take())
    journal.close()
    assert not any(b"secret" in part.read_bytes() for part in tmp_path.iterdir())


def test_a_journal_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "journal.sqlite"
    with sqlite3.connect(file) as old:
        columns = "id TEXT, key TEXT, digest TEXT, state TEXT, due REAL, tries INTEGER DEFAULT 0, error TEXT"
        rest = "forgets TEXT, labels TEXT, vectors BLOB, thumbnails BLOB, shape TEXT"
        old.execute(f"CREATE TABLE jobs (number INTEGER PRIMARY KEY, {columns}, {rest})")
        old.execute(
            "INSERT INTO jobs (id, state, due, forgets, labels) VALUES ('a', 'waiting', 0, '\"caf\\u00e9\"', '[]')"
        )
    journal = Journal(file)
    assert journal.forgetting() == {"café": 0.0} and journal.undo("café") is not None
    journal.forget("café", 0.0)
    (job,) = journal.take()
    assert job.forgets == "café"
    journal.finish([job])
    assert job.state == "waiting" and journal.waiting() == 0


@pytest.mark.parametrize("moment", ["accepted", "saved"])
def test_a_change_survives_a_kill(moment: str, tmp_path: Path) -> None:
    folder = write_strange(tmp_path / "model")
    with Service(folder) as service:
        job = service.client.patch("/classes/other", params={"label": "new"}).json()["job"]
        if moment == "saved":
            service.until(lambda: b'"new"' in (folder / "model.json").read_bytes())
        service.process.kill()
    with Service(folder) as service:
        assert service.finish(job)["state"] == "done" and service.known() == {"new": 10, "one/two": 10}

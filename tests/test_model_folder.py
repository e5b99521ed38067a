"""A classifier in its folder: whole or not at all, and never believed when damaged."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classifiers import classifier, some
from cluster_data import LABELS, TEST, TRAIN
from mtn import MTNClassifier
from mtn.classifier.info import read_info
from mtn.errors import InputError
from mtn.storage import files
from mtn.storage.model_folder import FORMAT, checksum

X, Y = TRAIN, LABELS
FORMATS = Path(__file__).parent / "fixtures" / "formats"


@pytest.mark.parametrize("method", ["joint", "bic", "slda", "knn"])
def test_what_methods_remember_survives_the_disk(method: str, tmp_path: Path) -> None:
    it = classifier(method).fit(X[some(0, 1, 2)], Y[some(0, 1, 2)])
    it.save(tmp_path)
    again = MTNClassifier.load(tmp_path)
    for one in (it, again):
        one.partial_fit(X[some(3, 4)], Y[some(3, 4)])
    assert np.array_equal(it.predict_proba(TEST), again.predict_proba(TEST))


def test_a_round_trip_changes_nothing(fitted: MTNClassifier, model_folder: Path, tmp_path: Path) -> None:
    fitted.save(tmp_path / "again")
    names = [sorted(file.name for file in folder.iterdir()) for folder in (model_folder, tmp_path / "again")]
    assert names[0] == names[1]  # named after their content
    other = MTNClassifier.load(tmp_path / "again")
    for ask in (other.predict_proba, other.decision_function, other.novelty):
        assert np.array_equal(ask(TEST), getattr(fitted, ask.__name__)(TEST))
    assert other.memory_ == fitted.memory_ and other.history_ == fitted.history_
    assert other.explain(TEST[:3]) == fitted.explain(TEST[:3])
    assert other.get_params() == fitted.get_params()


@pytest.mark.parametrize("folder", sorted(FORMATS.glob("*/*/")), ids=lambda folder: "-".join(folder.parts[-2:]))
def test_a_folder_of_each_later_format_answers_as_when_it_was_written(folder: Path, tmp_path: Path) -> None:
    """Formats 1 and 2 are in tests/fixtures/v0, which test_neutral opens."""
    then = json.loads((folder.parent / "answers.json").read_text())[folder.name]
    assert json.loads((folder / "model.json").read_text())["format"] == int(folder.parent.name)
    it = MTNClassifier.load(shutil.copytree(folder, tmp_path / "model"))
    asked = then["asked"] if folder.name == "text" else np.array(then["asked"], np.float32)
    assert it.classes_.tolist() == then["classes"]
    assert [[str(one.id), one.label] for one in it.memory_] == then["memory"]
    np.testing.assert_allclose(it.predict_proba(asked), then["probability"], atol=1e-5)
    np.testing.assert_allclose(it.novelty(asked), then["novelty"], rtol=1e-4, atol=1e-4)
    assert not (folder.name == "text" and int(folder.parent.name) >= 4) or it.explain(asked)[0].neighbours[0].text


def test_every_format_is_among_the_fixtures() -> None:
    found = {json.loads(path.read_text())["format"] for path in FORMATS.parent.rglob("model.json")}
    assert found == set(range(1, FORMAT + 1))


@pytest.mark.parametrize("failing", range(4))
def test_a_failure_at_any_write_leaves_the_old_model_or_the_new(
    failing: int, fitted: MTNClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path)
    (tmp_path / "mine.txt").write_text("left alone")
    answers = [fitted.predict_proba(TEST)]
    fitted.partial_fit(X[:30] + 5, np.repeat("new", 30))
    answers.append(fitted.predict_proba(TEST))
    writes = []

    def broken(path: Path, fill: Any) -> None:
        writes.append(path)
        if len(writes) == failing + 1:
            fill(path.with_name(f".{path.name}.partial"))
            raise OSError("no space left")
        original(path, fill)

    original = files.write
    monkeypatch.setattr(files, "write", broken)
    with pytest.raises(OSError, match="no space"):
        fitted.save(tmp_path)
    monkeypatch.undo()
    found = MTNClassifier.load(tmp_path).predict_proba(TEST)
    assert np.array_equal(found, answers[failing == 3])  # weights, memory, model.json, then the card
    fitted.save(tmp_path)
    assert np.array_equal(MTNClassifier.load(tmp_path).predict_proba(TEST), answers[1])
    kept = sorted(re.sub("[0-9a-f]{16}", "*", file.name) for file in tmp_path.iterdir())
    assert kept == [".lock", "README.md", "memory-*.safetensors", "mine.txt", "model.json", "weights-*.safetensors"]


def test_a_process_killed_while_saving_leaves_a_whole_model(model_folder: Path, tmp_path: Path) -> None:
    code = f"""
from mtn import MTNClassifier
from mtn.classifier.info import read_info
one, two = MTNClassifier.load({str(model_folder)!r}), MTNClassifier.load({str(model_folder)!r}).forget("class 00")
while True:
    for it in (one, two):
        it.save({str(tmp_path)!r})
        print(".", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(7):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(MTNClassifier.load(tmp_path).classes_) in (11, 12)


def test_a_damaged_foreign_or_newer_folder_is_named(fitted: MTNClassifier, tmp_path: Path) -> None:
    def refused(message: str, change: Any) -> None:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        fitted.save(folder)
        change(folder)
        with pytest.raises(InputError, match=message):
            MTNClassifier.load(folder)

    def one(folder: Path, name: str) -> Path:
        (file,) = folder.glob(f"{name}*")
        return file

    def edit(folder: Path, **changes: Any) -> None:
        facts = json.loads((folder / "model.json").read_text())
        changed = facts | changes
        (folder / "model.json").write_text(json.dumps(changed | {"checksum": checksum(changed)}))

    refused("format 99, .* upgrade", lambda folder: edit(folder, format=99))
    refused("weights-.* is damaged", lambda folder: one(folder, "weights").write_bytes(pickle.dumps({"a": 1})))
    refused("memory-.* cannot be read", lambda folder: one(folder, "memory").unlink())
    refused("memory-.* is damaged", lambda folder: one(folder, "memory").write_bytes(b"half"))
    refused("model.json is damaged", lambda folder: (folder / "model.json").write_bytes(pickle.dumps({"a": 1})))
    refused("model.json is damaged", lambda folder: edit(folder, labels=None))
    refused("model.json is damaged", lambda folder: edit(folder, files={"weights": {"name": "../x", "sha256": ""}}))
    facts = fitted.state_.learner.config.model_dump()
    foreign = facts | {"method": facts["method"] | {"name": "antigravity:Method"}}
    refused("import antigravity first", lambda folder: edit(folder, configuration=foreign))
    assert "antigravity" not in sys.modules
    with pytest.raises(InputError, match="holds no model"):
        MTNClassifier.load(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and not a model"):
        fitted.save(tmp_path / "mine")


def test_a_model_of_format_1_answers_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its network had no rows of its own for the query as it came: without them the sum is the old one."""
    it = classifier("practical").fit(X, Y)
    it.state_.learner.method.network.raw.data.zero_()
    it.state_.learner.method.weights[2:] = 0  # and there was no discriminant
    state = it.state_.learner.method.state_dict()
    new = ("network.raw", "network.log_scale")
    old = {name: tensor for name, tensor in state.items() if name not in new and not name.startswith("fourier.")}
    old |= {"taught": old.pop("network.taught"), "weights": old["weights"][:2]}
    monkeypatch.setattr(it.state_.learner.method, "state_dict", lambda: old)
    monkeypatch.setattr("mtn.storage.model_folder.FORMAT", 1)
    it.save(tmp_path)
    monkeypatch.undo()
    again = MTNClassifier.load(tmp_path)
    assert np.array_equal(again.predict_proba(TEST), it.predict_proba(TEST))
    again.partial_fit(X[:20], [f"again {label}" for label in Y[:20]]).save(tmp_path)
    assert np.isfinite(MTNClassifier.load(tmp_path).predict_proba(TEST)).all()


def test_what_a_folder_tells_is_what_the_model_tells(model_folder: Path, tmp_path: Path) -> None:
    it = MTNClassifier.load(model_folder).forget(LABELS[0])
    it.save(tmp_path / "model")
    assert read_info(tmp_path / "model") == json.loads(json.dumps(it.info()))
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    del facts["summary"]  # as an early version wrote it
    (tmp_path / "model" / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    assert read_info(tmp_path / "model") is None
    assert MTNClassifier.load(tmp_path / "model").info() == it.info()


@pytest.mark.parametrize("change", ["count", "length", "type"])
def test_a_summary_that_is_not_of_the_model_is_refused(model_folder: Path, tmp_path: Path, change: str) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    facts = json.loads((folder / "model.json").read_text())
    counts = facts["summary"]["exemplars"]
    facts["summary"]["exemplars"] = {"count": [counts[0] + 1, *counts[1:]], "length": counts[1:], "type": "x"}[change]
    (folder / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    with pytest.raises(InputError, match="is damaged"):
        MTNClassifier.load(folder)
    if change != "count":
        with pytest.raises(InputError, match="is damaged"):
            read_info(folder)

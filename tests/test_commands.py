"""The commands around a model folder: what they print, write and refuse, and that a refusal changes nothing."""

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cluster_data import ARRAYS, LABELS, TEST, TRAIN
from commands import file_contents
from dataset_files import write_images
from mtn import MTNClassifier
from mtn.errors import InputError, install_line
from mtn.recipes import with_changes
from mtn.storage import files
from mtn.storage.model_folder import checksum

QUICK = ["--method", "mtn", "--memory", "60", "--set", "method.size=small", "--set", "method.k=5",
         "--set", "train.epochs=3"]  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"method.size": "small", "train.epochs": 3}
    folder = tmp_path_factory.mktemp("taught") / "model"
    MTNClassifier("mtn", memory=60, k=5, settings=settings).fit(TRAIN[:180], LABELS[:180]).save(folder)
    return folder


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "model"))


# ---- vectors


def test_a_model_is_taught_asked_changed_and_described(call, tmp_path: Path) -> None:
    np.savez("first.npz", x=TRAIN[:180], y=LABELS[:180])
    np.savez("more.npz", x=TRAIN[150:240], y=LABELS[150:240])
    np.save("asked.npy", TEST[:70:10])
    code, out, err = call("learn", "model", "first.npz", *QUICK)
    assert code == 0 and not err
    assert re.fullmatch(r"model: 0 -> 6 classes, 180 samples, [\d.]+ s\n", out)
    code, out, _ = call("learn", "model", "more.npz")
    assert out.startswith("model: 6 -> 8 classes, 90 samples, ")
    assert re.search(r"\naccuracy on samples of known classes before learning: [\d.]+ %\n", out)

    classifier = MTNClassifier.load("model")
    assert (classifier.memory, classifier.k, classifier.progress) == (60, 5, False)
    code, out, _ = call("predict", "model", "asked.npy", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["label"] for one in answers] == classifier.predict(TEST[:70:10]).tolist()
    assert [one["input"] for one in answers] == [f"asked.npy:{row}" for row in range(7)]
    assert [one["novelty"] for one in answers] == pytest.approx(classifier.novelty(TEST[:70:10]))
    code, out, _ = call("predict", "model", "asked.npy", "asked.npy", "--unknown", "who knows")
    lines = out.splitlines()
    assert lines[0].split() == ["input", "label", "probability", "novelty", "unknown"] and len(lines) == 15

    code, out, _ = call("rename", "model", "class 00", "the first")
    assert code == 0 and out == "model: 'class 00' is now 'the first'\n"
    code, out, _ = call("forget", "model", "class 03")
    assert code == 0 and out == "model: 'class 03' is forgotten, 7 classes are left\n"
    code, out, _ = call("info", "model", "--json")
    facts = json.loads(out)
    names = [one["label"] for one in facts["classes"]]
    assert "the first" in names and "class 03" not in names and len(names) == 7
    assert facts["memory"]["exemplars"] == sum(one["exemplars"] for one in facts["classes"]) <= 60
    assert [entry["samples"] for entry in facts["history"]] == [180, 90] and facts["weights"] == {}
    code, out, _ = call("info", "model")
    assert code == 0 and "exemplars, room for 60" in out and "the first" in out and " MB; temperature " in out


def test_info_tells_the_weight_of_each_part(taught: Path) -> None:
    classifier = MTNClassifier.load(taught)
    classifier.state_.learner.method.register_buffer("weights", torch.tensor([0.75, 0.5]))
    assert classifier.info()["weights"] == {"prototypes": 0.75, "network": 0.5}


def test_a_table_teaches_text_or_a_model_s_integers(call, tmp_path: Path) -> None:
    def table(name: str, labels: list[str], columns: str = "a,b,label,c,id") -> None:
        rows = [f"{row}.5,{len(label)},{label},{ord(label)},{name} {row}" for row, label in enumerate(labels)]
        Path(name).write_text("\n".join([columns, *rows]) + "\n")

    table("one.csv", ["1", "2"] * 4)
    table("two.csv", ["3"] * 4)
    assert call("learn", "text", "one.csv", *QUICK)[0] == 0
    assert call("learn", "text", "two.csv")[0] == 0
    assert MTNClassifier.load("text").classes_.tolist() == ["1", "2", "3"]
    np.savez("whole.npz", x=TRAIN[:60, :3], y=ARRAYS["y_train"][:60])
    assert call("learn", "whole", "whole.npz", *QUICK)[0] == 0
    assert call("learn", "whole", "two.csv")[0] == 0
    assert MTNClassifier.load("whole").classes_.tolist() == [0, 1, 3]
    assert call("forget", "whole", "1")[0] == 0
    assert call("rename", "whole", "3", "4")[0] == 0
    assert MTNClassifier.load("whole").classes_.tolist() == [0, 4]
    table("names.csv", ["x"])
    assert "labels of this model are whole numbers (int), got 'x'" in call("learn", "whole", "names.csv")[2]
    table("columns.csv", ["1"], "a,b,label,z,id")
    assert "lacks the column 'c'" in call("predict", "text", "columns.csv")[2]


# ---- images


def test_images_are_taught_predicted_and_explained(call, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes", classes=3, count=6)
    (folder / "class 0" / "broken.png").write_text("no image")
    code, out, err = call("learn", "model", "shapes", *QUICK)
    assert code == 0 and "0 -> 3 classes, 18 samples" in out
    assert err.startswith("left out: shapes/class 0/broken.png: it is not an image") and err.count("\n") == 1
    code, out, _ = call("predict", "model", "shapes/class 1/0.png", "shapes/class 2", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["input"] for one in answers] == ["shapes/class 1/0.png"] + [f"shapes/class 2/{i}.png" for i in range(6)]
    code, out, _ = call("explain", "model", "shapes/class 1/0.png", "--json")
    (answer,) = [json.loads(line) for line in out.splitlines()]
    assert len(answer["neighbours"]) == 5
    assert answer["neighbours"][0]["id"] == "shapes/class 1/0.png"  # the image itself, once more
    assert answer["neighbours"][0]["before"] == pytest.approx(1, abs=1e-5)
    for name in ("figure.png", "figure.svg"):
        code, out, _ = call("explain", "model", "shapes/class 1/0.png", "--out", name)
        assert code == 0 and out.endswith(f"{name}\n") and (tmp_path / name).stat().st_size > 5000
    assert "shapes/class 1/0.png" in out and "once adapted" in out
    assert Image.open(tmp_path / "figure.png").size[0] > 400
    assert "made from images by the encoder 'glyph'" in call("info", "model")[1]
    code, _, err = call("learn", "model", "shapes")
    assert code == 2 and "ids must be different" in err  # taught already


# ---- onnx


@pytest.mark.parametrize("method", ["mtn", "knn", "ssil"])
def test_an_exported_network_gives_the_scores(call, tmp_path: Path, method: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    settings = {"method.size": "small", "train.epochs": 1, "method.labels": True}
    classifier = MTNClassifier(method, memory=60, k=5, settings=settings).fit(TRAIN, LABELS).forget("class 02")
    classifier.save("model")
    code, out, err = call("export", "model", "model.onnx")
    assert code == 0 and re.fullmatch(r"model\.onnx: within \de-\d+ of torch's scores\n", out), err
    session = runtime.InferenceSession("model.onnx")
    meta = session.get_modelmeta().custom_metadata_map
    assert json.loads(meta["classes"]) == classifier.classes_.tolist()
    feed = {"query": TEST}
    if method != "ssil":
        _, rows = classifier.kneighbors(TEST)
        known = {label: place for place, label in enumerate(classifier.classes_.tolist())}
        labels = np.array([known[one.label] for one in classifier.memory_])
        near = classifier.state_.learner.memory.vectors().numpy()[rows]
        feed |= {"neighbours": near, "labels": labels[rows], "mask": np.ones(rows.shape, bool)}
    (scores,) = session.run(None, feed)
    np.testing.assert_allclose(scores, classifier.decision_function(TEST), atol=1e-4)


def test_a_missing_extra_is_named(call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = call("export", "model", "model.onnx")
    assert code == 2 and f"export needs onnx: {install_line('onnx')}" in err


# ---- one at a time, whole at any time


def endless(model: Path) -> None:
    """Make the next lesson of a model last for ever."""
    classifier = MTNClassifier.load(model)
    classifier.state_.learner.config = with_changes(classifier.state_.learner.config, train={"min_steps": 10**9})
    classifier.save(model)


def test_a_second_learn_is_refused_and_a_kill_leaves_the_old_model(call, model: Path, tmp_path: Path) -> None:
    endless(model)
    np.savez("more.npz", x=TRAIN[180:], y=LABELS[180:])
    before = file_contents(model)
    started = (
        "import sys; from mtn import training; from mtn.cli import main as cli; inner = training.Learner.learn_task\n"
        "training.Learner.learn_task = lambda *a, **o: (open('training', 'w').close(), inner(*a, **o))\n"
        "sys.argv = ['mtn', 'learn', 'model', 'more.npz']; cli.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", started], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "training").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for command in (["learn", "model", "more.npz"], ["forget", "model", "class 00"]):
            code, _, err = call(*command)
            assert (code, err) == (
                2,
                "error: another process is at work in model: wait for it, or name another folder\n",
            )
        with pytest.raises(InputError, match="another process is at work"):
            MTNClassifier.load(model).save(model)
        assert call("predict", "model", "more.npz")[0] == 0  # reading is free
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert file_contents(model) == before
    assert call("forget", "model", "class 00")[0] == 0  # the lock went with the process


def test_a_kill_in_the_first_lesson_leaves_a_folder_that_can_be_taught(call, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".lock").touch()
    np.savez("first.npz", x=TRAIN[:180], y=LABELS[:180])
    assert call("learn", "model", "first.npz", *QUICK)[0] == 0


def test_an_interrupt_is_one_line_and_leaves_nothing(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("first.npz", x=TRAIN[:180], y=LABELS[:180])
    monkeypatch.setattr(MTNClassifier, "partial_fit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert call("learn", "new/model", "first.npz") == (130, "", "interrupted; new/model is unchanged\n")
    assert [file.name for file in tmp_path.iterdir()] == ["first.npz"]


# ---- mistakes

BAD = {
    "wrong width": (["learn", "model", "narrow.npz"], "vectors must have 16 numbers, as the model's have, got 4"),
    "wrong width asked": (["predict", "model", "narrow.npz"], "vectors must have 16 numbers"),
    "NaN": (["learn", "model", "nan.npz"], "x has a NaN or infinite value in row 3"),
    "NaN asked": (["explain", "model", "nan.npz"], "x has a NaN or infinite value in row 3"),
    "empty": (["learn", "model", "empty.npz"], "x must be a matrix of numbers, got shape (0, 16)"),
    "text": (["learn", "model", "text.csv"], "line 2: the column 'b' must hold numbers, got 'six'"),
    "absent data": (["learn", "model", "nothing.npz"], "DATA: no file or folder 'nothing.npz'"),
    "absent input": (["predict", "model", "nothing.npy"], "INPUT: no file or folder 'nothing.npy'"),
    "integers": (["learn", "model", "integers.npz"], "y must be of the same type as the labels before (str), got int"),
    "unknown class": (["forget", "model", "clas 00"], "no class 'clas 00': did you mean 'class 00'?"),
    "taken name": (["rename", "model", "class 00", "class 01"], "'class 01' is already the label of another class"),
    "options": (["learn", "model", "good.npz", "--method", "knn"], "--method is for a new model: model exists"),
    "set": (["learn", "model", "good.npz", "--set", "train.lr=1"], "--set is for a new model: model exists"),
    "images": (["learn", "model", "pictures"], "this model was taught vectors, got images"),
    "images asked": (["predict", "model", "pictures/one/a.png"], "this model was taught vectors, got images"),
    "no classes": (["learn", "model", "pictures/one"], "pictures/one has no folders with images"),
    "unreadable": (["predict", "model", "broken.png"], "this model was taught vectors, got images"),
    "figure": (["explain", "model", "good.npz", "--out", "f.gif"], "--out must end in .png or .svg, got 'f.gif'"),
    "many": (["explain", "model", "good.npz", "--out", "f.png"], "--out takes at most 50 inputs, got 60"),
    "no folder": (["explain", "model", "two.npy", "--out", "no/f.png"], "no/f.png cannot be written"),
    "onnx": (["export", "model", "model.txt"], "FILE must end in .onnx, got 'model.txt'"),
    "onnx folder": (["export", "model", "no/m.onnx"], "no/m.onnx cannot be written"),
    "absent model": (["predict", "absent", "good.npz"], "absent holds no model: there is no file absent/model.json"),
    "forget of nothing": (["forget", "absent", "x"], "absent holds no model"),
    "info of nothing": (["info", "pictures"], "pictures holds no model"),
    "not a model": (["learn", "pictures", "good.npz"], "pictures is not empty and not a model"),
    "a file": (["learn", "good.npz", "good.npz"], "cannot make the folder good.npz"),
    "new, bad method": (["learn", "new", "good.npz", "--method", "mtm"], "no method 'mtm': did you mean 'mtn'?"),
    "new, bad memory": (["learn", "new/er", "good.npz", "--memory", "0"], "memory.total should be greater than"),
    "new, bad key": (["learn", "new", "good.npz", "--set", "train.l=1"], "unknown key 'train.l'"),
    "new, bad data": (["learn", "new", "nan.npz"], "x has a NaN or infinite value in row 3"),
    "new, no value": (["learn", "new", "good.npz", "--set", "seed"], "--set takes key=value, got 'seed'"),
    "a stream": (["learn", "new", "good.npz", "--set", "stream.step=1"], "'stream.step' is not for here"),
    "nothing to tell by": (["predict", "plain", "good.npz", "--unknown", "?"], "method 'ncm' keeps no exemplars"),
}


@pytest.fixture(scope="module")
def prepared(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(taught, folder / "model")
    spoilt = TRAIN[:60].copy()
    spoilt[3, 2] = np.inf
    np.savez(folder / "good.npz", x=TRAIN[:60], y=LABELS[:60])
    np.savez(folder / "narrow.npz", x=TRAIN[:60, :4], y=LABELS[:60])
    np.savez(folder / "nan.npz", x=spoilt, y=LABELS[:60])
    np.savez(folder / "empty.npz", x=TRAIN[:0], y=LABELS[:0])
    np.savez(folder / "integers.npz", x=TRAIN[:60], y=ARRAYS["y_train"][:60])
    np.save(folder / "two.npy", TRAIN[:2])
    (folder / "text.csv").write_text("a,b,label\n5,six,class 00\n")
    (folder / "pictures" / "one").mkdir(parents=True)
    Image.new("L", (40, 40)).save(folder / "pictures" / "one" / "a.png")
    (folder / "broken.png").write_text("no image")
    MTNClassifier("ncm").fit(TRAIN[:60], LABELS[:60]).save(folder / "plain")
    return folder


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_changes(call, prepared: Path, case: str) -> None:
    os.chdir(prepared)  # `call` goes back
    before = file_contents(prepared)
    arguments, expected = BAD[case]
    code, _, err = call(*arguments)
    assert code == 2 and expected in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert file_contents(prepared) == before
    assert not (prepared / "new").exists() and not (prepared / "absent").exists()


def damage(kind: str, model: Path) -> None:
    (weights,) = model.glob("weights-*")
    if kind == "a changed bit":
        data = bytearray(weights.read_bytes())
        data[-3] ^= 1
        weights.write_bytes(bytes(data))
    elif kind == "no weights":
        weights.unlink()
    elif kind == "half an index":
        text = (model / "model.json").read_text()
        (model / "model.json").write_text(text[: len(text) // 2])
    else:  # a pickle, and an index that vouches for it
        weights.write_bytes(pickle.dumps(Loud()))
        facts = json.loads((model / "model.json").read_text())
        facts["files"]["weights"]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
        files.write_json(model / "model.json", facts | {"checksum": checksum(facts)})


class Loud:
    def __reduce__(self):
        return os.system, ("touch run-by-pickle",)


@pytest.mark.parametrize("kind", ["a changed bit", "no weights", "half an index", "a pickle"])
def test_a_damaged_model_is_one_error_whatever_is_asked(call, model: Path, tmp_path: Path, kind: str) -> None:
    damage(kind, model)
    np.savez("good.npz", x=TRAIN[:60], y=LABELS[:60])
    before = file_contents(model)
    for command in (["predict", "model", "good.npz"], ["learn", "model", "good.npz"], ["forget", "model", "class 00"]):
        code, _, err = call(*command)
        assert code == 2 and err.startswith("error: model/") and err.count("\n") == 1
        assert file_contents(model) == before
    assert not (tmp_path / "run-by-pickle").exists()


def test_no_address_is_promised_for_a_model_that_is_not_there(call) -> None:
    code, out, err = call("serve", "nothing-here")
    assert code == 2 and out == "" and "nothing-here holds no model" in err

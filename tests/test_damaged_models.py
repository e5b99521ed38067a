"""Damaged and forged model folders are one line, and nothing but text reaches a terminal."""

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors

from cluster_data import cluster_arrays
from mtn import MTNClassifier
from mtn.cli import main
from mtn.errors import InputError
from mtn.runtime.text import is_shown
from mtn.storage.model_folder import checksum
from strangers import call, edit

ARRAYS = cluster_arrays(train=8, test=2, classes=5)
X, Y = ARRAYS["x_train"], np.array([f"class {label}" for label in ARRAYS["y_train"]])
V0 = Path(__file__).parent / "fixtures" / "v0" / "models"
TEST = ARRAYS["x_test"]

# ---- damage is one line


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With everything that a folder may hold: ids, thumbnails, a forgotten class, a history of two calls."""
    folder = tmp_path_factory.mktemp("models") / "model"
    thumbnails = np.random.default_rng(0).integers(0, 256, (len(X), 2, 2, 3), np.uint8)
    classifier = MTNClassifier("mtn", memory=20, k=3, settings={"method.size": "small", "train.epochs": 1})
    first = Y < "class 3"
    classifier.fit(X[first], Y[first], ids=[f"a{row}" for row in range(first.sum())], thumbnails=thumbnails[first])
    classifier.partial_fit(X[~first], Y[~first]).forget("class 1").save(folder)
    return folder


def answers(folder: Path) -> np.ndarray | None:
    """What a folder's model answers; None if it is refused in one line that names a file of the folder."""
    try:
        loaded = MTNClassifier.load(folder)
        loaded.info(), loaded.memory_, loaded.explain(TEST[:2])
        return loaded.predict_proba(TEST)
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error), error
        return None


def damaged_copies(folder: Path, scratch: Path, count: int) -> Iterator[Path]:
    """The folder with a byte changed, a part cut off or bytes put in, `count` times for each of its files."""
    chance = random.Random(0)
    for name in sorted(file.name for file in folder.iterdir() if file.name != ".lock"):
        content = (folder / name).read_bytes()
        for _ in range(count):
            position, how = chance.randrange(len(content)), chance.randrange(4)
            changed = bytes([content[position] ^ (1 << chance.randrange(8))]) if how < 2 else chance.randbytes(3)
            rest = (content[position + 1 :], content[position + 1 :], b"", content[position:])[how]
            damaged = content[:position] + (b"" if how == 2 else changed) + rest
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(folder, scratch)
            (scratch / name).write_bytes(damaged)
            yield scratch


def test_a_folder_damaged_at_random_answers_as_it_did_or_is_one_line(model: Path, tmp_path: Path) -> None:
    expected, refused = answers(model), 0
    start = time.monotonic()
    for folder in damaged_copies(model, tmp_path / "damaged", 120):
        found = answers(folder)
        refused += found is None
        assert found is None or np.array_equal(found, expected)
    assert 300 < refused <= 360 and time.monotonic() - start < 120  # all but changes of the card and of white space


def test_a_folder_of_an_early_format_damaged_at_random_is_one_line_or_answers(tmp_path: Path) -> None:
    """It has no checksum of model.json, so a changed name or number may pass."""
    for name in ("mtn", "knn-float16", "practical-format-1"):
        shutil.copytree(V0 / name, tmp_path / name)
        x = np.ones((3, MTNClassifier.load(tmp_path / name).n_features_in_))
        for folder in damaged_copies(tmp_path / name, tmp_path / "damaged", 60):
            with suppress(InputError):
                assert MTNClassifier.load(folder).predict(x).shape == (3,)


def test_a_changed_bit_of_a_class_name_is_noticed(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    text = (tmp_path / "model" / "model.json").read_text()
    (tmp_path / "model" / "model.json").write_text(text.replace('"class 2"', '"class 3"', 1))
    for act in (["predict", "x.npy"], ["forget", "class 2"], ["info"]):
        code, said = call(act[0], str(tmp_path / "model"), *act[1:])
        assert code == 2 and "model.json is damaged: its checksum does not match" in said
    edit(tmp_path / "model", format=2)
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    (tmp_path / "model" / "model.json").write_text(json.dumps(facts | {"format": 3, "checksum": None}))
    assert answers(tmp_path / "model") is None


WRONG: dict[str, Any] = {
    "parameters": None,
    "parameters__progress": "print",
    "parameters__memory": [1],
    "parameters__settings": [["train.epochs", 1]],
    "parameters__encoder": {"name": "glyph"},
    "parameters__surprise": 1,
    "source": [],
    "source__encoder": 7,
    "source__kind": "sound",
    "source__": {"encoder": {"name": "glyph"}},
    "source__columns": "x",
    "configuration": [],
    "configuration__method": "mtn",
    "configuration__train": {"batch": "many"},
    "labels__kind": "dict",
    "labels__names": ["a", 1],
    "labels": {"kind": "str", "names": ["a", "a", "b", "c", "d"]},
    "features__count": 17,
    "features": {"count": 10**12, "names": []},
    "features__names": ["x"],
    "calls": [5, 3],
    "arrived": "many",
    "ids": [[0]],
    "ids__": [[True, "a"]],
    "temperature": 0,
    "temperature__": 10**30,
    "threshold": "high",
    "usual": [[0, 0]],
    "class_distance": [0.0],
    "history": [{}],
    "history__": "long",
    "memory": {"uri": "http://127.0.0.1:1", "name": "somebody_elses"},
    "files": {"weights": {"name": "weights-0123456789abcdef.safetensors", "sha256": "x"}},
    "files__weights": "w",
    "files__memory": {"name": "../../etc/passwd", "sha256": ""},
    "files__other": {"name": "weights-0123456789abcdef.safetensors", "sha256": ""},
    "format": True,
    "format__": 0,
}


@pytest.mark.parametrize("key", WRONG)
def test_wrong_types_and_missing_keys_are_one_line(key: str, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    edit(tmp_path / "model", **{key.removesuffix("__"): WRONG[key]})
    assert answers(tmp_path / "model") is None
    shutil.copy(model / "model.json", tmp_path / "model")
    facts = json.loads((model / "model.json").read_text())
    if facts.pop(key.partition("__")[0], None) is not None and not key.startswith(("source", "class_distance")):
        (tmp_path / "model" / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
        assert answers(tmp_path / "model") is None


def retouch(folder: Path, part: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change tensors as a stranger would, with checksums that agree."""
    (file,) = folder.glob(f"{part}-*")
    tensors = safetensors.load(file.read_bytes())
    change(tensors)
    content = safetensors.save(tensors)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{part}-{digest[:16]}.safetensors"
    (folder / name).write_bytes(content)
    edit(folder, **{f"files__{part}": {"name": name, "sha256": digest}})


LIES: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], Any]]] = {
    "fewer labels": ("memory", lambda t: t.update(y=t["y"][1:])),
    "a class that is none": ("memory", lambda t: t["y"].fill_(99)),
    "a forgotten class": ("memory", lambda t: t["y"].fill_(1)),
    "a negative class": ("memory", lambda t: t["y"].fill_(-1)),
    "labels that are floats": ("memory", lambda t: t.update(y=t["y"].double())),
    "one sample twice": ("memory", lambda t: t["id"].fill_(0)),
    "narrow vectors": ("memory", lambda t: t.update(x=t["x"][:, 1:].contiguous())),
    "vectors without an end": ("memory", lambda t: t["x"].fill_(float("nan"))),
    "no vectors": ("memory", lambda t: t.pop("x")),
    "no priorities": ("memory", lambda t: t.pop("priority")),
    "a matrix of priorities": ("memory", lambda t: t.update(priority=t["priority"][:, None])),
    "many that arrived": ("memory", lambda t: t.update(arrived=torch.zeros(3, dtype=torch.long))),
    "large thumbnails": ("memory", lambda t: t["thumbnails.shapes"].fill_(2**40)),
    "negative thumbnails": ("memory", lambda t: t["thumbnails.shapes"].neg_()),
    "no shapes": ("memory", lambda t: t.pop("thumbnails.shapes")),
    "fewer rows": ("weights", lambda t: t.update({"head.weight": t["head.weight"][1:].contiguous()})),
    "narrow rows": ("weights", lambda t: t.update({"head.weight": t["head.weight"][:, 1:].contiguous()})),
    "no weights": ("weights", lambda t: t.clear()),
    "other weights": ("weights", lambda t: t.update(other=torch.zeros(1))),
    "more classes": ("weights", lambda t: t["seen"].fill_(2**40)),
    "a longer list of forgotten": ("weights", lambda t: t.update(forgotten=torch.zeros(9, dtype=torch.bool))),
    "integers": ("weights", lambda t: t.update({"head.weight": t["head.weight"].long()})),
}


@pytest.mark.parametrize("lie", LIES)
def test_tensors_that_do_not_fit_are_one_line(lie: str, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    part, change = LIES[lie]
    retouch(tmp_path / "model", part, change)
    with pytest.raises(InputError, match=rf"{part}-[0-9a-f]+\.safetensors is damaged: ") as error:
        MTNClassifier.load(tmp_path / "model")
    assert "\n" not in str(error.value)


def test_sums_that_are_of_no_samples_are_one_line(tmp_path: Path) -> None:
    """Their matrix has a negative square: found when the unknown is asked for, as `explain` and `novelty` do."""
    classifier = MTNClassifier(memory=20, k=3, settings={"train.epochs": 0.0, "train.min_steps": 1})
    classifier.fit(ARRAYS["x_train"], ARRAYS["y_train"]).save(tmp_path / "model")
    retouch(tmp_path / "model", "weights", lambda tensors: tensors["moments.gram"].neg_())
    with pytest.raises(InputError, match="the model is damaged: its sums over samples are not those of any samples"):
        MTNClassifier.load(tmp_path / "model").novelty(TEST)


def test_deep_and_huge_json_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    deep = '{"format": 3, "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    objects, digits = deep.replace("[", '{"a":').replace("]", "}"), '{"format": ' + "9" * 10_000 + "}"
    for text in (deep, objects, digits, "[" * 99):
        path.write_text(text)
        assert answers(tmp_path / "model") is None
        assert call("forget", str(tmp_path / "model"), "class 0")[0] == 2
    path.write_text('{"format": 3, "checksum": "", "a": "\\ud800"}')
    assert answers(tmp_path / "model") is None
    path.write_text("[" + "[]," * 2**24 + "[]]")
    with pytest.raises(InputError, match=r"at most .* values"):
        MTNClassifier.load(tmp_path / "model")
    with path.open("wb") as file:
        file.truncate(2**40)  # of which the disk has nothing
    with pytest.raises(InputError, match=r"at most .* bytes"):
        MTNClassifier.load(tmp_path / "model")


def test_pipes_and_devices_in_a_folder_are_not_read(model: Path, tmp_path: Path) -> None:
    for name in ("model.json", next(model.glob("weights-*")).name):
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            shutil.copytree(model, tmp_path / "model")
            (tmp_path / "model" / name).unlink()
            make(tmp_path / "model" / name)
            assert answers(tmp_path / "model") is None
            shutil.rmtree(tmp_path / "model")


def test_whether_to_compile_is_not_up_to_a_folder(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    settings = json.loads((model / "model.json").read_text())["parameters"]["settings"]
    edit(tmp_path / "model", configuration__train__compile=True)
    edit(tmp_path / "model", parameters__settings=settings | {"train.compile": True})
    loaded = MTNClassifier.load(tmp_path / "model")
    assert loaded.state_.learner.method.compiled is None and not loaded.state_.learner.config.train.compile
    assert not loaded.configuration().train.compile and loaded.settings == settings
    assert loaded.set_params(settings=settings | {"train.compile": True}).configuration().train.compile


# ---- nothing but text reaches a terminal

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eb\r\n\u2028c\t\u200b\u00ad"


def test_names_of_classes_cannot_steer_a_terminal(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    folder, names = tmp_path / "model", np.array([HOSTILE, "日本\u3000語", "नहीं\u200d", "plain"])
    x = np.eye(4, 16, dtype=np.float32)
    taught = ["aaa", *names[1:]]  # only a stranger's folder has such a name: it cannot be taught
    MTNClassifier("knn", memory=8, k=1).fit(x, taught, ids=[f"{name} {HOSTILE}" for name in names]).save(folder)
    recorded = json.loads((folder / "model.json").read_text())["labels"]["names"]
    edit(folder, labels__names=[HOSTILE if name == "aaa" else name for name in recorded])
    np.save(tmp_path / "asked.npy", x)
    asked = str(tmp_path / "asked.npy")
    commands = [["predict", asked], ["predict", asked, "--json"], ["explain", asked], ["explain", asked, "--json"]]
    commands += [["info"], ["info", "--json"], ["forget", "nothing"], ["rename", HOSTILE, "b\x1b"], ["forget", "b\x1b"]]
    outputs = []
    for command, *words in commands:
        sys.argv = ["mtn", command, str(folder), *words]
        with suppress(SystemExit):
            main.main()
        output = b"".join(capfdbinary.readouterr())
        outputs.append(output.decode())
        assert all(c == "\n" or is_shown(c) for c in outputs[-1]), outputs[-1]
    assert r"a\x1b]0;owned\x07" in outputs[0] and "日本\u3000語" in outputs[0] and "नहीं\u200d" in outputs[0]
    labels = [json.loads(line)["label"] for line in outputs[1].splitlines()]
    assert labels == names.tolist()  # JSON says what it said
    assert all(is_shown(c) or c == "\n" for c in (folder / "README.md").read_text())

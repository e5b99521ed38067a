"""A model folder from a stranger runs nothing, and what is damaged in it is one line; what is forgotten is gone."""

import copy
import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import torch as safetensors
from sklearn.base import clone

from cluster_data import cluster_arrays
from mtn import MTNClassifier, encoders
from mtn.cli import main
from mtn.data import reader
from mtn.encoders.trust import trusted_encoder
from mtn.errors import InputError
from mtn.runtime.text import is_shown
from mtn.serve.journal import Job
from mtn.serve.worker import TeachingBatch, apply_batch
from mtn.storage.model_folder import checksum, hold_model_folder
from mtn.storage.recorded import Recorded
from strangers import call, edit

ARRAYS = cluster_arrays(train=8, test=2, classes=5)
X, Y = ARRAYS["x_train"], np.array([f"class {label}" for label in ARRAYS["y_train"]])
V0 = Path(__file__).parent / "fixtures" / "v0" / "models"
TEST = ARRAYS["x_test"]
PAYLOAD = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from mtn.methods import METHODS
import numpy as np
def f(pictures): return np.stack([np.asarray(p).mean((0, 1)) for p in pictures])
class C(METHODS["ncm"]): pass
"""


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """A package in the working folder that leaves a file when it is imported; whether it was."""
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield (tmp_path / "stranger" / "ran").exists
    for name in ("stranger", "stranger.payload"):
        sys.modules.pop(name, None)


def of_images(folder: Path) -> Path:
    """A model of two colours, by the encoder `glyph`."""
    for number, colour in enumerate(("red", "blue")):
        (folder.parent / "seen" / colour).mkdir(parents=True)
        for row in range(3):
            noise = np.random.default_rng(10 * number + row).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(noise).save(folder.parent / "seen" / colour / f"{row}.png")
    MTNClassifier("ncm", encoder="glyph").fit(folder.parent / "seen").save(folder)
    return folder


# ---- nothing is imported because a file says so


@pytest.mark.parametrize("recorded", ["parameters", "source", "both"])
def test_an_encoder_that_a_folder_names_is_not_imported(
    recorded: str, payload: Callable[[], bool], tmp_path: Path
) -> None:
    model, name = of_images(tmp_path / "model"), "stranger.payload:f"
    edit(model, parameters__encoder=name if recorded != "source" else None)
    if recorded != "parameters":
        edit(model, source__encoder__name=name)
    picture = str(tmp_path / "seen" / "red" / "0.png")
    for words in (["predict", picture], ["explain", picture], ["learn", str(tmp_path / "seen")]):
        code, said = call(words[0], str(model), *words[1:])
        assert code == 2 and name in said and "--encoder" in said, said
    for act in ("predict", "partial_fit"):
        with pytest.raises(InputError, match=r"import stranger\.payload first, or give the encoder"):
            getattr(MTNClassifier.load(model), act)([picture])
    assert not payload() and "stranger.payload" not in sys.modules


@pytest.mark.parametrize("taught", [True, False])
def test_a_method_that_a_folder_names_is_not_imported(
    taught: bool, payload: Callable[[], bool], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    classifier = MTNClassifier("ncm", encoder="hashing")
    (classifier.fit(["a b", "c d"], ["a", "b"]) if taught else classifier).save(model)
    edit(model, parameters__method="stranger.payload:C")
    if taught:
        edit(model, configuration__method__name="stranger.payload:C")
    (tmp_path / "said.csv").write_text("text,label\nhello there,a\nbye,b\n")
    for words in (["learn", "said.csv"], ["predict", "hello"], ["explain", "hello"]):
        code, said = call(words[0], str(model), *words[1:])
        assert code == 2 and ("import stranger.payload first" in said or "taught nothing" in said), said
    with pytest.raises(InputError, match=r"import stranger\.payload first"):
        MTNClassifier.load(model).fit(["hello", "bye"], ["a", "b"])
    assert not payload()
    if not taught:  # typed by the user, it is
        again = MTNClassifier.load(model).set_params(method="stranger.payload:C")
        assert again.fit(["hello", "bye"], ["a", "b"]).predict(["bye"]).tolist() == ["b"] and payload()


def test_what_a_folder_names_stays_so_in_copies_clones_and_pickles(payload: Callable[[], bool], tmp_path: Path) -> None:
    model = tmp_path / "model"
    MTNClassifier("ncm", encoder="hashing").save(model)
    edit(model, parameters__encoder="stranger.payload:f", parameters__method="stranger.payload:C")
    loaded = MTNClassifier.load(model)
    loaded.save(tmp_path / "again")
    others = [copy.copy(loaded), copy.deepcopy(loaded), clone(loaded), pickle.loads(pickle.dumps(loaded))]
    for other in (*others, MTNClassifier.load(tmp_path / "again")):
        for samples in ([Image.new("RGB", (8, 8))] * 2, np.eye(2)):
            with pytest.raises(InputError, match=r"import stranger\.payload first"):
                other.fit(samples, ["a", "b"])
    assert not payload()


def test_what_the_user_types_is_imported(payload: Callable[[], bool], tmp_path: Path) -> None:
    of_images(tmp_path / "other")
    picture, name = str(tmp_path / "seen" / "red" / "0.png"), "stranger.payload:f"
    code, said = call("learn", "model", "seen", "--encoder", name, "--method", "ncm")
    assert code == 0 and payload(), said
    assert call("predict", "model", picture)[0] == 0  # it is imported already, and as it was
    for module in ("stranger", "stranger.payload"):
        sys.modules.pop(module)
    reader._load_cached.cache_clear()  # as in a new process
    assert call("predict", "model", picture)[0] == 2
    assert call("predict", "model", picture, "--encoder", name)[0] == 0
    sys.modules["stranger.payload"].f.version = 3
    with pytest.raises(InputError, match="not the one that the model was taught with"):
        MTNClassifier.load("model").predict([picture])


@pytest.mark.parametrize("name", ["sys:exit", "builtins:input", "os:system", "typing:cast", "mtn.images:decode"])
def test_a_function_that_is_always_there_is_not_called(name: str, tmp_path: Path) -> None:
    module, _, attribute = name.partition(":")
    source = encoders.function.source_digest(getattr(sys.modules[module], attribute))
    with pytest.raises(InputError, match="give the encoder"):
        trusted_encoder(None, {"name": name, "source": source})
    model = of_images(tmp_path / "model")
    edit(model, parameters__encoder=name)
    with pytest.raises(InputError, match="give the encoder"):
        MTNClassifier.load(model).predict([tmp_path / "seen" / "red" / "0.png"])


def test_a_module_that_imports_on_request_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(InputError, match="import lazy first"):
        trusted_encoder(Recorded("lazy:f"), None)


@pytest.mark.parametrize("name", ["enc.onnx", "{folder}/enc.onnx", "{folder}", "nested/weights", "simclr-r50:w"])
def test_a_path_that_a_folder_names_is_not_opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one inside of it: who made the folder made that, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nested" / "weights").mkdir(parents=True)
    for target in ("_from_folder", "onnx", "simclr"):
        monkeypatch.setattr(encoders, target, None)  # whatever would open it fails
    with pytest.raises(InputError, match=r"what a folder names is not opened: give the encoder"):
        encoders.load_encoder(Recorded(name.format(folder=tmp_path)))


@pytest.mark.parametrize("location", ["../secret.bin", "{folder}/secret.bin", "link.bin", "operator"])
def test_an_onnx_file_reads_nothing_beside_it_and_loads_no_operators(location: str, tmp_path: Path) -> None:
    """Though the user named it, somebody else may have made it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / "model").mkdir()
    (tmp_path / "secret.bin").write_bytes(np.ones(3, np.float32).tobytes())
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    make, kind, domain = onnx.helper, onnx.TensorProto.FLOAT, "" if location != "operator" else "stranger"
    weight = onnx.TensorProto(name="w", data_type=kind, dims=[1, 3, 1, 1])
    if domain:
        weight.float_data.extend([1, 1, 1])
    else:
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location.format(folder=tmp_path))
    ends = [make.make_tensor_value_info(name, kind, ["N", 3, 8, 8]) for name in "xy"]
    graph = make.make_graph(
        [make.make_node("Mul", ["x", "w"], ["y"], domain=domain)], "g", ends[:1], ends[1:], [weight]
    )
    operators = [make.make_opsetid("", 18), make.make_opsetid("stranger", 1)]
    model = make.make_model(graph, opset_imports=operators, ir_version=9)
    (tmp_path / "model" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        InputError, match=r"is not a readable ONNX model|has weights in another file|needs the operator"
    ) as error:
        encoders.load_encoder(str(tmp_path / "model" / "m.onnx"))
    assert "\n" not in str(error.value)


def test_the_encoders_of_the_table_need_not_be_given(tmp_path: Path) -> None:
    model = of_images(tmp_path / "model")
    assert call("predict", str(model), str(tmp_path / "seen" / "red" / "0.png"))[0] == 0
    assert isinstance(MTNClassifier.load(model).encoder, Recorded)


# ---- what is forgotten is gone, whenever the process ends


def taught(method: str = "mtn", **options: Any) -> MTNClassifier:
    settings = {"method.size": "small", "train.epochs": 1, "train.min_steps": 0} if method == "mtn" else None
    return MTNClassifier(method, memory=20, k=3, settings=settings, **options).fit(X, Y)


def secrets(classifier: MTNClassifier, label: str) -> list[bytes]:
    """What must not be on disk once a class is forgotten: its vectors, its name."""
    memory = classifier.state_.memory
    rows = memory.vectors(memory.y == classifier.state_.names.index(label)).numpy()
    return [label.encode(), *(row.tobytes() for row in rows)]


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file())


FORGET_AND_DIE = """
import os, sys
from mtn.cli import main
from mtn.storage import files
write, last = files.write, sys.argv[1]
def dies(path, fill):
    write(path, fill)
    if path.name == last:
        os.kill(os.getpid(), 9)
files.write = dies
sys.argv = ["mtn", "forget", *sys.argv[2:]]
main.main()
"""


@pytest.fixture(params=["model.json", "README.md"], scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A model that was killed after it had forgotten class 1, before it had deleted what it kept of it."""
    folder, classifier = tmp_path_factory.mktemp("killed") / "model", taught()
    classifier.save(folder)
    secret = secrets(classifier, "class 1")
    command = [sys.executable, "-c", FORGET_AND_DIE, request.param, str(folder), "class 1"]
    assert subprocess.run(command, check=False).returncode == -9
    assert any(vector in on_disk(folder) for vector in secret[1:])
    assert "class 1" not in MTNClassifier.load(folder).classes_
    return folder, secret


@pytest.mark.parametrize("by", ["forget", "rename", "learn", "service"])
def test_the_next_change_finishes_a_forgetting_that_was_killed(
    by: str, killed: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    folder, secret = tmp_path / "model", killed[1]
    shutil.copytree(killed[0], folder)
    if by == "service":
        job = Job("1", "waiting", 0.0, 1, None, [], "class 1")
        assert apply_batch(folder, TeachingBatch([job], []), lambda *_: None).kind == "done"
    else:
        words = {"forget": ["class 1"], "rename": ["no such class", "x"], "learn": [str(tmp_path / "none.npz")]}
        code, said = call(by, str(folder), *words[by])
        assert code == 2 and ("no class 'class 1'" in said or by != "forget"), said
    content = on_disk(folder)
    assert not any(part in content for part in secret)
    assert MTNClassifier.load(folder).predict(TEST).shape == (10,)


def test_only_files_of_models_are_swept(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    taught().save(folder)
    others = ["mine.txt", "weights.safetensors", ".mine.partial", "README.txt"]
    for name in others:
        (folder / name).write_text("mine")
    (folder / "README.md").write_text("what I wrote about it")
    left = ["memory-0123456789abcdef.safetensors", ".model.json.partial"]
    for name in left:
        (folder / name).write_text("left")
    before = {file.name for file in folder.iterdir()}
    with hold_model_folder(folder):
        assert {file.name for file in folder.iterdir()} == before - set(left)
    assert (folder / "README.md").read_text() == "what I wrote about it"


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
    "threshold": "high",
    "usual": [[0, 0]],
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
    if facts.pop(key.partition("__")[0], None) is not None and not key.startswith("source"):
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

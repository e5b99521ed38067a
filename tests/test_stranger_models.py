"""A stranger's model folder: nothing it names is imported, and what is forgotten is gone."""

import copy
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone

from cluster_data import cluster_arrays
from mtn import MTNClassifier, encoders
from mtn.data import reader
from mtn.encoders import loading
from mtn.encoders.trust import trusted_encoder
from mtn.errors import InputError
from mtn.serve.journal import Change, Job
from mtn.serve.worker import TeachingBatch, apply_batch
from mtn.storage.model_folder import hold_model_folder
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
        monkeypatch.setattr(loading, target, None)  # whatever would open it fails
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
        job = Job("1", "waiting", 0.0, 1, None, [], Change("forget", "class 1"))
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

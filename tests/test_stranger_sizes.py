"""Numbers, images and ONNX models that would take more memory or time than there is."""

import io
import json
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mtn
from mtn import MTNClassifier, images, recipes
from mtn.data.sources import open_source
from mtn.encoders import load_encoder
from mtn.encoders.onnx_check import check_onnx
from mtn.errors import InputError
from mtn.experiments import run
from mtn.runtime import capacity
from mtn.storage import files
from strangers import refused

GB = 10**9
SPLITS = {"x_train": np.eye(4), "y_train": np.arange(4), "x_test": np.eye(4), "y_test": np.arange(4)}


# ---- numbers and nesting

ABSURD = {
    "nested arrays": f"x = {'[' * 20_000}",
    "nested tables": "x = " + "{a=" * 20_000,
    "dotted": f"{'a.' * 20_000}b = 1",
    "digits": f"seed = {'9' * 5000}",
    "many digits": f"[memory]\ntotal = {'9' * 4000}",
    "infinite": "[train]\nlr = 1e400",
    "epochs": "[train]\nepochs = 1e300",
    "bytes": "\udcff",
}


@pytest.mark.parametrize("text", ABSURD.values(), ids=ABSURD)
def test_an_absurd_recipe_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.toml"
    lead = '[stream]\ndata = "x"\n' if text.startswith("[") else ""
    path.write_bytes((lead + text).encode("utf-8", "surrogateescape"))
    with refused():
        mtn.recipe(str(path))


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 20_000, "1e400", "9" * 4000, "{a=" * 20_000 + "1"])
def test_an_absurd_setting_is_one_line(value: str) -> None:
    for key in ("memory.total", "train.batch", "method.k", "train.lr", "stream.first"):
        with refused():
            mtn.recipe("practical", ["stream.data=x", f"{key}={value}"])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"train": [["a", 1e400]]}', "\xff"])
def test_absurd_json_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(text.encode("latin1"))
    with refused():
        open_source(path).list_items()
    if "1e400" not in text:
        with refused("damaged"):
            files.read_json(path)


# ---- what cannot fit into memory


@pytest.mark.parametrize(
    "method, settings, key",
    [
        ("practical", {"memory": 10**12}, "memory.total = 1000000000000"),
        ("practical", {"k": 10**9}, "method.k"),
        ("ranpac", {"settings": {"method.units": 10**6}}, "method.units = 1000000"),
        ("mtn", {"k": 10**5}, "method.k"),
    ],
)
def test_a_classifier_that_cannot_fit_is_refused_with_its_size(method: str, settings: dict, key: str) -> None:
    with refused(rf"{key} = \d+ would take [\d,.]+ GB" if "=" not in key else f"{key} would take"):
        MTNClassifier(method, **settings).fit(np.eye(40), np.arange(40) % 10)


@pytest.mark.parametrize(
    "sections",
    [
        {"memory": {"total": 10**12}},
        {"memory": {"total": None, "per_class": 10**12}},
        {"method": {"k": 10**9}},
        {"method": {"name": "knn", "k": 10**9}},
        {"method": {"name": "ranpac", "units": 10**6}},
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_its_size(configure, tmp_path: Path, sections: dict) -> None:
    config = configure(**sections)
    with refused(r"would take [\d,.]+ GB of memory, this machine has"):
        run.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_is_no_larger_than_the_data(configure) -> None:
    config = configure(train={"batch": 10**12, "replay": 10**12})
    capacity.check_fits(config, 16, 12, 360)
    with refused("train.batch = 1000000000000 would take"):
        capacity.check_fits(config, 10**6, 12, 10**6, uses_neighbours=False)
    with refused("train.replay = 1000000000000 would take"):
        capacity.check_fits(configure(train={"replay": 10**12}), 10**6, 12, 10**6, uses_neighbours=False)


def test_what_is_shipped_fits(configure) -> None:
    for name in recipes.recipe_names():
        capacity.check_fits(mtn.recipe(name, ["stream.data=x"]), 2048, 1000, 100_000)
    capacity.check_fits(configure(method={"name": "knn", "k": 10**9}), 16, 12, 0)  # no data, no neighbours


def test_a_folder_of_a_model_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    MTNClassifier("knn").fit(np.eye(4), np.arange(4)).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    facts = json.loads(path.read_text())
    facts["configuration"]["method"]["k"] = 10**12
    config = recipes.parse(facts["configuration"], "test")
    with refused("method.k = 1000000000000 would take"):
        capacity.check_fits(config, 4, 4, 16, budget=False)
    config = recipes.parse(facts["configuration"] | {"memory": {"total": 10**12}, "method": {"name": "ncm"}}, "test")
    capacity.check_fits(config, 4, 4, 16, budget=False)  # a model that exists keeps its budget


def test_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "CGROUP", tmp_path / "memory.max")
    whole = capacity.machine_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.machine_memory() == whole
    (tmp_path / "memory.max").write_text("1000000\n")
    assert capacity.machine_memory() == 1_000_000


# ---- images


@pytest.mark.parametrize("format", ["GIF", "WEBP", "TIFF"])
def test_of_thousands_of_frames_one_is_decoded(format: str) -> None:
    frames = [Image.new("L", (16, 16), number % 256) for number in range(2000)]
    file = io.BytesIO()
    frames[0].save(file, format, save_all=True, append_images=frames[1:])
    start = time.thread_time()
    assert images.decode(file.getvalue()).size == (16, 16)
    assert time.thread_time() - start < 0.5


def exif_of(tags: int, size: int) -> bytes:
    """A directory of tags that all point at the same bytes."""
    entries = b"".join(struct.pack("<HHLL", 0x1000 + number, 1, size, 8) for number in range(tags))
    return b"II*\0" + struct.pack("<L", 8 + size) + bytes(size) + struct.pack("<H", tags) + entries + bytes(4)


@pytest.mark.filterwarnings("ignore:Tag data")
@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "JPEG"])
def test_tags_that_share_their_bytes_do_not_fill_the_memory(format: str) -> None:
    """10 000 tags of 500 kB each would be 5 GB."""
    bomb, file = exif_of(10_000, 500_000), io.BytesIO()
    if format == "TIFF":
        file.write(bomb)
    elif format == "JPEG":
        Image.new("RGB", (8, 8)).save(file, "JPEG")
        parts = [bomb[start : start + 60_000] for start in range(0, len(bomb), 60_000)]
        markers = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts)
        file = io.BytesIO(file.getvalue()[:2] + markers + file.getvalue()[2:])
    else:
        Image.new("RGB", (8, 8)).save(file, format, exif=b"Exif\0\0" + bomb)
    tracemalloc.start()
    start = time.thread_time()
    try:
        images.decode(file.getvalue())
    except images.Unreadable as error:
        assert len(str(error).splitlines()) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6 and time.thread_time() - start < 3


def test_an_image_with_large_metadata_is_decoded() -> None:
    file, note = io.BytesIO(), Image.Exif()
    note[0x010E] = "x" * 60_000
    note[0x0112] = 6
    Image.new("RGB", (8, 4)).save(file, "JPEG", exif=note)
    assert images.decode(file.getvalue()).size == (4, 8)


# ---- ONNX


onnx = pytest.importorskip("onnx")


def model(domain: str = "", operator: str = "ReduceMean", functions: tuple = (), weights: object = None):
    """Images N,3,8,8 -> N,3."""
    helper = onnx.helper
    node = helper.make_node(operator, ["x", "axes"], ["y"], domain=domain, keepdims=0)
    axes = weights if weights is not None else onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [axes],
    )
    domains = [helper.make_opsetid("", 18)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=domains, functions=list(functions), ir_version=9)


def external(location: str):
    tensor = onnx.TensorProto(name="axes", data_type=onnx.TensorProto.INT64, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_an_onnx_model_in_one_file_is_an_encoder(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    assert load_encoder(str(tmp_path / "m.onnx")).dimension == 3


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "m.onnx.data"])
def test_weights_in_another_file_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "m.onnx.data").write_bytes(np.array([2, 3]).tobytes())
    onnx.save(model(weights=external(location)), tmp_path / "m.onnx")
    with refused("weights in another file"):
        load_encoder(str(tmp_path / "m.onnx"))


def test_weights_in_another_file_are_found_wherever_they_hide(tmp_path: Path) -> None:
    helper, path = onnx.helper, tmp_path / "m.onnx"
    constant = helper.make_node("Constant", [], ["c"], value=external("a"))
    inner = helper.make_graph([constant], "inner", [], [])
    branch = helper.make_node("If", ["b"], ["z"], then_branch=inner, else_branch=inner)
    sparse = onnx.SparseTensorProto(values=external("a"), indices=external("a"), dims=[2])
    function = helper.make_function("d", "f", ["x"], ["c"], [constant], [helper.make_opsetid("", 18)])
    for harm in (
        lambda proto: proto.graph.node.append(constant),
        lambda proto: proto.graph.node.append(branch),
        lambda proto: proto.graph.sparse_initializer.append(sparse),
        lambda proto: proto.functions.append(function),
        lambda proto: proto.graph.node[0].attribute.add(name="t", type=9).tensors.append(external("a")),
    ):
        proto = model()
        harm(proto)
        path.write_bytes(proto.SerializeToString())
        with refused("weights in another file"):
            check_onnx(path, "m")


def test_operators_of_other_libraries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for domain, operator in (("evil.ops", "Run"), ("ai.onnx.contrib", "PyOp"), ("com.microsoft", "EPContext")):
        path.write_bytes(model(domain, operator).SerializeToString())
        with refused(f"needs the operator {domain}:{operator}"):
            load_encoder(str(path))
    mean = onnx.helper.make_node("ReduceMean", ["x", "a"], ["y"], keepdims=0)
    function = onnx.helper.make_function("mine", "Mean", ["x", "a"], ["y"], [mean], [onnx.helper.make_opsetid("", 18)])
    proto = model("mine", "Mean", (function,))
    del proto.graph.node[0].attribute[:]
    path.write_bytes(proto.SerializeToString())
    assert load_encoder(str(path)).dimension == 3  # an operator that is written out in the file
    proto.graph.node[0].op_type = "Other"
    path.write_bytes(proto.SerializeToString())
    with refused("needs the operator mine:Other"):
        load_encoder(str(path))


def test_damaged_and_absurd_onnx_models_are_one_line(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.onnx", np.random.default_rng(0)
    whole = model().SerializeToString()
    for trial in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        path.write_bytes(damaged if trial % 2 else damaged[: rng.integers(len(whole))])
        try:
            load_encoder(str(path))
        except InputError as error:
            assert len(str(error).splitlines()) == 1
    with path.open("wb") as file:
        file.truncate(3 * GB)
    with refused("has 3.2 GB|has 3.0 GB"):
        load_encoder(str(path))


def test_a_model_does_not_ask_for_huge_images(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for size in ("1000000", "1e400", "9" * 5000, "[" * 100_000):
        proto = model()
        onnx.helper.set_model_props(proto, {"size": size})
        path.write_bytes(proto.SerializeToString())
        with refused("metadata size"):
            load_encoder(str(path))
    proto = model()
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = 100_000
    path.write_bytes(proto.SerializeToString())
    with refused("pixels a side"):
        load_encoder(str(path))


@pytest.mark.parametrize(
    "method", [{"name": "ranpac", "units": 15_000}, {"name": "practical", "random_features": 15_000}]
)
def test_what_samples_are_expanded_to_has_to_fit(configure, monkeypatch, method: dict) -> None:
    monkeypatch.setattr(capacity, "machine_memory", lambda: 10**9)
    with refused(r"= 15000 would take 1\.[\d]+ GB of memory, this machine has 1\.0 GB"):
        capacity.check_fits(configure(method=method), 16, 12, 360)

"""ONNX models as encoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from encoder_checks import PICTURES, encode, noise, refused
from mtn import encoders
from mtn.encoders import common


def write_onnx(path: Path, shape: list[Any], kind: str = "linear", scale: float = 1.0, **told: str) -> Path:
    """linear: the means of the channels times a matrix; maps: the picture itself."""
    onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not there")
    last = shape[3] == 3
    maps = onnx.helper.make_node("Mul", ["x", "scale"], ["maps"])
    mean = onnx.helper.make_node("ReduceMean", ["maps", "axes"], ["mean"], keepdims=0)
    product = onnx.helper.make_node("MatMul", ["mean", "matrix"], ["y"])
    constants = [
        onnx.numpy_helper.from_array(np.float32(scale), "scale"),
        onnx.numpy_helper.from_array(np.array([1, 2] if last else [2, 3]), "axes"),
        onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "matrix"),
    ]
    nodes, out = ([maps], "maps") if kind == "maps" else ([maps, mean, product], "y")
    ends = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape),
            onnx.helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, None)]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], constants if kind != "maps" else constants[:1])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, told)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("shape", [["N", 3, 32, 32], [1, 3, 32, 32], ["N", 32, 32, 3], ["N", 3, "H", "W"]], ids=str)
@pytest.mark.parametrize("kind", ["linear", "maps"])
def test_an_onnx_model_s_vectors_are_those_of_its_equation(tmp_path: Path, shape: list[Any], kind: str) -> None:
    encoder = encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", shape, kind, 2.0)))
    found = encode(encoder, PICTURES)
    side = 224 if shape[3] == "W" else 32
    cut = [common.centre_crop(one, round(side * 256 / 224), side, side) for one in PICTURES]
    means = np.stack([(np.asarray(one) / 255).mean((0, 1)) for one in cut])
    expected = 2 * (means - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    matrix = np.arange(12).reshape(3, 4) if kind == "linear" else np.eye(3)
    np.testing.assert_allclose(found, expected @ matrix, rtol=1e-4, atol=1e-4)


def test_an_onnx_model_says_how_it_sees(tmp_path: Path) -> None:
    told = {"size": "32", "mean": "[0, 0, 0]", "std": "[1, 1, 1]"}
    encoder = encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], "maps", **told)))
    image = noise(0, 32, 32)
    np.testing.assert_allclose(encoder.prepare(image), np.asarray(image).transpose(2, 0, 1) / np.float32(255))
    assert encoder.identity()["picture"]["mean"] == [0, 0, 0]
    other = write_onnx(tmp_path / "n.onnx", ["N", 3, 32, 32], "maps", 3.0, **told)
    same = {**encoders.load_encoder(str(other)).identity(), "name": str(tmp_path / "m.onnx")}
    assert [key for key, value in encoder.identity().items() if same[key] != value] == ["weights"]


def test_a_photograph_is_cut_as_the_library_cuts_it(transformers: Any, photograph: Image.Image) -> None:
    crop = {"height": 224, "width": 224}
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 256}, crop_size=crop, do_normalize=False)
    ours = np.asarray(common.centre_crop(photograph.convert("RGB"), 256, 224, 224), np.float32)
    theirs = np.asarray(processor(photograph)["pixel_values"][0]).transpose(1, 2, 0) * 255
    assert np.abs(ours - theirs).mean() < 1.5  # the long side may round to the next pixel


def test_onnx_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with refused("its first input must be float N,3,H,W or N,H,W,3 with N free or 1, got"):
        encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", ["N", 4, 32, 32], "maps")))
    with refused("its first input must be float"):
        encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", [8, 3, 32, 32])))
    with refused("its metadata size, mean and std must be"):
        encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], mean="[1]")))
    with refused("its metadata size, mean and std must be"):
        encoders.load_encoder(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], size="16")))
    with refused("there is no file"):
        encoders.load_encoder(str(tmp_path / "no.onnx"))
    (tmp_path / "m.onnx").write_text("nothing")
    with refused("is not a readable ONNX model"):
        encoders.load_encoder(str(tmp_path / "m.onnx"))

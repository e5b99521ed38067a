"""SimCLR: the published network, its weights in every form they are found in, and its preprocessing."""

import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from encoder_checks import PICTURES, Loud, encode, refused
from mtn import encoders
from mtn.cli.encoding import convert_simclr
from mtn.encoders import simclr


@pytest.fixture(scope="module")
def variables() -> dict[str, np.ndarray]:
    """Random, with TensorFlow's names and shapes, in the order in which SimCLR makes the layers."""
    rng, shapes = np.random.default_rng(0), [(7, 7, 3, 64)]
    ins = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(depth):
            shapes += [] if place else [(1, 1, ins, 4 * width)]
            shapes += [(1, 1, ins, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            ins = 4 * width
    found: dict[str, np.ndarray] = {"global_step": np.array(7), "head_supervised/linear_layer/dense/bias": np.ones(9)}
    for number, shape in enumerate(shapes):
        end = f"_{number}" if number else ""
        scale = np.float32(np.sqrt(1 / np.prod(shape[:3])))
        found[f"base_model/conv2d{end}/kernel"] = scale * rng.standard_normal(shape, np.float32)
        for leaf in ("gamma", "beta", "moving_mean", "moving_variance"):
            value = rng.random(shape[3], np.float32)
            found[f"base_model/batch_normalization{end}/{leaf}"] = value + (0.5 if leaf == "moving_variance" else 0)
    return found


def published(variables: dict[str, np.ndarray], x: Tensor) -> Tensor:
    """SimCLR's network, written after its text: B,3,H,W -> B,2048."""
    numbers = iter(range(100))

    def layer(x: Tensor, stride: int = 1) -> Tensor:
        number = next(numbers)
        end = f"_{number}" if number else ""
        kernel = torch.from_numpy(variables[f"base_model/conv2d{end}/kernel"]).permute(3, 2, 0, 1)
        norm = [torch.from_numpy(variables[f"base_model/batch_normalization{end}/{leaf}"])
                for leaf in ("moving_mean", "moving_variance", "gamma", "beta")]  # fmt: skip
        return F.batch_norm(F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2), *norm, eps=1e-5)

    x = F.pad(layer(x, 2).relu(), (0, 1, 0, 1), value=-torch.inf)  # SAME: as little as needed, at the end first
    x = F.max_pool2d(x, 3, 2)
    for stage, depth in enumerate((3, 4, 6, 3)):
        for place in range(depth):
            stride = 2 if stage and not place else 1
            shortcut = x if place else layer(x, stride)
            x = (layer(layer(layer(x).relu(), stride).relu()) + shortcut).relu()
    return x.mean((2, 3))


@pytest.fixture(scope="module")
def converted(variables: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simclr")
    np.savez(folder / "simclr.npz", **variables)
    convert_simclr(folder / "simclr.npz", folder / "simclr.safetensors")
    return folder / "simclr.safetensors"


def test_simclr_is_the_published_network(
    variables: dict[str, np.ndarray], converted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = encoders.load_encoder(f"simclr-r50:{converted}")
    found = encode(encoder, PICTURES[:2])
    with torch.no_grad():
        expected = published(variables, torch.from_numpy(np.stack([encoder.prepare(one) for one in PICTURES[:2]])))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    source = hashlib.sha256(converted.with_suffix(".npz").read_bytes()).hexdigest()
    with safe_open(converted, framework="pt") as file:
        assert file.metadata() == {"source": "simclr.npz", "sha256": source}
    assert encoder.identity()["source"] == source and encoder.dimension == 2048
    with monkeypatch.context() as patch:
        patch.setenv("MTN_SIMCLR", str(converted))
        assert encoders.load_encoder("simclr-r50").identity()["weights"] == encoder.identity()["weights"]
    monkeypatch.setenv("MTN_CACHE", str(tmp_path))
    with refused(f"no weights at {tmp_path}/simclr-r50.safetensors; fetch the checkpoint .* `mtn convert-simclr"):
        encoders.load_encoder("simclr-r50")
    (tmp_path / "simclr-r50.safetensors").symlink_to(converted)
    assert encoders.load_encoder("simclr-r50").dimension == 2048


PORTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain.pth": lambda own: own,
    "nested.pth": lambda own: {"epoch": 9, "state_dict": {f"module.{name}": one for name, one in own.items()}},
    "lightning.pt": lambda own: {"state_dict": {f"encoder.net.{name}": one for name, one in own.items()}},
    "convnet.safetensors": lambda own: {f"convnet.{name}": one for name, one in own.items()},
}


@pytest.mark.parametrize("port", PORTS)
def test_ports_of_simclr_are_converted_alike(tmp_path: Path, port: str) -> None:
    shapes = {name: one.shape for name, one in simclr.make_network().state_dict().items() if "num_batches" not in name}
    own = {name: torch.full((1,), place).expand(shape) for place, (name, shape) in enumerate(shapes.items())}
    more = {"fc.weight": torch.ones(2), "projector.0.weight": torch.ones(3), "bn1.num_batches_tracked": torch.ones(1)}
    made = PORTS[port](own | more)
    if port.endswith("safetensors"):
        save_file({name: one.contiguous() for name, one in made.items()}, tmp_path / port)
    else:
        torch.save(made, tmp_path / port)
    simclr.convert_weights(tmp_path / port, tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name].float()) for name in own)


def test_what_is_not_simclr_is_refused(
    variables: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(match: str, name: str, make: Callable[[Path], object]) -> None:
        make(tmp_path / name)
        with refused(match):
            simclr.convert_weights(tmp_path / name, tmp_path / "out.safetensors")
        assert not (tmp_path / "out.safetensors").exists()

    few = dict(list(variables.items())[:3])
    fails("lacks 264 weights, as bn1", "few.npz", lambda path: np.savez(path, **few))
    wide = variables | {"base_model/conv2d/kernel": np.ones((7, 7, 3, 128), np.float32)}
    fails(r"conv1.weight is \[128, 3, 7, 7\], not \[64", "wide.npz", lambda path: np.savez(path, **wide))
    fails("lacks 265 weights, as conv1.weight", "other.pth", lambda path: torch.save({"a": torch.ones(2)}, path))
    loud = Loud(tmp_path / "run")
    fails("Python objects are not unpickled", "loud.pth", lambda path: path.write_bytes(pickle.dumps(loud, 2)))
    assert not (tmp_path / "run").exists()
    fails("is not readable as .npz", "text.npz", lambda path: path.write_text("nothing"))
    fails("is not readable as .safetensors", "text.safetensors", lambda path: path.write_text("nothing"))
    fails("SOURCE: no file, folder or checkpoint", "absent.npz", lambda path: None)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    fails(
        "this line of Python makes an .npz of it: import numpy, tensorflow; reader",
        "m.ckpt",
        lambda path: (path.parent / "m.ckpt.index").touch(),
    )
    with refused("TARGET: there is no folder"):
        simclr.convert_weights(tmp_path / "few.npz", tmp_path / "no" / "out.safetensors")
    with refused("not a safetensors file"):
        encoders.load_encoder(f"simclr-r50:{tmp_path / 'text.npz'}")


def test_a_checkpoint_is_read_by_tensorflow_where_it_is(
    variables: dict[str, np.ndarray], converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SimpleNamespace(get_variable_to_shape_map=lambda: variables, get_tensor=variables.__getitem__)
    train = SimpleNamespace(load_checkpoint=lambda prefix: {str(tmp_path / "model.ckpt-9"): reader}[prefix])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))
    for end in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-9.{end}").write_text(end)
    simclr.convert_weights(tmp_path / "model.ckpt-9", tmp_path / "out.safetensors")
    own, found = load_file(converted), load_file(tmp_path / "out.safetensors")
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        assert file.metadata()["sha256"] == hashlib.sha256(b"data-00000-of-00001index").hexdigest()
    with refused("is not a readable checkpoint"):
        simclr.convert_weights(tmp_path / "model.ckpt-9.index", tmp_path / "out.safetensors")


def test_simclr_cuts_and_resizes_as_tensorflow_does(photograph: Image.Image) -> None:
    seen = simclr.crop_and_resize(photograph)
    assert seen.shape == (3, 224, 224) and seen.dtype == np.float32 and 0 <= seen.min() < 0.1 and 0.7 < seen.max() <= 1
    side, width, height = round(0.875 * min(photograph.size)), *photograph.size
    left, top = (width - side + 1) // 2, (height - side + 1) // 2
    whole = np.asarray(photograph.convert("RGB"), np.float64) / 255
    middle = torch.from_numpy(whole[top : top + side, left : left + side]).permute(2, 0, 1)[None]
    # Torch puts the first pixel's middle where TensorFlow 1 put its corner: turned to those places it is the same.
    places = (torch.arange(224) * side / 224 + 0.5) * 2 / side - 1
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), -1)[None].double()
    expected = F.grid_sample(middle, grid, "bicubic", "border", align_corners=False)[0].clip(0, 1)
    np.testing.assert_allclose(seen, expected.numpy(), atol=1e-5)
    plain = Image.fromarray(np.arange(65536, dtype=np.uint32).astype(np.uint8).reshape(256, 256)).convert("RGB")
    np.testing.assert_allclose(
        simclr.crop_and_resize(plain), np.asarray(plain, np.float32).transpose(2, 0, 1)[:, 16:-16, 16:-16] / 255
    )

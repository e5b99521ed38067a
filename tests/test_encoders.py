"""Encoders: vectors equal what the library behind computes, from weights that the tests save themselves."""

import hashlib
import json
import os
import pickle
import sys
import zipfile
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

from mtn import commands, encoders, images
from mtn.encoders import glyph, resnet, simclr
from mtn.encoders import onnx as onnx_encoder
from mtn.encoders.base import Encoder
from mtn.errors import InputError

FLOWERS = Path(__file__).parents[2] / "shared" / "data" / "flowers102_images.zip"
EXTRA = "the extra 'encoders' is not there"


def noise(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


PICTURES = [noise(seed, 60 + 7 * seed) for seed in range(5)]


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    if not FLOWERS.is_file():
        pytest.skip(f"{FLOWERS} is not there")
    with zipfile.ZipFile(FLOWERS) as archive:
        name = next(name for name in sorted(archive.namelist()) if name.endswith(".jpg"))
        return images.decode(archive.read(name))


def encode(encoder: Encoder, items: list[Any]) -> np.ndarray:
    """One by one, which must equal all at once."""
    ready = [encoder.prepare(item) for item in items]
    whole = encoder.encode(ready)
    assert whole.shape == (len(items), encoder.dimension) and whole.dtype == np.float32
    np.testing.assert_allclose(np.concatenate([encoder.encode([one]) for one in ready]), whole, rtol=1e-4, atol=1e-5)
    identity = encoder.identity()
    assert json.loads(json.dumps(identity)) == identity  # plain
    return whole


def refused(match: str) -> Any:
    return pytest.raises(InputError, match=match)


# ---- glyph


def test_glyph_sees_pictures_as_they_are_stored(tmp_path: Path) -> None:
    encoder = encoders.load("glyph")
    assert isinstance(encoder, glyph.Glyph)
    grey = [one.convert("L").resize((32, 32)) for one in PICTURES]
    seen = np.stack([encoder.prepare(one) for one in grey])
    np.testing.assert_array_equal(encode(encoder, grey), glyph.load().encode(seen))
    for place, image in enumerate([*PICTURES, noise(9).convert("LA"), noise(9, 20, 90).convert("P")]):
        image.save(tmp_path / f"{place}.png")
        np.testing.assert_array_equal(encoder.prepare(image), encoder.prepare(images.decode(tmp_path / f"{place}.png")))
    assert encoder.identity()["weights"] == hashlib.sha256(glyph.WEIGHTS.read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [(1, 1000), (1000, 1)])
def test_a_strip_is_no_picture(size: tuple[int, int]) -> None:
    with pytest.raises(images.Unreadable, match="more than 50 times longer than wide"):
        encoders.load("glyph").prepare(Image.new("L", size))


# ---- transformers


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason=EXTRA)


@pytest.fixture(scope="module")
def models(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of small models: clip, clip-whole (text and images), vit, vit-no-pooler, resnet, swin."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sight = {"image_size": 32, "patch_size": 8, **small}
    residual = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    clip = transformers.CLIPVisionConfig(**sight, projection_dim=16)
    both = transformers.CLIPConfig(vision_config=sight, text_config={**small, "vocab_size": 50}, projection_dim=24)
    made = {
        "clip": transformers.CLIPVisionModelWithProjection(clip),
        "clip-whole": transformers.CLIPModel(both),
        "vit": transformers.ViTModel(transformers.ViTConfig(**sight)),
        "vit-no-pooler": transformers.ViTModel(transformers.ViTConfig(**sight), add_pooling_layer=False),
        "resnet": transformers.ResNetModel(residual),
        "mae": transformers.ViTMAEModel(transformers.ViTMAEConfig(**sight)),
        "bert": transformers.BertModel(transformers.BertConfig(**small, vocab_size=50)),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        side = {"height": 32, "width": 32}
        if name.startswith("clip"):
            processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=side)
        else:
            processor = transformers.ViTImageProcessorPil(size=side)
        processor.save_pretrained(root / name)
    return root


def direct(transformers: Any, folder: Path, kind: str, items: list[Image.Image]) -> Any:
    """The library alone."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        model = getattr(transformers, kind).from_pretrained(folder).eval()
        return model(pixel_values=torch.tensor(np.array(processor(items)["pixel_values"])))


@pytest.mark.parametrize("name", ["clip", "clip-whole", "vit", "vit-no-pooler", "resnet"])
def test_a_vision_model_s_vectors_are_the_library_s(transformers: Any, models: Path, name: str) -> None:
    encoder = encoders.load(str(models / name))
    found = encode(encoder, PICTURES)
    if name == "clip-whole":
        processor = transformers.AutoImageProcessor.from_pretrained(models / name, backend="pil")
        with torch.no_grad():
            pixels = torch.tensor(np.array(processor(PICTURES)["pixel_values"]))
            whole = transformers.CLIPModel.from_pretrained(models / name).eval()
            expected = whole.visual_projection(whole.vision_model(pixel_values=pixels).pooler_output)
    elif name == "clip":
        expected = direct(transformers, models / name, "CLIPVisionModelWithProjection", PICTURES).image_embeds
    elif name == "vit-no-pooler":  # the pooler would be random
        expected = direct(transformers, models / name, "AutoModel", PICTURES).last_hidden_state.mean(1)
    else:
        expected = direct(transformers, models / name, "AutoModel", PICTURES).pooler_output.flatten(1)
    assert expected.shape[1] == {"clip": 16, "clip-whole": 24, "resnet": 16}.get(name, 32)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "vit"])
def test_a_photograph_is_prepared_by_the_model_s_own_processor(
    transformers: Any, models: Path, photograph: Image.Image, name: str
) -> None:
    processor = transformers.AutoImageProcessor.from_pretrained(models / name, backend="pil")
    expected = np.asarray(processor(photograph)["pixel_values"][0])
    np.testing.assert_array_equal(encoders.load(str(models / name)).prepare(photograph), expected)


def test_identity_is_that_of_weights_config_and_processor(models: Path, tmp_path: Path) -> None:
    first = encoders.load(str(models / "clip")).identity()
    assert first == encoders.load(str(models / "clip")).identity()
    assert first["weights"] == hashlib.sha256((models / "clip" / "model.safetensors").read_bytes()).hexdigest()
    assert first["processor"]["crop_size"] == {"height": 32, "width": 32} and first["revision"] is None

    folder = copy(models / "clip", tmp_path / "other")
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0, 0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    other = encoders.load(str(folder)).identity()
    assert [key for key in first if first[key] != other[key]] == ["name", "weights"]


def copy(source: Path, target: Path, *without: str) -> Path:
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in without:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_the_hub_s_name_is_looked_up_in_the_local_cache_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name, repository in (("clip-vit-b32", "openai/clip-vit-base-patch32"), ("some/model", "some/model")):
        with refused(f"{name}.*`hf download {repository}`, then run again, or give the path of a folder"):
            encoders.load(name)
    cache = tmp_path / "models--openai--clip-vit-base-patch32"
    folder, revision = cache / "snapshots", "0123456789abcdef0123456789abcdef01234567"
    copy(models / "clip", folder / revision, "model.safetensors")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(revision)
    with refused("hf download"):  # a config without weights
        encoders.load("clip-vit-b32")
    (folder / revision / "model.safetensors").symlink_to(models / "clip" / "model.safetensors")
    encoder = encoders.load("clip-vit-b32")
    assert encoder.identity()["revision"] == revision and encoder.identity()["name"] == "clip-vit-b32"
    expected = encoders.load(str(models / "clip"))
    np.testing.assert_array_equal(encode(encoder, PICTURES[:2]), encode(expected, PICTURES[:2]))


def test_folders_that_are_no_model_of_images_are_refused(models: Path, tmp_path: Path) -> None:
    with refused("must hold config.json"):
        encoders.load(str(tmp_path))
    with refused("holds no weights"):
        encoders.load(str(copy(models / "vit", tmp_path / "bare", "model.safetensors")))
    with refused("must be a model of images alone"):
        encoders.load(str(models / "bert"))
    with refused("must give a picture the same vector each time"):  # it hides random patches
        encoders.load(str(models / "mae"))
    strange = copy(models / "vit", tmp_path / "strange")
    (strange / "config.json").write_text('{"model_type": "nothing"}')
    with refused("strange cannot be loaded"):
        encoders.load(str(strange))

    folder = copy(models / "vit", tmp_path / "half")
    weights = {name: weight for name, weight in load_file(folder / "model.safetensors").items() if "layer" not in name}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with refused("lack "):
        encoders.load(str(folder))


def test_a_pickle_among_the_weights_is_not_run(models: Path, tmp_path: Path) -> None:
    folder = copy(models / "vit", tmp_path / "loud", "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Loud(tmp_path / "run"), 2))
    with refused("cannot be loaded"):
        encoders.load(str(folder))
    assert not (tmp_path / "run").exists()


class Loud:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_missing_extra_is_named(models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("transformers", "huggingface_hub", "sentence_transformers", "onnxruntime"):
        monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "modules.json").write_text("[]")
    for name in (str(models / "clip"), "openai/clip-vit-large-patch14", str(tmp_path)):
        with refused(r"pip install 'mtn\[encoders\]'"):
            encoders.load(name)
    with refused(r"pip install 'mtn\[onnx\]'"):
        encoders.load("model.onnx")


# ---- residual networks

PARTS = {"conv1": "layer.0", "conv2": "layer.1", "conv3": "layer.2", "downsample": "shortcut"}


def library_name(ours: str) -> str:
    """The name in transformers of a weight that is named as in torchvision."""
    kind = "normalization" if "bn" in ours or "downsample.1" in ours else "convolution"
    leaf = ours.rsplit(".", 1)[1]
    if not ours.startswith("layer"):
        return f"embedder.embedder.{kind}.{leaf}"
    stage, place, part = ours.split(".")[:3]
    return f"encoder.stages.{int(stage[5]) - 1}.layers.{place}.{PARTS[part.replace('bn', 'conv')]}.{kind}.{leaf}"


@pytest.mark.parametrize("depth", [18, 50])
def test_a_residual_network_is_the_library_s(transformers: Any, depth: int) -> None:
    torch.manual_seed(0)
    ours = {18: resnet.resnet18, 50: resnet.resnet50}[depth](width=8)
    for name, tensor in ours.state_dict().items():
        if "bn" in name or "downsample.1" in name:
            tensor.copy_(torch.rand(tensor.shape) + 0.5) if tensor.ndim else None
    block, times, blocks = {18: ("basic", 1, [2, 2, 2, 2]), 50: ("bottleneck", 4, [3, 4, 6, 3])}[depth]
    widths = [8 * times * 2**stage for stage in range(4)]
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=widths, depths=blocks, layer_type=block)
    theirs = transformers.ResNetModel(config)
    theirs.load_state_dict({library_name(name): tensor for name, tensor in ours.state_dict().items()})
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.eval()(pixel_values=x, output_hidden_states=True)
        stages = ours.eval().stages(x)
        torch.testing.assert_close(ours(x), expected.pooler_output.flatten(1), rtol=1e-4, atol=1e-4)
    for one, other in zip(stages, expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert ours.dimension == widths[-1] == stages[-1].shape[1]


def test_a_small_network_keeps_the_size_and_may_go_below_zero() -> None:
    torch.manual_seed(0)
    network = resnet.resnet18(width=4, small=True, last_relu=False).eval()
    with torch.no_grad():
        stages = network.stages(torch.rand(2, 3, 32, 32))
    assert [tuple(one.shape[1:]) for one in stages] == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    assert stages[-1].min() < 0 <= min(one.min() for one in stages[:-1])


# ---- simclr


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
    commands.convert_simclr(folder / "simclr.npz", folder / "simclr.safetensors")
    return folder / "simclr.safetensors"


def test_simclr_is_the_published_network(
    variables: dict[str, np.ndarray], converted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encoder = encoders.load(f"simclr-r50:{converted}")
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
        assert encoders.load("simclr-r50").identity()["weights"] == encoder.identity()["weights"]
    monkeypatch.setenv("MTN_CACHE", str(tmp_path))
    with refused(f"no weights at {tmp_path}/simclr-r50.safetensors; fetch the checkpoint .* `mtn convert-simclr"):
        encoders.load("simclr-r50")
    (tmp_path / "simclr-r50.safetensors").symlink_to(converted)
    assert encoders.load("simclr-r50").dimension == 2048


PORTS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain.pth": lambda own: own,
    "nested.pth": lambda own: {"epoch": 9, "state_dict": {f"module.{name}": one for name, one in own.items()}},
    "lightning.pt": lambda own: {"state_dict": {f"encoder.net.{name}": one for name, one in own.items()}},
    "convnet.safetensors": lambda own: {f"convnet.{name}": one for name, one in own.items()},
}


@pytest.mark.parametrize("port", PORTS)
def test_ports_of_simclr_are_converted_alike(tmp_path: Path, port: str) -> None:
    shapes = {name: one.shape for name, one in simclr.network().state_dict().items() if "num_batches" not in name}
    own = {name: torch.full((1,), place).expand(shape) for place, (name, shape) in enumerate(shapes.items())}
    more = {"fc.weight": torch.ones(2), "projector.0.weight": torch.ones(3), "bn1.num_batches_tracked": torch.ones(1)}
    made = PORTS[port](own | more)
    if port.endswith("safetensors"):
        save_file({name: one.contiguous() for name, one in made.items()}, tmp_path / port)
    else:
        torch.save(made, tmp_path / port)
    simclr.convert(tmp_path / port, tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name].float()) for name in own)


def test_what_is_not_simclr_is_refused(
    variables: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(match: str, name: str, make: Callable[[Path], object]) -> None:
        make(tmp_path / name)
        with refused(match):
            simclr.convert(tmp_path / name, tmp_path / "out.safetensors")
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
        "this makes an .npz of it:\nimport numpy, tensorflow\n",
        "m.ckpt",
        lambda path: (path.parent / "m.ckpt.index").touch(),
    )
    with refused("TARGET: there is no folder"):
        simclr.convert(tmp_path / "few.npz", tmp_path / "no" / "out.safetensors")
    with refused("not a safetensors file"):
        encoders.load(f"simclr-r50:{tmp_path / 'text.npz'}")


def test_a_checkpoint_is_read_by_tensorflow_where_it_is(
    variables: dict[str, np.ndarray], converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SimpleNamespace(get_variable_to_shape_map=lambda: variables, get_tensor=variables.__getitem__)
    train = SimpleNamespace(load_checkpoint=lambda prefix: {str(tmp_path / "model.ckpt-9"): reader}[prefix])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))
    for end in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-9.{end}").write_text(end)
    simclr.convert(tmp_path / "model.ckpt-9", tmp_path / "out.safetensors")
    own, found = load_file(converted), load_file(tmp_path / "out.safetensors")
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        assert file.metadata()["sha256"] == hashlib.sha256(b"data-00000-of-00001index").hexdigest()
    with refused("is not a readable checkpoint"):
        simclr.convert(tmp_path / "model.ckpt-9.index", tmp_path / "out.safetensors")


def test_simclr_cuts_and_resizes_as_tensorflow_does(photograph: Image.Image) -> None:
    seen = simclr.cut(photograph)
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
        simclr.cut(plain), np.asarray(plain, np.float32).transpose(2, 0, 1)[:, 16:-16, 16:-16] / 255
    )


# ---- onnx


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
    encoder = encoders.load(str(write_onnx(tmp_path / "m.onnx", shape, kind, 2.0)))
    found = encode(encoder, PICTURES)
    side = 224 if shape[3] == "W" else 32
    cut = [onnx_encoder.middle(one, round(side * 256 / 224), side, side) for one in PICTURES]
    means = np.stack([(np.asarray(one) / 255).mean((0, 1)) for one in cut])
    expected = 2 * (means - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    matrix = np.arange(12).reshape(3, 4) if kind == "linear" else np.eye(3)
    np.testing.assert_allclose(found, expected @ matrix, rtol=1e-4, atol=1e-4)


def test_an_onnx_model_says_how_it_sees(tmp_path: Path) -> None:
    told = {"size": "32", "mean": "[0, 0, 0]", "std": "[1, 1, 1]"}
    encoder = encoders.load(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], "maps", **told)))
    image = noise(0, 32, 32)
    np.testing.assert_allclose(encoder.prepare(image), np.asarray(image).transpose(2, 0, 1) / np.float32(255))
    assert encoder.identity()["picture"]["mean"] == [0, 0, 0]
    other = write_onnx(tmp_path / "n.onnx", ["N", 3, 32, 32], "maps", 3.0, **told)
    same = {**encoders.load(str(other)).identity(), "name": str(tmp_path / "m.onnx")}
    assert [key for key, value in encoder.identity().items() if same[key] != value] == ["weights"]


def test_a_photograph_is_cut_as_the_library_cuts_it(transformers: Any, photograph: Image.Image) -> None:
    crop = {"height": 224, "width": 224}
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 256}, crop_size=crop, do_normalize=False)
    ours = np.asarray(onnx_encoder.middle(photograph.convert("RGB"), 256, 224, 224), np.float32)
    theirs = np.asarray(processor(photograph)["pixel_values"][0]).transpose(1, 2, 0) * 255
    assert np.abs(ours - theirs).mean() < 1.5  # the long side may round to the next pixel


def test_onnx_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with refused("its first input must be float N,3,H,W or N,H,W,3 with N free or 1, got"):
        encoders.load(str(write_onnx(tmp_path / "m.onnx", ["N", 4, 32, 32], "maps")))
    with refused("its first input must be float"):
        encoders.load(str(write_onnx(tmp_path / "m.onnx", [8, 3, 32, 32])))
    with refused("its metadata size, mean and std must be"):
        encoders.load(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], mean="[1]")))
    with refused("its metadata size, mean and std must be"):
        encoders.load(str(write_onnx(tmp_path / "m.onnx", ["N", 3, 32, 32], size="16")))
    with refused("there is no file"):
        encoders.load(str(tmp_path / "no.onnx"))
    (tmp_path / "m.onnx").write_text("nothing")
    with refused("is not a readable ONNX model"):
        encoders.load(str(tmp_path / "m.onnx"))


# ---- functions


def means(pictures: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(one).mean((0, 1)) for one in pictures])


def test_a_function_is_an_encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear = [one.convert("RGBA") for one in PICTURES]
    np.testing.assert_allclose(encode(encoders.load(means), clear), means(PICTURES), rtol=1e-6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = "def bright(pictures):\n    return [[sum(one.getpixel((0, 0)))] for one in pictures]\nthing = 3\n"
    (tmp_path / "my_own_encoder.py").write_text(text)
    encoder = encoders.load("my_own_encoder:bright")
    assert encode(encoder, PICTURES)[0, 0] == sum(PICTURES[0].getpixel((0, 0)))
    identity = encoder.identity()
    assert identity["source"] == hashlib.sha256(text.encode()).hexdigest() and identity["version"] == "None"
    encoder.call.version = 2  # type: ignore[attr-defined]
    assert encoder.identity()["version"] == "2"
    for name in ("my_own_encoder:nothing", "no_such_module:bright", "my_own_encoder:thing"):
        with refused(f"encoder '{name}'"):
            encoders.load(name)


BAD: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "one dimension": (lambda pictures: np.ones(len(pictures)), "must give numbers of shape N,D, here 1,D; got float64"),
    "rows": (lambda pictures: np.ones((2, 5)), "must give numbers of shape N,D"),
    "none": (lambda pictures: None, "must give numbers of shape N,D"),
    "text": (lambda pictures: [["a"]], "must give numbers of shape N,D"),
    "nan": (lambda pictures: np.full((1, 3), np.nan), "must give numbers, got a NaN or infinite"),
    "random": (lambda pictures: np.random.default_rng().random((1, 3)), "the same vector each time"),
}


@pytest.mark.parametrize("case", BAD)
def test_functions_that_give_no_vectors_are_refused(case: str) -> None:
    with refused(BAD[case][1]):
        encoders.load(BAD[case][0])


@pytest.mark.parametrize("name", ["clip-vit-b23", "glyphs", "nonsense", "./no/folder", ""])
def test_an_unknown_name_gets_a_hint(name: str) -> None:
    near = {"clip-vit-b23": "did you mean 'clip-vit-b32'", "glyphs": "did you mean 'glyph'"}.get(
        name, "valid: clip-vit"
    )
    with refused(f"no encoder {name!r}: {near}.*package.module:function"):
        encoders.load(name)
    with refused("device = 'tpu' is not there"):
        encoders.load("glyph", "tpu")


# ---- sentences

SENTENCES = ["How do I freeze my card?", "Wie spät ist es in Zürich?", "how do i freeze my card", "", "ﬁne　print"]


def test_hashing_is_the_same_everywhere() -> None:
    encoder = encoders.load("hashing")
    found = encode(encoder, SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(encoder.encode(SENTENCES[::-1]), found[::-1])
    digest = hashlib.sha256(np.round(found.astype(np.float64) * 1000).astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "60663b9aa612e200"
    assert encoder.kind == "text" and encoder.identity() == {"name": "hashing", "version": 1, "dimension": 512}
    near, far = found[0] @ found[2], found[0] @ found[1]
    assert near > 0.9 > 0.3 > far
    np.testing.assert_array_equal(encoder.encode(["fine print"])[0], found[4])
    assert np.isfinite(encoder.encode(["\ud800", "  \n"])).all()


@pytest.fixture(scope="module")
def sentence_model(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("sentence_transformers", reason=EXTRA)
    from sentence_transformers.sentence_transformer import modules as parts

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("sentences")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "how", "do", "i", "card", "my", "##s", "?"]
    (root / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(root / "vocab.txt")).save_pretrained(root / "bert")
    transformers.BertModel(transformers.BertConfig(**small, vocab_size=len(words))).save_pretrained(root / "bert")
    word = parts.Transformer(str(root / "bert"))
    library.SentenceTransformer(modules=[word, parts.Pooling(32)]).save(str(root / "model"))
    return root / "model"


def test_a_sentence_model_s_vectors_are_the_library_s(sentence_model: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = encoders.load(str(sentence_model))
    texts = ["how do i", "my cards ?", "card", ""]
    found = encode(encoder, texts)
    np.testing.assert_allclose(found, SentenceTransformer(str(sentence_model)).encode(texts), rtol=1e-4, atol=1e-5)
    assert encoder.kind == "text" and found.shape == (4, 32)
    assert encoder.identity() == encoders.load(str(sentence_model)).identity()
    modules = json.loads((sentence_model / "modules.json").read_text())
    modules[0]["type"] = "subprocess.Popen"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with refused("cannot be loaded: .*subprocess.Popen"):
        encoders.load(str(tmp_path))

"""SimCLR's ResNet-50 as published, and what makes its weights of TensorFlow's or of a PyTorch port.

Everything is as in https://github.com/google-research/simclr: the padding of the first pool, and how a picture is cut
and resized for evaluation (`data_util.py`).
"""

import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtn import checkpoint
from mtn.datasets.glyphs import default_cache
from mtn.encoders import resnet
from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import digest, one_line, picture
from mtn.errors import InputError

SIDE, PROPORTION = 224, 0.875
SCOPE = "base_model"
"""Of the network in a checkpoint of TensorFlow; heads are beside it."""
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
LAYERS = (("conv2d", nn.Conv2d, {"weight": "kernel"}), ("batch_normalization", nn.BatchNorm2d, NORM))
"""TensorFlow's name of a layer, its kind, our names of its weights and TensorFlow's."""
LAST = "layer4.2.conv3.weight"
"""What stands before it in a port is the port's own prefix: module., encoder., ..."""
NESTS = ("state_dict", "model_state_dict", "model")


class SimCLR(Encoder):
    def __init__(self, path: Path, name: str, device: torch.device) -> None:
        self.path, self.name, self.device = path, name, device
        self.network = network()
        self.dimension = self.network.dimension
        weights, self.source = _read_converted(path)
        self.network.load_state_dict(_fitting(weights, path), strict=False)
        self.network.eval().requires_grad_(False).to(device)

    def identity(self) -> dict[str, Any]:
        seen = f"middle {PROPORTION}, bicubic without smoothing to {SIDE}, values from 0 to 1"
        return {"name": self.name, "weights": digest([self.path]), "source": self.source, "picture": seen}

    def prepare(self, item: Item) -> np.ndarray:
        return cut(picture(item))

    @torch.inference_mode()
    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        found: Tensor = self.network(torch.from_numpy(np.stack(batch)).to(self.device))
        return found.cpu().numpy()


def network() -> resnet.ResNet:
    made = resnet.resnet50()
    # TensorFlow pads what it pools at the far edges only; after a ReLU a zero changes no maximum.
    made.pool = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2))
    return made


def find(name: str) -> Path:
    """Where the weights are: after a colon, in $MTN_SIMCLR, or in the cache folder."""
    given = name.partition(":")[2] or os.environ.get("MTN_SIMCLR")
    path = Path(given) if given else default_path()
    if path.is_file():
        return path
    raise InputError(
        f"encoder {name!r}: no weights at {path}; fetch the checkpoint ResNet50_1x of "
        f"https://github.com/google-research/simclr, run `mtn convert-simclr CHECKPOINT`, then run again"
    )


def default_path() -> Path:
    return default_cache() / "simclr-r50.safetensors"


# ---- pictures


def cut(image: Image.Image) -> np.ndarray:
    """3,224,224 floats from 0 to 1: the middle square, 7/8 of the short side, resized."""
    side = round(PROPORTION * min(image.size))
    left, top = (image.width - side + 1) // 2, (image.height - side + 1) // 2
    x = np.asarray(image.crop((left, top, left + side, top + side)), np.float32) / 255
    return _resize(_resize(x).swapaxes(0, 1)).transpose(2, 1, 0).clip(0, 1)


def _resize(x: np.ndarray) -> np.ndarray:
    """S,... -> 224,... as TensorFlow 1 does: cubic with a = -0.75 through the four nearest, nothing is averaged."""
    at = np.arange(SIDE) * (len(x) / SIDE)
    below = np.floor(at).astype(int)
    total = np.zeros((SIDE, *x.shape[1:]), np.float32)
    for step in range(-1, 3):
        d = np.abs(at - below - step)
        weight = np.where(d <= 1, (1.25 * d - 2.25) * d**2 + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3)
        total += weight.astype(np.float32)[:, None, None] * x[(below + step).clip(0, len(x) - 1)]
    return total


# ---- weights


def convert(source: Path, target: Path) -> None:
    """A checkpoint of TensorFlow, an .npz of its variables, or a PyTorch port -> the file that the encoder reads."""
    if not target.parent.is_dir():
        raise InputError(f"TARGET: there is no folder {str(target.parent)!r}")
    files = _files(source)
    weights = _read(source)
    named = _from_tensorflow(weights) if any(name.startswith(f"{SCOPE}/") for name in weights) else _from_port(weights)
    whole = {name: tensor.float().contiguous() for name, tensor in _fitting(named, source).items()}
    facts = {"source": source.name, "sha256": digest(files)}
    try:
        checkpoint.write(target, lambda temporary: save_file(whole, temporary, facts))
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None


def _files(source: Path) -> list[Path]:
    """A file, a checkpoint's folder, or the files that begin with a checkpoint's prefix."""
    near = source.glob("*") if source.is_dir() else source.parent.glob(f"{source.name}.*")
    found = [source] if source.is_file() else sorted(file for file in near if file.is_file())
    if not found:
        raise InputError(f"SOURCE: no file, folder or checkpoint {str(source)!r}")
    return found


def _read(source: Path) -> dict[str, Tensor]:
    suffix = source.suffix.lower()
    try:
        if suffix == ".npz":
            with np.load(source, allow_pickle=False) as arrays:
                return {name.removesuffix(":0"): torch.from_numpy(arrays[name]) for name in arrays.files}
        if suffix == ".safetensors":
            return load_file(source)
        if suffix in (".pth", ".pt", ".tar"):
            return _unnest(torch.load(source, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise InputError(
            f"{source} holds more than weights, and Python objects are not unpickled: "
            f"save it again by torch.save(model.state_dict(), ...), or as .safetensors"
        ) from None
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise InputError(f"{source} is not readable as {suffix}: {one_line(error)}") from None
    return _read_tensorflow(source)


def _unnest(found: Any) -> dict[str, Tensor]:
    for nest in NESTS:
        if isinstance(found, dict) and isinstance(found.get(nest), dict):
            found = found[nest]
    if not isinstance(found, dict):
        raise ValueError("it holds no table of weights")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _read_tensorflow(source: Path) -> dict[str, Tensor]:
    try:
        import tensorflow
    except ImportError:
        raise InputError(
            f"{source} is not an .npz, .pth, .pt or .safetensors file, and to read a checkpoint tensorflow must be "
            f"there; where it is, this makes an .npz of it:\n"
            f"import numpy, tensorflow\n"
            f"found = tensorflow.train.load_checkpoint({str(source)!r})\n"
            f"numpy.savez('simclr.npz', **{{v: found.get_tensor(v) for v in found.get_variable_to_shape_map()}})"
        ) from None
    try:
        found = tensorflow.train.load_checkpoint(str(source))
        names = [name for name in found.get_variable_to_shape_map() if name.startswith(f"{SCOPE}/")]
        return {name: torch.from_numpy(np.asarray(found.get_tensor(name))) for name in names}
    except Exception as error:  # tensorflow's own classes have no common one
        raise InputError(f"{source} is not a readable checkpoint: {one_line(error)}") from None


def _from_tensorflow(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """TensorFlow numbers layers as they are made: in a block the shortcut is first, as in our modules."""
    named, modules = {}, list(_outline().named_modules())
    for layer, kind, leaves in LAYERS:
        for number, name in enumerate(name for name, module in modules if isinstance(module, kind)):
            scope = f"{SCOPE}/{layer}_{number}" if number else f"{SCOPE}/{layer}"
            for ours, theirs in leaves.items():
                if (value := weights.get(f"{scope}/{theirs}")) is not None:
                    named[f"{name}.{ours}"] = value.permute(3, 2, 0, 1) if value.ndim == 4 else value
    return named


def _from_port(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefixes = [name.removesuffix(LAST) for name in weights if name.endswith(LAST)]
    return checkpoint.take(weights, prefixes[0] if prefixes else "")


def _fitting(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """What the network takes, heads left out; an error if anything lacks or has another shape."""
    own = {name: tensor for name, tensor in _outline().state_dict().items() if "num_batches" not in name}
    lacks = [name for name in own if name not in weights]
    if lacks:
        raise InputError(f"{path} is not SimCLR's ResNet-50: it lacks {len(lacks)} weights, as {', '.join(lacks[:3])}")
    wrong = [name for name in own if weights[name].shape != own[name].shape]
    if wrong:
        shown = ", ".join(f"{name} is {list(weights[name].shape)}, not {list(own[name].shape)}" for name in wrong[:3])
        raise InputError(f"{path} is not SimCLR's ResNet-50 (1x): {shown}")
    return {name: weights[name] for name in own}


def _outline() -> resnet.ResNet:
    """Names and shapes alone."""
    with torch.device("meta"):
        return resnet.resnet50()


def _read_converted(path: Path) -> tuple[dict[str, Tensor], str]:
    """The weights, and the checksum of what they were made of."""
    try:
        with safe_open(path, framework="pt") as file:
            return load_file(path), (file.metadata() or {}).get("sha256", "")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a safetensors file: {one_line(error)}; make it by mtn convert-simclr"
        ) from None

"""SimCLR's ResNet-50 as published, and the conversion of its weights from TensorFlow or a PyTorch port.

The padding of the first pool, and how an image is cropped and resized for evaluation (`data_util.py`), are as in
https://github.com/google-research/simclr.
"""

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

from mtn.encoders import catalogue, resnet
from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import as_rgb, files_digest, one_line
from mtn.errors import InputError
from mtn.storage import files
from mtn.storage.tensors import strip_prefix

SIDE, PROPORTION = 224, 0.875
"""Of the input; of the short side that is cropped."""
SCOPE = "base_model"
"""Scope of the network in a TensorFlow checkpoint; heads are in others."""
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
LAYERS = (("conv2d", nn.Conv2d, {"weight": "kernel"}), ("batch_normalization", nn.BatchNorm2d, NORM))
"""TensorFlow's name of a layer, its module, torch's names of its weights and TensorFlow's."""
LAST = "layer4.2.conv3.weight"
"""In a port this name may have a prefix, which all have: module., encoder., ..."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys below which a PyTorch checkpoint may keep its weights."""


class SimCLR(Encoder):
    """The network in front of SimCLR's projection head."""

    def __init__(self, path: Path, name: str, device: torch.device) -> None:
        self.path, self.name, self.device = path, name, device
        self.network = make_network()
        self.dimension = self.network.dimension
        weights, self.source = _read_converted(path)
        self.network.load_state_dict(_select_weights(weights, path), strict=False)
        self.network.eval().requires_grad_(False).to(device)

    def identity(self) -> dict[str, Any]:
        preparation = f"middle {PROPORTION}, bicubic without smoothing to {SIDE}, values from 0 to 1"
        return {"name": self.name, "weights": files_digest([self.path]), "source": self.source, "picture": preparation}

    def prepare(self, item: Item) -> np.ndarray:
        return crop_and_resize(as_rgb(item))

    @torch.inference_mode()
    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        x: Tensor = self.network(torch.from_numpy(np.stack(batch)).to(self.device))
        return x.cpu().numpy()


def make_network() -> resnet.ResNet:
    """The architecture with random weights."""
    network = resnet.resnet50()
    # TensorFlow pads before pooling at the right and bottom only; after a ReLU a zero changes no maximum.
    network.pool = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2))
    return network


def find_weights(name: str) -> Path:
    """The weights at the path after a colon in the name, in $MTN_SIMCLR, or in the cache folder."""
    given = name.partition(":")[2]
    path = Path(given) if given else catalogue.simclr_path()
    if path.is_file():
        return path
    raise InputError(
        f"encoder {name!r}: no weights at {path}; fetch the checkpoint ResNet50_1x of "
        f"https://github.com/google-research/simclr, run `mtn convert-simclr CHECKPOINT`, then run again"
    )


# ---- images


def crop_and_resize(image: Image.Image) -> np.ndarray:
    """3,224,224 floats from 0 to 1: the middle square, 7/8 of the short side, resized."""
    side = round(PROPORTION * min(image.size))
    left, top = (image.width - side + 1) // 2, (image.height - side + 1) // 2
    x = np.asarray(image.crop((left, top, left + side, top + side)), np.float32) / 255
    return _resize(_resize(x).swapaxes(0, 1)).transpose(2, 1, 0).clip(0, 1)


def _resize(x: np.ndarray) -> np.ndarray:
    """S,... -> 224,... as TensorFlow 1 does: cubic with a = -0.75 through the four nearest, without antialiasing."""
    position = np.arange(SIDE) * (len(x) / SIDE)
    below = np.floor(position).astype(int)
    total = np.zeros((SIDE, *x.shape[1:]), np.float32)
    for step in range(-1, 3):
        d = np.abs(position - below - step)
        weight = np.where(d <= 1, (1.25 * d - 2.25) * d**2 + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3)
        total += weight.astype(np.float32)[:, None, None] * x[(below + step).clip(0, len(x) - 1)]
    return total


# ---- weights


def convert_weights(source: Path, target: Path) -> None:
    """A TensorFlow checkpoint, an .npz of its variables, or a PyTorch port -> the file that the encoder reads."""
    if not target.parent.is_dir():
        raise InputError(f"TARGET: there is no folder {str(target.parent)!r}")
    checkpoint = _checkpoint_files(source)
    weights = _read_weights(source)
    named = _from_tensorflow(weights) if any(name.startswith(f"{SCOPE}/") for name in weights) else _from_port(weights)
    tensors = {name: tensor.float().contiguous() for name, tensor in _select_weights(named, source).items()}
    facts = {"source": source.name, "sha256": files_digest(checkpoint)}
    try:
        files.write(target, lambda temporary: save_file(tensors, temporary, facts))
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None


def _checkpoint_files(source: Path) -> list[Path]:
    """The file itself, those of a checkpoint's folder, or those that begin with a checkpoint's prefix."""
    candidates = source.glob("*") if source.is_dir() else source.parent.glob(f"{source.name}.*")
    paths = [source] if source.is_file() else sorted(file for file in candidates if file.is_file())
    if not paths:
        raise InputError(f"SOURCE: no file, folder or checkpoint {str(source)!r}")
    return paths


def _read_weights(source: Path) -> dict[str, Tensor]:
    suffix = source.suffix.lower()
    try:
        if suffix == ".npz":
            with np.load(source, allow_pickle=False) as arrays:
                return {name.removesuffix(":0"): torch.from_numpy(arrays[name]) for name in arrays.files}
        if suffix == ".safetensors":
            return load_file(source)
        if suffix in (".pth", ".pt", ".tar"):
            return _unwrap(torch.load(source, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise InputError(
            f"{source} holds more than weights, and Python objects are not unpickled: "
            f"save it again by torch.save(model.state_dict(), ...), or as .safetensors"
        ) from None
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise InputError(f"{source} is not readable as {suffix}: {one_line(error)}") from None
    return _read_tensorflow(source)


def _unwrap(checkpoint: Any) -> dict[str, Tensor]:
    for key in WRAPPERS:
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict):
            checkpoint = checkpoint[key]
    if not isinstance(checkpoint, dict):
        raise ValueError("it holds no table of weights")
    return {name: tensor for name, tensor in checkpoint.items() if isinstance(tensor, Tensor)}


def _read_tensorflow(source: Path) -> dict[str, Tensor]:
    try:
        import tensorflow
    except ImportError:
        raise InputError(
            f"{source} is not an .npz, .pth, .pt or .safetensors file, and to read a checkpoint tensorflow must be "
            f"there; where it is, this line of Python makes an .npz of it: import numpy, tensorflow; "
            f"reader = tensorflow.train.load_checkpoint({str(source)!r}); "
            f"numpy.savez('simclr.npz', **{{v: reader.get_tensor(v) for v in reader.get_variable_to_shape_map()}})"
        ) from None
    try:
        reader = tensorflow.train.load_checkpoint(str(source))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith(f"{SCOPE}/")]
        return {name: torch.from_numpy(np.asarray(reader.get_tensor(name))) for name in names}
    except Exception as error:  # tensorflow's own classes have no common one
        raise InputError(f"{source} is not a readable checkpoint: {one_line(error)}") from None


def _from_tensorflow(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename: TensorFlow numbers layers in the order of construction, which is that of our modules (shortcut first)."""
    named, modules = {}, list(_outline().named_modules())
    for layer, kind, leaves in LAYERS:
        for number, name in enumerate(name for name, module in modules if isinstance(module, kind)):
            scope = f"{SCOPE}/{layer}_{number}" if number else f"{SCOPE}/{layer}"
            for torch_name, tensorflow_name in leaves.items():
                if (value := weights.get(f"{scope}/{tensorflow_name}")) is not None:
                    named[f"{name}.{torch_name}"] = value.permute(3, 2, 0, 1) if value.ndim == 4 else value
    return named


def _from_port(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefixes = [name.removesuffix(LAST) for name in weights if name.endswith(LAST)]
    return strip_prefix(weights, prefixes[0] if prefixes else "")


def _select_weights(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of the network without heads; an error if one is missing or has another shape."""
    own = {name: tensor for name, tensor in _outline().state_dict().items() if "num_batches" not in name}
    missing = [name for name in own if name not in weights]
    if missing:
        examples = ", ".join(missing[:3])
        raise InputError(f"{path} is not SimCLR's ResNet-50: it lacks {len(missing)} weights, as {examples}")
    wrong = [name for name in own if weights[name].shape != own[name].shape]
    if wrong:
        examples = ", ".join(
            f"{name} is {list(weights[name].shape)}, not {list(own[name].shape)}" for name in wrong[:3]
        )
        raise InputError(f"{path} is not SimCLR's ResNet-50 (1x): {examples}")
    return {name: weights[name] for name in own}


def _outline() -> resnet.ResNet:
    """The network without memory for its weights: names and shapes alone."""
    with torch.device("meta"):
        return resnet.resnet50()


def _read_converted(path: Path) -> tuple[dict[str, Tensor], str]:
    """The weights, and the checksum of the checkpoint that they were converted from."""
    try:
        with safe_open(path, framework="pt") as file:
            return load_file(path), (file.metadata() or {}).get("sha256", "")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a safetensors file: {one_line(error)}; make it by mtn convert-simclr"
        ) from None

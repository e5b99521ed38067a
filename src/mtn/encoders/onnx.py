"""Any ONNX model of images, run by onnxruntime.

The first input takes pictures, N,3,H,W or N,H,W,3 floats; what is not fixed of H and W is 224. The first output is the
vector, flattened; of maps it is the mean over the places. A picture is prepared as usual for ImageNet: short side to
H * 256 / 224, the middle cut out, mean and standard deviation of the channels. The model's metadata may say otherwise,
in JSON: `size` (of the short side), `mean` and `std` (three numbers each, of values from 0 to 1).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import digest, one_line, picture, probe, vectors
from mtn.errors import InputError

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class OnnxModel(Encoder):
    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.session = _open(path, name)
        entry = self.session.get_inputs()[0]
        self.entry, self.channels_last, self.alone, self.height, self.width = _shape(entry, name)
        self.size, self.mean, self.std = self._settings()
        self.dimension = probe(self, name)

    def identity(self) -> dict[str, Any]:
        beside = sorted(self.path.parent.glob(f"{self.path.name}*"))  # large weights lie in model.onnx.data
        shown = {
            "short side": self.size,
            "height": self.height,
            "width": self.width,
            "mean": self.mean,
            "std": self.std,
        }
        return {"name": self.name, "weights": digest(beside), "picture": shown}

    def prepare(self, item: Item) -> np.ndarray:
        image = middle(picture(item), self.size, self.height, self.width)
        x = (np.asarray(image, np.float32) / 255 - self.mean) / self.std
        return (x if self.channels_last else x.transpose(2, 0, 1)).astype(np.float32)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        parts = np.split(np.stack(batch), len(batch)) if self.alone else [np.stack(batch)]
        x = np.concatenate([self._run(part) for part in parts])
        return vectors(x, len(batch), self.name)

    def _run(self, x: np.ndarray) -> np.ndarray:
        try:
            out = np.asarray(self.session.run(None, {self.entry: x})[0])
        except Exception as error:  # onnxruntime's own classes have no common one
            raise InputError(f"encoder {self.name!r} cannot be run: {one_line(error)}") from None
        if out.ndim == 4:
            return out.mean((1, 2) if self.channels_last else (2, 3))
        return out.reshape(len(x), -1)

    def _settings(self) -> tuple[int, list[float], list[float]]:
        told = self.session.get_modelmeta().custom_metadata_map
        try:
            size = json.loads(told.get("size", str(round(max(self.height, self.width) * 256 / 224))))
            mean, std = (json.loads(told.get(key, str(usual))) for key, usual in (("mean", MEAN), ("std", STD)))
            if size < max(self.height, self.width) or np.shape(mean) != (3,) or np.shape(std) != (3,):
                raise ValueError("of another shape")
            return int(size), [float(value) for value in mean], [float(value) for value in std]
        except (ValueError, TypeError) as error:
            raise InputError(
                f"encoder {self.name!r}: its metadata size, mean and std must be a whole number not below the "
                f"height and width, and three numbers each: {one_line(error)}"
            ) from None


def middle(image: Image.Image, size: int, height: int, width: int) -> Image.Image:
    """Resized, bicubic, so that the short side is `size`; then the middle."""
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _open(path: Path, name: str) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"encoder {name!r} needs onnxruntime: pip install 'mtn[onnx]'") from None
    if not path.is_file():
        raise InputError(f"encoder {name!r}: there is no file {str(path)!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common one
        raise InputError(f"encoder {name!r} is not a readable ONNX model: {one_line(error)}") from None


def _shape(entry: Any, name: str) -> tuple[str, bool, bool, int, int]:
    """Its name, whether channels are last, whether it takes one picture at a time, height, width."""
    shape = list(entry.shape)
    channels = [axis for axis in (1, 3) if len(shape) == 4 and shape[axis] == 3]
    if entry.type != "tensor(float)" or not channels or (isinstance(shape[0], int) and shape[0] != 1):
        raise InputError(
            f"encoder {name!r}: its first input must be float N,3,H,W or N,H,W,3 with N free or 1, "
            f"got {entry.type} {shape}"
        )
    last = channels[0] == 3
    height, width = (side if isinstance(side, int) else 224 for side in (shape[1:3] if last else shape[2:]))
    return entry.name, last, shape[0] == 1, height, width

"""Any ONNX model of images, run by onnxruntime.

The first input takes images, N,3,H,W or N,H,W,3 floats; a free H or W is 224. The first output is the vector,
flattened; of feature maps it is the mean over the positions. An image is prepared as usual for ImageNet: short side
resized to H * 256 / 224, centre crop, mean and standard deviation of the channels. The model's metadata may say
otherwise, in JSON: `size` (of the short side), `mean` and `std` (three numbers each, for values from 0 to 1).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import as_rgb, centre_crop, check_vectors, files_digest, one_line, probe
from mtn.encoders.onnx_check import check_onnx
from mtn.errors import InputError, install_line

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
LARGEST_SIDE = 4096
"""Pixels of the height, the width and the short side that a model may ask for."""


class OnnxModel(Encoder):
    """An .onnx file as an encoder."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.session = _open(path, name)
        first_input = self.session.get_inputs()[0]
        self.input_name, self.channels_last, self.single, self.height, self.width = _input_shape(first_input, name)
        self.size, self.mean, self.std = self._settings()
        self.dimension = probe(self, name)

    def identity(self) -> dict[str, Any]:
        files = sorted(self.path.parent.glob(f"{self.path.name}*"))  # large weights are in model.onnx.data
        preparation = {
            "short side": self.size,
            "height": self.height,
            "width": self.width,
            "mean": self.mean,
            "std": self.std,
        }
        return {"name": self.name, "weights": files_digest(files), "picture": preparation}

    def prepare(self, item: Item) -> np.ndarray:
        image = centre_crop(as_rgb(item), self.size, self.height, self.width)
        x = (np.asarray(image, np.float32) / 255 - self.mean) / self.std
        return (x if self.channels_last else x.transpose(2, 0, 1)).astype(np.float32)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        parts = np.split(np.stack(batch), len(batch)) if self.single else [np.stack(batch)]
        x = np.concatenate([self._run(part) for part in parts])
        return check_vectors(x, len(batch), self.name)

    def _run(self, x: np.ndarray) -> np.ndarray:
        try:
            out = np.asarray(self.session.run(None, {self.input_name: x})[0])
        except Exception as error:  # onnxruntime's own classes have no common one
            raise InputError(f"encoder {self.name!r} cannot be run: {one_line(error)}") from None
        if out.ndim == 4:
            return np.asarray(out.mean((1, 2) if self.channels_last else (2, 3)))
        return out.reshape(len(x), -1)

    def _settings(self) -> tuple[int, list[float], list[float]]:
        metadata = self.session.get_modelmeta().custom_metadata_map
        try:
            size = json.loads(metadata.get("size", str(round(max(self.height, self.width) * 256 / 224))))
            mean, std = (json.loads(metadata.get(key, str(default))) for key, default in (("mean", MEAN), ("std", STD)))
            if (
                not max(self.height, self.width) <= size <= LARGEST_SIDE
                or np.shape(mean) != (3,)
                or np.shape(std) != (3,)
            ):
                raise ValueError("of another shape")
            return int(size), [float(value) for value in mean], [float(value) for value in std]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"encoder {self.name!r}: its metadata size, mean and std must be a whole number not below the "
                f"height and width, and not above {LARGEST_SIDE}, and three numbers each: {one_line(error)}"
            ) from None


def _open(path: Path, name: str) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"encoder {name!r} needs onnxruntime: {install_line('onnx')}") from None
    if not path.is_file():
        raise InputError(f"encoder {name!r}: there is no file {str(path)!r}")
    check_onnx(path, name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not logged
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common one
        raise InputError(f"encoder {name!r} is not a readable ONNX model: {one_line(error)}") from None


def _input_shape(first_input: Any, name: str) -> tuple[str, bool, bool, int, int]:
    """The input's name, whether channels are last, whether it takes a single image, height, width."""
    shape = list(first_input.shape)
    channels = [axis for axis in (1, 3) if len(shape) == 4 and shape[axis] == 3]
    if first_input.type != "tensor(float)" or not channels or (isinstance(shape[0], int) and shape[0] != 1):
        raise InputError(
            f"encoder {name!r}: its first input must be float N,3,H,W or N,H,W,3 with N free or 1, "
            f"got {first_input.type} {shape}"
        )
    last = channels[0] == 3
    height, width = (side if isinstance(side, int) else 224 for side in (shape[1:3] if last else shape[2:]))
    if not 1 <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
        raise InputError(
            f"encoder {name!r}: its images must have from 1 to {LARGEST_SIDE} pixels a side, got {height} x {width}"
        )
    return first_input.name, last, shape[0] == 1, height, width

"""The network whose features are learned: a residual one, new or from a checkpoint with the common names."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mtn.config import Images
from mtn.encoders.resnet import BasicBlock, ResNet
from mtn.errors import InputError

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet10": (1, 1, 1, 1)}
DAMAGE = (
    OSError,
    RuntimeError,
    AttributeError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""What a file of other weights, or of none, makes torch and safetensors raise."""
LARGEST_SMALL = 64
"""Side up to which an image is small, where the recipe does not say so."""


@dataclass(frozen=True)
class Features:
    """What a backbone makes of a batch."""

    maps: list[Tensor]  # B,C,H,W after each stage
    x: Tensor  # B,D of unit length


def make(images: Images, signed: bool) -> ResNet:
    """`signed` features may be negative: the last ReLU is left out."""
    assert images.side is not None
    small = images.stem == "small" if images.stem else images.side <= LARGEST_SMALL
    backbone = ResNet(BasicBlock, DEPTHS[images.network], images.width, small, last_relu=not signed)
    if images.weights is not None:
        load_weights(backbone, Path(images.weights).expanduser())
    return backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def look(backbone: ResNet, images: Tensor) -> Features:
    """B,3,H,W -> features. On CUDA convolutions are in bfloat16, which needs no scaling of the loss."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        maps = [found.float() for found in backbone.stages(images)]
    return Features(maps, F.normalize(maps[-1].mean((2, 3)), dim=1))


def load_weights(backbone: ResNet, path: Path) -> None:
    """All weights but those of the last linear layer (fc), which classifies."""
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        weights = {name: weight for name, weight in found.items() if not name.startswith("fc.")}
        backbone.load_state_dict(weights)
    except DAMAGE as error:
        why = " ".join(str(error).split())[:300]
        raise InputError(f"images.weights: {path} does not fit images.network and images.width: {why}") from None

"""The network whose features are learned: a residual network, new or from a checkpoint named as torchvision's."""

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mtn.config import Images
from mtn.encoders.branches import Branches
from mtn.encoders.resnet import BasicBlock, ResNet
from mtn.errors import InputError

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet10": (1, 1, 1, 1)}
"""Blocks of each stage."""
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
"""What torch and safetensors raise on a file of other weights, or of none."""
LARGEST_SMALL = 64
"""Side up to which the stem is that for small images, where the recipe does not say."""


@dataclass(frozen=True)
class Features:
    """The output of a backbone."""

    maps: list[Tensor]  # B,C,H,W after each stage
    x: Tensor  # B,D of unit length


class Backbones(nn.Module):
    """Networks side by side, whose features are those of all of them: the last one trains, the others are frozen."""

    def __init__(self, first: ResNet) -> None:
        super().__init__()
        self.networks = nn.ModuleList([first])

    @property
    def dimension(self) -> int:
        """Of the features of all networks together."""
        return sum(network.dimension for network in self._each())

    def _each(self) -> list[ResNet]:
        return [network for network in self.networks if isinstance(network, ResNet)]

    def expand(self) -> None:
        """One more network, which begins as a copy of the last one."""
        self.networks.append(copy.deepcopy(self.networks[-1]))
        self.networks[:-1].requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Backbones":
        """Frozen networks keep their batch statistics too."""
        super().train(mode)
        self.networks[:-1].eval()
        return self

    def stages(self, x: Tensor) -> list[Tensor]:
        """B,3,H,W -> the maps of all networks after each stage, B,C,H,W."""
        each = [network.stages(x) for network in self._each()]
        return [torch.cat(maps, dim=1) for maps in zip(*each, strict=True)]


GROWING: dict[str, type[Backbones] | type[Branches]] = {"networks": Backbones, "branches": Branches}
"""What a network is put into that grows with the tasks."""


def make_backbone(images: Images, signed: bool) -> ResNet:
    """The network of a recipe. `signed` features may be negative: the last ReLU is left out."""
    assert images.side is not None
    small = images.stem == "small" if images.stem else images.side <= LARGEST_SMALL
    backbone = ResNet(BasicBlock, DEPTHS[images.network], images.width, small, last_relu=not signed)
    if images.weights is not None:
        load_weights(backbone, Path(images.weights).expanduser())
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return backbone


def compute_features(backbone: ResNet | Backbones | Branches, images: Tensor) -> Features:
    """B,3,H,W -> features. On CUDA convolutions run in bfloat16, which needs no loss scaling."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        maps = [stage.float() for stage in backbone.stages(images)]
    return Features(maps, F.normalize(maps[-1].mean((2, 3)), dim=1))


def load_weights(backbone: ResNet, path: Path) -> None:
    """Load all weights but those of the classifier (fc)."""
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        weights = {name: weight for name, weight in tensors.items() if not name.startswith("fc.")}
        backbone.load_state_dict(weights)
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"images.weights: {path} does not fit images.network and images.width: {reason}") from None

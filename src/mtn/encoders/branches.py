"""A stable and a plastic residual network that share their maps: adaptive aggregation (Liu et al., CVPR 2021).

Shapes: B batch, C channels, H, W height and width.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.encoders.resnet import ResNet


class ScaledConv(nn.Module):
    """A convolution whose weights are frozen, times a number that is learned for each pair of channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = nn.Parameter(conv.weight.detach().clone(), requires_grad=False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]).detach())
        self.stride, self.padding = conv.stride[0], conv.kernel_size[0] // 2

    def forward(self, x: Tensor) -> Tensor:
        """B,C,H,W -> B,C,H,W."""
        return F.conv2d(x, self.weight * self.scale, None, self.stride, self.padding)


def stabilised(network: ResNet) -> ResNet:
    """A copy whose convolutions are frozen up to their scales; batch norms train."""
    stable = copy.deepcopy(network)
    for module in list(stable.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, ScaledConv(child))
    return stable


class Branches(nn.Module):
    """x_k = a_k stable_k(x_k-1) + (1 - a_k) plastic_k(x_k-1) for each stage k; one plain network until `expand`."""

    split: Tensor

    def __init__(self, first: ResNet) -> None:
        super().__init__()
        self.plastic, self.stable = first, stabilised(first)
        self.mixing = nn.Parameter(torch.full((first.depth,), 0.5))  # a
        self.register_buffer("split", torch.tensor(False))

    @property
    def dimension(self) -> int:
        """Of the features."""
        dimension: int = self.plastic.dimension
        return dimension

    def expand(self) -> None:
        """Begin with two branches that are alike, once."""
        if not self.split:
            self.stable = stabilised(self.plastic)
            self.split.fill_(True)

    def stages(self, x: Tensor) -> list[Tensor]:
        """B,3,H,W -> the map B,C,H,W after each stage."""
        if not self.split:
            return self.plastic.stages(x)
        stable, plastic, maps = self.stable.stem(x), self.plastic.stem(x), []
        for stage, share in enumerate(self.mixing):
            name = f"layer{stage + 1}"
            one, other = self.stable.get_submodule(name)(stable), self.plastic.get_submodule(name)(plastic)
            stable = plastic = share * one + (1 - share) * other
            maps.append(stable)
        return maps

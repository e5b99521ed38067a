"""Residual networks whose weights are named as in torchvision, without the last linear layer.

A bottleneck has its stride in the 3 x 3 convolution, as in torchvision and in SimCLR.

Shapes: B batch, C channels, H, W height and width, D features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv(ins: int, outs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride, kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """y = relu(residual(x) + shortcut(x)); the shortcut is a projection where the shapes of the two differ."""

    expansion = 1

    def __init__(self, ins: int, width: int, stride: int, relu: bool) -> None:
        super().__init__()
        outs = width * self.expansion
        self.relu = nn.ReLU() if relu else nn.Identity()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or ins != outs:
            self.downsample = nn.Sequential(_conv(ins, outs, 1, stride), nn.BatchNorm2d(outs))

    def residual(self, x: Tensor) -> Tensor:
        """The branch with the convolutions."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.residual(x) + self.downsample(x))
        return out


class BasicBlock(ResidualBlock):
    """Two 3 x 3 convolutions."""

    def __init__(self, ins: int, width: int, stride: int = 1, relu: bool = True) -> None:
        super().__init__(ins, width, stride, relu)
        self.conv1, self.bn1 = _conv(ins, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)

    def residual(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.bn2(self.conv2(x))
        return out


class Bottleneck(ResidualBlock):
    """A 3 x 3 convolution between two of 1 x 1, the last of which widens four times."""

    expansion = 4

    def __init__(self, ins: int, width: int, stride: int = 1, relu: bool = True) -> None:
        super().__init__(ins, width, stride, relu)
        outs = width * self.expansion
        self.conv1, self.bn1 = _conv(ins, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, outs, 1), nn.BatchNorm2d(outs)

    def residual(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        out: Tensor = self.bn3(self.conv3(x))
        return out


class ResNet(nn.Module):
    """A residual network without its classifier.

    `small` is for images of 32 to 64 pixels: the first convolution is 3 x 3 with stride 1, and there is no max pooling.
    Without `last_relu` features may be negative, as a cosine classifier needs them (LUCIR).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        width: int = 64,
        small: bool = False,
        last_relu: bool = True,
    ) -> None:
        super().__init__()
        self.dimension = width * 2 ** (len(depths) - 1) * block.expansion
        self.conv1 = _conv(3, width, 3) if small else _conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        ins = width
        for stage, depth in enumerate(depths):
            outs, last = width * 2**stage, stage == len(depths) - 1
            blocks = []
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(block(ins, outs, stride, last_relu or not last or index < depth - 1))
                ins = outs * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.depth = len(depths)
        self.apply(_initialise)

    def stem(self, x: Tensor) -> Tensor:
        """B,3,H,W -> B,C,H,W: what is before the first stage."""
        out: Tensor = self.pool(torch.relu(self.bn1(self.conv1(x))))
        return out

    def stages(self, x: Tensor) -> list[Tensor]:
        """B,3,H,W -> the map B,C,H,W after each stage."""
        x = self.stem(x)
        maps = []
        for stage in range(self.depth):
            x = self.get_submodule(f"layer{stage + 1}")(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """B,3,H,W -> B,D: the mean of the last map."""
        return self.stages(x)[-1].mean((2, 3))


def _initialise(module: nn.Module) -> None:
    """He initialisation: keeps the variance of gradients through a convolution and its ReLU."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(width: int = 64, small: bool = False, last_relu: bool = True) -> ResNet:
    """ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), width, small, last_relu)


def resnet50(width: int = 64, small: bool = False, last_relu: bool = True) -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), width, small, last_relu)

"""EfficientNet-Lite (Google, 2020), trained with ImageNet's labels: inverted bottlenecks, no squeeze-and-excitation.

Batch normalisation is folded into the convolutions when the weights are read. Padding is TensorFlow's.

Shapes: B batch, C channels, H, W height and width, S side of the input, D = 1280 features.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import as_rgb, centre_crop
from mtn.encoders.packaged import PACKAGED

STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Of each stage: blocks, kernel, stride of the first block, expansion, channels at width 1."""
STEM, HEAD = 32, 1280
"""Channels of the first and of the last convolution, at any width."""
EPSILON = 1e-3
"""Of batch normalisation."""
MARGIN = 32
"""The short side is resized to S + 32 before the middle is cut out."""
STEP = 4
"""Images that a processor computes at once: the maps of more do not stay in its cache (benchmarks/encoders.py)."""


class SameConvolution(nn.Conv2d):
    """A convolution with TensorFlow's padding: an odd pixel goes to the right and the bottom."""

    def __init__(self, ins: int, outs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__(ins, outs, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """B,C,H,W -> B,C,ceil(H / stride),ceil(W / stride)."""
        if self.stride[0] > 1:
            total = [max((math.ceil(n / 2) - 1) * 2 + self.kernel_size[0] - n, 0) for n in (x.shape[3], x.shape[2])]
            x = F.pad(x, [part for pad in total for part in (pad // 2, pad - pad // 2)])
        return super().forward(x)


class Block(nn.Module):
    """x -> expand (1 x 1) -> depthwise -> project (1 x 1), added to x where the shapes agree."""

    def __init__(self, ins: int, outs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = ins * expansion
        self.expand = SameConvolution(ins, wide) if expansion > 1 else None
        self.depthwise = SameConvolution(wide, wide, kernel, stride, groups=wide)
        self.project = SameConvolution(wide, outs)
        self.residual = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        """B,C,H,W -> B,C',H',W'."""
        y: Tensor = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        y = self.project(F.relu6(self.depthwise(y), inplace=True))
        return x + y if self.residual else y


class EfficientNetLite(nn.Module):
    """B,3,S,S -> B,D: the mean over positions of the last feature map."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.stem, ins, blocks = SameConvolution(3, STEM, 3, 2), STEM, []
        for place, (count, kernel, stride, expansion, channels) in enumerate(STAGES):
            outs = _round_to_eight(channels * width)
            repeats = count if place in (0, len(STAGES) - 1) else math.ceil(count * depth)
            for number in range(repeats):
                blocks.append(Block(ins, outs, kernel, 1 if number else stride, expansion))
                ins = outs
        self.blocks, self.head = nn.Sequential(*blocks), SameConvolution(ins, HEAD)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def forward(self, x: Tensor) -> Tensor:
        """B,3,S,S -> B,D."""
        x = self.blocks(F.relu6(self.stem(x.contiguous(memory_format=torch.channels_last)), inplace=True))
        return F.relu6(self.head(x), inplace=True).mean((2, 3))


def _round_to_eight(channels: float) -> int:
    """The nearest multiple of eight that is not more than a tenth too small."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def fold(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights as `EfficientNetLite` names them: w' = w g / s, b' = b - m g / s, s = sqrt(v + epsilon)."""
    folded = {}
    for ours, convolution, norm in _names(weights):
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + EPSILON).sqrt()
        folded[f"{ours}.weight"] = weights[f"{convolution}.weight"] * scale[:, None, None, None]
        folded[f"{ours}.bias"] = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    return folded


def _names(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, str, str]]:
    """Our name of each convolution, its published name, and that of the normalisation behind it."""
    yield "stem", "_conv_stem", "_bn0"
    yield "head", "_conv_head", "_bn1"
    for name in weights:
        if name.startswith("_blocks.") and name.endswith("_conv.weight"):
            block, layer = name.removesuffix("_conv.weight").rsplit("._", 1)
            norm = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}[layer]
            yield f"{block[1:]}.{layer}", name.removesuffix(".weight"), f"{block}.{norm}"


class EfficientNetEncoder(Encoder):
    """The features in front of the classifier of EfficientNet-Lite0 (width 1, depth 1) or a larger one."""

    dimension = HEAD

    def __init__(self, name: str, device: torch.device, side: int, width: float, depth: float) -> None:
        self.name, self.side, self.device = name, side, device
        path = PACKAGED[name].require(name)
        self.network = EfficientNetLite(width, depth).eval().requires_grad_(False)
        self.network.load_state_dict(fold(torch.load(path, "cpu", weights_only=True)))
        self.network.to(device)

    def identity(self) -> dict[str, Any]:
        preparation = f"short side {self.side + MARGIN}, middle {self.side} x {self.side}, (value - 127) / 128"
        return {"name": self.name, "weights": PACKAGED[self.name].sha256, "picture": preparation}

    def prepare(self, item: Item) -> np.ndarray:
        return np.asarray(centre_crop(as_rgb(item), self.side + MARGIN, self.side, self.side))

    @torch.inference_mode()
    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        pixels = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
        parts = pixels.split(STEP if self.device.type == "cpu" else len(pixels))
        x = torch.cat([self.network((part.to(self.device).float() - 127) / 128) for part in parts])
        return x.cpu().numpy()

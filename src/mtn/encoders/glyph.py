"""The embedded encoder of the Glyphs images: a small convnet with its weights in the package.

It was pre-trained without labels on characters that are not classes of the data set (`scripts/pretrain_glyphs.py`).

Shapes: B batch, N images, D features.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import checked_image, files_digest
from mtn.images import on_white, to_eight_bits

WEIGHTS = Path(__file__).with_name("glyph.safetensors")
SIDE = 32
"""Of the images that the encoder takes."""


class GlyphNetwork(nn.Module):
    """Three strided convolutions and a linear layer: a grey 32 x 32 image becomes a vector of length D = 256.

    Batch normalisation is for training only; `folded` moves it into the weights, so the shipped network has none.
    """

    dimension = 256

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        widths = (1, 32, 64, 96)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(ins, outs, kernel, stride=2, padding=kernel // 2)
            for ins, outs, kernel in zip(widths[:-1], widths[1:], (5, 3, 3), strict=True)
        )
        self.linear = nn.Linear(widths[-1] * 4 * 4, self.dimension)
        self.map_norms = nn.ModuleList(nn.BatchNorm2d(width) if norm else nn.Identity() for width in widths[1:])
        self.norm = nn.BatchNorm1d(self.dimension) if norm else nn.Identity()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """(B, 32, 32) uint8, or (B, 1, 32, 32) floats in 0..1, to (B, D)."""
        if x.dtype == torch.uint8:
            x = x.unsqueeze(1).float() / 255
        x = x.contiguous(memory_format=torch.channels_last)
        for convolution, norm in zip(self.convolutions, self.map_norms, strict=True):
            x = torch.relu(norm(convolution(x)))
        return torch.relu(self.norm(self.linear(x.flatten(1))))

    def folded(self) -> "GlyphNetwork":
        """The same function, frozen, without batch normalisation."""
        trained, plain = copy.deepcopy(self).eval(), GlyphNetwork()
        pairs = zip(trained.convolutions, trained.map_norms, strict=True)
        plain.convolutions = nn.ModuleList(fuse_conv_bn_eval(*pair) for pair in pairs)  # type: ignore[type-var, arg-type]
        plain.linear = fuse_linear_bn_eval(trained.linear, trained.norm)  # type: ignore[arg-type]
        return plain.eval().requires_grad_(False)

    @torch.inference_mode()
    def encode(
        self, images: np.ndarray, batch: int = 512, on_batch: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """(N, 32, 32) uint8 images to (N, D) float32 features; `on_batch(done, N)` follows the progress."""
        features = np.empty((len(images), self.dimension), np.float32)
        for start in range(0, len(images), batch):
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + batch]))
            features[start : start + len(part)] = self(part).numpy()
            if on_batch:
                on_batch(start + len(part), len(images))
        return features


def load_network() -> GlyphNetwork:
    """The network with the weights of the package (half precision on disk, single in use)."""
    network = GlyphNetwork()
    network.load_state_dict({name: weight.float() for name, weight in load_file(WEIGHTS).items()})
    return network.eval()


class GlyphEncoder(Encoder):
    """The embedded encoder for any image: it sees it grey and small, so it is for characters and marks."""

    dimension = GlyphNetwork.dimension

    def __init__(self) -> None:
        self.network = load_network()

    def identity(self) -> dict[str, Any]:
        return {"name": "glyph", "weights": files_digest([WEIGHTS]), "picture": f"grey, {SIDE} x {SIDE}, dark ground"}

    def prepare(self, item: Item) -> np.ndarray:
        return prepare_image(checked_image(item))

    def thumbnail(self, item: Item) -> np.ndarray:
        return self.prepare(item)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        return self.network.encode(np.stack(batch))


def prepare_image(image: Image.Image) -> np.ndarray:
    """32,32 uint8 as the network was trained on: grey, the whole image, the background dark."""
    pixels = np.asarray(ImageOps.contain(_grey(image), (SIDE, SIDE)))
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = int(np.median(edge))
    square = np.full((SIDE, SIDE), background, np.uint8)
    top, left = (SIDE - pixels.shape[0]) // 2, (SIDE - pixels.shape[1]) // 2
    square[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return 255 - square if background > 127 else square


def _grey(image: Image.Image) -> Image.Image:
    return to_eight_bits(image) if image.mode.startswith("I") else on_white(image).convert("L")

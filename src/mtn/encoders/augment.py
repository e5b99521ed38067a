"""Images in bytes -> the input of a backbone, normalised, and for training augmented, each image in its own way.

A crop is a matrix for each axis, a change of colours one for the channels, so a batch takes a few matrix products.
Random numbers are from torch's default generator.
Shapes: B batch, H, W height and width, S side.
"""

import math

import torch
from torch import Tensor

from mtn.config import Images

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
"""Mean and standard deviation of ImageNet's channels, as the common checkpoints expect."""
RATIO = 4 / 3
"""Largest ratio of a crop's sides."""
GREY = torch.tensor([0.299, 0.587, 0.114])
"""Weights of the channels in a grey image."""


def plain(images: Tensor) -> Tensor:
    """B,H,W,3 bytes -> B,3,H,W floats: (x / 255 - mean) / std."""
    return _recolour(_floats(images), torch.eye(3), torch.zeros(1))


def augment(images: Tensor, settings: Images) -> Tensor:
    """`plain` after a random crop, mirroring and change of colours."""
    x = _floats(images)
    if settings.crop < 1 or settings.flip:
        x = crop(x, settings.crop, settings.flip)
    return jitter(x, settings.jitter) if settings.jitter else _recolour(x, torch.eye(3), torch.zeros(1))


def crop(x: Tensor, least: float, flip: bool) -> Tensor:
    """A random window of `least` to all of the area, its sides in a ratio of 3/4 to 4/3, resized to the whole."""
    count = len(x)
    area = torch.empty(count).uniform_(least, 1)
    ratio = (_uniform(count) * min(math.log(RATIO), -math.log(least))).exp()
    size = torch.stack([area / ratio, area * ratio]).sqrt().clamp(max=1)  # 2,B: height and width relative to the whole
    centre = (1 - size) * _uniform(2, count)
    if flip:
        size[1] *= _uniform(count).sign()
    rows, columns = (_window(centre[axis], size[axis], x.shape[2 + axis]).to(x.device) for axis in (0, 1))
    return rows[:, None] @ x @ columns[:, None].mT


def _window(centre: Tensor, size: Tensor, side: int) -> Tensor:
    """B,S,S: the bilinear weights of the old pixels in each new one, along an axis from -1 to 1."""
    pixels = torch.arange(side)
    coordinates = (2 * pixels + 1) / side - 1
    position = ((centre[:, None] + size[:, None] * coordinates + 1) * side - 1) / 2
    return (1 - (position.clamp(0, side - 1)[:, :, None] - pixels).abs()).clamp(min=0)


def jitter(x: Tensor, most: float) -> Tensor:
    """Brightness b, contrast c, saturation s: blends with black, the image's mean grey m, its grey.

    x -> b c (s + (1 - s) grey) x + b (1 - c) m, then normalised; values are not clipped.
    """
    b, c, s = 1 + most * _uniform(3, len(x), 1, 1)
    mean = (x.mean((2, 3)).cpu() @ GREY)[:, None, None]
    return _recolour(x, b * c * (s * torch.eye(3) + (1 - s) * GREY), b * (1 - c) * mean)


def _recolour(x: Tensor, colours: Tensor, offset: Tensor) -> Tensor:
    """colours x + offset, normalised. Shapes: x B,3,H,W; colours (B,)3,3; offset (B,)1,1."""
    scale = STD[:, None] * 255
    colours = (colours / scale).expand(len(x), 3, 3)
    offset = ((offset - 255 * MEAN[:, None]) / scale).expand(len(x), 3, 1)
    return torch.baddbmm(offset.to(x.device), colours.to(x.device), x.flatten(2)).reshape(x.shape)


def _floats(images: Tensor) -> Tensor:
    """B,H,W,3 bytes -> B,3,H,W floats from 0 to 255."""
    return images.permute(0, 3, 1, 2).contiguous().float()


def _uniform(*shape: int) -> Tensor:
    """Random numbers from -1 to 1."""
    return torch.empty(shape).uniform_(-1, 1)

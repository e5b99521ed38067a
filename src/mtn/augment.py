"""Images in bytes -> what a backbone takes. Batched, every image in its own random way; drawn from torch's generator.

A crop is a matrix for each axis, colours are a matrix for the channels: a batch is a few products.
Shapes: B batch, H, W height and width, S side.
"""

import math

import torch
from torch import Tensor

from mtn.config import Images

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
"""Of ImageNet's channels, as the common checkpoints want them."""
RATIO = 4 / 3
"""Width against height of a crop, either way, at the most."""
GREY = torch.tensor([0.299, 0.587, 0.114])


def plain(images: Tensor) -> Tensor:
    """B,H,W,3 bytes -> B,3,H,W floats: (x / 255 - mean) / std."""
    return _paint(_floats(images), torch.eye(3), torch.zeros(1))


def augment(images: Tensor, how: Images) -> Tensor:
    """The same after a random crop, mirroring and colours."""
    x = _floats(images)
    if how.crop < 1 or how.flip:
        x = crop(x, how.crop, how.flip)
    return jitter(x, how.jitter) if how.jitter else _paint(x, torch.eye(3), torch.zeros(1))


def crop(x: Tensor, least: float, flip: bool) -> Tensor:
    """A window of `least` to all of the area, its sides in a ratio of 3/4 to 4/3, at the size of the whole."""
    count = len(x)
    area = torch.empty(count).uniform_(least, 1)
    ratio = (_either_way(count) * min(math.log(RATIO), -math.log(least))).exp()
    size = torch.stack([area / ratio, area * ratio]).sqrt().clamp(max=1)  # 2,B of the height and of the width
    centre = (1 - size) * _either_way(2, count)
    if flip:
        size[1] *= _either_way(count).sign()
    rows, columns = (_window(centre[axis], size[axis], x.shape[2 + axis]).to(x.device) for axis in (0, 1))
    return rows[:, None] @ x @ columns[:, None].mT


def _window(centre: Tensor, size: Tensor, side: int) -> Tensor:
    """B,S,S: weights with which each new pixel reads the old ones, bilinear; an axis goes from -1 to 1."""
    pixels = torch.arange(side)
    places = (2 * pixels + 1) / side - 1
    read = ((centre[:, None] + size[:, None] * places + 1) * side - 1) / 2
    return (1 - (read.clamp(0, side - 1)[:, :, None] - pixels).abs()).clamp(min=0)


def jitter(x: Tensor, most: float) -> Tensor:
    """Brightness b, contrast c, saturation s: blends with black, the image's mean grey m, its grey.

    x -> b c (s + (1 - s) grey) x + b (1 - c) m, then normalised; nothing is cut off at black and white.
    """
    b, c, s = 1 + most * _either_way(3, len(x), 1, 1)
    mean = (x.mean((2, 3)).cpu() @ GREY)[:, None, None]
    return _paint(x, b * c * (s * torch.eye(3) + (1 - s) * GREY), b * (1 - c) * mean)


def _paint(x: Tensor, colours: Tensor, more: Tensor) -> Tensor:
    """(colours x + more), normalised: B,3,H,W; (B,)3,3; (B,)1,1."""
    scale = STD[:, None] * 255
    colours, more = (colours / scale).expand(len(x), 3, 3), ((more - 255 * MEAN[:, None]) / scale).expand(len(x), 3, 1)
    return torch.baddbmm(more.to(x.device), colours.to(x.device), x.flatten(2)).unflatten(2, x.shape[2:])


def _floats(images: Tensor) -> Tensor:
    """0 to 255, and channels first, for the products."""
    return images.permute(0, 3, 1, 2).contiguous().float()


def _either_way(*shape: int) -> Tensor:
    return torch.empty(shape).uniform_(-1, 1)

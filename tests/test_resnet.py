"""Residual networks: the same function as that of the library."""

from typing import Any

import pytest
import torch

from mtn.encoders import resnet

PARTS = {"conv1": "layer.0", "conv2": "layer.1", "conv3": "layer.2", "downsample": "shortcut"}


def library_name(ours: str) -> str:
    """The name in transformers of a weight that is named as in torchvision."""
    kind = "normalization" if "bn" in ours or "downsample.1" in ours else "convolution"
    leaf = ours.rsplit(".", 1)[1]
    if not ours.startswith("layer"):
        return f"embedder.embedder.{kind}.{leaf}"
    stage, place, part = ours.split(".")[:3]
    return f"encoder.stages.{int(stage[5]) - 1}.layers.{place}.{PARTS[part.replace('bn', 'conv')]}.{kind}.{leaf}"


@pytest.mark.parametrize("depth", [18, 50])
def test_a_residual_network_is_the_library_s(transformers: Any, depth: int) -> None:
    torch.manual_seed(0)
    ours = {18: resnet.resnet18, 50: resnet.resnet50}[depth](width=8)
    for name, tensor in ours.state_dict().items():
        if "bn" in name or "downsample.1" in name:
            tensor.copy_(torch.rand(tensor.shape) + 0.5) if tensor.ndim else None
    block, times, blocks = {18: ("basic", 1, [2, 2, 2, 2]), 50: ("bottleneck", 4, [3, 4, 6, 3])}[depth]
    widths = [8 * times * 2**stage for stage in range(4)]
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=widths, depths=blocks, layer_type=block)
    theirs = transformers.ResNetModel(config)
    theirs.load_state_dict({library_name(name): tensor for name, tensor in ours.state_dict().items()})
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.eval()(pixel_values=x, output_hidden_states=True)
        stages = ours.eval().stages(x)
        torch.testing.assert_close(ours(x), expected.pooler_output.flatten(1), rtol=1e-4, atol=1e-4)
    for one, other in zip(stages, expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert ours.dimension == widths[-1] == stages[-1].shape[1]


def test_a_small_network_keeps_the_size_and_may_go_below_zero() -> None:
    torch.manual_seed(0)
    network = resnet.resnet18(width=4, small=True, last_relu=False).eval()
    with torch.no_grad():
        stages = network.stages(torch.rand(2, 3, 32, 32))
    assert [tuple(one.shape[1:]) for one in stages] == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    assert stages[-1].min() < 0 <= min(one.min() for one in stages[:-1])

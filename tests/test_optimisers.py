"""Optimisers take torch's steps without torch's compiler."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mtn.training import without_compiler


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.AdamW, {"fused": True}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_steps_are_those_of_torch_bit_for_bit(kind: Any, options: dict[str, Any]) -> None:
    def trained(optimiser_class: Any) -> Tensor:
        torch.manual_seed(0)
        layer, x = nn.Linear(5, 3), torch.randn(7, 5)
        optimiser = optimiser_class(layer.parameters(), lr=0.01, weight_decay=0.1, **options)
        for _ in range(5):
            optimiser.zero_grad(set_to_none=True)
            layer(x).square().sum().backward()
            optimiser.step()
        return layer.weight.detach()

    assert torch.equal(trained(without_compiler(kind)), trained(kind))


def test_a_lesson_does_not_import_the_compiler() -> None:
    program = """
import sys
import numpy as np
from mtn import MTNClassifier
x = np.random.default_rng(0).standard_normal((12, 4))
MTNClassifier(settings={"train.min_steps": 2, "train.epochs": 0}).fit(x, np.arange(12) % 3)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

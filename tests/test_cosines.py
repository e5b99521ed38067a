"""Cosines with rows that train: what autograd computes of their definition, and which rows move."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.cosines import cosines, row_cosines, stretched_cosines


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("stretched", [False, True])
@pytest.mark.parametrize("with_own", [False, True])
def test_values_and_gradients_are_those_of_the_definition(stretched: bool, with_own: bool) -> None:
    x, rows, own, slope, own_slope, stretch = tensors((5, 4), (3, 4), (3, 4), (5, 3), (3,), (4,))
    stretch = stretch.abs() + 0.1
    x.requires_grad_(), rows.requires_grad_()
    found = row_cosines(x, rows, stretch if stretched else None, own if with_own else None)
    scale = stretch if stretched else torch.ones(4, dtype=torch.float64)
    unit = F.normalize(rows * scale, dim=1)
    expected = x @ unit.T
    assert torch.allclose(found[0], expected)
    if with_own:
        assert torch.allclose(found[1], (own * unit).sum(1))
    else:
        assert not found[1].any()
    total = (found[0] * slope).sum() + (found[1] * own_slope).sum()
    reference = (expected * slope).sum() + ((own * unit).sum(1) * own_slope).sum() * with_own
    for one, other in zip(
        torch.autograd.grad(total, (x, rows)), torch.autograd.grad(reference, (x, rows)), strict=True
    ):
        assert torch.allclose(one, other)


def test_rows_of_other_classes_stay_and_get_no_gradient() -> None:
    x, frozen, moving, own = tensors((5, 4), (3, 4), (2, 4), (2, 4))
    frozen, taught = F.normalize(frozen, dim=1), torch.tensor([True, False, True])
    moving.requires_grad_()
    unit = F.normalize(moving, dim=1)
    expected = torch.stack([x @ unit[0], x @ frozen[1], x @ unit[1]], dim=1)
    found = cosines(x, frozen, moving, taught)
    assert torch.allclose(found, expected)
    assert not torch.autograd.grad(found[:, 1].sum(), moving)[0].any()
    assert torch.allclose(cosines(x, frozen, None, taught), x @ frozen.T)
    both, with_own = stretched_cosines(x, frozen, moving, taught, torch.ones(4, dtype=torch.float64), own)
    assert torch.allclose(both, expected) and torch.allclose(with_own, (own * unit).sum(1))


def test_a_row_of_nothing_has_cosine_0() -> None:
    assert not row_cosines(torch.ones(2, 3), torch.zeros(1, 3))[0].any()


def test_products_are_in_the_type_of_autocast_and_answers_are_not() -> None:
    x, rows = (F.normalize(one.float(), dim=1) for one in tensors((64, 32), (8, 32)))
    rows.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z, _ = row_cosines(x, rows)
    assert z.dtype == torch.float32 and torch.allclose(z, x @ rows.T, atol=0.02) and not torch.equal(z, x @ rows.T)
    (gradient,) = torch.autograd.grad(z.square().sum(), rows)
    (exact,) = torch.autograd.grad((x @ F.normalize(rows, dim=1).T).square().sum(), rows)
    assert gradient.dtype == torch.float32 and torch.allclose(gradient, exact, atol=0.05)

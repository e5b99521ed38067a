"""Cosines of samples with rows that are trained, and their gradient in as few passes over the rows as it takes.

With a thousand classes the rows are by far the most numbers of a step: what autograd would do for a normalisation by
itself takes longer than the two products.
"""

from typing import Any

import torch
from torch import Tensor


def cosines(x: Tensor, rows: Tensor, moving: Tensor | None, taught: Tensor) -> Tensor:
    """B,C: of unit vectors x (B,D) with rows of length 1; those of taught classes (C) are `moving`, of any length."""
    if moving is None:
        return x @ rows.T
    return _beside_frozen(x, rows, row_cosines(x, moving)[0], taught)


def stretched_cosines(
    x: Tensor, rows: Tensor, moving: Tensor, taught: Tensor, stretch: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """B,C: the same where each coordinate of `moving` is stretched first; and T: of `moving` with `own` (T,D)."""
    trained, with_own = row_cosines(x, moving, stretch, own)
    return _beside_frozen(x, rows, trained, taught), with_own


def _beside_frozen(x: Tensor, rows: Tensor, trained: Tensor, taught: Tensor) -> Tensor:
    return trained if taught.all() else (x @ rows.T).index_copy(1, taught.nonzero().squeeze(1), trained)


def row_cosines(
    x: Tensor, rows: Tensor, stretch: Tensor | None = None, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """B,T: <x, S w> / |S w| of x (B,D) and rows w (T,D), S = diag(stretch) or I; and T: <o, S w> / |S w|, o = `own`.

    Rows of nothing have the cosine 0.
    """
    trained: tuple[Tensor, Tensor] = _RowCosines.apply(x, rows, stretch, own)  # type: ignore[no-untyped-call]
    return trained


class _RowCosines(torch.autograd.Function):
    """z = X S W^T / n, n = |S w|: dL/dw = S X^T G / n - (sum_b G z) S^2 w / n^2, and so for `own`.

    Products with samples are in autocast's type, forward and backward; what is computed of the rows alone is not.
    """

    @staticmethod
    def forward(
        context: Any, x: Tensor, rows: Tensor, stretch: Tensor | None, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        stretched = rows if stretch is None else rows * stretch
        inverse = torch.linalg.vector_norm(stretched, dim=1).clamp(min=1e-6).reciprocal()
        with_own = rows.new_zeros(len(rows)) if own is None else (own * stretched).sum(1) * inverse
        kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        x = (x if stretch is None else x * stretch).to(kind)
        z = x @ rows.to(kind).T * inverse
        context.save_for_backward(x, rows, stretch, own, inverse, z, with_own)
        return z, with_own

    @staticmethod
    def backward(context: Any, slope: Tensor, own_slope: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, rows, stretch, own, inverse, z, with_own = context.saved_tensors
        towards = (slope * z).sum(0) + own_slope * with_own
        gradient = rows * (-towards * inverse.square())[:, None]
        if stretch is not None:
            gradient *= stretch
        if own is not None:
            gradient.addcmul_(own, (own_slope * inverse)[:, None])
        if stretch is not None:
            gradient *= stretch
        slope = (slope * inverse).to(x.dtype)
        gradient += slope.T @ x
        to_x = None
        if context.needs_input_grad[0]:
            to_x = (slope @ rows.to(x.dtype)).to(rows.dtype)
            to_x = to_x if stretch is None else to_x * stretch
        return to_x, gradient, None, None

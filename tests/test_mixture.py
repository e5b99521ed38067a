"""Weights of parts of a score, fitted on samples that no part has seen."""

import pytest
import torch
from torch import Tensor

from mtn.methods.mixture import fit_weights, most_likely_weights


def test_a_weight_by_hand() -> None:
    # Scores (1, 0) of 100 samples, 73 of the first class. The loss is 100 log(1 + e^w) - 73 w + 25 (w - m)^2 / 2,
    # its slope 100 sigmoid(w) - 73 + 25 (w - m), which is 0 at w = 1 for m = 1 + (73.1059 - 73) / 25.
    parts = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 100, 2)
    y = (torch.arange(100) >= 73).long()
    assert most_likely_weights(parts, y, torch.tensor([1 + 0.105858 / 25]), 25.0).tolist() == pytest.approx(
        [1.0], abs=1e-6
    )
    # Without a prior the answer is log(73 / 27).
    assert most_likely_weights(parts, y, torch.tensor([0.5]), 1e-9).tolist() == pytest.approx([0.994623], abs=1e-5)


def test_a_sample_counts_as_much_as_it_is_trusted() -> None:
    parts = torch.randn(2, 40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, some = torch.arange(40) % 5, torch.arange(40) < 25
    prior = torch.tensor([0.3, 0.7])
    without = most_likely_weights(parts[:, some], y[some], prior, 2.0)
    torch.testing.assert_close(most_likely_weights(parts, y, prior, 2.0, some.double()), without)
    twice = most_likely_weights(parts.repeat(1, 2, 1), y.repeat(2), prior, 2.0)
    torch.testing.assert_close(most_likely_weights(parts, y, prior, 2.0, torch.full((40,), 2.0)), twice)


def noisy(strength: float, y: Tensor, seed: int) -> Tensor:
    """N,5: scores that tell the class by so much."""
    noise = torch.randn(len(y), 5, generator=torch.Generator().manual_seed(seed))
    return strength * torch.nn.functional.one_hot(y, 5) + noise


def test_weights_have_the_least_loss() -> None:
    y = torch.arange(400) % 5
    parts = torch.stack([noisy(2.0, y, 0), noisy(1.0, y, 1), noisy(0.5, y, 2)]).double()

    def loss(w: Tensor) -> float:
        prior = 2.0 * (w - 0.4).square().sum() / 2
        return float(torch.nn.functional.cross_entropy(torch.tensordot(w, parts, 1), y, reduction="sum") + prior)

    found = most_likely_weights(parts, y, torch.full((3,), 0.4), 2.0)
    assert found[0] > found[1] > found[2] > 0
    for change in torch.eye(3).double() * 0.02:
        assert loss(found) < min(loss(found + change), loss(found - change))


def test_the_unit_of_a_part_does_not_matter() -> None:
    y, units = torch.arange(300) % 5, torch.tensor([1.0, 20.0])
    parts = torch.stack([noisy(2.0, y, 0), noisy(1.0, y, 1)])
    shares = torch.tensor([0.6, 0.4])
    one = fit_weights(parts, y, torch.ones(2), shares, 50.0)
    other = fit_weights(units[:, None, None] * parts, y, 1 / units, shares, 50.0)
    torch.testing.assert_close(one, other * units, rtol=0.05, atol=0.01)


def test_few_samples_leave_the_shares_and_many_move_them() -> None:
    shares = torch.tensor([0.7, 0.3])

    def weights(samples: int, strength: float) -> list[float]:
        y = torch.arange(samples) % 5
        parts = torch.stack([noisy(1.0, y, 0), noisy(strength, y, 1)])
        found: list[float] = fit_weights(parts, y, torch.ones(2), shares, 50.0).tolist()
        return found

    assert weights(0, 1.0) == pytest.approx([0.7, 0.3])
    few = weights(5, 1.0)
    assert few[0] > few[1] > 0
    assert weights(2000, -1.0)[1] == 0  # it misleads
    assert weights(2000, 3.0)[1] > 2 * weights(2000, 3.0)[0]

"""A linear discriminant over random features, beside what it is by definition."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mtn.config import Config
from mtn.methods import discriminant
from mtn.methods.discriminant import FourierDiscriminant
from mtn.samples import Samples

WIDTH = 12


@pytest.fixture
def samples() -> Samples:
    """Forty unit vectors of five classes, most of them of class 0."""
    y = torch.arange(40) % 5
    y[20:] = 0
    x = np.random.default_rng(0).standard_normal((40, 3)) + 2 * np.eye(5)[:, :3][y]
    return Samples(x, np.arange(40), y, torch.arange(40))


@pytest.fixture
def narrow(configure: Callable[..., Config]) -> FourierDiscriminant:
    return FourierDiscriminant(3, configure(method={"name": "practical", "random_features": WIDTH}))


@pytest.fixture
def fitted(narrow: FourierDiscriminant, samples: Samples) -> FourierDiscriminant:
    it = narrow
    it.total, it.count = torch.zeros(5, WIDTH).double(), torch.zeros(5).double()
    it.seen.fill_(5)
    it.observe(samples)
    it.strength.fill_(0.1)
    it.derive()
    return it


def scores(
    phi: np.ndarray, y: np.ndarray, query: np.ndarray, extra: float, shift: np.ndarray, freedom: int
) -> np.ndarray:
    """C: -(q - mu_c) Sigma^-1 (q - mu_c) / 2, shrunk by a tenth; `extra` is the variance that counts as one sample."""
    means = np.stack([phi[y == label].mean(0) for label in range(5)])
    residuals = phi - means[y]
    sigma = (0.9 * (residuals.T @ residuals + extra * np.eye(WIDTH)) + shift) / freedom
    apart = query - means
    return -0.5 * (apart @ np.linalg.inv(sigma) * apart).sum(1)


def reference(it: FourierDiscriminant, samples: Samples) -> tuple[np.ndarray, np.ndarray, float, np.ndarray, int]:
    phi, y = it.features(samples.x()).double().numpy(), samples.y.numpy()
    means = np.stack([phi[y == label].mean(0) for label in range(5)])
    residuals, extra = phi - means[y], phi.var(0).sum() / WIDTH
    whole = residuals.T @ residuals + extra * np.eye(WIDTH)
    return phi, y, extra, 0.1 * np.trace(whole) / WIDTH * np.eye(WIDTH), len(y) - 5 + 1


def test_features_are_cosines_whose_products_are_a_kernel(configure) -> None:
    it = FourierDiscriminant(3, configure(method={"name": "practical"}))
    it.gamma.fill_(0.5)
    x = torch.nn.functional.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    kernel = torch.exp(-0.5 * torch.cdist(x, x).square())
    assert torch.allclose(it.features(x) @ it.features(x).T, kernel, atol=0.12)  # 2 000 features


def test_gamma_follows_from_the_variance_of_the_first_samples(fitted, samples: Samples) -> None:
    x = samples.x()
    variance = (x - x.mean(0)).square().sum(1).mean()
    assert fitted.gamma.item() == pytest.approx(0.1 / variance.item(), rel=1e-4)
    fitted.observe(samples)
    assert fitted.gamma.item() == pytest.approx(0.1 / variance.item(), rel=1e-4)


def test_one_sample_has_no_variance(narrow: FourierDiscriminant) -> None:
    it = narrow
    it.total, it.count = torch.zeros(1, WIDTH).double(), torch.zeros(1).double()
    it.seen.fill_(1)
    it.observe(Samples(np.ones((1, 3)), np.arange(1), torch.zeros(1, dtype=torch.long), torch.arange(1)))
    it.derive()
    assert it.gamma.item() == 1.0 and it.scores(torch.ones(1, 3), None).isfinite().all()


def test_scores_are_those_of_shrunk_gaussians(fitted, samples: Samples) -> None:
    phi, y, extra, shift, freedom = reference(fitted, samples)
    expected = np.stack([scores(phi, y, one, extra, shift, freedom) for one in phi])
    found = fitted.scores(samples.x(), None).numpy()
    np.testing.assert_allclose(found - found[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)


def test_samples_left_out_have_neither_means_nor_covariance_of_themselves(fitted, samples: Samples) -> None:
    phi, y, extra, shift, freedom = reference(fitted, samples)
    found = fitted.left_out_scores(samples.x(), samples.y, None).numpy()
    for row in range(len(y)):
        expected = scores(np.delete(phi, row, 0), np.delete(y, row), phi[row], extra, shift, freedom)
        np.testing.assert_allclose(found[row] - found[row, 0], expected - expected[0], rtol=2e-3, atol=2e-3)


def test_samples_that_are_not_trusted_leave_the_sums(fitted, samples: Samples) -> None:
    def sums(it: FourierDiscriminant) -> list[Tensor]:
        return [it.total, it.count, it.gram]

    doubted = (torch.arange(40) >= 30).float()
    before = copy.deepcopy(fitted)
    before.gram.zero_()
    before.total, before.count = torch.zeros(5, WIDTH).double(), torch.zeros(5).double()
    before.add(before.features(samples.x()[:30]), samples.y[:30])
    fitted.discount(samples, 1 - doubted)
    for now, expected in zip(sums(fitted), sums(before), strict=True):
        torch.testing.assert_close(now, expected, rtol=1e-4, atol=1e-5)


def test_the_shrinkage_that_is_chosen_is_one_of_those_that_are_tried(fitted, samples: Samples) -> None:
    scale, share = fitted.choose_shrinkage(samples) or (0.0, 0.0)
    assert 0 < scale <= share <= 1
    assert min(abs(float(fitted.strength) - one) for one in discriminant.SHRINKAGES) < 1e-6
    answers = fitted.scores(samples.x(), None)
    fitted.derive()
    torch.testing.assert_close(fitted.scores(samples.x(), None), answers, rtol=0, atol=0)


def test_classes_whose_samples_are_all_the_same_are_told_apart(configure) -> None:
    """Their covariance is nothing but rounding, and their scores are millions apart."""
    it, rng = FourierDiscriminant(16, configure(method={"name": "practical"})), np.random.default_rng(0)
    y = torch.arange(30).repeat_interleave(100)
    copies = Samples(rng.standard_normal((30, 16), np.float32)[y], np.arange(3000), y, torch.arange(3000))
    it.total, it.count = torch.zeros(30, it.width).double(), torch.zeros(30).double()
    it.seen.fill_(30)
    it.observe(copies)
    scale, _ = it.choose_shrinkage(copies) or (0.0, 0.0)
    assert scale > 0 and torch.equal(it.scores(copies.x(), None).argmax(1), y)
    assert it.left_out_scores(copies.x()[:10], y[:10], None).isfinite().all()

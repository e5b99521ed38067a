"""Classes as Gaussians: the space of the prototypes, and the discriminant in closed form."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mtn.config import Config
from mtn.methods.analytic import SLDA
from mtn.methods.discriminant import PRIOR_SCALE, SHRINKAGES, lowest
from mtn.methods.gaussian import WHITENING, GaussianMoments
from mtn.methods.mixture import most_likely_weights
from mtn.samples import Samples


def moments_of(configure: Callable[..., Config], x: Tensor, y: Tensor) -> GaussianMoments:
    """With samples given whole, as unit vectors would not be."""
    moments = GaussianMoments(x.shape[1], configure(method={"name": "slda"}))
    fill(moments, x, y)
    return moments


def fill(moments: SLDA, x: Tensor, y: Tensor) -> None:
    classes, width = int(y.max()) + 1, x.shape[1]
    moments.total, moments.count = torch.zeros(classes, width).double(), torch.zeros(classes).double()
    moments.seen.fill_(classes)
    moments.add(x, y)
    moments.derive()


def gaussian(configure: Callable[..., Config], count: int) -> tuple[GaussianMoments, Tensor]:
    """Of two classes with one known covariance."""
    covariance = torch.diag(torch.tensor([4.0, 1.0, 0.25, 0.25]))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((count, 4))).float() @ covariance.sqrt()
    y = torch.arange(count) % 2
    return moments_of(configure, x + 3 * y[:, None], y), covariance


def few(classes: int = 6, count: int = 9, width: int = 4) -> tuple[Tensor, Tensor]:
    """Classes that differ in some directions, of a few samples each; the first class has three more."""
    rng, y = np.random.default_rng(3), np.r_[np.repeat(np.arange(classes), count), 0, 0, 0]
    centres = rng.standard_normal((classes, width)) * np.array([2.0, 1.0, 0.3, 0.1])[:width]
    x = centres[y] + rng.standard_normal((len(y), width)) * np.array([0.3, 1.5, 0.6, 0.9])[:width]
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def test_whitening_evens_the_variance_within_classes_out(configure) -> None:
    moments, covariance = gaussian(configure, 40_000)
    mean, change, noise = moments.mean, moments.whitening, moments.noise
    assert torch.allclose(mean, torch.full((4,), 1.5), atol=0.05)
    expected = (covariance ** (1 - WHITENING) * (covariance > 0)).diagonal().sort().values
    assert torch.allclose(change.T @ covariance @ change, expected.diag(), atol=0.03)
    assert torch.allclose(noise, expected.sqrt(), atol=0.03)
    stretch = change.norm(dim=0)
    assert torch.allclose(change.T @ change, stretch.square().diag(), atol=1e-4)
    # g is as A^T A, and as large as A
    assert torch.allclose(moments.gain / moments.gain[0], (stretch / stretch[0]).square(), atol=1e-4)
    assert moments.gain.norm().item() == pytest.approx(stretch.norm().item(), rel=1e-4)


def test_whitening_is_undone(configure) -> None:
    moments, _ = gaussian(configure, 400)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(moments.unwhiten(moments.whiten(x)), x, atol=1e-5)


def test_few_samples_leave_the_space_nearly_as_it_is(configure) -> None:
    moments, _ = gaussian(configure, 4)
    few, many = (it.whitening.norm(dim=0) for it in (moments, gaussian(configure, 4000)[0]))
    assert few.max() / few.min() < many.max() / many.min()


def test_drawn_samples_have_their_class_s_mean_and_spread(configure) -> None:
    torch.manual_seed(0)
    moments, covariance = gaussian(configure, 40_000)
    centre = moments.whiten(moments.class_centres()[1])
    x = moments.draw_around(centre.expand(20_000, -1))
    assert torch.allclose(x.mean(0), centre, atol=0.05)
    assert torch.allclose(x.T.cov(), moments.whitening.T @ covariance @ moments.whitening, atol=0.06)


def shrunk(covariance: np.ndarray, share: float) -> np.ndarray:
    return (1 - share) * covariance + share * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def oracle_approximating_share(covariance: np.ndarray, freedom: int) -> float:
    """Chen, Wiesel, Eldar & Hero 2010, Eq. 23, in its words."""
    p, trace, trace_of_square = len(covariance), np.trace(covariance), np.trace(covariance @ covariance)
    share = ((1 - 2 / p) * trace_of_square + trace**2) / ((freedom + 1 - 2 / p) * (trace_of_square - trace**2 / p))
    return min(share, 1.0)


def test_the_discriminant_is_bayes_rule_with_expected_means(configure) -> None:
    x, y = few()
    numbers, labels = x.double().numpy(), y.numpy()
    count = np.bincount(labels)
    means = np.stack([numbers[labels == label].mean(0) for label in range(6)])
    centre, residuals = means.mean(0), numbers - means[labels]
    # One sample more has the variance of all samples.
    variance = numbers.var(0).sum() / 4
    sigma = shrunk((residuals.T @ residuals + variance * np.eye(4)) / (len(x) - 6 + 1), 0.01)
    white = np.linalg.inv(np.linalg.cholesky(sigma))
    scattered = white @ (means - centre).T @ (means - centre) @ white.T / 5
    scattered = shrunk(scattered, oracle_approximating_share(scattered, 5))
    values, vectors = np.linalg.eigh(scattered - np.mean(1 / count) * np.eye(4))
    between = np.linalg.inv(white) @ (vectors * values.clip(min=0)) @ vectors.T @ np.linalg.inv(white).T
    pairs = zip(count, means - centre, strict=True)
    expected = np.stack([between @ np.linalg.solve(between + sigma / n, mean) for n, mean in pairs])
    weights = np.linalg.solve(sigma, expected.T)
    scores = (numbers - centre) @ weights - 0.5 * (expected.T * weights).sum(0)
    np.testing.assert_allclose(moments_of(configure, x, y).scores(x, None), scores, rtol=1e-3, atol=1e-3)


def test_distances_of_samples_left_out_are_those_of_sums_without_them(configure) -> None:
    x, y = few()
    numbers, labels = x.double().numpy(), y.numpy()
    moments = moments_of(configure, x, y)
    found, leverage = moments.left_out_distances(moments.rotated(x), y, 0.1)
    freedom, leverages = len(y) - 6 + 1, []
    means = np.stack([numbers[labels == label].mean(0) for label in range(6)])
    residuals = numbers - means[labels]
    one_more = numbers.var(0).sum() / 4  # one sample more, with the variance of all samples
    scatter = residuals.T @ residuals + one_more * np.eye(4)
    shift = 0.1 * np.trace(scatter) / 4 * np.eye(4)  # stays as it is, with the sample or without it
    for row in range(len(y)):
        others, their = np.delete(numbers, row, 0), np.delete(labels, row)
        means = np.stack([others[their == label].mean(0) for label in range(6)])
        residual = others - means[their]
        sigma = (0.9 * (residual.T @ residual + one_more * np.eye(4)) + shift) / freedom
        differences = numbers[row] - means
        expected = -0.5 * (differences @ np.linalg.inv(sigma) * differences).sum(1)
        np.testing.assert_allclose(found[row] - found[row, 0], expected - expected[0], rtol=1e-4, atol=1e-6)
        with_it = (0.9 * scatter + shift) / freedom
        leverages.append(1 - np.linalg.det(sigma) / np.linalg.det(with_it))
    assert leverage.item() == pytest.approx(np.mean(leverages), rel=1e-4)


def test_scores_of_samples_left_out_have_means_and_covariance_without_them(configure) -> None:
    """Without the sample, but for B and the centre, which are of classes: so they are given to the sums without it."""
    x, y = few(count=12)
    moments = moments_of(configure, x, y)
    moments.strength.fill_(0.0)
    moments.derive()
    found = moments.left_out_scores(x, y, None)
    to_unit = moments.vectors * moments._scale(0.0)  # Sigma = I there
    basis = to_unit @ moments.directions  # B is diagonal here
    between = torch.linalg.pinv(basis).T * moments.between @ torch.linalg.pinv(basis)
    means, count, centre = moments.means, moments.count, moments._centre
    sigma = torch.linalg.inv(to_unit @ to_unit.T)
    for row in (0, 7, 40):
        own, n = y[row], count[y[row]]
        difference = x[row].double() - means[own]
        without, left, counts = sigma.clone(), means.clone(), count.clone()
        without -= torch.outer(difference, difference) * n / (n - 1) / moments._freedom
        left[own] -= difference / (n - 1)
        counts[own] -= 1
        # R_c as with all samples of the other classes; of its own class with one fewer.
        expected = torch.stack(
            [
                between @ torch.linalg.solve(between + sigma / k, mean - centre)
                for k, mean in zip(counts, left, strict=True)
            ]
        )
        weights = torch.linalg.solve(without, expected.T)
        scores = (x[row].double() - centre) @ weights - 0.5 * (expected.T * weights).sum(0)
        torch.testing.assert_close(found[row], scores.float(), rtol=1e-3, atol=1e-3)


def test_shrinkage_is_chosen_by_samples_left_out(configure) -> None:
    """Little where classes differ in the directions of least variance, much where there are few samples."""
    rng = np.random.default_rng(0)

    def chosen(count: int, width: int, apart: float, spread: np.ndarray) -> float:
        y = torch.arange(count) % 8
        x = torch.from_numpy(apart * rng.standard_normal((8, width))[y] + spread * rng.standard_normal((count, width)))
        x = torch.nn.functional.normalize(x.float(), dim=1)
        moments = moments_of(configure, x, y)
        moments.choose_shrinkage(Samples(x.numpy(), np.arange(count), y, torch.arange(count)))
        return float(moments.strength)

    assert chosen(400, 16, 0.03, np.exp(-np.arange(16) / 4)) < 0.02
    assert chosen(24, 40, 0.3, np.full(40, 0.3)) > 0.2


@pytest.mark.parametrize("start", [0.0003, 0.01, 0.3])
def test_the_choice_from_any_shrinkage_is_the_best_of_all(configure, start: float) -> None:
    rng, y = np.random.default_rng(1), torch.arange(200) % 8
    x = 0.1 * rng.standard_normal((8, 16))[y] + np.exp(-np.arange(16) / 3) * rng.standard_normal((200, 16))
    x = torch.nn.functional.normalize(torch.from_numpy(x).float(), dim=1)
    moments, samples = moments_of(configure, x, y), Samples(x.numpy(), np.arange(200), y, torch.arange(200))
    losses = []
    for shrinkage in SHRINKAGES:
        z, leverage = moments.left_out_distances(moments.rotated(x), y, shrinkage)
        z = (1 - leverage) * z
        scale = most_likely_weights(z[None], y, torch.tensor([PRIOR_SCALE]), 1.0)
        losses.append(float(torch.nn.functional.cross_entropy(scale * z, y)))
    moments.strength.fill_(start)
    moments.derive()
    moments.choose_shrinkage(samples)
    assert float(moments.strength) == pytest.approx(SHRINKAGES[int(np.argmin(losses))])
    chosen = moments.solution.clone()
    moments.derive()
    torch.testing.assert_close(moments.solution, chosen, rtol=0, atol=0)


def test_downhill_ends_where_it_is_lowest_and_looks_at_no_more_than_it_must() -> None:
    asked: list[int] = []

    def value(place: int) -> tuple[float]:
        asked.append(place)
        return (abs(place - 2),)

    assert lowest(value, 2, 7) == 2 and set(asked) == {1, 2, 3}
    assert [lowest(value, place, 7) for place in range(7)] == [2] * 7
    assert lowest(lambda place: (place,), 3, 7) == 0 and lowest(lambda place: (-place,), 3, 7) == 6


def test_with_many_samples_it_is_slda(configure) -> None:
    x, y = few(count=4000)
    found = moments_of(configure, x, y).scores(x, None)
    slda = SLDA(4, configure(method={"name": "slda"}))
    fill(slda, x, y)
    slda.strength.fill_(0.01 / 0.99)  # shrinkage 0.01, but for a factor
    slda.derive()
    known = slda.scores(x, None)
    assert (found.argmax(1) == known.argmax(1)).double().mean() > 0.995
    difference = (found - found.mean(1, keepdim=True)) - (known - known.mean(1, keepdim=True))
    assert difference.abs().max() < 0.03 * known.abs().max()


def test_the_scale_is_one_where_classes_are_gaussians_and_less_where_they_are_not(configure) -> None:
    rng, y = np.random.default_rng(0), torch.arange(2000) % 20
    centres = 0.2 * rng.standard_normal((20, 12))[y]

    def found(noise: np.ndarray) -> float:
        x = torch.from_numpy(centres + 0.2 * noise).float()
        x = torch.cat([x, torch.full((len(x), 1), 20.0)], dim=1)  # nearly all of the length: unit vectors are as drawn
        x = 20 * torch.nn.functional.normalize(x, dim=1)
        samples = Samples(x.numpy(), np.arange(len(y)), y, torch.arange(len(y)))
        moments = moments_of(configure, samples.x(), y)
        result = moments.choose_shrinkage(samples)
        assert result is not None and result[0] <= result[1] + 1e-6
        return result[1]

    assert found(rng.standard_normal((2000, 12))) > 0.9
    directions = 3 * rng.standard_normal((20, 12))[y] / 12**0.5  # each class varies most in a direction of its own
    assert found(0.3 * rng.standard_normal((2000, 12)) + directions * rng.standard_normal((2000, 1))) < 0.7


def mislabelled(classes: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, labels of which that share was drawn from the other classes, and which were not."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(40 * classes) % classes
    x = 3 * torch.randn(classes, 12, generator=generator)[true] + torch.randn(len(true), 12, generator=generator)
    wrong = torch.rand(len(true), generator=generator) < share
    other = (true + torch.randint(1, classes, (len(true),), generator=generator)) % classes
    return torch.nn.functional.normalize(x, dim=1), torch.where(wrong, other, true), ~wrong


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_wrong_labels_are_counted_and_told_from_right_ones(configure, share: float) -> None:
    x, y, right = mislabelled(8, share)
    moments = moments_of(configure, x, y)
    samples = Samples(x.numpy(), np.arange(len(x)), y, torch.arange(len(x)))
    assert moments.trust(samples) is None
    moments.estimate_wrong_labels(samples)
    drawn = float((~right).double().mean()) / (1 - 1 / 8)  # evenly from all classes: an eighth is right by chance
    assert float(moments.doubt[0]) == pytest.approx(drawn, abs=0.02)
    trust = moments.trust(samples)
    assert trust is not None and ((trust > 0.5) == right).double().mean() > 0.97


def test_sums_count_samples_as_much_as_they_are_trusted(configure) -> None:
    x, y, right = mislabelled(8, 0.3)
    samples, trust = Samples(x.numpy(), np.arange(len(x)), y, torch.arange(len(x))), right.float()
    moments, clean = moments_of(configure, x, y), moments_of(configure, x[right], y[right])
    moments.discount(samples, trust)
    for name in ("total", "count", "gram"):
        torch.testing.assert_close(getattr(moments, name), getattr(clean, name), rtol=1e-5, atol=1e-6)
    moments.discount(samples, torch.where(y == 3, 0.0, 1.0))  # nothing would be left of a class
    torch.testing.assert_close(moments.count, clean.count)


def test_where_classes_overlap_no_label_is_doubted(configure) -> None:
    x, y, _ = mislabelled(8, 0.0)
    for noise in (0.0, 0.1, 0.5):
        blurred = x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        blurred = torch.nn.functional.normalize(blurred, dim=1)
        moments = moments_of(configure, blurred, y)
        moments.estimate_wrong_labels(Samples(blurred.numpy(), np.arange(len(x)), y, torch.arange(len(x))))
        assert float(moments.doubt[0]) == 0


def test_the_only_sample_of_a_class_is_trusted(configure) -> None:
    x, y, _ = mislabelled(8, 0.3)
    y = torch.where(torch.arange(len(y)) == 5, 8, y)
    moments = moments_of(configure, x, y)
    moments.estimate_wrong_labels(Samples(x.numpy(), np.arange(len(x)), y, torch.arange(len(x))))
    trust = moments.label_trust(x, y)
    assert trust is not None and trust.isfinite().all() and float(trust[5]) == 1


def test_nothing_is_chosen_without_samples_to_leave_out(configure) -> None:
    for x, y in ((torch.eye(6)[:4], torch.arange(4)), (torch.eye(6)[:4], torch.zeros(4, dtype=torch.long))):
        moments = moments_of(configure, x, y)
        assert moments.choose_shrinkage(Samples(x.numpy(), np.arange(4), y, torch.arange(4))) is None
        assert float(moments.strength) == pytest.approx(0.01)


def test_a_forgotten_class_has_no_say_in_the_choice(configure) -> None:
    x, y = few(count=20)
    x = torch.nn.functional.normalize(x, dim=1)
    samples = Samples(x.numpy(), np.arange(len(y)), y, torch.arange(len(y)))
    moments, never = moments_of(configure, x, y), moments_of(configure, x[y != 5], y[y != 5])
    moments.forgotten = torch.zeros(6, dtype=torch.bool)
    moments.forget(5)
    moments.gram = never.gram.clone()  # the class's scatter around its mean would stay
    moments.derive()
    others = samples.select(y != 5)
    assert moments.choose_shrinkage(others) == pytest.approx(never.choose_shrinkage(others))
    torch.testing.assert_close(moments.scores(x, None)[:, :5], never.scores(x, None))


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_one_sample_of_each_class_is_enough(configure, classes: int) -> None:
    x, y = torch.eye(6)[:classes], torch.arange(classes)
    scores = moments_of(configure, x, y).scores(x, None)
    assert scores.isfinite().all()
    assert classes == 1 or (scores.argmax(1) == y).all()

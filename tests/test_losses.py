"""Every loss against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtn.losses import (
    balanced_cross_entropy,
    binary_distillation,
    cross_entropy,
    less_forget,
    margin_ranking,
    nca,
    pod_spatial,
    separated_softmax,
    soft_cross_entropy,
    taskwise_distillation,
)

LN2, LN3, LN4, LN5 = (math.log(n) for n in (2, 3, 4, 5))


def close(found: Tensor, expected: float) -> None:
    assert found.shape == ()
    torch.testing.assert_close(found.item(), expected, atol=1e-5, rtol=1e-5)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradient(loss, z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    loss(z).backward()
    return z.grad


# ---- cross-entropy


def test_cross_entropy_by_hand():
    close(cross_entropy(torch.tensor([[LN3, 0.0]]), torch.tensor([0])), LN4 - LN3)  # p = 3/4
    close(cross_entropy(torch.tensor([[LN3, 0.0], [0, 0]]), torch.tensor([1, 0])), (LN4 + LN2) / 2)


# ---- separated softmax: classes 0 and 1 are old, 2 and 3 new

NEW = [9.0, -9.0, LN3, 0.0]  # label 2: 3/4 among the new ones, whatever the old logits
OLD = [0.0, LN4, 7.0, 7.0]  # label 1: 4/5 among the old ones, whatever the new logits


@pytest.mark.parametrize(
    ("z", "y", "expected"),
    [
        ([NEW], [2], LN4 - LN3),
        ([OLD], [1], LN5 - LN4),
        ([NEW, OLD], [2, 1], (LN4 - LN3 + LN5 - LN4) / 2),
        ([NEW, NEW, OLD], [2, 2, 1], (2 * (LN4 - LN3) + LN5 - LN4) / 3),  # by the batch, not by each part
        ([NEW, OLD], [3, 0], (LN4 + LN5) / 2),
    ],
)
def test_separated_softmax_by_hand(z, y, expected):
    close(separated_softmax(torch.tensor(z), torch.tensor(y), 2), expected)


def test_new_samples_move_new_logits_only_and_old_samples_old_ones_only():
    y = torch.tensor([2, 1, 4, 0, 3])  # of 5 classes 2 are old
    moved = gradient(lambda z: separated_softmax(z, y, 2), rand(5, 5)) != 0
    for row, label in enumerate(y.tolist()):
        assert moved[row].tolist() == ([False, False, True, True, True] if label >= 2 else [True, True] + [False] * 3)


def test_the_first_task_is_plain_cross_entropy():
    z, y = rand(6, 4), torch.tensor([0, 1, 2, 3, 3, 0])
    assert torch.equal(separated_softmax(z, y, 0), cross_entropy(z, y))


def test_a_single_new_class_is_compared_with_all_classes():
    z = torch.tensor([[0.0, 0, 0], [0, 0, 5]])
    # the new sample among three equal logits, the old one between two
    close(separated_softmax(z, torch.tensor([2, 0]), 2), (LN3 + LN2) / 2)
    grad = gradient(lambda z: separated_softmax(z, torch.tensor([2, 0]), 2), z)
    # (softmax - one-hot) / 2
    torch.testing.assert_close(grad, torch.tensor([[1 / 6, 1 / 6, -1 / 3], [-1 / 4, 1 / 4, 0]]))


def test_a_single_new_class_after_a_single_old_one_still_learns():
    grad = gradient(lambda z: separated_softmax(z, torch.tensor([1]), 1), torch.zeros(1, 2))
    torch.testing.assert_close(grad, torch.tensor([[0.5, -0.5]]))


# ---- task-wise distillation

P = [LN3, 0.0]  # 3/4 and 1/4
KL = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # of P from equal shares


def test_distillation_by_hand():
    close(taskwise_distillation(torch.zeros(1, 2), torch.tensor([P]), [slice(0, 2)], 1.0), KL)


def test_distillation_goes_from_the_old_model_to_the_new():
    reverse = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert abs(reverse - KL) > 0.01  # the two can be told apart
    close(taskwise_distillation(torch.tensor([P]), torch.zeros(1, 2), [slice(0, 2)], 1.0), reverse)


def test_distillation_at_temperature_two_is_multiplied_by_four():
    before = torch.tensor([[2 * LN3, 0.0]])  # P again once halved
    close(taskwise_distillation(torch.zeros(1, 2), before, [slice(0, 2)], 2.0), 4 * KL)


def test_distillation_is_a_sum_over_tasks_and_a_mean_over_the_batch():
    spans = [slice(0, 2), slice(2, 4)]
    close(taskwise_distillation(torch.zeros(1, 4), torch.tensor([P + P]), spans, 1.0), 2 * KL)
    before = torch.tensor([[*P, 0.0, 0.0], [0.0] * 4])  # one of two samples, one of two tasks
    close(taskwise_distillation(torch.zeros(2, 4), before, spans, 1.0), KL / 2)


def test_distillation_sums_what_each_task_gives_alone():
    z, before = rand(3, 12), rand(3, 12, seed=1)
    spans = [slice(0, 3), slice(3, 4), slice(4, 6), slice(6, 8), slice(8, 8), slice(8, 10), slice(10, 12)]
    alone = [taskwise_distillation(z, before, [span], 2.0) for span in spans]
    torch.testing.assert_close(taskwise_distillation(z, before, spans, 2.0), sum(alone))
    close(alone[1], 0.0)  # a task of one class has nothing to tell


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.5, 5), st.floats(-50, 50))
def test_distillation_ignores_a_constant_within_a_task(seed, temperature, constant):
    z, before, spans = rand(3, 5, seed=seed), rand(3, 5, seed=seed + 1), [slice(0, 3), slice(3, 5)]
    shifted = z.clone()
    shifted[:, :3] += constant
    found = taskwise_distillation(z, before, spans, temperature)
    assert found >= 0
    torch.testing.assert_close(taskwise_distillation(shifted, before, spans, temperature), found, atol=1e-4, rtol=1e-3)


def test_distillation_of_equal_logits_is_zero_and_pulls_nowhere():
    z, spans = rand(4, 5), [slice(0, 3), slice(3, 5)]
    close(taskwise_distillation(z, z.clone(), spans, 2.0), 0.0)
    grad = gradient(lambda free: taskwise_distillation(free, z, spans, 2.0), z)
    torch.testing.assert_close(grad, torch.zeros(4, 5), atol=1e-6, rtol=0)


def test_distillation_leaves_new_classes_free():
    z, before = rand(2, 6), rand(2, 4, seed=1)  # the old model has 4 outputs
    grad = gradient(lambda z: taskwise_distillation(z, before, [slice(0, 2), slice(2, 4)], 2.0), z)
    assert (grad[:, 4:] == 0).all() and (grad[:, :4] != 0).all()


def test_distillation_without_earlier_tasks_is_zero():
    close(taskwise_distillation(rand(2, 3), rand(2, 3), [], 2.0), 0.0)


# ---- balanced cross-entropy


def test_balanced_cross_entropy_by_hand():
    share = torch.tensor([0.75, 0.25])
    z = torch.zeros(1, 2)  # softmax(log share) = share
    close(balanced_cross_entropy(z, torch.tensor([0]), share), LN4 - LN3)
    close(balanced_cross_entropy(z, torch.tensor([1]), share), LN4)
    # z = log 3 for the rare class: 0.75 x 1 and 0.25 x 3 are equal
    close(balanced_cross_entropy(torch.tensor([[0.0, LN3]]), torch.tensor([1]), share), LN2)


def test_balanced_cross_entropy_with_equal_shares_is_cross_entropy():
    z, y = rand(6, 4), torch.tensor([0, 1, 2, 3, 3, 0])
    torch.testing.assert_close(balanced_cross_entropy(z, y, torch.full((4,), 0.25)), cross_entropy(z, y))


def test_balanced_cross_entropy_leaves_out_a_class_never_drawn():
    share = torch.tensor([0.5, 0.5, 0.0])
    close(balanced_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), share), LN2)


@pytest.mark.parametrize("label", [0, 2])
def test_balanced_cross_entropy_is_finite_for_a_share_of_zero(label):
    share, y = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([label])
    assert balanced_cross_entropy(rand(1, 3), y, share).isfinite()
    assert gradient(lambda z: balanced_cross_entropy(z, y, share), rand(1, 3)).isfinite().all()


# ---- soft cross-entropy (BiC)


def test_soft_cross_entropy_by_hand():
    # targets 3/4 and 1/4, outputs 1/2 and 1/2: -(3/4 + 1/4) log 1/2
    close(soft_cross_entropy(torch.zeros(1, 2), torch.tensor([P]), 1.0), LN2)
    # targets 1/2 and 1/2, outputs 3/4 and 1/4; the second sample gives log 2
    z = torch.tensor([P, [0.0, 0.0]])
    close(soft_cross_entropy(z, torch.zeros(2, 2), 1.0), ((LN4 - LN3 + LN4) / 2 + LN2) / 2)


def test_soft_cross_entropy_at_temperature_two_halves_both_logits_and_is_not_multiplied():
    z, before = torch.tensor([[0.0, 2 * LN3]]), torch.tensor([[2 * LN3, 0.0]])
    # targets 3/4 and 1/4, outputs 1/4 and 3/4
    close(soft_cross_entropy(z, before, 2.0), 0.75 * LN4 + 0.25 * (LN4 - LN3))


def test_soft_cross_entropy_is_least_for_equal_logits_where_it_is_the_entropy():
    before = torch.tensor([P])
    close(soft_cross_entropy(before, before, 1.0), 0.75 * (LN4 - LN3) + 0.25 * LN4)
    grad = gradient(lambda z: soft_cross_entropy(z, before, 2.0), before)
    torch.testing.assert_close(grad, torch.zeros(1, 2), atol=1e-6, rtol=0)
    assert soft_cross_entropy(before + torch.tensor([[0.1, 0.0]]), before, 2.0) > soft_cross_entropy(
        before, before, 2.0
    )


# ---- margin ranking (LUCIR): classes 0 and 1 are old, 2, 3 and 4 new

COSINES = [0.75, 9.0, 0.5, 0.25, -1.0]  # the other old class is no rival


def test_margin_ranking_by_hand_against_the_two_best_new_classes():
    # 1/2 - 3/4 + 1/2 = 1/4, 1/2 - 3/4 + 1/4 = 0; the third new class does not count
    close(margin_ranking(torch.tensor([COSINES]), torch.tensor([0]), 2, 0.5, 2), 0.25 / 2)
    # a sample of a new class is left out of the mean
    close(margin_ranking(torch.tensor([COSINES, [9.0] * 5]), torch.tensor([0, 3]), 2, 0.5, 2), 0.25 / 2)


def test_margin_ranking_grows_with_the_margin_and_is_never_negative():
    z, y = torch.tensor([COSINES]), torch.tensor([0])
    found = [margin_ranking(z, y, 2, margin, 2).item() for margin in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([0.0, 0.125, (0.75 + 0.5) / 2])


def test_margin_ranking_with_fewer_new_classes_than_rivals_takes_those_there_are():
    close(margin_ranking(torch.tensor([COSINES[:3]]), torch.tensor([0]), 2, 0.5, 2), 0.25)


@pytest.mark.parametrize(("y", "old"), [([2, 3], 2), ([0, 4], 0)], ids=["no old sample", "base"])
def test_margin_ranking_without_old_samples_is_zero_and_pulls_nowhere(y, old):
    z = rand(2, 5)
    close(margin_ranking(z, torch.tensor(y), old, 0.5, 2), 0.0)
    assert not gradient(lambda z: margin_ranking(z, torch.tensor(y), old, 0.5, 2), z).any()


# ---- NCA (PODNet)


def test_nca_by_hand_leaves_the_true_class_out_of_the_denominator():
    scale = torch.tensor(2.0)
    z = torch.tensor([[0.25, 0.0, 0.0]])
    # log(e^0 + e^0) - 2 (0.25 - 0.5) = log 2 + 1/2; with the true class below the line it would be more
    close(nca(z, torch.tensor([0]), scale, 0.5), LN2 + 0.5)
    # true class 1: log(e^(2 x 0.25) + e^0) - 2 (0 - 0.5)
    close(nca(z, torch.tensor([1]), scale, 0.5), math.log(math.exp(0.5) + 1) + 1)
    close(nca(z.expand(2, 3), torch.tensor([0, 1]), scale, 0.5), (LN2 + 0.5 + math.log(math.exp(0.5) + 1) + 1) / 2)


def test_nca_grows_with_the_margin():
    z, y, scale = torch.zeros(1, 3), torch.tensor([0]), torch.tensor(1.0)
    found = [nca(z, y, scale, margin).item() for margin in (0.0, 0.6, 5.0)]
    assert found == pytest.approx([LN2, LN2 + 0.6, LN2 + 5.0])  # in the released code all three are the same


def test_nca_is_zero_beyond_the_margin():
    z, y, scale = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), torch.tensor(1.0)
    close(nca(z, y, scale, 0.6), 0.0)  # log 2 - 1.4 < 0
    assert not gradient(lambda z: nca(z, y, scale, 0.6), z).any()


def test_binary_distillation_sums_over_classes_and_takes_old_answers_as_targets() -> None:
    """One sample of class 2 of three. sigmoid(0) = 1/2, sigmoid(ln 3) = 3/4: cross-entropies worked out."""
    z = torch.tensor([[0.0, LN3, LN3]])
    plain = LN2 - math.log(1 / 4) - math.log(3 / 4)
    close(binary_distillation(z, torch.tensor([2]), None), plain)
    before = torch.tensor([[LN3, 0.0]])  # targets 3/4 and 1/2 for the two old classes
    first, second = LN2, -(math.log(3 / 4) + math.log(1 / 4)) / 2
    close(binary_distillation(z, torch.tensor([2]), before), first + second - math.log(3 / 4))
    close(binary_distillation(z.repeat(4, 1), torch.tensor([2] * 4), before.repeat(4, 1)), first + second + LN4 - LN3)


def test_less_forget_is_one_less_the_mean_cosine() -> None:
    x, before = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [-2.0, 0.0]])
    close(less_forget(x, before), 1 - (24 / 25 - 1) / 2)
    close(less_forget(x, 5 * x), 0.0)


def test_pod_spatial_compares_sums_of_squares_over_height_and_over_width() -> None:
    """A 2 x 2 map [[1, 2], [0, 1]]: squares sum to (1, 5) over its rows, (5, 1) over its columns, length sqrt 52.

    [[1, 0], [0, 0]]: (1, 0) and (1, 0), length sqrt 2.
    """
    a, b = torch.tensor([[[[1.0, 2.0], [0.0, 1.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
    profile = [value / math.sqrt(52) for value in (1, 5, 5, 1)]
    corner = [value / math.sqrt(2) for value in (1, 0, 1, 0)]
    apart = math.dist(profile, corner)
    close(pod_spatial([a], [b]), apart)
    close(pod_spatial([a, b], [b, b]), apart / 2)  # mean over stages
    close(pod_spatial([torch.cat([a, b])], [torch.cat([b, b])]), apart / 2)  # and over the batch
    close(pod_spatial([a], [-3 * a]), 0.0)  # neither sign nor size

"""Logits -> scalar: pure functions, one an equation. z: B,C logits over the seen classes; old: the first n of them."""

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(z: Tensor, y: Tensor, trust: Tensor | None = None) -> Tensor:
    """-t log softmax(z)_y, mean over B; t (B) is how far each label is trusted, 1 unless given."""
    return F.cross_entropy(z, y) if trust is None else (trust * F.cross_entropy(z, y, reduction="none")).mean()


def separated_softmax(z: Tensor, y: Tensor, old: int) -> Tensor:
    """Eq. 1: softmax among the new classes for new samples, among the old ones for replayed samples; mean over all.

    A single new class would make the first softmax constant, its gradient zero: its samples then take the softmax over
    all seen classes (docs/explanation/design.md, choice 23).
    """
    if old == 0:
        return cross_entropy(z, y)
    new = y >= old
    start = old if z.shape[1] - old > 1 else 0
    total = F.cross_entropy(z[new, start:], y[new] - start, reduction="sum")
    return (total + F.cross_entropy(z[~new, :old], y[~new], reduction="sum")) / len(y)


def taskwise_distillation(z: Tensor, teacher: Tensor, spans: Sequence[slice], temperature: float) -> Tensor:
    """Eq. 2: sum over earlier tasks of T^2 KL(p_teacher || p), each softmax inside that task's classes; mean over B.

    Tasks of the same size that follow each other are one softmax over B,tasks,size.
    """
    total = z.new_zeros(())
    for size, tasks in itertools.groupby(spans, lambda span: span.stop - span.start):
        if size < 2:  # the softmax of one class is constant
            continue
        group = list(tasks)
        columns, apart = slice(group[0].start, group[-1].stop), (-1, size)
        now = F.log_softmax(z[:, columns].unflatten(1, apart) / temperature, dim=2)
        then = F.log_softmax(teacher[:, columns].unflatten(1, apart) / temperature, dim=2)
        total = total + F.kl_div(now, then, log_target=True, reduction="sum")
    return temperature**2 * total / len(z)


def balanced_cross_entropy(z: Tensor, y: Tensor, frequency: Tensor, trust: Tensor | None = None) -> Tensor:
    """Cross-entropy over all seen classes, corrected for how often each is drawn: softmax(z + log frequency).

    What remains in z is free of the drawing frequencies (Menon et al. 2021, logit adjustment; Ren et al. 2020).
    """
    return cross_entropy(z + frequency.clamp(min=torch.finfo(frequency.dtype).tiny).log(), y, trust)


def soft_cross_entropy(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """-sum p_teacher log p at a temperature, mean over the batch, no T^2 (BiC's distillation)."""
    return F.cross_entropy(z / temperature, (teacher / temperature).softmax(1))


def margin_ranking(cosines: Tensor, y: Tensor, old: int, margin: float, rivals: int) -> Tensor:
    """LUCIR: mean of max(0, margin - s_true + s_new) over samples of old classes and their best-scoring new classes."""
    mine = y < old
    if not mine.any() or old == cosines.shape[1]:
        return cosines.sum() * 0.0
    true = cosines[mine].gather(1, y[mine, None])
    best = cosines[mine, old:].topk(min(rivals, cosines.shape[1] - old), dim=1).values
    return (margin - true + best).clamp(min=0).mean()


def nca(similarity: Tensor, y: Tensor, scale: Tensor, margin: float) -> Tensor:
    """PODNet: max(0, -log(exp(eta (y_true - margin)) / sum over the other classes exp(eta y_c))), mean over B."""
    if similarity.shape[1] == 1:  # nothing to tell it from
        return similarity.sum() * 0.0
    true = similarity.gather(1, y[:, None])
    others = (scale * similarity).scatter(1, y[:, None], -torch.inf)
    return (others.logsumexp(1) - scale * (true.squeeze(1) - margin)).clamp(min=0).mean()


def binary_distillation(z: Tensor, y: Tensor, teacher: Tensor | None) -> Tensor:
    """iCaRL, Alg. 3: sigmoid cross-entropy of every class, summed, mean over the batch.

    Targets are the teacher's answers for old classes, the label for new ones.
    """
    target = F.one_hot(y, z.shape[1]).to(z)
    if teacher is not None:
        target[:, : teacher.shape[1]] = teacher.sigmoid()
    return F.binary_cross_entropy_with_logits(z, target, reduction="sum") / len(z)


def less_forget(x: Tensor, before: Tensor) -> Tensor:
    """LUCIR, Eq. 6 and PODNet's POD-flat: 1 - cos(q, q_before), mean over B."""
    return 1 - F.cosine_similarity(x, before, dim=1).mean()


def distance(x: Tensor, before: Tensor) -> Tensor:
    """|q - q_before|, mean over B: what holds features while others are drawn (Liu et al. 2020)."""
    distances: Tensor = torch.linalg.vector_norm(x - before, dim=1)
    return distances.mean()


def pod_spatial(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """PODNet: distance of the unit vectors of a^2 summed over height and over width, mean over B and stages."""
    apart = [(_profile(now) - _profile(then)).norm(dim=1).mean() for now, then in zip(maps, before, strict=True)]
    return torch.stack(apart).mean()


def _profile(a: Tensor) -> Tensor:
    """B,C,H,W -> B,C(W + H) of unit length."""
    squared = a.square()
    return F.normalize(torch.cat([squared.sum(2).flatten(1), squared.sum(3).flatten(1)], dim=1), dim=1)

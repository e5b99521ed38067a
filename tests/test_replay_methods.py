"""Methods that train with replay, pseudo-features or a vote over exemplars: what their papers claim, by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from learners import close, stages
from mtn import inference, losses
from mtn.methods.gem import project, with_gradient
from mtn.methods.matching import successive_selections
from mtn.model import VOTE_FLOOR
from mtn.neighbours import nearest

# ---- fetril


def test_fetril_moves_samples_of_the_nearest_class_by_the_difference_of_means(train_learner) -> None:
    it = train_learner("fetril", 1)
    it.begin(it.tasks[1])
    task, means = it.tasks[1], it.method.means()
    labels = torch.tensor([0, 3, 3, 5])
    moved = it.method.moved(labels, torch.arange(8) >= 6, task.train)
    unit = F.normalize(means, dim=1)
    x, y = task.train.x(), task.train.y
    for row, label in zip(moved, labels, strict=True):
        nearest_new = 6 + int((unit[6:] @ unit[label]).argmax())
        origins = x[y == nearest_new] + means[label] - means[nearest_new]
        assert float((origins - row).abs().amax(1).min()) < 1e-6


def test_fetril_keeps_means_and_no_exemplar_and_trains_on_as_many_of_each_class(train_learner, monkeypatch) -> None:
    it = train_learner("fetril", 1)
    seen: list[torch.Tensor] = []
    plain = losses.cross_entropy
    monkeypatch.setattr(losses, "cross_entropy", lambda z, y: seen.append(y) or plain(z, y))
    for stage, plan in stages(it, 1):
        assert plan.replay is None
        stage.loss(plan.batch(0), it.tasks[1])
    first = seen[0]
    assert (first >= 6).sum() == 32 and (first < 6).sum() == 96  # 2 new classes with 16 each, 6 old ones with 16
    assert it.kept()["statistics"] == 8 * 17


# ---- wa, eeil, il2m


def test_wa_scales_new_rows_to_the_mean_length_of_old_ones(train_learner) -> None:
    it = train_learner("wa", 1)
    for stage, plan in stages(it, 1):
        it.train(it.tasks[1], stage, plan)
    before = it.method.head.weight.detach().clone()
    it.method.end_task(it.tasks[1], it.memory)
    norms = before.norm(dim=1)
    after = it.method.head.weight.detach()
    assert torch.equal(after[:6], before[:6])
    close(after[6:], before[6:] * norms[:6].mean() / norms[6:].mean())
    close(after[6:].norm(dim=1).mean(), norms[:6].mean())


def test_eeil_distils_each_earlier_task_and_fine_tunes_on_the_memory_at_a_tenth_of_the_rate(train_learner) -> None:
    it = train_learner("eeil", 2)
    kinds = []
    for stage, plan in stages(it, 2):
        batch = plan.batch(0)
        z = it.method.scores(batch.x, None)
        expected = losses.taskwise_distillation(z, batch.teacher_logits, [slice(0, 6), slice(6, 8)], 2.0)
        torch.testing.assert_close(stage.loss(batch, it.tasks[2])["distillation"], expected)
        kinds.append((stage.samples, stage.lr, sorted(batch.y.unique().tolist())[-1]))
    assert kinds[0][:2] == ("task", 1.0) and kinds[1][:2] == ("memory", 0.1)
    assert len(torch.bincount(it.memory.y).unique()) == 1  # as many of each class


def test_il2m_rectifies_old_classes_where_a_new_one_would_be_answered(train_learner) -> None:
    it = train_learner("il2m", 2)
    method, test = it.method, it.tasks[1].test.x()
    method.then, method.now = torch.full((8,), 0.9), torch.full((8,), 0.3)
    method.confidence_then = torch.full((8,), 0.8)
    method.confidence = torch.tensor(0.6)
    p = super(type(method), method).scores(test, None).softmax(1).detach()
    expected = p.clone()
    newest = p.argmax(1) >= 6
    assert newest.any() and int(method.newest) == 6
    expected[newest, :6] *= (0.9 / 0.3) * (0.6 / 0.8)
    close(method.scores(test, None).detach(), expected)


def test_il2m_keeps_what_a_class_scored_in_the_task_it_came_in(train_learner) -> None:
    it = train_learner("il2m", 1)
    first = it.method.then.clone()
    p = super(type(it.method), it.method).scores(it.tasks[0].train.x(), None).softmax(1).detach()
    own = torch.stack([p[it.tasks[0].train.y == label, label].mean() for label in range(6)])
    close(first, own)
    close(it.method.confidence, p.amax(1).mean())
    it.learn_task(it.tasks[1])
    assert torch.equal(it.method.then[:6], first)
    assert not torch.equal(it.method.now[:6], first)  # measured again, on exemplars


# ---- gem, a-gem


def test_a_projected_gradient_by_hand() -> None:
    """(1, -1) against (0, 1): the part that would raise the memory's loss goes. Against (1, 0) nothing does."""
    gradient = torch.tensor([1.0, -1.0])
    assert project(gradient, torch.tensor([[0.0, 1.0]])).tolist() == [1.0, 0.0]
    assert project(gradient, torch.tensor([[1.0, 0.0]])).tolist() == [1.0, -1.0]
    assert project(gradient, torch.tensor([[0.0, 1.0], [-1.0, 0.0]])).tolist() == [0.0, 0.0]


def test_the_projection_is_the_nearest_vector_that_raises_no_loss() -> None:
    draw = torch.Generator().manual_seed(3)
    for _ in range(5):
        gradient, references = torch.randn(6, generator=draw), torch.randn(3, 6, generator=draw)
        found = project(gradient, references)
        assert (references @ found > -1e-4).all()
        tries = torch.randn(20000, 6, generator=draw) * 2
        feasible = tries[(tries @ references.T >= 0).all(1)]
        assert (found - gradient).norm() <= (feasible - gradient).norm(dim=1).min() + 1e-4


def test_a_scalar_with_a_given_gradient() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 5.0]))
    found = with_gradient(torch.tensor(7.0), [weight], torch.tensor([0.5, -3.0]))
    found.backward()
    assert found.item() == 7.0 and weight.grad.tolist() == [0.5, -3.0]


@pytest.mark.parametrize("name", ["agem", "gem"])
def test_a_step_does_not_raise_the_loss_of_what_is_replayed(train_learner, name: str) -> None:
    it = train_learner(name, 2)
    stage, plan = next(stages(it, 2))
    batch = plan.batch(0)
    replayed = torch.arange(len(batch.y)) >= batch.new_count
    groups = it.method.groups(batch, it.tasks[2], replayed)
    assert len(groups) == (1 if name == "agem" else 2)
    parameters = list(it.method.parameters())
    step = torch.cat(
        [g.flatten() for g in torch.autograd.grad(stage.loss(batch, it.tasks[2])["classification"], parameters)]
    )
    for group in groups:
        own = it.method.gradient(batch, group, parameters)[1]
        assert float(own @ step) >= -1e-4 * float(own.norm() * step.norm())


# ---- votes over exemplars


def test_matching_starts_as_a_vote_by_cosine(train_learner) -> None:
    it = train_learner("matching", 0)
    it.begin(it.tasks[0])
    test = it.tasks[0].test
    near = nearest(test, it.memory, 5)[slice(None)]
    weights = (10 * near.similarity).softmax(1).numpy()
    shares = np.stack([(weights * (near.y.numpy() == label)).sum(1) for label in range(6)], 1)
    close(it.method.scores(test.x(), near), torch.from_numpy(np.log(shares + VOTE_FLOOR)).float(), 1e-3)


def test_successive_selections_by_hand() -> None:
    """Two equal candidates, two rounds: (1/2, 1/2) and again (1/2, 1/2). A third that is padding takes no part."""
    even = successive_selections(torch.zeros(1, 3), torch.tensor([[True, True, False]]), 2)
    close(even, torch.tensor([[0.5, 0.5, 0.0]]))
    # 3/4 and 1/4; then logits log 3 + log(1/4) and 0 + log(3/4): equal
    logits = torch.tensor([[float(np.log(3)), 0.0]])
    close(successive_selections(logits, torch.ones(1, 2, dtype=torch.bool), 2), torch.tensor([[0.625, 0.375]]))
    sharp = successive_selections(torch.tensor([[40.0, 20.0, 0.0]]), torch.ones(1, 3, dtype=torch.bool), 3)
    close(sharp, torch.full((1, 3), 1 / 3), 1e-2)  # without replacement: each once


@pytest.mark.parametrize("name", ["matching", "nnn", "query-expansion"])
def test_a_new_class_is_answered_as_soon_as_it_has_exemplars(train_learner, name: str) -> None:
    """Without a single step: no weight belongs to a class."""
    it = train_learner(name, 1)
    it.begin(it.tasks[1])
    (found,) = (z for _, z in inference.predictions(it.method, it.tasks[1].test, it.memory, 5))
    assert (found.argmax(1) == it.tasks[1].test.y).float().mean() > 0.6


def test_an_expanded_query_lies_between_the_query_and_its_neighbours(train_learner) -> None:
    it = train_learner("query-expansion", 1)
    test = it.tasks[0].test
    near = nearest(test, it.memory, 5)[slice(None)]
    expanded = it.method.expanded(test.x(), near).detach()
    before = (test.x()[:, None] @ near.x.transpose(1, 2)).mean()
    after = (expanded[:, None] @ near.x.transpose(1, 2)).mean()
    close(expanded.norm(dim=1), torch.ones(len(test)))
    assert after > before


def test_tabr_reads_the_labels_and_the_differences_of_its_neighbours(train_learner) -> None:
    it = train_learner("tabr", 1)
    method, test = it.method, it.tasks[0].test.x()
    near = nearest(it.tasks[0].test, it.memory, 5)[slice(None)]
    encoded = method.encoder(test * 4)  # mean square 1 of each of 16 components
    keys = method.key(encoded)
    expected = []
    for row in range(len(test)):
        apart = keys[row] - method.key(method.encoder(near.x[row] * 4))
        weights = (-apart.square().sum(1)).softmax(0)
        value = method.labels.weight[near.y[row]] + method.difference(apart)
        joined = encoded[row] + weights @ value
        expected.append(method.head(joined + method.predictor(joined)))
    close(method.scores(test, near).detach(), torch.stack(expected).detach(), 1e-3)
    others = replace(near, y=(near.y + 1) % 6)
    assert not torch.allclose(method.scores(test, others), method.scores(test, near))


# ---- feature-replay


def test_features_are_drawn_with_the_mean_of_their_class_and_the_covariance_that_all_share(train_learner) -> None:
    it = train_learner("feature-replay", 2)
    generator = it.method.generator
    it.method.derive()
    parts = [task.train for task in it.tasks[:2]]
    x, y = torch.cat([part.x() for part in parts]).double(), torch.cat([part.y for part in parts])
    means = torch.stack([x[y == label].mean(0) for label in range(8)])
    within = (x - means[y]).T @ (x - means[y]) / len(y)
    close(generator.noise.double() @ generator.noise.double(), within)
    torch.manual_seed(0)
    drawn = generator.draw(torch.full((40000,), 5)).double()
    close(drawn.mean(0), means[5], 0.05)
    close(drawn.T.cov(), within, 0.05)
    assert it.kept()["statistics"] == 8 * 17 + 16**2 + 1


def test_new_and_drawn_samples_count_by_their_classes(train_learner, monkeypatch) -> None:
    it = train_learner("feature-replay", 1)
    task, method = it.tasks[1], it.method
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
    draw = method.generator.draw
    monkeypatch.setattr(method.generator, "draw", lambda y: drawn.append((draw(y), y)) or drawn[-1][0])
    stage, plan = next(stages(it, 1))
    batch = plan.batch(0)
    terms = stage.loss(batch, task)
    (x, y), heads = drawn[0], (method.head.weight, method.head.bias)
    assert plan.replay is None and len(y) == len(batch.y) and y.max() < 6
    new, old = (F.cross_entropy(F.linear(4 * v, *heads), label) for v, label in ((batch.x, batch.y), (x, y)))
    close(terms["classification"].detach(), 2 / 8 * new.detach())
    close(terms["replay"].detach(), 6 / 8 * old.detach())


def test_the_distance_of_features_by_hand() -> None:
    now, before = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    assert losses.distance(now, before).item() == (5.0 + 2.0) / 2

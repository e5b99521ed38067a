"""What an answer rests on, and its figure."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import to_hex

from cluster_data import ARRAYS
from mtn import MTNClassifier, evidence
from mtn.classifier import as_queries
from mtn.evidence import DISCRIMINANT, PROTOTYPE, QUERY, WITH_NEIGHBOURS
from mtn.experiments import evidence_figure
from mtn.model import MemoryTransformer
from mtn.neighbours import nearest


@pytest.fixture(scope="module")
def taught() -> MTNClassifier:
    it = MTNClassifier(memory=60, k=5, settings={"train.epochs": 3, "train.min_steps": 10})
    return it.fit(ARRAYS["x_train"], ARRAYS["y_train"])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", ["small", "medium"])
def test_attention_is_what_the_block_uses(size: str, padded: bool) -> None:
    torch.manual_seed(0)
    transformer = MemoryTransformer(8, 4, size).eval()
    query, near, labels = torch.randn(3, 8), torch.randn(3, 4, 8), torch.zeros(3, 4, dtype=torch.long)
    real = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4]) if padded else None
    tokens, mask = transformer.before_last(query, near, labels, real)
    block = transformer.blocks[-1]
    normed = block.norm_attention(tokens)
    value = block.qkv(normed).chunk(3, dim=2)[2].unflatten(2, (block.heads, -1)).transpose(1, 2)
    by_hand = (block.weights(tokens, mask) @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(by_hand, block.attend(normed, normed, mask))
    attention = transformer.attention(query, near, labels, real)
    torch.testing.assert_close(attention.sum(1), torch.ones(3))
    if real is not None:
        assert not attention[:, 1:][~real].any()


def test_evidence_is_what_the_model_saw(taught: MTNClassifier) -> None:
    x = ARRAYS["x_test"][:4]
    found = taught.explain(x)
    distances, rows = taught.kneighbors(x)
    samples = as_queries(x)
    batch = nearest(samples, taught.state_.learner.memory, 5)[slice(None)]
    with torch.no_grad():
        adapted = F.normalize(taught.state_.learner.method.network.adapt(samples.x(), batch), dim=2)
    for query, one in enumerate(found):
        assert one.prediction == taught.predict(x)[query]
        assert one.probability == pytest.approx(taught.predict_proba(x)[query].max())
        assert [near.id for near in one.neighbours] == [taught.memory_[row].id for row in rows[query]]
        assert [near.label for near in one.neighbours] == [taught.memory_[row].label for row in rows[query]]
        np.testing.assert_allclose([near.before for near in one.neighbours], 1 - distances[query], atol=1e-6)
        after = (adapted[query, 1:] @ adapted[query, 0]).tolist()
        np.testing.assert_allclose([near.after for near in one.neighbours], after, atol=1e-5)
        assert 0 < sum(near.attention for near in one.neighbours) < 1  # the rest is on the query itself


def test_a_method_without_a_transformer_has_similarities_only() -> None:
    for method in ("knn", "ssil"):
        it = MTNClassifier(method, memory=60, k=5).fit(ARRAYS["x_train"], ARRAYS["y_train"])
        (one,) = it.explain(ARRAYS["x_test"][:1])
        assert len(one.neighbours) == 5 and all(near.after is near.attention is None for near in one.neighbours)
    assert MTNClassifier("slda").fit(ARRAYS["x_train"], ARRAYS["y_train"]).explain(ARRAYS["x_test"])[0].neighbours == []


def test_the_figure_has_a_row_a_query_and_marks_the_predicted_class(taught: MTNClassifier, tmp_path: Path) -> None:
    found = [one for one in taught.explain(ARRAYS["x_test"]) if one.agreement is None][:2]
    images = {near.id: np.full((6, 6), 128, np.uint8) for one in found for near in one.neighbours[:4]}
    figure = evidence_figure.plot(found, images, [np.zeros((6, 6, 3), np.uint8)] * 2)
    assert len(figure.axes) == 2 * 2 * 6
    titles = [axes.get_title() for axes in figure.axes]
    assert titles.count("query") == 2
    marked = [axes for axes in figure.axes if axes.get_title().startswith("✓")]
    assert len(marked) == sum(near.label == one.prediction for one in found for near in one.neighbours)
    assert all(to_hex(axes.title.get_color()) == evidence_figure.SAME.lower() for axes in marked)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 2 * 5 and all(axes.viewLim.size.tolist() == [6, -6] for axes in shown)  # the whole of it
    figure.savefig(tmp_path / "evidence.png")
    plain = evidence_figure.plot(found)  # without any image a label stands under its own bars
    named = [axes.get_xlabel().removeprefix("✓ ") for axes in plain.axes if axes.patches]
    assert named == [evidence_figure.wrap_label(near.label) for one in found for near in one.neighbours]
    plain.savefig(tmp_path / "plain.png")
    assert (tmp_path / "plain.png").stat().st_size > 1000


def test_sentences_stand_where_images_would_and_names_are_no_formulas(tmp_path: Path) -> None:
    price, long = "$5 to $10", "a sentence of a great many words " * 20
    near = [evidence.Neighbour(0, price, 0.9, 0.8, 0.1), evidence.Neighbour(1, "$x^{$", 0.5, 0.4, 0.1)]
    figure = evidence_figure.plot(
        [evidence.Evidence(price, 0.9, 0.1, near)], {0: "from $5", 1: long}, ["is it $6 or $7"]
    )
    figure.savefig(tmp_path / "figure.png")  # what is no formula cannot fail to be one
    query, first, second = (axes.texts[0].get_text() for axes in figure.axes[:3])
    assert (query, first) == ("is it $6 or $7", "from $5")
    lines = second.splitlines()
    assert (
        len(lines) == evidence_figure.SENTENCE_LINES
        and max(map(len, lines)) <= evidence_figure.SENTENCE_WIDTH
        and lines[-1].endswith(" …")
    )
    assert figure.axes[1].get_title() == f"✓ {price}"
    figure.draw_without_rendering()
    for axes in figure.axes[:3]:
        inside, box = axes.texts[0].get_window_extent(), axes.get_window_extent()
        assert box.x0 <= inside.x0 and inside.x1 <= box.x1 and box.y0 <= inside.y0 and inside.y1 <= box.y1


# ---- the parts of a score


def test_shares_margins_and_disagreement_by_hand() -> None:
    x = np.array([[0.6, 0.8]] * 4 + [[0.0, 1.0], [-0.6, 0.8]], np.float32)
    it = MTNClassifier(memory=6, k=3, settings={"method.size": "small", "train.epochs": 1, "train.min_steps": 0})
    it.fit(x, ["a"] * 4 + ["b"] * 2)
    method = it.state_.learner.method
    unit = torch.eye(2)
    method.moments.mean, method.moments.whitening, method.prototype_directions = torch.zeros(2), unit, unit
    method.weights, method.moments.solution = torch.tensor([1.0, 0.5, 2.0, 0.1]), torch.eye(3)[:, :2] / 10
    method.fourier.solution = torch.cat([torch.zeros(method.fourier.width, 2), torch.tensor([[0.1, 0.2]])])
    for parameter, value in {
        method.log_scale: torch.tensor(0.0),
        method.network.log_scale: torch.tensor(2.0).log(),
        method.network.raw: unit,
        method.network.head.weight: torch.zeros(2, 64),
        method.network.head.bias: torch.tensor([0.5, 0.25]),
    }.items():
        parameter.data = value
    (one,) = it.explain([[0.6, 0.8]])
    # cosines (.6, .8); 1 x them, 0.5 x 2 x them, 0.5 x (.5, .25), 2 x (.06, .08) + 0.1 x (.1, .2)
    assert (one.prediction, one.runner_up) == ("b", "a")
    assert one.score == pytest.approx(0.8 + 0.8 + 0.125 + 0.18)
    assert one.shares == pytest.approx({PROTOTYPE: 0.8, QUERY: 0.8, WITH_NEIGHBOURS: 0.125, DISCRIMINANT: 0.18})
    assert one.margins == pytest.approx({PROTOTYPE: 0.2, QUERY: 0.2, WITH_NEIGHBOURS: -0.125, DISCRIMINANT: 0.05})
    assert [near.label for near in one.neighbours] == ["a"] * 3
    assert one.agreement is not None and one.agreement.startswith(
        "None of the 3 nearest remembered examples is of 'b': the answer rests mostly on "
    )
    assert [(near.id, near.label) for near in one.own] == [(4, "b"), (5, "b")]
    assert [near.before for near in one.own] == pytest.approx([0.8, 0.28])


def test_shares_sum_to_the_score_of_every_answer(taught: MTNClassifier) -> None:
    x = ARRAYS["x_test"][:30]
    for one, z in zip(taught.explain(x), taught.decision_function(x), strict=True):
        second, first = np.sort(z)[-2:]
        assert one.score == pytest.approx(first, abs=1e-5) and taught.classes_[z.argsort()[-2]] == one.runner_up
        assert sum(one.shares.values()) == pytest.approx(first, abs=1e-5)
        assert sum(one.margins.values()) == pytest.approx(first - second, abs=1e-5)
        assert (one.agreement is None) == (not one.own)
        assert all(near.label == one.prediction and near not in one.neighbours for near in one.own)
        assert [near.before for near in one.own] == sorted((near.before for near in one.own), reverse=True)
    (alone,) = MTNClassifier("ncm").fit(x[:3], [1, 1, 1]).explain(x[:1])
    assert (alone.runner_up, alone.margins, alone.agreement, list(alone.shares)) == (None, {}, None, [PROTOTYPE])


@pytest.mark.parametrize(
    ("labels", "remembered", "sentence"),
    [
        ("aaab", 9, None),
        ("aabb", 9, None),  # as many as of any other
        ("bcad", 9, None),
        ("", 9, None),
        ("abbb", 1, None),  # all there are
        ("abbb", 2, "Only 1 of the 4 nearest remembered examples is of 'a'"),
        ("aabbb", 3, "Only 2 of the 5 nearest remembered examples are of 'a'"),
        ("bcd", 9, "None of the 3 nearest remembered examples is of 'a'"),
        ("b", 9, "The nearest remembered example is not of 'a' but of 'b'"),
        ("bb", 0, "No example of 'a' is remembered"),
    ],
)
def test_neighbours_that_disagree_are_said_in_a_sentence(labels: str, remembered: int, sentence: str | None) -> None:
    said = evidence.disagreement("a", labels, remembered, {QUERY: -1.0, PROTOTYPE: 2.0})
    assert said == (None if sentence is None else f"{sentence}: the answer rests mostly on the class prototype.")


def test_the_figure_shows_the_parts_the_disagreement_and_the_sentences(tmp_path: Path) -> None:
    near = [evidence.Neighbour(row, "other", 0.5, 0.4, 0.1, f"sentence {row}") for row in range(2)]
    own = [evidence.Neighbour(2 + row, "\x1b[31m", 0.3, None, None, "\x1b]0;owned\x07") for row in range(4)]
    one = evidence.Evidence(
        "\x1b[31m", 0.8, 0.1, near, 2.0, {PROTOTYPE: 3.0, QUERY: -1.0}, "an_other", {PROTOTYPE: 1.5, QUERY: -0.25}, own,
        "None of the 2 is of it.", "\u05e9\u05dc\u05d5\u05dd, " * 2000,
    )  # fmt: skip
    figure = evidence_figure.plot([one, evidence.Evidence("other", 0.9, 0.1, near[:1])])
    figure.savefig(tmp_path / "figure.png")
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "p = 0.80, novelty 0.10\n+1.25 over an other:\n+1.50 prototype\n-0.25 query itself" in written
    assert "sentence 0" in written and any(text.endswith(" …") for text in written)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles.count("✓ \\x1b[31m") == evidence_figure.MOST_OWN and not any("\x1b" in text for text in written)
    (said,) = [part.get_suptitle() for part in figure.subfigs if part.get_suptitle()]
    assert said == "None of the 2 is of it. At the right: the next 3 of its class."

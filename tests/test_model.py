"""The network: a pure function of a query and its neighbours."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtn.model import SIZES, ClassEmbedding, Head, MemoryTransformer, NeighbourVote, TransformerBlock, rescale, vote
from mtn.neighbours import Neighbours

B, K, D, C = 3, 5, 6, 4
FEW = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def make(size: str = "small", **options) -> MemoryTransformer:
    model = MemoryTransformer(D, K, size, **options)
    if model.labels is not None:
        model.labels.grow(C)
    for name in ("rank", "query"):  # as after training: large enough to be seen
        if getattr(model, name) is not None:
            getattr(model, name).data.normal_()
    return model.eval()


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """query B,D; near B,K,D; labels B,K."""
    return F.normalize(torch.randn(B, D), dim=1), F.normalize(torch.randn(B, K, D), dim=2), torch.randint(C, (B, K))


# ---- sizes


@pytest.mark.parametrize(("size", "shape"), [("small", (2, 1, 64)), ("medium", (4, 4, 128)), ("large", (12, 12, 768))])
def test_sizes_are_the_papers(size, shape):
    assert SIZES[size] == shape
    with torch.device("meta"):
        model = MemoryTransformer(512, 10, size)
    assert (len(model.blocks), model.blocks[0].heads, model.width) == shape
    assert model.input.weight.shape == (shape[2], 512)
    assert model.blocks[0].mlp[0].weight.shape == (4 * shape[2], shape[2])


def test_ten_neighbours_and_the_query_are_eleven_tokens():
    model = MemoryTransformer(D, 10, "small")
    assert model.rank.shape == (10, 64)
    tokens = model.tokens(torch.zeros(2, D), torch.zeros(2, 10, D), torch.zeros(2, 10, dtype=torch.long))
    assert tokens.shape == (2, 11, 64)


def test_the_output_is_an_adapted_token_for_the_query_and_each_neighbour(inputs):
    adapted = make()(*inputs, None)
    assert adapted.shape == (B, 1 + K, 64)
    torch.testing.assert_close(adapted.mean(2), torch.zeros(B, 1 + K), atol=1e-5, rtol=0)  # a layer norm comes last


def test_spread_gives_components_of_mean_square_one():
    x = F.normalize(torch.randn(7, 50), dim=1)
    torch.testing.assert_close((rescale(x) ** 2).mean(1), torch.ones(7))


# ---- attention


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_a_block_is_the_pre_norm_encoder_layer_of_torch(heads, masked):
    block = TransformerBlock(16, heads)
    other = nn.TransformerEncoderLayer(
        16, heads, 64, dropout=0, activation="gelu", batch_first=True, norm_first=True
    ).train()  # in eval mode torch takes another path, with other rounding
    pairs = {
        "self_attn.in_proj_": block.qkv,
        "self_attn.out_proj.": block.out,
        "linear1.": block.mlp[0],
        "linear2.": block.mlp[2],
        "norm1.": block.norm_attention,
        "norm2.": block.norm_mlp,
    }
    weights = {prefix + name: value for prefix, module in pairs.items() for name, value in module.state_dict().items()}
    other.load_state_dict(weights)
    tokens = torch.randn(3, 6, 16)
    real = torch.ones(3, 6, dtype=torch.bool)
    real[0, 4:] = real[1, 1:] = False
    mask, padding = (real[:, None, None], ~real) if masked else (None, None)
    torch.testing.assert_close(block(tokens, mask), other(tokens, src_key_padding_mask=padding), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", ["small", "medium"])
@pytest.mark.parametrize("real", [None, FEW])
@pytest.mark.parametrize("labels", [False, True])
def test_the_query_alone_equals_the_first_token_of_all(inputs, size, real, labels):
    model = make(size, labels=labels)
    alone = model(*inputs, real, query_only=True)
    assert alone.shape == (B, 1, SIZES[size][2])
    torch.testing.assert_close(alone, model(*inputs, real)[:, :1], atol=1e-5, rtol=1e-4)


def test_the_query_alone_trains_the_same_weights(inputs):
    model = make()
    gradients = []
    for only in (True, False):
        model.zero_grad()
        (model(*inputs, FEW, query_only=only)[:, 0] ** 3).sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("only", [True, False])
def test_padded_neighbours_have_no_influence(inputs, only):
    model, (query, near, labels) = make(labels=True), inputs
    real = torch.cat([torch.ones(B, 1, dtype=torch.bool), FEW], dim=1)  # whose output counts
    other, relabelled = near.clone(), labels.clone()
    other[~FEW] = 50 * torch.randn(int((~FEW).sum()), D)
    relabelled[~FEW] = (labels[~FEW] + 1) % C
    one = model(query, near, labels, FEW, query_only=only)
    two = model(query, other, relabelled, FEW, query_only=only)
    counted = real[:, :1] if only else real
    assert torch.equal(one[counted], two[counted])
    assert not torch.allclose(one, model(query, other, relabelled, None, query_only=only), atol=1e-3)


def test_padding_equals_absence(inputs):
    model, (query, near, labels) = make(rank=False), inputs
    first_three = torch.arange(K).expand(B, K) < 3
    padded = model(query, near, labels, first_three)[:, :4]
    torch.testing.assert_close(padded, model(query, near[:, :3], labels[:, :3], None), atol=1e-5, rtol=1e-4)


def test_a_query_without_neighbours_is_adapted_by_itself(inputs):
    model, (query, near, labels) = make(), inputs
    nobody = torch.zeros(B, K, dtype=torch.bool)
    adapted = model(query, near, labels, nobody, query_only=True)
    assert adapted.isfinite().all()
    torch.testing.assert_close(adapted, model(query, -near, labels, nobody, query_only=True))


# ---- what the output depends on


@pytest.mark.parametrize("labels", [False, True])
def test_without_ranks_the_order_of_the_neighbours_does_not_matter(inputs, labels):
    model, (query, near, y) = make(rank=False, labels=labels), inputs
    order = torch.tensor([3, 0, 4, 1, 2])
    one, two = model(query, near, y, None), model(query, near[:, order], y[:, order], None)
    torch.testing.assert_close(one[:, 0], two[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(one[:, 1:][:, order], two[:, 1:], atol=1e-5, rtol=1e-4)


def test_with_ranks_the_order_of_the_neighbours_matters(inputs):
    model, (query, near, y) = make(), inputs
    order = torch.tensor([3, 0, 4, 1, 2])
    assert not torch.allclose(model(query, near, y, None)[:, 0], model(query, near[:, order], y, None)[:, 0], atol=1e-3)


def test_neighbours_influence_the_adapted_query(inputs):
    model, (query, near, y) = make(), inputs
    assert not torch.allclose(model(query, near, y, None)[:, 0], model(query, -near, y, None)[:, 0], atol=1e-3)


def test_samples_of_a_batch_do_not_influence_each_other(inputs):
    model, (query, near, y) = make(), inputs
    torch.testing.assert_close(
        model(query, near, y, FEW)[:1], model(query[:1], near[:1], y[:1], None), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("labels", [False, True])
def test_labels_matter_only_when_asked_for(inputs, labels):
    model, (query, near, y) = make(labels=labels), inputs
    if model.labels is not None:
        model.labels.weight.data.normal_()
    one, two = model(query, near, y, None)[:, 0], model(query, near, (y + 1) % C, None)[:, 0]
    assert torch.equal(one, two) == (not labels)


def test_the_query_is_told_from_a_neighbour_with_the_same_vector(inputs):
    model, query = make(rank=False), inputs[0]
    tokens = model.tokens(query, query[:, None].expand(B, K, D), inputs[2])
    torch.testing.assert_close(tokens[:, 0] - tokens[:, 1], model.query.expand(B, -1))


# ---- growth


@pytest.mark.parametrize("make_part", [lambda: Head(8), lambda: ClassEmbedding(8, scale=0.02)])
def test_growth_keeps_old_rows_bit_by_bit(make_part):
    part = make_part()
    part.grow(3)
    before = {name: value.clone() for name, value in part.state_dict().items()}
    part.grow(7)
    for name, value in part.state_dict().items():
        assert len(value) == 7 and torch.equal(value[:3], before[name])
        assert value[3:].abs().min() > 0
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in part.parameters())


def test_a_grown_head_gives_old_classes_the_same_logits():
    head, x = Head(8), torch.randn(5, 8)
    head.grow(3)
    before = head(x)
    head.grow(6)
    assert head(x).shape == (5, 6)
    torch.testing.assert_close(head(x)[:, :3], before)


def test_new_rows_of_the_head_start_as_those_of_a_linear_layer():
    head = Head(64)
    head.grow(10)
    head.grow(500)
    for values in (head.weight[10:], head.bias[10:]):  # uniform within ± 1 / sqrt(64)
        assert values.abs().max() <= 0.125 and values.abs().max() > 0.12
        assert abs(values.std().item() - 0.125 / math.sqrt(3)) < 0.01


# ---- votes


def test_votes_are_summed_by_label():
    weights = torch.tensor([[0.5, 0.25, 0.125], [1, 2, 4]])
    labels = torch.tensor([[2, 0, 2], [1, 1, 1]])
    assert vote(weights, labels, 4).tolist() == [[0.25, 0, 0.625, 0], [0, 7, 0, 0]]


def neighbours(y: list[list[int]], mask: list[list[bool]]) -> Neighbours:
    shape = torch.tensor(y).shape
    return Neighbours(torch.zeros(*shape, D), torch.tensor(y), torch.zeros(shape), torch.tensor(mask), full=False)


def test_neighbour_votes_by_hand():
    adapted = torch.tensor([[[2.0, 0], [3, 0], [0, 5], [0, -1]]])  # cosines 1, 0 and 0, of scale 10
    found = NeighbourVote()(adapted, neighbours([[2, 0, 0]], [[True] * 3]), 3)
    e = math.exp(10)
    shares = [2 / (e + 2), 0, e / (e + 2)]
    torch.testing.assert_close(found, torch.tensor([[math.log(share + 0.001) for share in shares]]))


def test_a_class_with_all_votes_takes_the_whole_share():
    found = NeighbourVote()(torch.randn(1, 3, 4), neighbours([[1, 1]], [[True, True]]), 3)
    torch.testing.assert_close(found, torch.tensor([[0.001, 1.001, 0.001]]).log())


def test_masked_neighbours_do_not_vote():
    adapted = torch.tensor([[[1.0, 0], [0, 1], [1, 0]]])  # the second is nearer but is not there
    found = NeighbourVote()(adapted, neighbours([[0, 1]], [[True, False]]), 2)
    torch.testing.assert_close(found, torch.tensor([[1.001, 0.001]]).log())


def test_a_query_without_neighbours_gives_every_class_the_floor():
    found = NeighbourVote()(torch.randn(1, 3, 4), neighbours([[0, 0]], [[False, False]]), 3)
    torch.testing.assert_close(found, torch.full((1, 3), math.log(0.001)))


def test_shares_sum_to_one_and_a_floor_a_class():
    found = NeighbourVote()(torch.randn(6, 6, 4), neighbours([[0, 1, 2, 1, 3]] * 6, [[True] * 4 + [False]] * 6), 4)
    torch.testing.assert_close(found.exp().sum(1), torch.full((6,), 1 + 4 * 0.001))


@pytest.mark.parametrize("real", [None, FEW], ids=["full", "padded"])
def test_in_bfloat16_the_network_is_the_same_to_two_digits(inputs, real):
    model = make("medium")
    exact, exact_slopes = adapted_and_slopes(model, inputs, real)
    with torch.autocast("cpu", torch.bfloat16):
        found, slopes = adapted_and_slopes(model, inputs, real)
    assert not torch.equal(found, exact)  # the products are in it
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0.02)
    assert slopes.dtype == torch.float32
    assert F.cosine_similarity(slopes, exact_slopes, dim=0) > 0.999


def adapted_and_slopes(model: MemoryTransformer, inputs: tuple[Tensor, ...], real: Tensor | None) -> tuple[Tensor, ...]:
    """The adapted queries, and how the sum of their products with fixed numbers moves with every weight."""
    adapted = model(*inputs, real, query_only=True).float()
    fixed = torch.randn(adapted.shape, generator=torch.Generator().manual_seed(1))
    slopes = torch.autograd.grad((adapted * fixed).sum(), list(model.parameters()))
    return adapted.detach(), torch.cat([slope.flatten() for slope in slopes])

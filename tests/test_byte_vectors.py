"""The search in bytes finds what comparing all vectors finds, whatever they are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mtn.search import InProcessStore
from mtn.search.byte_vectors import ByteVectors, has_byte_products, in_bytes

pytestmark = pytest.mark.skipif(not has_byte_products(), reason="this processor has no products of bytes (VNNI)")
ROUNDING = 1e-6


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(x: Tensor, query: Tensor, k: int, firsts: list[int]) -> None:
    """No vector that is left out is nearer than one that was found, but for the rounding of a float32 product."""
    exact = query.double() @ x.double().T
    for first, (scores, rows) in zip(firsts, ByteVectors.of(x).search(query, k, firsts), strict=True):
        assert scores.shape == rows.shape == (len(query), min(k, first))
        assert bool((rows < first).all()) and all(len(set(row)) == len(row) for row in rows.tolist())
        torch.testing.assert_close(scores.double(), exact.gather(1, rows), atol=ROUNDING, rtol=0)
        assert bool((scores[:, :-1] >= scores[:, 1:]).all())
        best = exact[:, :first].topk(min(k, first), dim=1).values
        torch.testing.assert_close(scores.double(), best, atol=ROUNDING, rtol=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([8, 48, 384]), st.sampled_from([1, 11, 40]), st.sampled_from([0, 1, 2]))
def test_no_nearer_vector_is_left_out(seed: int, dimension: int, k: int, kind: int) -> None:
    x = F.normalize(random(700, dimension, seed=seed), dim=1)
    if kind == 1:  # clusters, so that many are about as near
        x = F.normalize(x[torch.arange(700) % 3] + 1e-3 * x, dim=1)
    if kind == 2:  # one large number, which leaves few bytes for the others
        x = F.normalize(x + 5 * F.one_hot(torch.tensor(2), dimension), dim=1)
    query = torch.cat([x[::97], F.normalize(random(9, dimension, seed=seed + 1), dim=1)])
    check(x, query, k, [700, 350, 20, 0, 700])


def test_near_ties_are_told_apart_to_the_last_digit() -> None:
    """Vectors that differ by less than a byte can say, in one number each, and a query that ranks them."""
    dimension, count = 64, 500
    centre, query = F.normalize(random(2, dimension), dim=1)
    steps = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    x = F.normalize(centre + 1e-5 * steps[:, None] * query, dim=1)
    check(x, query[None], 11, [count])
    ((_, rows),) = ByteVectors.of(x).search(query[None], 11, [count])
    assert steps[rows[0]].tolist() == list(range(count - 1, count - 12, -1))


def test_of_duplicates_the_k_nearest_are_found() -> None:
    x = F.normalize(random(50, 32), dim=1).repeat(20, 1)
    check(x, F.normalize(random(7, 32, seed=1), dim=1), 25, [1000, 999, 30])


@pytest.mark.parametrize("x", [torch.zeros(300, 16), torch.eye(16).repeat(20, 1), 1e-30 * torch.ones(300, 16)])
def test_vectors_of_nothing_and_of_one_number_are_searched_too(x: Tensor) -> None:
    check(x, torch.cat([F.normalize(random(4, 16), dim=1), torch.zeros(1, 16), torch.eye(16)[:2]]), 5, [len(x), 6])


def test_the_bound_is_of_the_rest_that_bytes_cannot_say() -> None:
    x = torch.tensor([[1.0, 0.5, -0.25]])
    code, scale, length, rest = in_bytes(x)
    assert code.tolist() == [[127, 64, -32]] and scale.item() == pytest.approx(1 / 127)
    assert length.item() == pytest.approx(np.sqrt(1.3125), rel=2e-3)
    assert rest.item() == pytest.approx(np.hypot(0.5 / 127, 0.25 / 127), rel=2e-3)


@pytest.mark.parametrize("noise", [1.0, 1e-4], ids=["apart", "about as near"])
def test_an_answer_does_not_depend_on_what_else_is_asked(noise: float) -> None:
    x = F.normalize(random(64)[None] * (noise < 1) + noise * random(5000, 64), dim=1).half()
    query = F.normalize(x[:200].float() + noise * random(200, 64, seed=1), dim=1)
    store = InProcessStore(torch.arange(5000), torch.zeros(5000).long(), x)
    assert store.query_multiple == 1
    ((scores, rows),) = store.search(query, 11, [5000])
    for part in (slice(0, 1), slice(3, 20), slice(100, 200)):
        ((some, places),) = store.search(query[part], 11, [5000])
        assert torch.equal(some, scores[part]) and torch.equal(places, rows[part])


def test_few_vectors_are_compared_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    centres = random(50, 64)
    x = F.normalize(centres[torch.arange(5000) % 500 % 50] + 0.5 * random(5000, 64, seed=1), dim=1)
    codes, compared = ByteVectors.of(x), []
    nearest = ByteVectors._nearest
    monkeypatch.setattr(ByteVectors, "_nearest", lambda *given: compared.append(given[2].numel()) or nearest(*given))
    codes.search(x[:10], 11, [5000])
    assert 0 < sum(compared) < 10 * 5000 / 2


def test_a_processor_without_such_products_searches_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    x = F.normalize(random(5000, 64), dim=1)
    store = InProcessStore(torch.arange(5000), torch.zeros(5000).long(), x)
    ((scores, rows),) = store.search(x[:8], 3, [5000])
    monkeypatch.setattr("mtn.search.in_process.has_byte_products", lambda: False)
    plain = InProcessStore(store.id, store.y, x)
    ((expected, places),) = plain.search(x[:8], 3, [5000])
    assert plain.query_multiple == 4 and torch.equal(rows, places)
    torch.testing.assert_close(scores, expected)


def test_a_store_made_from_another_writes_only_new_vectors_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, more = (F.normalize(random(count, 64, seed=count), dim=1) for count in (5000, 40))
    store = InProcessStore(torch.arange(5000), torch.zeros(5000).long(), x)
    store.prepare_for_queries()
    written: list[int] = []
    monkeypatch.setattr("mtn.search.byte_vectors.in_bytes", lambda x: written.append(len(x)) or in_bytes(x))
    keep = torch.randperm(5000, generator=torch.Generator().manual_seed(0))[:4900]
    changed = store.add(torch.arange(5000, 5040), torch.ones(40).long(), lambda rows: more[rows], keep)
    changed = changed.take(torch.arange(len(changed)).flip(0)).subset(torch.arange(len(changed)) % 9 > 0)
    assert written == [40]
    ((scores, rows),) = changed.search(more, 11, [len(changed)])
    ((expected, places),) = InProcessStore(changed.id, changed.y, changed.x).search(more, 11, [len(changed)])
    assert torch.equal(scores, expected) and torch.equal(rows, places)

"""Retrieval: exact, sorted, and never the query itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mtn.config import Budget
from mtn.memory import Memory
from mtn.neighbours import Neighbours, nearest, nearest_within, top_k
from mtn.samples import CHUNK, Samples
from mtn.search import InProcessStore


def vectors(count: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)), dim=1)


def memory(x: Tensor, identities: list[int] | None = None) -> Memory:
    """Row i has the label i % 5."""
    ids = torch.arange(len(x)) if identities is None else torch.tensor(identities)
    return Memory(Budget(total=max(len(x), 1)), store=InProcessStore(ids, torch.arange(len(x)) % 5, x))


def queries(x: Tensor, first_id: int = 10_000) -> Samples:
    count = len(x)
    return Samples(x.numpy(), np.arange(count), torch.zeros(count).long(), torch.arange(first_id, first_id + count))


def test_neighbours_are_those_of_a_sorted_brute_force_search():
    x, q = vectors(40, 0), vectors(30, 1)
    found = nearest(queries(q), memory(x), 7)
    cosine = q.double().numpy() @ x.double().numpy().T
    order = np.argsort(-cosine, axis=1)[:, :7]
    assert found.index.tolist() == order.tolist()
    np.testing.assert_allclose(found.similarity, np.take_along_axis(cosine, order, 1), atol=1e-6)
    assert found.full and bool(found[:].mask.all())


def test_a_memory_prepared_for_queries_finds_the_same_whatever_else_is_asked():
    """Four queries at a time, as the classifier asks them."""
    asked, prepared = queries(vectors(64, 1)), memory(vectors(3000, 0))
    straight = nearest(asked, prepared, 7)
    prepared.prepare_for_queries()
    found = nearest(asked, prepared, 7)
    assert torch.equal(found.index, straight.index)
    torch.testing.assert_close(found.similarity, straight.similarity)
    for rows in (slice(0, 4), slice(8, 20), slice(4, 64)):
        part = nearest(asked.select(torch.arange(64)[rows]), prepared, 7)
        assert torch.equal(part.index, found.index[rows]) and torch.equal(part.similarity, found.similarity[rows])


def test_a_sample_of_the_memory_finds_all_others_but_not_itself():
    x = vectors(40, 0)
    found = nearest(queries(x, first_id=0), memory(x), 39)
    for row in range(40):
        assert sorted(found.index[row].tolist()) == [other for other in range(40) if other != row]
    assert found.full


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 12), k=st.integers(1, 14))
def test_whatever_the_ties_the_similarities_are_the_largest_of_the_others(seed, rows, k):
    """Small whole numbers: many exact copies, and no rounding."""
    rng = np.random.default_rng(seed)
    x, q = rng.integers(-1, 2, size=(rows, 2)), rng.integers(-1, 2, size=(6, 2))
    ids, query_ids = rng.permutation(15)[:rows], rng.permutation(15)[:6]
    index, similarity = top_k(torch.tensor(q @ x.T).float(), torch.tensor(query_ids), torch.tensor(ids), k)
    for row in range(6):
        expected = sorted((x[ids != query_ids[row]] @ q[row]).tolist(), reverse=True)[:k]
        there = index[row] >= 0
        assert similarity[row][there].tolist() == expected
        assert there.tolist() == sorted(there.tolist(), reverse=True)  # what is not there stands last
        chosen = index[row][there].numpy()
        assert query_ids[row] not in ids[chosen] and len(set(chosen)) == len(chosen)
        assert (x[chosen] @ q[row]).tolist() == expected


def test_exact_copies_of_the_query_are_returned_the_query_is_not():
    x = vectors(20, 0)
    x[7] = x[13] = x[4]  # three copies; the query is row 4
    found = nearest(queries(x[4:5], first_id=4), memory(x), 3)
    assert sorted(found.index[0, :2].tolist()) == [7, 13]
    torch.testing.assert_close(found.similarity[0, :2], torch.ones(2))
    assert 4 not in found.index[0].tolist()


def test_the_query_is_known_by_its_id_not_by_its_vector():
    x = torch.eye(8)[:4]
    found = nearest(queries(x[:1], first_id=2), memory(x), 3)  # the vector of row 0, the id of row 2
    assert found.index[0].tolist()[0] == 0
    assert sorted(found.index[0].tolist()) == [0, 1, 3]


def test_many_copies_do_not_let_the_query_in():
    x = vectors(1, 0).repeat(12, 1)
    for k in (1, 5, 11, 12):
        found = nearest(queries(x, first_id=0), memory(x), k)
        assert not (found.index == torch.arange(12)[:, None]).any()
        assert (found.index >= 0).sum(1).tolist() == [min(k, 11)] * 12


# ---- fewer exemplars than k


def test_fewer_exemplars_than_k_are_padded_and_masked():
    x = vectors(3, 0)
    found = nearest(queries(torch.cat([vectors(1, 5), x[:1]]).contiguous()), memory(x, [10_001, 1, 2]), 5)
    assert found[:].mask.tolist() == [[True] * 3 + [False] * 2, [True] * 2 + [False] * 3]  # the second is row 0 itself
    assert not found.full and not found[:].full
    assert found[:].x.shape == (2, 5, 8) and found[:].y.shape == (2, 5)
    assert (found.similarity[0, 3:] == 0).all() and (found.similarity[1, 2:] == 0).all()


@pytest.mark.parametrize("k", [1, 4])
def test_a_memory_of_the_query_alone_has_no_neighbour(k):
    x = vectors(1, 0)
    found = nearest(queries(x, first_id=0), memory(x), k)
    assert found[:].mask.tolist() == [[False] * k]
    assert not found.full


def test_an_empty_memory_has_no_neighbour():
    found = nearest(queries(vectors(2, 0)), memory(torch.zeros(0, 8)), 3)
    assert not found.full
    assert found[:].mask.tolist() == [[False] * 3] * 2
    assert found[:].x.shape == (2, 3, 8) and found[:].y.shape == (2, 3)


def test_as_many_exemplars_as_k_are_full_for_a_stranger_only():
    x = vectors(4, 0)
    assert nearest(queries(vectors(2, 1)), memory(x), 4).full
    assert not nearest(queries(x[:1], first_id=0), memory(x), 4).full
    assert nearest(queries(x[:1], first_id=0), memory(x), 3).full


# ---- the whole split


def test_chunks_make_no_difference():
    x, q = vectors(40, 0), vectors(CHUNK + 300, 1)
    whole = nearest(queries(q), memory(x), 5)
    for start, stop in ((0, 200), (CHUNK - 100, CHUNK + 100), (CHUNK, CHUNK + 300)):
        part = nearest(queries(q[start:stop], first_id=10_000 + start), memory(x), 5)
        assert torch.equal(part.index, whole.index[start:stop])
        torch.testing.assert_close(part.similarity, whole.similarity[start:stop])


def test_the_query_is_left_out_beyond_the_first_chunk_too():
    x = vectors(CHUNK + 20, 0)
    found = nearest(queries(x, first_id=0), memory(x), 2)
    assert not (found.index == torch.arange(len(x))[:, None]).any()
    assert found.full


def test_similarities_fall():
    found = nearest(queries(vectors(200, 1)), memory(vectors(60, 0)), 10)
    assert (found.similarity.diff(dim=1) <= 0).all()
    assert (found.similarity.abs() <= 1 + 1e-6).all()


def test_one_search_serves_several_parts_of_the_memory():
    """Exemplars stand by class: the first 12 of 30 are a smaller memory."""
    x = vectors(30, 0)
    asked = queries(x, first_id=0)
    for found, first in zip(nearest_within(asked, memory(x), 4, (30, 12, 3)), (30, 12, 3), strict=True):
        alone = nearest(asked, memory(x[:first]), 4)
        assert torch.equal(found.index, alone.index) and found.full == alone.full
        torch.testing.assert_close(found.similarity, alone.similarity)
        assert found.index.max() < first


def test_progress_counts_the_queries():
    calls = []
    nearest(queries(vectors(CHUNK + 5, 1)), memory(vectors(3, 0)), 1, progress=lambda *call: calls.append(call))
    assert calls == [("searching", CHUNK, CHUNK + 5), ("searching", CHUNK + 5, CHUNK + 5)]


# ---- batches


@pytest.mark.parametrize("rows", [torch.tensor([5, 0, 5]), slice(2, 6), slice(None)])
def test_a_batch_gathers_vectors_labels_and_similarities(rows):
    kept = memory(vectors(12, 0))
    found = nearest(queries(vectors(9, 1)), kept, 4)
    near = found[rows]
    for position, row in enumerate(torch.arange(9)[rows].tolist()):
        for rank in range(4):
            exemplar = found.index[row, rank]
            assert torch.equal(near.x[position, rank], kept.vectors(exemplar))
            assert near.y[position, rank] == kept.y[exemplar]
            assert near.similarity[position, rank] == found.similarity[row, rank]
    assert len(near.x) == len(torch.arange(9)[rows])


def test_joined_batches_stand_behind_each_other_and_are_full_if_all_are():
    some = nearest(queries(vectors(4, 1)), memory(vectors(12, 0)), 3)
    few = nearest(queries(vectors(2, 2)), memory(vectors(2, 3)), 3)
    joined = Neighbours.join([some[:], few[:]])
    assert joined.x.shape == (6, 3, 8)
    assert torch.equal(joined.x[4:], few[:].x) and torch.equal(joined.y[:4], some[:].y)
    assert joined.mask.tolist() == [[True] * 3] * 4 + [[True, True, False]] * 2
    assert not joined.full and Neighbours.join([some[:], some[:]]).full

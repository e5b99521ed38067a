"""Memories too large to compare each exemplar: blocks, half the bytes, and codes in bits that find candidates."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mtn import neighbours
from mtn.config import Budget
from mtn.errors import InputError
from mtn.memory import Memory
from mtn.neighbours import nearest, nearest_within
from mtn.samples import Samples
from mtn.search import BitCodeStore, bit_codes, in_process

D, EACH = 32, 20


def clusters(classes: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(classes, D, generator=drawn), dim=1)
    return F.normalize(
        centres.repeat_interleave(EACH, 0) + 0.1 * torch.randn(classes * EACH, D, generator=drawn), dim=1
    )


def samples(x: Tensor, ids: Tensor) -> Samples:
    return Samples(x.numpy(), np.arange(len(x)), torch.arange(len(x)) // EACH, ids)


def filled(x: Tensor, **budget: object) -> Memory:
    memory = Memory(Budget(per_class=EACH, **budget), D)  # type: ignore[arg-type]
    memory.add(samples(x, torch.arange(len(x)) * 3 + 7), torch.Generator().manual_seed(0))
    return memory


def codes_of(memory: Memory) -> bit_codes.BitCodes:
    assert isinstance(memory.store, BitCodeStore) and memory.store.codes is not None
    return memory.store.codes


def queries(x: Tensor) -> Samples:
    noise = torch.randn(len(x), D, generator=torch.Generator().manual_seed(9))
    return samples(F.normalize(x + 0.05 * noise, dim=1), -1 - torch.arange(len(x)))


def recall(found: neighbours.Retrieval, exact: neighbours.Retrieval) -> float:
    pairs = zip(found.index.tolist(), exact.index.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(all_)) / len(all_) for mine, all_ in pairs]))


@pytest.fixture
def small_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes for memories of any size, and fewer candidates than there are exemplars."""
    pytest.importorskip("faiss", reason="pip install '.[ann]'")
    monkeypatch.setattr(bit_codes, "MINIMUM", 1)
    monkeypatch.setattr(bit_codes, "CANDIDATES", 8)


@pytest.mark.parametrize("block", [7, 64, 400])
def test_blocks_find_what_one_product_finds(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = filled(clusters(20)), queries(clusters(20)[::7])
    whole = nearest_within(asked, memory, 10, (400, 130, 5, 0))
    monkeypatch.setattr(in_process, "BLOCK", block)
    for one, other in zip(whole, nearest_within(asked, memory, 10, (400, 130, 5, 0)), strict=True):
        assert one.index.tolist() == other.index.tolist() and one.full == other.full
        torch.testing.assert_close(one.similarity, other.similarity)


def test_half_the_bytes_hold_the_same_neighbours_up_to_the_third_digit() -> None:
    full, half = filled(clusters(50)), filled(clusters(50), precision="float16")
    assert half.state()["x"].dtype == torch.float16 and half.state()["x"].element_size() == 2
    one, other = (nearest(queries(clusters(50)[::5]), memory, 10) for memory in (full, half))
    assert recall(other, one) > 0.98
    torch.testing.assert_close(other.similarity, one.similarity, atol=2e-3, rtol=0)
    assert other[:4].x.dtype == torch.float32 and half.samples().x().dtype == torch.float32
    assert half.samples().x().norm(dim=1).sub(1).abs().max() < 1e-5


def test_codes_are_the_signs_of_projections() -> None:
    x = clusters(4)
    codes = bit_codes.BitCodes.of(x)
    bits = np.unpackbits(codes.code.numpy(), axis=1, bitorder="little")
    across = bit_codes.directions(D)
    assert (bits == ((x - x.mean(0)) @ across > 0).numpy()).all()
    torch.testing.assert_close(across @ across.T, torch.eye(D))  # rows at right angles, as there are more bits than D
    wide = bit_codes.directions(600)
    torch.testing.assert_close(wide.T @ wide, torch.eye(bit_codes.BITS), atol=1e-5, rtol=0)


def test_bits_differ_by_the_angle() -> None:
    x = F.normalize(torch.randn(60, 300, generator=torch.Generator().manual_seed(1)), dim=1)
    signs = x @ bit_codes.directions(300) > 0
    differ = (signs[:, None] != signs).float().mean(2)
    angle = (x @ x.T).clamp(-1, 1).acos() / torch.pi
    assert (differ - angle).abs().max() < 0.1


def test_codes_find_nearly_all_of_the_nearest_with_their_exact_cosines(small_codes: None) -> None:
    x = clusters(300)
    exact = nearest(queries(x[::11]), filled(x), 10)
    found = nearest(queries(x[::11]), filled(x, search="approximate"), 10)
    assert recall(found, exact) > 0.95 and found.full
    same = (found.index == exact.index).all(1)
    assert same.float().mean() > 0.8
    torch.testing.assert_close(found.similarity[same], exact.similarity[same])


def test_a_search_by_codes_looks_only_among_the_first_and_never_finds_the_query(small_codes: None) -> None:
    x = clusters(100)
    memory = filled(x, search="approximate")
    everything, old = nearest_within(memory.samples(), memory, 10, (len(memory), 600))
    assert old.index.max() < 600 and recall(old, nearest_within(memory.samples(), filled(x), 10, (600,))[0]) > 0.9
    assert not (everything.index == torch.arange(len(memory))[:, None]).any()


def test_codes_come_and_go_with_their_vectors(small_codes: None) -> None:
    x = clusters(120)
    memory, asked = filled(x[:1000], search="approximate"), queries(x[::13])
    nearest(asked, memory, 10)
    mean = codes_of(memory).mean
    more = samples(x[1000:], torch.arange(len(x) - 1000) + 50_000)
    memory.add(Samples(more.source, more.rows, more.y + 50, more.id), torch.Generator().manual_seed(1))
    memory.remove(memory.y == 3)
    assert torch.equal(codes_of(memory).code, codes_of(memory).coded(memory.vectors()))
    assert codes_of(memory).mean is mean
    plain = Memory(Budget(per_class=EACH), D)
    plain.load_state(memory.state())
    assert recall(nearest(asked, memory, 10), nearest(asked, plain, 10)) > 0.95
    part = torch.arange(len(memory)) % 5 > 0
    assert recall(nearest(asked, memory.part(part), 10), nearest(asked, plain.part(part), 10)) > 0.95


def test_an_answer_by_codes_is_the_same_whatever_else_is_asked(small_codes: None) -> None:
    memory, asked = filled(clusters(60), search="approximate"), queries(clusters(60)[::7])
    together = nearest(asked, memory, 10)
    for row in range(0, len(asked), 17):
        alone = nearest(asked.select(torch.tensor([row])), memory, 10)
        assert torch.equal(alone.index[0], together.index[row])
        assert torch.equal(alone.similarity[0], together.similarity[row])


def test_the_mean_is_taken_anew_where_a_memory_has_grown(small_codes: None) -> None:
    x = clusters(120)
    codes = bit_codes.BitCodes.of(x[:100])
    assert codes.join(x[:400]).averaged == 100
    torch.testing.assert_close(codes.join(x).mean, x.mean(0))


def test_how_many_candidates_are_compared_at_once_is_no_matter(
    small_codes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, asked = filled(clusters(50), search="approximate"), queries(clusters(50)[::9])
    whole = nearest(asked, memory, 10)
    monkeypatch.setattr(bit_codes, "MOST_RANKED", 1)
    assert torch.equal(nearest(asked, memory, 10).index, whole.index)


def test_a_small_memory_is_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    small = filled(clusters(10), search="approximate")
    assert (
        nearest(queries(clusters(10)), small, 5).index.tolist()
        == nearest(queries(clusters(10)), filled(clusters(10)), 5).index.tolist()
    )
    monkeypatch.setattr(bit_codes, "MINIMUM", 1)
    with pytest.raises(InputError, match=r"memory.search = 'approximate' needs faiss: pip install '.*\[ann\]'"):
        nearest(queries(clusters(10)), small, 5)

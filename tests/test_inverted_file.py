"""Memories too large to look at each exemplar: blocks, half the bytes, and an index that finds candidates."""

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
from mtn.search import InvertedFileStore, in_process, inverted_file

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


def index_of(memory: Memory) -> inverted_file.InvertedFile:
    assert isinstance(memory.store, InvertedFileStore) and memory.store.index is not None
    return memory.store.index


def queries(x: Tensor) -> Samples:
    noise = torch.randn(len(x), D, generator=torch.Generator().manual_seed(9))
    return samples(F.normalize(x + 0.05 * noise, dim=1), -1 - torch.arange(len(x)))


def recall(found: neighbours.Retrieval, exact: neighbours.Retrieval) -> float:
    pairs = zip(found.index.tolist(), exact.index.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(all_)) / len(all_) for mine, all_ in pairs]))


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inverted file for memories of any size."""
    pytest.importorskip("faiss", reason="pip install '.[ann]'")
    monkeypatch.setattr(inverted_file, "MINIMUM", 1)
    monkeypatch.setattr(inverted_file, "PROBES", 16)


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


def test_an_index_finds_nearly_all_of_the_nearest_with_their_exact_cosines(small_index: None) -> None:
    x = clusters(300)
    exact = nearest(queries(x[::11]), filled(x), 10)
    found = nearest(queries(x[::11]), filled(x, search="approximate"), 10)
    assert recall(found, exact) > 0.95 and found.full
    same = (found.index == exact.index).all(1)
    assert same.float().mean() > 0.8
    torch.testing.assert_close(found.similarity[same], exact.similarity[same])


def test_an_index_looks_only_among_the_first_and_never_finds_the_query(small_index: None) -> None:
    x = clusters(100)
    memory = filled(x, search="approximate")
    everything, old = nearest_within(memory.samples(), memory, 10, (len(memory), 600))
    assert old.index.max() < 600 and recall(old, nearest_within(memory.samples(), filled(x), 10, (600,))[0]) > 0.9
    assert not (everything.index == torch.arange(len(memory))[:, None]).any()


def test_an_index_follows_the_memory(small_index: None) -> None:
    x = clusters(120)
    memory, asked = filled(x[:1000], search="approximate"), queries(x[::13])
    nearest(asked, memory, 10)
    built = index_of(memory)
    more = samples(x[1000:], torch.arange(len(x) - 1000) + 50_000)
    memory.add(Samples(more.source, more.rows, more.y + 50, more.id), torch.Generator().manual_seed(1))
    memory.remove(memory.y == 3)
    plain = Memory(Budget(per_class=EACH), D)
    plain.load_state(memory.state())
    assert recall(nearest(asked, memory, 10), nearest(asked, plain, 10)) > 0.95
    assert index_of(memory) is built and built.ids.tolist() == sorted(memory.id.tolist())
    part = torch.arange(len(memory)) % 5 > 0
    assert recall(nearest(asked, memory.part(part), 10), nearest(asked, plain.part(part), 10)) > 0.95
    assert built.ids.tolist() == sorted(memory.id.tolist())  # a part takes nothing away


def test_a_small_memory_is_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    small = filled(clusters(10), search="approximate")
    assert (
        nearest(queries(clusters(10)), small, 5).index.tolist()
        == nearest(queries(clusters(10)), filled(clusters(10)), 5).index.tolist()
    )
    monkeypatch.setattr(inverted_file, "MINIMUM", 1)
    with pytest.raises(InputError, match=r"memory.search = 'approximate' needs faiss: pip install '.*\[ann\]'"):
        nearest(queries(clusters(10)), small, 5)

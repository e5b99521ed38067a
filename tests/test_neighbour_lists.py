"""Neighbours of exemplars that are kept from lesson to lesson are those that a search finds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mtn.config import Budget
from mtn.memory import Memory
from mtn.neighbours import nearest, nearest_within
from mtn.samples import Samples
from mtn.search import NeighbourLists
from mtn.search.byte_vectors import has_byte_products

pytestmark = pytest.mark.skipif(not has_byte_products(), reason="this processor has no products of bytes (VNNI)")
D, K = 16, 5


@pytest.fixture(autouse=True)
def _few_vectors_are_searched_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtn.search.in_process.FEWEST", 10)


def samples(classes: list[int], each: int, first: int) -> Samples:
    """Some of each class, ids from `first` on."""
    y = torch.tensor(classes).repeat_interleave(each)
    centres = torch.randn(1000, D, generator=torch.Generator().manual_seed(0))
    x = centres[y] + torch.randn(len(y), D, generator=torch.Generator().manual_seed(first + 1))
    return Samples(x.numpy(), np.arange(len(y)), y, torch.arange(first, first + len(y)))


def memory_of(budget: Budget, *lessons: Samples) -> Memory:
    memory = Memory(budget, D)
    memory.keeps_neighbours = True
    for number, lesson in enumerate(lessons):
        memory.add(lesson, torch.Generator().manual_seed(number))
    return memory


def check(memory: Memory, rows: Tensor, firsts: list[int]) -> None:
    """As without lists, among all exemplars and among a part of them; the similarity to the last digit."""
    for part in (memory, memory.part(memory.id % 7 != 3)):
        plain = Memory(memory.budget, store=part.store)
        within = sorted({int((part.y < label).sum()) for label in firsts} | {len(part)})
        queries = memory.samples().select(rows)
        kept, searched = (nearest_within(queries, one, K, within) for one in (part, plain))
        for ours, theirs in zip(kept, searched, strict=True):
            assert torch.equal(ours.similarity, theirs.similarity) and torch.equal(ours.index, theirs.index)
            assert ours.full == theirs.full


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(["add", "more", "remove", "relabel"]), min_size=1, max_size=5))
def test_after_any_changes_they_are_what_a_search_finds(seed: int, changes: list[str]) -> None:
    rng = np.random.default_rng(seed)
    memory = memory_of(Budget(total=120), samples(list(range(8)), 16, 0))
    arrived = classes = 8
    arrived *= 16
    for change in changes:
        check(memory, torch.from_numpy(rng.permutation(len(memory))[:30]), [classes - 1, 3])
        if change in ("add", "more"):
            label = classes if change == "add" else int(rng.integers(classes))
            memory.add(samples([label], 12, arrived), torch.Generator().manual_seed(seed))
            arrived, classes = arrived + 12, max(classes, label + 1)
        elif change == "remove":
            memory.remove(memory.y == int(rng.integers(classes)))
        else:
            memory.relabel(int(rng.integers(len(memory))), int(rng.integers(classes)))
    check(memory, torch.arange(len(memory)), [classes - 1, 3])


def test_what_has_been_searched_for_is_not_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(Budget(total=400), samples(list(range(20)), 20, 0))
    nearest(memory.samples(), memory, K)
    memory.add(samples([20], 20, 400), torch.Generator().manual_seed(0))
    searched: list[int] = []
    search = type(memory.store).search
    monkeypatch.setattr(
        type(memory.store),
        "search",
        lambda self, query, *more: searched.append(len(query)) or search(self, query, *more),
    )
    nearest(memory.samples(), memory.part(memory.id % 10 != 9), K)
    assert sum(searched) <= 25  # 19 or 20 new exemplars, and lists that are too short without the exemplars held out


def test_nothing_of_a_class_that_is_forgotten_is_kept() -> None:
    memory = memory_of(Budget(total=400), samples(list(range(20)), 20, 0))
    nearest(memory.samples(), memory, K)
    gone = memory.id[memory.y == 4]
    memory.remove(memory.y == 4)
    lists = memory._lists
    assert lists is not None and len(lists.id) == 380
    assert not any(bool(torch.isin(kept, gone).any()) for kept in (lists.among, lists.id, lists.near))


def test_copies_of_a_vector_are_neighbours_and_none_is_its_own() -> None:
    x = F.normalize(torch.randn(3, D, generator=torch.Generator().manual_seed(0)), dim=1).repeat(40, 1)
    store = memory_of(Budget(total=120), Samples(x.numpy(), np.arange(120), torch.zeros(120).long(), torch.arange(120)))
    found = nearest(store.samples(), store, K)
    assert found.full and not bool((store.id[found.index.long()] == store.id[:, None]).any())
    torch.testing.assert_close(found.similarity, torch.ones(120, K))


def test_where_cosines_depend_on_the_company_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(Budget(total=120), samples(list(range(6)), 20, 0))
    assert NeighbourLists.can_be_kept(memory.store)
    half = memory_of(Budget(total=120, precision="float16"), samples(list(range(6)), 20, 0))
    monkeypatch.setattr("mtn.search.in_process.FEWEST", 121)
    for one in (memory, half):
        nearest(one.samples(), one, K)
        assert one._lists is None

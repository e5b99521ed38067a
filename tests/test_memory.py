"""The memory: never above its budget, exactly as full as the data allow, and fair to every class."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtn.config import Budget
from mtn.memory import Memory, herd, quotas
from mtn.samples import Samples
from mtn.storage.tensors import load_tensors, save_tensors

POLICIES = ["ring", "herding", "reservoir"]


def samples(y: list[int], first_id: int = 0, seed: int = 0) -> Samples:
    x = np.random.default_rng([seed, first_id]).normal(size=(len(y), 3)).astype(np.float32)
    return Samples(x, np.arange(len(y)), torch.tensor(y), torch.arange(first_id, first_id + len(y)))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(**budget) -> Memory:
    return Memory(Budget(**budget), 3)


def counts(memory: Memory) -> list[int]:
    return torch.bincount(memory.y).tolist()


def ids(memory: Memory, label: int) -> list[int]:
    """Best first."""
    return memory.id[memory.y == label].tolist()


# ---- quotas


@pytest.mark.parametrize(
    ("available", "total", "expected"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 10, 10], 11, [4, 4, 3]),  # the remainder goes to the first
        ([10, 2, 10], 12, [5, 2, 5]),  # what the small class leaves goes to the others
        ([1, 10, 2, 10], 10, [1, 4, 2, 3]),
        ([3, 4], 100, [3, 4]),
        ([3, 4], 7, [3, 4]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([5, 0, 5], 5, [3, 0, 2]),
        ([0, 0], 5, [0, 0]),
    ],
)
def test_quotas(available, total, expected):
    assert quotas(torch.tensor(available), total).tolist() == expected


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.integers(1, 300))
def test_quotas_are_full_fair_and_never_above_what_is_there(available, total):
    quota = quotas(torch.tensor(available), total).tolist()
    assert sum(quota) == min(total, sum(available))
    assert all(0 <= q <= a for q, a in zip(quota, available, strict=True))
    cut = [q for q, a in zip(quota, available, strict=True) if q < a]  # classes with more samples than slots
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(quota) <= min(cut) + 1


def test_quotas_leave_what_is_available_as_it_is():
    for total in (4, 100):
        available = torch.tensor([5, 5])
        quotas(available, total)[0] = 77
        assert available.tolist() == [5, 5]


@pytest.mark.parametrize("select", POLICIES)
def test_a_sample_whose_label_is_probably_wrong_comes_after_all_others_of_its_class(select):
    memory = make(per_class=4, select=select)
    memory.add(samples([0] * 5), seeded(), trust=lambda samples: (samples.id != 2).double())
    assert sorted(ids(memory, 0)) == [0, 1, 3, 4]
    memory.add(samples([0] * 6, first_id=5), seeded(1), trust=lambda samples: torch.full((len(samples),), 0.3))
    assert sorted(ids(memory, 0)) == [0, 1, 3, 4]
    memory.add(samples([1] * 3, first_id=20), seeded(2), trust=lambda samples: torch.full((len(samples),), 0.3))
    assert sorted(ids(memory, 1)) == [20, 21, 22]  # there is no other


# ---- over a stream


@pytest.mark.parametrize("select", POLICIES)
@settings(deadline=None, max_examples=25)
@given(
    tasks=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4),
    total=st.integers(1, 30),
)
def test_a_stream_fills_the_memory_exactly_and_never_above(select, tasks, total):
    memory, seen, label = make(total=total, select=select), 0, 0
    truth: dict[int, tuple[Tensor, int]] = {}
    for sizes in tasks:
        new = samples([c for c, size in enumerate(sizes, label) for _ in range(size)], first_id=seen)
        memory.add(new, seeded(label))
        seen, label = seen + len(new), label + len(sizes)
        truth |= {i: (x, y) for i, x, y in zip(new.id.tolist(), new.x(), new.y.tolist(), strict=True)}
        assert len(memory) == min(total, seen)
        assert memory.id.unique().numel() == len(memory)
        for x, y, i in zip(memory.vectors(), memory.y.tolist(), memory.id.tolist(), strict=True):
            torch.testing.assert_close(x, truth[i][0])
            assert y == truth[i][1]


@pytest.mark.parametrize("select", ["ring", "herding"])
def test_classes_share_the_memory_equally_after_every_task(select):
    memory = make(total=10, select=select)
    memory.add(samples([0] * 20 + [1] * 20), seeded())
    assert counts(memory) == [5, 5]
    memory.add(samples([2] * 20, first_id=100), seeded())
    assert counts(memory) == [4, 3, 3]
    memory.add(samples([3] * 20 + [4] * 20, first_id=200), seeded())
    assert counts(memory) == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("select", ["ring", "herding"])
def test_what_a_small_class_leaves_is_used_by_the_others(select):
    memory = make(total=12, select=select)
    memory.add(samples([0] * 2 + [1] * 50 + [2] * 50), seeded())
    assert counts(memory) == [2, 5, 5]


@pytest.mark.parametrize("select", POLICIES)
def test_a_budget_a_class_holds_for_each_class(select):
    memory = make(per_class=4, select=select)
    memory.add(samples([0] * 10 + [1] * 3), seeded())
    assert counts(memory) == [4, 3]
    memory.add(samples([2] * 10, first_id=50), seeded())
    assert counts(memory) == [4, 3, 4]


def test_fewer_slots_than_classes_still_hold():
    memory = make(total=2)
    memory.add(samples([0] * 3 + [1] * 3), seeded())
    memory.add(samples([2] * 3 + [3] * 3, first_id=10), seeded())
    assert len(memory) == 2


@pytest.mark.parametrize("select", POLICIES)
def test_rows_stand_by_class_best_first(select):
    memory = make(total=20, select=select)
    memory.add(samples([1, 0, 2] * 10), seeded())
    assert memory.y.tolist() == sorted(memory.y.tolist())
    for label in range(3):
        priority = memory.priority[memory.y == label]
        assert torch.equal(priority, priority.sort(descending=True).values)


@pytest.mark.parametrize("select", POLICIES)
def test_adding_nothing_changes_nothing(select):
    memory = make(total=5, select=select)
    memory.add(samples([0, 1] * 10), seeded())
    before = memory.state()
    memory.add(samples([0]).select(torch.zeros(0, dtype=torch.long)), seeded(1))
    assert all(torch.equal(before[name], tensor) for name, tensor in memory.state().items())


@pytest.mark.parametrize("select", ["ring", "reservoir"])
def test_the_generator_alone_decides_what_stays(select):
    def filled(seed: int) -> Tensor:
        memory, generator = make(total=10, select=select), seeded(seed)
        memory.add(samples([0, 1] * 30), generator)
        memory.add(samples([2, 3] * 30, first_id=100), generator)
        return memory.id

    torch.manual_seed(1)
    once = filled(5)
    torch.manual_seed(2)
    assert torch.equal(once, filled(5))
    assert not torch.equal(once, filled(6))


# ---- ring


def arrive(memory: Memory, label: int, *identities: int) -> None:
    """One by one, so that the order is known."""
    for identity in identities:
        memory.add(samples([label], first_id=identity), seeded())


def test_a_ring_keeps_the_latest_of_each_class():
    memory = make(per_class=3)
    arrive(memory, 0, 0, 1, 2, 3)
    arrive(memory, 1, 10, 11)
    arrive(memory, 0, 4)
    assert ids(memory, 0) == [4, 3, 2]
    assert ids(memory, 1) == [11, 10]


def test_a_shrinking_ring_drops_the_oldest():
    memory = make(total=4)
    arrive(memory, 0, 0, 1, 2, 3, 4, 5)
    assert ids(memory, 0) == [5, 4, 3, 2]
    arrive(memory, 1, 10)
    assert (ids(memory, 0), ids(memory, 1)) == ([5, 4, 3], [10])
    arrive(memory, 1, 11)
    assert (ids(memory, 0), ids(memory, 1)) == ([5, 4], [11, 10])
    arrive(memory, 1, 12)
    assert (ids(memory, 0), ids(memory, 1)) == ([5, 4], [12, 11])


def test_a_batch_arrives_at_the_ring_in_random_order():
    """Each of 20 samples stays in 5 slots with probability 1/4: of 400 runs in 100 ± 8.7; the bound is 5 times that."""
    kept = torch.zeros(20)
    for seed in range(400):
        memory = make(total=5)
        memory.add(samples([0] * 20), seeded(seed))
        kept[memory.id] += 1
    assert kept.sum() == 400 * 5
    assert (kept - 100).abs().max() < 5 * (400 * 0.25 * 0.75) ** 0.5


# ---- herding


def brute_force(x: np.ndarray, count: int) -> list[int]:
    """The definition: p_j = argmin over what is left of ||mean - (sum of earlier picks + x) / j||."""
    x = x.astype(np.float64)
    picks: list[int] = []
    for j in range(1, count + 1):
        left = [i for i in range(len(x)) if i not in picks]
        distance = [np.linalg.norm(x.mean(0) - (x[picks].sum(0) + x[i]) / j) for i in left]
        picks.append(left[int(np.argmin(distance))])
    return picks


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_herding_equals_its_definition(seed, unit):
    x = np.random.default_rng(seed).normal(size=(12, 4)).astype(np.float32) + 0.5
    if unit:
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert herd(torch.from_numpy(x), 9).tolist() == brute_force(x, 9)


def test_herding_by_hand():
    # mean 2.25: first the 2; then (2 + x) / 2 is 1.5 for 1, off by 0.75, and 3.5 for 5, off by 1.25
    assert herd(torch.tensor([[1.0], [5.0], [2.0], [1.0]]), 2).tolist() == [2, 0]


def test_herding_takes_each_sample_once_and_no_more_than_there_are():
    assert sorted(herd(torch.randn(7, 3, generator=seeded()), 50).tolist()) == list(range(7))
    assert sorted(herd(torch.ones(4, 2), 4).tolist()) == [0, 1, 2, 3]  # all the same
    assert herd(torch.ones(4, 2), 0).tolist() == []


def test_a_herded_memory_is_the_herded_order_and_shrinks_to_its_prefix():
    memory = make(total=8, select="herding")
    first = samples([0] * 12)
    memory.add(first, seeded(3))
    order = brute_force(first.x().numpy(), 8)
    assert ids(memory, 0) == order
    memory.add(samples([1] * 12, first_id=100), seeded(4))
    assert ids(memory, 0) == order[:4]
    memory.add(samples([2] * 12 + [3] * 12, first_id=200), seeded(5))
    assert ids(memory, 0) == order[:2]
    assert ids(memory, 1) == [100 + i for i in brute_force(samples([1] * 12, first_id=100).x().numpy(), 2)]


# ---- reservoir


def test_a_reservoir_is_a_uniform_sample_of_the_whole_stream():
    """12 of 60 samples: each stays with probability 1/5, whatever its class and task.

    Of 500 runs that is 100 ± sqrt(500 x 0.2 x 0.8) = 8.9; the bound is 5 times that (seeded; by chance 1 in 30 000).
    """
    tasks = [samples([0] * 20), samples([1] * 4 + [2] * 6, first_id=20), samples([3] * 30, first_id=30)]
    kept = torch.zeros(60)
    for seed in range(500):
        memory, generator = make(total=12, select="reservoir"), seeded(seed)
        for task in tasks:
            memory.add(task, generator)
        kept[memory.id] += 1
    assert kept.sum() == 500 * 12
    assert (kept - 100).abs().max() < 5 * (500 * 0.2 * 0.8) ** 0.5


# ---- parts and state


def test_a_part_has_the_exemplars_asked_for():
    memory = make(total=9)
    memory.add(samples([0, 1, 2] * 5), seeded())
    part = memory.part(memory.y < 2)
    assert part.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(part.id, memory.id[:6]) and torch.equal(part.vectors(), memory.vectors()[:6])
    assert len(memory) == 9
    assert len(memory.part(memory.y < 0)) == 0 and memory.part(memory.y < 0).vectors().shape == (0, 3)
    assert torch.equal(memory.part(memory.y < 3).id, memory.id)


@pytest.mark.parametrize(
    "change",
    [
        lambda memory: memory.add(samples([0, 1], first_id=10), seeded()),
        lambda memory: memory.remove(memory.y == 1),
        lambda memory: memory.relabel(0, 1),
    ],
)
def test_a_change_of_the_memory_ends_its_preparation_for_queries(change):
    memory = make(total=4)
    memory.add(samples([0, 0, 1, 1]), seeded())
    memory.prepare_for_queries()
    assert memory.store.columns is not None and memory.store.columns.is_contiguous()
    assert torch.equal(memory.store.columns, memory.vectors().T)
    change(memory)
    assert memory.store.columns is None


def test_exemplars_can_be_replayed():
    memory = make(total=6)
    memory.add(samples([0, 1] * 10), seeded())
    replayed = memory.samples()
    assert torch.equal(replayed.y, memory.y) and torch.equal(replayed.id, memory.id)
    torch.testing.assert_close(replayed.x(), memory.vectors())
    assert len(make(total=6).samples()) == 0


@pytest.mark.parametrize("select", POLICIES)
def test_a_saved_memory_goes_on_as_if_never_saved(tmp_path, select):
    memory, loaded = make(total=10, select=select), make(total=10, select=select)
    memory.add(samples([0, 1] * 10), seeded(1))
    save_tensors(tmp_path / "memory", memory.state(), {})
    loaded.load_state(load_tensors(tmp_path / "memory")[0])
    for one in (memory, loaded):
        one.add(samples([2, 0] * 10, first_id=50), seeded(2))
    for name, tensor in memory.state().items():
        assert torch.equal(loaded.state()[name], tensor), name
    assert memory.arrived == 40

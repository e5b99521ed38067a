"""Samples -> tasks: every class arrives once, with its name, its samples and their ids."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtn.config import Stream
from mtn.errors import InputError
from mtn.samples import Data, Samples, every_nth
from mtn.stream import class_order, sizes, split

NAMES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


def samples(y: list[int], first_id: int, seed: int) -> Samples:
    x = np.random.default_rng(seed).normal(size=(len(y), 3)).astype(np.float32)
    return Samples(x, np.arange(len(y)), torch.tensor(y), torch.arange(first_id, first_id + len(y)))


def animals(per_class: int = 4, validation: bool = False) -> Data:
    """7 classes, their samples mixed."""
    y = list(range(7)) * per_class
    train, test = samples(y, 0, 1), samples([6, 5, 4, 3, 2, 1, 0] * 2, 1000, 2)
    return Data(train, samples([0, 1, 2, 3, 4, 5, 6], 2000, 3) if validation else None, test, NAMES)


def stream(**options) -> Stream:
    return Stream(data="unused", **options)


# ---- sizes


@pytest.mark.parametrize(
    ("classes", "first", "step", "expected"),
    [
        (1000, 500, 50, [500] + [50] * 10),  # the paper's three
        (1000, 500, 100, [500] + [100] * 5),
        (1000, 500, 250, [500, 250, 250]),
        (10, None, None, [5, 1, 1, 1, 1, 1]),
        (15, None, None, [8, 2, 2, 1, 1, 1]),  # 15 - 8 = 7 in five parts
        (7, None, None, [4, 1, 1, 1]),  # fewer than five are left
        (7, None, 3, [4, 3]),
        (7, 3, [1, 3], [3, 1, 3]),
        (7, 7, None, [7]),
        (7, 7, 3, [7]),
        (7, 1, 1, [1] * 7),
        (1, None, None, [1]),
    ],
)
def test_sizes(classes, first, step, expected):
    assert sizes(classes, first, step) == expected


@settings(deadline=None, max_examples=100)
@given(classes=st.integers(1, 200), data=st.data())
def test_sizes_cover_every_class_whatever_the_first_task(classes, data):
    first = data.draw(st.none() | st.integers(1, classes))
    found = sizes(classes, first, None)
    assert sum(found) == classes and min(found) >= 1 and len(found) <= 6
    assert found[0] == (first or (classes + 1) // 2)
    assert max(found[1:], default=1) - min(found[1:], default=1) <= 1


@pytest.mark.parametrize(
    ("first", "step", "words"),
    [
        (8, None, ["stream.first", "at most 7", "got 8"]),
        (1, 4, ["stream.step", "divide 6", "got 4", "nearest: 3"]),
        (1, 5, ["stream.step", "divide 6", "got 5", "nearest: 6"]),
        (3, 9, ["stream.step", "divide 4", "got 9", "nearest: 4"]),
        (3, [2, 1], ["stream.step", "sum to 4", "got [2, 1]"]),
        (3, [2, 3], ["stream.step", "sum to 4", "got [2, 3]"]),
    ],
)
def test_sizes_that_do_not_fit_are_told_with_what_would(first, step, words):
    with pytest.raises(InputError) as caught:
        sizes(7, first, step)
    assert all(word in str(caught.value) for word in words)


# ---- order


@pytest.mark.parametrize(
    ("classes", "first"),
    [
        (1000, [54, 7, 894, 512, 126, 337, 988, 11, 284, 493]),  # ImageNet-1k of LUCIR, BiC and PyCIL
        (100, [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]),  # CIFAR-100
    ],
)
def test_order_1993_is_the_one_of_the_literature(classes, first):
    order = class_order([str(c) for c in range(classes)], 1993)
    assert order[:10] == first
    assert sorted(order) == list(range(classes))


def test_class_order_j_comes_jth_not_the_inverse():
    order = class_order(NAMES, 1993)
    assert order != np.argsort(order).tolist()  # the two can be told apart here
    arrived = [name for task in split(animals(), stream(first=3, step=2)) for name in task.names]
    assert arrived == [NAMES[c] for c in order]


def test_the_order_does_not_touch_the_global_random_state():
    np.random.seed(5)  # noqa: NPY002 (the global state is the point)
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    class_order(NAMES, 1993)
    assert np.random.random() == expected  # noqa: NPY002


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_numpy_cannot_take_is_refused(seed):
    with pytest.raises(InputError, match=rf"stream\.order.*got {seed}$"):
        class_order(NAMES, seed)


def test_an_order_file_lists_the_classes_one_a_line(tmp_path):
    path = tmp_path / "order.txt"
    path.write_text("gnu\n\n  ant \r\neel\nbee\nfox\ncat\ndog")
    tasks = split(animals(), stream(order=str(path), first=3, step=4))
    assert [task.names for task in tasks] == [("gnu", "ant", "eel"), ("bee", "fox", "cat", "dog")]


def test_an_order_file_may_leave_classes_out(tmp_path):
    path = tmp_path / "order.txt"
    path.write_text("gnu\nant\neel\n")
    tasks = split(animals(), stream(order=str(path), first=2, step=1))
    assert [task.names for task in tasks] == [("gnu", "ant"), ("eel",)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"ant\nbea\n", ["'bea'", "did you mean 'bee'?"]),
        (b"ant\nbee\nant\n", ["'ant'", "twice"]),
        (b"\n \n", ["no class"]),
        (b"ant\n\xff\xfe\n", []),
    ],
)
def test_a_bad_order_file_is_named(tmp_path, content, words):
    path = tmp_path / "order.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        class_order(NAMES, str(path))
    assert all(word in str(caught.value) for word in [str(path), *words])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([3, 0, 2, 1], [3, 0, 2, 1]),  # PyCIL's log
        ({"shuffle": True, "seed": [1993], "init_cls": 2}, np.random.RandomState(1993).permutation(4).tolist()),
        ({"permute_classes": 1, "class_order": [2, 3, 1, 0]}, [3, 2, 0, 1]),  # class 3 comes in place 0
        ({"permute_classes": True, "seed": 7}, np.argsort(np.random.RandomState(7).permutation(4)).tolist()),
    ],
)
def test_class_orders_of_other_toolboxes(tmp_path, content, expected):
    path = tmp_path / "order.json"
    path.write_text(json.dumps(content))
    assert class_order(["a", "b", "c", "d"], str(path)) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([0, 1, 2], "each number from 0 to 3 once"),
        ([0, 1, 2, 2.0], "each number from 0 to 3 once"),
        ({"permute_classes": True, "class_order": "0-1-2-3"}, "each number from 0 to 3 once"),
        ({"shuffle": True, "seed": [1, 2]}, r"seed must be one whole number .* got \[1, 2\]"),
        ({"seed": 1993, "shuffle": False}, "shuffles no classes"),
        (3, "must hold a list"),
    ],
)
def test_a_bad_order_of_another_toolbox_is_named(tmp_path, content, words):
    path = tmp_path / "order.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        class_order(["a", "b", "c", "d"], str(path))


def test_a_missing_order_file_is_named():
    with pytest.raises(InputError, match=r"stream\.order: no file 'none\.txt'"):
        class_order(NAMES, "none.txt")


# ---- explicit tasks


def test_tasks_may_be_uneven_and_leave_classes_out():
    tasks = split(animals(), stream(tasks=[["fox"], ["ant", "gnu", "cat"], ["bee"]]))
    assert [task.names for task in tasks] == [("fox",), ("ant", "gnu", "cat"), ("bee",)]
    assert [task.train.y.unique().tolist() for task in tasks] == [[0], [1, 2, 3], [4]]
    assert sum(len(task.train) for task in tasks) == 5 * 4  # 5 of 7 classes with 4 samples each


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([["fox", "catt"]], ["stream.tasks", "'catt'", "'cat'"]),
        ([["fox"], ["cat", "fox"]], ["stream.tasks", "'fox'", "twice"]),
        ([["fox"], []], ["stream.tasks", "without classes"]),
        ([[]], ["stream.tasks"]),
        ([], ["stream.tasks"]),
    ],
)
def test_bad_tasks_are_refused(tasks, words):
    with pytest.raises(InputError) as caught:
        split(animals(), stream(tasks=tasks))
    assert all(word in str(caught.value) for word in words)


# ---- what a task is


def test_labels_are_contiguous_in_order_of_arrival():
    tasks = split(animals(), stream(first=3, step=2))
    assert [task.index for task in tasks] == [0, 1, 2]
    assert [(task.old, task.seen) for task in tasks] == [(0, 3), (3, 5), (5, 7)]
    assert tasks[2].spans == (slice(0, 3), slice(3, 5), slice(5, 7))
    assert tasks[0].spans == (slice(0, 3),)
    for task in tasks:
        assert task.train.y.unique().tolist() == task.test.y.unique().tolist() == list(range(task.old, task.seen))


def test_names_vectors_and_ids_travel_with_a_sample():
    data = animals()
    for task in split(data, stream(first=3, step=2)):
        for part, whole in ((task.train, data.train), (task.test, data.test)):
            for x, y, identity in zip(part.x(), part.y.tolist(), part.id.tolist(), strict=True):
                row = whole.id.tolist().index(identity)
                assert torch.equal(x, whole.x()[row])
                assert task.names[y - task.old] == NAMES[whole.y[row]]


@settings(deadline=None, max_examples=40)
@given(first=st.integers(1, 7), order=st.integers(0, 2**32 - 1), per_class=st.integers(1, 12), validate=st.booleans())
def test_each_sample_is_in_exactly_one_task(first, order, per_class, validate):
    data = animals(per_class)
    evaluate = "validation" if validate else "test"
    tasks = split(data, stream(first=first, step=1, order=order, evaluate=evaluate))
    train, test = (torch.cat([getattr(task, part).id for task in tasks]).tolist() for part in ("train", "test"))
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    if validate:
        assert sorted(train + test) == data.train.id.tolist()
    else:
        assert sorted(train) == data.train.id.tolist() and sorted(test) == data.test.id.tolist()


# ---- validation


def test_an_own_validation_split_is_used_whole():
    data = animals(validation=True)
    tasks = split(data, stream(evaluate="validation"))
    assert sorted(torch.cat([task.test.id for task in tasks]).tolist()) == data.validation.id.tolist()
    assert sorted(torch.cat([task.train.id for task in tasks]).tolist()) == data.train.id.tolist()


@pytest.mark.parametrize("validation", [True, False])
def test_the_test_split_is_never_touched_by_validation(validation):
    data = animals(12, validation)
    seen = [part.id for task in split(data, stream(evaluate="validation")) for part in (task.train, task.test)]
    assert not set(torch.cat(seen).tolist()) & set(data.test.id.tolist())


def test_without_one_every_tenth_of_each_class_is_held_out():
    tasks = split(animals(22), stream(evaluate="validation"))
    train = torch.cat([task.train.id for task in tasks])
    held_out = torch.cat([task.test.id for task in tasks])
    # id = 7 * place + class; places 1, 11 and 21 of 0 .. 21 are held out
    assert sorted(held_out.tolist()) == [7 * place + c for place in (1, 11, 21) for c in range(7)]
    assert not set(train.tolist()) & set(held_out.tolist())
    assert len(train) == 7 * 19


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_every_tenth_leaves_each_class_most_of_its_samples(labels):
    y = torch.tensor(labels)
    held_out = every_nth(y, 10, first=1)
    for c in y.unique():
        count, out = int((y == c).sum()), int(held_out[y == c].sum())
        assert out == (count + 8) // 10  # places 1, 11, 21, ... of `count`
        assert out < count


# ---- selections


def test_select_takes_positions_and_masks():
    whole = samples([0, 1, 2, 1], 10, 0)
    for index in (torch.tensor([1, 3]), np.array([1, 3]), whole.y == 1, (whole.y == 1).numpy()):
        part = whole.select(index)
        assert part.y.tolist() == [1, 1] and part.id.tolist() == [11, 13]
        assert torch.equal(part.x(), whole.x(torch.tensor([1, 3])))


def test_join_puts_selections_behind_each_other():
    whole = samples([0, 1, 2, 1], 10, 0)
    joined = Samples.join([whole.select(torch.tensor([2])), whole.select(torch.tensor([0, 3]))])
    assert joined.id.tolist() == [12, 10, 13] and joined.y.tolist() == [2, 0, 1]
    assert torch.equal(joined.x(), whole.x(torch.tensor([2, 0, 3])))


def test_chunks_cover_all_samples_once():
    whole = samples([0] * 2500, 0, 0)
    assert [(rows.start, rows.stop) for rows in whole.chunks()] == [(0, 1024), (1024, 2048), (2048, 2500)]
    assert list(whole.select(torch.zeros(0, dtype=torch.long)).chunks()) == []

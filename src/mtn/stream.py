"""A data set -> tasks. Classes are renumbered here, once, in the order in which they arrive."""

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mtn.config import Stream
from mtn.data.class_orders import read_order
from mtn.errors import InputError, closest
from mtn.protocols import Protocol
from mtn.samples import Data, Samples, rank_within_class

ORDERS = {"imagenet-1k-1993": "f392a6d194efd235935d2cfac7eba5dd4628caf44922b80003a0ce04d0aab1a5"}
"""The shipped orders and the SHA-256 of their files: an order is a part of a protocol."""


@dataclass(frozen=True)
class Task:
    """Samples of new classes, perhaps more of known ones. Labels count in order of arrival."""

    index: int
    spans: tuple[slice, ...]  # the classes of every task so far, this one last
    names: tuple[str, ...]  # of the new classes
    train: Samples
    test: Samples

    @property
    def old(self) -> int:
        """The number of classes before this task (n)."""
        return int(self.spans[-1].start)

    @property
    def seen(self) -> int:
        """The number of classes after it (s)."""
        return int(self.spans[-1].stop)

    @property
    def new(self) -> int:
        """The number of classes it brings (m); 0 where it has only more samples of known ones."""
        return self.seen - self.old


def split(data: Data, stream: Stream) -> list[Task]:
    """The tasks of a stream. A class is new in the first task that has a sample of it."""
    groups = _groups(data.names, stream)
    arrival = np.full(len(data.names), -1)
    arrival[np.concatenate(groups)] = np.arange(sum(map(len, groups)))
    train, test = (_renumber(samples, arrival) for samples in data.split(stream.evaluate))
    if stream.per_class is not None:
        train = train.select(rank_within_class(train.y) < stream.per_class)
    blocks = torch.repeat_interleave(torch.tensor([len(group) for group in groups]))
    names = [data.names[label] for group in groups for label in group]
    if not isinstance(stream, Protocol):
        return _tasks(train, test, blocks[train.y], blocks, names)
    train, when = stream.arrange(train, blocks, stream.generator())
    numbers, when = when.unique(return_inverse=True)  # a task without samples is none
    first = torch.full((len(names),), len(numbers)).scatter_reduce(0, train.y, when, "amin")
    order = first.argsort(stable=True)[: int((first < len(numbers)).sum())].tolist()
    arrival = np.full(len(names), -1)
    arrival[order] = np.arange(len(order))
    train = Samples(train.source, train.rows, torch.from_numpy(arrival)[train.y], train.id)
    return _tasks(train, _renumber(test, arrival), when, first[order], [names[label] for label in order])


def _tasks(train: Samples, test: Samples, when: Tensor, first: Tensor, names: list[str]) -> list[Task]:
    """Tasks of training samples by `when` (N) they come; `first` (C, rising) is the task that each class is new in."""
    stops = torch.bincount(first).cumsum(0).tolist()
    stops += [len(names)] * (int(when.max()) + 1 - len(stops) if len(when) else 0)
    spans = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
    return [
        Task(
            index,
            tuple(spans[: index + 1]),
            tuple(names[span]),
            train.select(when == index),
            test.select((test.y >= span.start) & (test.y < span.stop)),
        )
        for index, span in enumerate(spans)
    ]


def class_order(names: list[str], order: int | str) -> list[int]:
    """Class indices in order of arrival.

    A seed gives `RandomState(seed).permutation`, the order LUCIR, BiC and PyCIL mean by "1993": class order[j] comes
    j-th. A file lists class names, one a line; so does a shipped order. A JSON file is one of another toolbox.
    """
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise InputError(f"stream.order must be from 0 to 4294967295, got {order}")
        return [int(label) for label in np.random.RandomState(order).permutation(len(names))]
    path: Traversable = Path(order)
    if not path.is_file():
        if order not in ORDERS:
            raise InputError(f"stream.order: no file {order!r}, nor is it an order: {closest(order, ORDERS)}")
        path = resources.files("mtn").joinpath("data", "orders", f"{order}.txt")
    if order.endswith(".json"):
        return read_order(Path(order), len(names))
    try:
        ordered = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"stream.order file {order} is not UTF-8 text: {error}") from None
    return _indices(names, ordered, f"stream.order file {order}")


def order_name(order: int | str) -> str:
    """What headlines and folders call an order: the seed, or the file's name."""
    return Path(order).name if isinstance(order, str) else str(order)


def first_classes(names: list[str], stream: Stream) -> list[int]:
    """Labels of the classes of the first block."""
    return _groups(names, stream)[0]


def _groups(names: list[str], stream: Stream) -> list[list[int]]:
    if stream.tasks is not None:
        flat = _indices(names, [name for task in stream.tasks for name in task], "stream.tasks")
        return _split_order(flat, [len(task) for task in stream.tasks])
    order = class_order(names, stream.order)
    return _split_order(order, sizes(len(order), stream.first, stream.step))


def sizes(classes: int, first: int | None, step: int | list[int] | None) -> list[int]:
    """Classes of each task."""
    base = first if first is not None else (classes + 1) // 2
    rest = classes - base
    if rest < 0:
        raise InputError(f"stream.first must be at most {classes}, the number of classes, got {base}")
    if step is None:
        return [base, *(len(part) for part in np.array_split(np.arange(rest), 5) if len(part))]
    if isinstance(step, list):
        if sum(step) != rest:
            raise InputError(f"stream.step must sum to {rest} ({classes} classes less the first {base}), got {step}")
        return [base, *step]
    if rest % step:
        fitting = [d for d in range(1, rest + 1) if rest % d == 0]
        near = min(fitting, key=lambda d: abs(d - step))
        raise InputError(
            f"stream.step must divide {rest} ({classes} classes less the first {base}), got {step}; nearest: {near}"
        )
    return [base] + [step] * (rest // step)


def _indices(names: list[str], ordered: list[str], parameter: str) -> list[int]:
    """The class index of each name in `ordered`, which must be different names of classes."""
    class_index = {name: index for index, name in enumerate(names)}
    for name in ordered:
        if name not in class_index:
            hint = closest(name, class_index)
            raise InputError(f"{parameter} names the class {name!r}, which is not in the data: {hint}")
    if len(set(ordered)) < len(ordered):
        repeated = next(name for name in ordered if ordered.count(name) > 1)
        raise InputError(f"{parameter} names the class {repeated!r} twice")
    if not ordered:
        raise InputError(f"{parameter} names no class")
    return [class_index[name] for name in ordered]


def _split_order(order: list[int], lengths: list[int]) -> list[list[int]]:
    if 0 in lengths:
        raise InputError("stream.tasks has a task without classes")
    return [part.tolist() for part in np.split(np.asarray(order), np.cumsum(lengths)[:-1])]


def _renumber(samples: Samples, arrival: np.ndarray) -> Samples:
    """Labels in arrival order; samples of classes that never arrive are left out."""
    y = torch.from_numpy(arrival)[samples.y]
    kept = y >= 0
    return Samples(samples.source, samples.rows[kept.numpy()], y[kept], samples.id[kept])

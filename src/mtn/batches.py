"""A stage of a task -> batches. All that is fixed within a stage is computed once: neighbours, the teacher's logits."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtn.config import Config, Train
from mtn.inference import featurised_memory, scores
from mtn.memory import Memory
from mtn.methods import Batch, Method, Stage
from mtn.neighbours import Neighbours, Retrieval, capped, nearest, nearest_within
from mtn.runtime.device import find_precision
from mtn.runtime.progress import Progress, silent
from mtn.runtime.rng import generator
from mtn.samples import Samples
from mtn.stream import Task

MOST_CACHED_LOGITS = 2**28
"""Numbers that the teacher's logits of a stage may take; beyond that they are computed in every step."""


@dataclass(frozen=True)
class TeacherOnDemand:
    """The teacher's logits of some samples, computed when they are asked for: of 200 000 classes they do not fit."""

    teacher: Method
    samples: Samples
    neighbours: Retrieval | None

    @torch.no_grad()
    def __getitem__(self, rows: Tensor) -> Tensor:
        x = self.samples.x(rows).to(self.teacher.seen.device)
        return self.teacher.scores(x, None if self.neighbours is None else self.neighbours[rows])


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws `size` samples a step, in passes without replacement. A step's draw depends on its number alone."""

    samples: Samples
    size: int
    key: tuple[object, ...]
    drawn: Tensor | None = None  # the rows that are ever drawn, rising; None: all
    neighbours: Retrieval | None = None  # of the drawn rows
    teacher_logits: Tensor | TeacherOnDemand | None = None  # of the drawn rows

    def rows_within(self, steps: int) -> Tensor | None:
        """The rows that so many steps draw, rising; None if that is all of them."""
        count = steps * self.size
        return self._permutation(0)[:count].sort().values if count < len(self.samples) else None

    def rows(self, step: int) -> Tensor:
        """The rows that a step draws."""
        number, offset = divmod(step * self.size, len(self.samples))
        rows = self._permutation(number)[offset : offset + self.size]
        rest = self.size - len(rows)
        return torch.cat([rows, self._permutation(number + 1)[:rest]]) if rest else rows

    def position(self, rows: Tensor) -> Tensor:
        """Where rows stand among those that are ever drawn."""
        return rows if self.drawn is None else torch.searchsorted(self.drawn, rows)

    @functools.cached_property
    def _permutations(self) -> dict[int, Tensor]:
        return {}

    def _permutation(self, number: int) -> Tensor:
        if number not in self._permutations:
            self._permutations.pop(number - 2, None)
            self._permutations[number] = torch.randperm(len(self.samples), generator=generator(*self.key, number))
        return self._permutations[number]


@dataclass(frozen=True)
class StageBatches:
    """The batches of a stage: samples it is about, and beside them replayed exemplars."""

    new: Sampler
    replay: Sampler | None
    class_frequency: Tensor  # C share of each class among the samples that are drawn
    steps: int
    teacher: Method | None = None  # with images: the backbone trains, so nothing can be computed once
    memory: Memory | None = None
    precision: torch.dtype = torch.float32

    @property
    def samplers(self) -> list[Sampler]:
        """Those there are, new samples first."""
        return [self.new] if self.replay is None else [self.new, self.replay]

    @property
    def size(self) -> int:
        """Samples of a step."""
        return sum(sampler.size for sampler in self.samplers)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        drawn = [(sampler, sampler.rows(step)) for sampler in self.samplers]
        device = self.class_frequency.device
        neighbours = [s.neighbours[s.position(rows)] for s, rows in drawn if s.neighbours is not None]
        teacher_logits = [s.teacher_logits[s.position(rows)] for s, rows in drawn if s.teacher_logits is not None]
        return Batch(
            x=torch.cat([sampler.samples.x(rows) for sampler, rows in drawn]).to(device),
            y=torch.cat([sampler.samples.y[rows] for sampler, rows in drawn]).to(device),
            new_count=self.new.size,
            neighbours=Neighbours.join(neighbours) if neighbours else None,
            teacher_logits=torch.cat(teacher_logits).to(device) if teacher_logits else None,
            class_frequency=self.class_frequency,
            id=torch.cat([sampler.samples.id[rows] for sampler, rows in drawn]).to(device),
            teacher=self.teacher,
            memory=self.memory,
            precision=self.precision,
        )


def prepare(
    task: Task,
    stage: Stage,
    method: Method,
    teacher: Method | None,
    memory: Memory,
    config: Config,
    progress: Progress = silent,
    past: Sequence[Samples] = (),
) -> StageBatches:
    """The batches of a stage of a task. `past`: the samples of earlier tasks, for a stage that trains on all of them.

    Images give batches of images while the backbone trains, and batches of vectors where it is frozen.
    """
    precision = find_precision(config.train.precision, method.seen.device)
    held_out = method.held_out(task, memory)
    retrievable = memory.part(~held_out) if held_out.any() else memory  # what is held out is not retrieved either
    first, second = _samples_of(task, stage, held_out, memory, past)
    steps, size = steps_and_size(first, task, config.train, stage.epochs)
    replay_size = size if stage.equal_replay else config.train.replay
    pools = {"new": (first, size)}
    if len(second) and replay_size:
        pools["replay"] = second, replay_size
    keys = {name: _key(config.seed, task, stage, name) for name in pools}

    if memory.holds_images and not stage.freeze_backbone:
        plain = {name: Sampler(pool, min(size, len(pool)), keys[name]) for name, (pool, size) in pools.items()}
        frequency = _class_frequency(list(plain.values()), task.seen).to(method.seen.device)
        return StageBatches(plain["new"], plain.get("replay"), frequency, steps, teacher, retrievable, precision)

    lookup = Lookup.of(task, method, teacher, retrievable, capped(config.method.k, retrievable), progress)
    samplers = {
        name: lookup.complete(pool, Sampler(method.featurise(pool), min(size, len(pool)), keys[name]), steps)
        for name, (pool, size) in pools.items()
    }
    frequency = _class_frequency(list(samplers.values()), task.seen).to(method.seen.device)
    return StageBatches(samplers["new"], samplers.get("replay"), frequency, steps, precision=precision)


def steps_and_size(samples: Samples, task: Task, train: Train, epochs: float = 1.0) -> tuple[int, int]:
    """Steps of a stage, and how many of these samples a step draws; `epochs` are its own, times the configuration's.

    Where train.max_draws is reached there are fewer steps; where there must be so many, each draws less. The base
    makes no old classes worse: it has half of its steps at the least.
    """
    draws, size = epochs * train.epochs * len(samples), min(train.batch, len(samples))
    most = train.max_draws * len(samples.y.unique()) if train.max_draws else math.inf
    if not task.old:
        most = max(most, draws / 2)
    steps = max(math.ceil(min(draws, most) / size), train.min_steps)
    return steps, size if steps * size <= most + size else math.ceil(most / steps)


def _key(seed: int, task: Task, stage: Stage, name: str) -> tuple[object, ...]:
    """Of the random stream of a sampler; that of a main stage has no name in it, as it had none at first."""
    return (seed, task.index, name) + (() if stage.name == "loss" else (stage.name,))


@dataclass(frozen=True)
class Lookup:
    """Finds what is computed once a stage. The teacher retrieves only exemplars of the classes it knows
    (docs/explanation/design.md, choice 6), and by its own features where those are learned."""

    task: Task
    method: Method
    teacher: Method | None
    memory: Memory  # as vectors of the method
    teacher_memory: Memory | None  # as vectors of the teacher, where its features are others
    k: int
    progress: Progress

    @staticmethod
    def of(task: Task, method: Method, teacher: Method | None, memory: Memory, k: int, progress: Progress) -> "Lookup":
        """For a memory of vectors or of images."""
        teacher_memory = None
        if memory.holds_images and teacher is not None:
            teacher_memory = featurised_memory(memory.part(memory.y < task.old), teacher)
        return Lookup(task, method, teacher, featurised_memory(memory, method), teacher_memory, k, progress)

    def complete(self, raw: Samples, sampler: Sampler, steps: int) -> Sampler:
        """The sampler with neighbours and teacher's logits of the rows that so many steps draw."""
        drawn = sampler.rows_within(steps)
        samples = sampler.samples if drawn is None else sampler.samples.select(drawn)
        device = self.method.seen.device
        neighbours = teacher_neighbours = None
        if self.method.needs.neighbours:
            known = int((self.memory.y < self.task.old).sum())
            firsts = (len(self.memory), known)
            neighbours, teacher_neighbours = nearest_within(samples, self.memory, self.k, firsts, device, self.progress)
        logits: Tensor | TeacherOnDemand | None = None
        if self.teacher is not None:
            if self.teacher_memory is not None:
                samples = self.teacher.featurise(raw if drawn is None else raw.select(drawn))
                teacher_neighbours = None
                if self.method.needs.neighbours:
                    teacher_neighbours = nearest(samples, self.teacher_memory, self.k, device, self.progress)
            logits = TeacherOnDemand(self.teacher, samples, teacher_neighbours)
            if len(samples) * self.task.old <= MOST_CACHED_LOGITS:
                logits = teacher_logits(logits, self.task.old, self.progress)
        return replace(sampler, drawn=drawn, neighbours=neighbours, teacher_logits=logits)


def teacher_logits(on_demand: TeacherOnDemand, classes: int, progress: Progress) -> Tensor:
    """N,n: all of them at once."""
    logits = torch.empty(len(on_demand.samples), classes)
    for rows, z in scores(on_demand.teacher, on_demand.samples, on_demand.neighbours):
        logits[rows] = z.cpu()
        progress("computing the teacher's logits", rows.stop, len(logits))
    return logits


def _samples_of(
    task: Task, stage: Stage, held_out: Tensor, memory: Memory, past: Sequence[Samples]
) -> tuple[Samples, Samples]:
    """What a stage is about, and what is replayed beside it."""
    exemplars = memory.samples()
    replayed = {
        "nothing": torch.zeros_like(held_out),
        "old": ~held_out & (memory.y < task.old),
        "all": ~held_out,
    }[stage.replay]
    if stage.samples == "held out":
        first = exemplars.select(held_out)
    elif stage.samples == "memory":
        first = exemplars.select(~held_out)
    else:
        first = Samples.join([*past, task.train]) if stage.samples == "all" else task.train
        first = first.select(~torch.isin(first.id, memory.id[held_out])) if held_out.any() else first
    return first, exemplars.select(replayed)


def _class_frequency(samplers: Sequence[Sampler], classes: int) -> Tensor:
    drawn = [
        sampler.size * torch.bincount(sampler.samples.y, minlength=classes) / len(sampler.samples)
        for sampler in samplers
    ]
    return torch.stack(drawn).sum(0) / sum(float(part.sum()) for part in drawn)

"""A task -> batches. All that is fixed within a task is computed once: neighbours, and the old model's answers."""

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtn import ranks
from mtn.config import Config
from mtn.memory import Memory
from mtn.methods import Batch, Method, Stage
from mtn.neighbours import Neighbours, Retrieval, nearest, nearest_within
from mtn.progress import Progress, silent
from mtn.samples import Samples
from mtn.stream import Task


def generator(*key: object) -> torch.Generator:
    """Random numbers of their own for each purpose: what one part draws never shifts another's."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


ANSWERS = 2**28
"""Numbers that the model before may say about a task, once: beyond that it is asked in every step."""


@dataclass(frozen=True)
class Asked:
    """What a model says of some samples, said when it is asked for: with 200 000 classes it does not fit."""

    model: Method
    samples: Samples
    found: Retrieval | None

    @torch.no_grad()
    def __getitem__(self, rows: Tensor) -> Tensor:
        x = self.samples.x(rows).to(self.model.seen.device)
        return self.model.scores(x, None if self.found is None else self.found[rows])


@dataclass(frozen=True, eq=False)
class Portion:
    """Samples drawn `size` at a time, in passes without replacement. A step's draw depends on its number alone."""

    samples: Samples
    size: int
    key: tuple[object, ...]
    drawn: Tensor | None = None  # the rows that are ever drawn, rising; None: all
    found: Retrieval | None = None  # of the drawn ones
    before: Tensor | Asked | None = None  # logits of the model before the task, of the drawn ones

    def within(self, steps: int) -> Tensor | None:
        """What so many steps draw, if that is less than everything: a small task need not look at a large memory."""
        count = steps * self.size
        return self._permutation(0)[:count].sort().values if count < len(self.samples) else None

    def place(self, rows: Tensor) -> Tensor:
        """Where rows are among those drawn."""
        return rows if self.drawn is None else torch.searchsorted(self.drawn, rows)

    def rows(self, step: int) -> Tensor:
        number, offset = divmod(step * self.size, len(self.samples))
        rows = self._permutation(number)[offset : offset + self.size]
        rest = self.size - len(rows)
        return torch.cat([rows, self._permutation(number + 1)[:rest]]) if rest else rows

    @functools.cached_property
    def _permutations(self) -> dict[int, Tensor]:
        return {}

    def _permutation(self, number: int) -> Tensor:
        if number not in self._permutations:
            self._permutations.pop(number - 2, None)
            self._permutations[number] = torch.randperm(len(self.samples), generator=generator(*self.key, number))
        return self._permutations[number]


@dataclass(frozen=True)
class Lesson:
    """What a task trains on: its new samples, and beside them exemplars of old classes."""

    new: Portion
    replay: Portion | None
    share: Tensor  # C how often each class is drawn
    steps: int
    teacher: Method | None = None  # of images: features move, so nothing can be computed once
    memory: Memory | None = None

    @property
    def portions(self) -> list[Portion]:
        return [self.new] if self.replay is None else [self.new, self.replay]

    @property
    def size(self) -> int:
        """Samples of a step."""
        return sum(portion.size for portion in self.portions)

    def batch(self, step: int) -> Batch:
        drawn = [(portion, portion.rows(step)) for portion in self.portions]
        device = self.share.device
        near = [portion.found[portion.place(rows)] for portion, rows in drawn if portion.found is not None]
        before = [portion.before[portion.place(rows)] for portion, rows in drawn if portion.before is not None]
        return Batch(
            x=torch.cat([portion.samples.x(rows) for portion, rows in drawn]).to(device),
            y=torch.cat([portion.samples.y[rows] for portion, rows in drawn]).to(device),
            fresh=self.new.size,
            neighbours=Neighbours.join(near) if near else None,
            before=torch.cat(before).to(device) if before else None,
            share=self.share,
            id=torch.cat([portion.samples.id[rows] for portion, rows in drawn]).to(device),
            teacher=self.teacher,
            memory=self.memory,
        )


def prepare(
    task: Task,
    stage: Stage,
    method: Method,
    before: Method | None,
    memory: Memory,
    config: Config,
    say: Progress = silent,
    past: Sequence[Samples] = (),
) -> Lesson:
    """The lesson of a stage of a task, `past` being the samples of those before it, for a stage that sees all.

    The old model looks up only exemplars of classes it knows (docs/design.md, choice 6), and with features of its own
    where they are learned. Images are a lesson of vectors in a stage in which the backbone rests.
    """
    train, k, device = config.train, config.method.k, method.seen.device
    held = method.held_out(task, memory)
    shown = memory.part(~held) if held.any() else memory  # what is held out is nobody's neighbour either
    known = int((shown.y < task.old).sum())
    images = len(shown.x.shape) == 4
    moving = images and not stage.rests
    mine, theirs = shown, shown
    if images and stage.rests:
        mine = recall(shown, method)
        theirs = shown if before is None else recall(shown.part(shown.y < task.old), before)

    first, second = _pools(task, stage, held, memory, past)
    size = min(train.batch, len(first))
    steps = max(math.ceil(stage.epochs * train.epochs * len(first) / size), train.min_steps)

    def portion(name: str, raw: Samples, size: int) -> Portion:
        key = (config.seed, task.index, name) + (() if stage.loss == "loss" else (stage.loss,))
        if moving:
            return Portion(raw, min(size, len(raw)), key)
        portion = Portion(method.view(raw), min(size, len(raw)), key)
        drawn = portion.within(steps)
        samples = portion.samples if drawn is None else portion.samples.select(drawn)
        found: list[Retrieval | None] = [None, None]
        if method.uses_neighbours:
            found = [*nearest_within(samples, mine, k, (len(shown), known), device, say)]
        answers: Tensor | Asked | None = None
        if before is not None:
            if images:
                samples = before.view(raw if drawn is None else raw.select(drawn))
                found[1] = nearest(samples, theirs, k, device, say) if method.uses_neighbours else None
            answers = Asked(before, samples, found[1])
            if len(samples) * task.old <= ANSWERS:
                answers = _said(answers, task.old, say)
        return replace(portion, drawn=drawn, found=found[0], before=answers)

    new = portion("new", first, size)
    beside = size if stage.evenly else train.replay
    replay = portion("replay", second, beside) if len(second) and beside else None
    share = _share(new, replay, task.seen).to(device)
    return Lesson(new, replay, share, steps, before, shown) if moving else Lesson(new, replay, share, steps)


def _said(asked: Asked, classes: int, say: Progress) -> Tensor:
    answers = torch.empty(len(asked.samples), classes)
    for rows, z in scores(asked.model, asked.samples, asked.found):
        answers[rows] = z.cpu()
        say("asking the model before", rows.stop, len(answers))
    return answers


def _pools(task: Task, stage: Stage, held: Tensor, memory: Memory, past: Sequence[Samples]) -> tuple[Samples, Samples]:
    """What a stage is about, and what is replayed beside it."""
    exemplars = memory.samples()
    free = {"nothing": held & ~held, "old": ~held & (memory.y < task.old), "all": ~held}[stage.replays]
    if stage.sees == "held out":
        first = exemplars.select(held)
    elif stage.sees == "memory":
        first = exemplars.select(~held)
    else:
        first = Samples.join([*past, task.train]) if stage.sees == "all" else task.train
        first = first.select(~torch.isin(first.id, memory.id[held])) if held.any() else first
    return first, exemplars.select(free)


def predictions(method: Method, samples: Samples, memory: Memory, k: int) -> Iterator[tuple[slice, Tensor]]:
    """Scores of every sample with what the memory holds now, chunk by chunk."""
    samples = method.view(samples)
    found = nearest(samples, recall(memory, method), k, method.seen.device) if method.uses_neighbours else None
    return scores(method, samples, found)


def recall(memory: Memory, method: Method) -> Memory:
    """The memory as a method looks things up in it."""
    return memory.seen_by(method.view) if method.uses_neighbours else memory


@torch.no_grad()
def scores(method: Method, samples: Samples, found: Retrieval | None) -> Iterator[tuple[slice, Tensor]]:
    for rows in samples.chunks():
        own = ranks.own(rows)
        x = samples.x(own).to(method.seen.device)
        yield rows, ranks.gather(method.scores(x, None if found is None else found[own]), rows)


def _share(new: Portion, replay: Portion | None, classes: int) -> Tensor:
    drawn = [
        portion.size * torch.bincount(portion.samples.y, minlength=classes) / len(portion.samples)
        for portion in (new, replay)
        if portion is not None
    ]
    return torch.stack(drawn).sum(0) / sum(float(part.sum()) for part in drawn)

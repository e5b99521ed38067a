"""The Memory Transformer Network: SS-IL with another embedding, which is the paper's claim.

Iscen et al., "A Memory Transformer Network for Incremental Learning", BMVC 2022.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.config import Config, MethodOptions
from mtn.cosines import cosines
from mtn.evidence import QUERY, VOTES, WITH_NEIGHBOURS
from mtn.memory import Memory
from mtn.methods.base import Batch, Method, Stage, class_means, unit_rows
from mtn.methods.ccil import ccil_stages, ccil_terms
from mtn.methods.ssil import SSIL
from mtn.model import SIZES, MemoryTransformer, NeighbourVote
from mtn.neighbours import Neighbours
from mtn.stream import Task


class TransformerOptions(MethodOptions):
    """Options of `mtn` and of what is made of it."""

    size: Literal["small", "medium", "large"] = "medium"
    """Transformer: 2 layers x 1 head x 64, 4 x 4 x 128, or 12 x 12 x 768."""
    labels: bool = False
    """Add a learned class embedding to each neighbour."""
    rank: bool = True
    """Add a learned embedding of each neighbour's rank."""
    readout: Literal["cls", "nn", "mix", "query"] = "cls"
    """Adapted query -> linear head; votes of the adapted neighbours; both; or the head and the query as it came."""


class MTN(SSIL):
    """z = g(h(q, V)): the query and its k nearest exemplars -> transformer -> adapted query -> linear head.

    With the read-out `query` z_c = g_c(h(q, V)) + s cos(q, r_c), the rows r_c starting as class means: the few numbers
    of an adapted query may not hold what tells an unforeseen class from the others.
    """

    Options = TransformerOptions
    defaults = {  # noqa: RUF012 (of the class; where images are few. The recipes of the paper state the paper's)
        "method.size": "small",
        "method.readout": "query",
        "train.loss": "balanced",
        "train.optimizer": "adamw",
        "train.lr": 0.003,
        "train.weight_decay": 0.0,
        "train.replay": 96,
        "train.min_steps": 100,
    }
    needs = replace(SSIL.needs, neighbours=True, backbone="borrowed")
    losses = ("ss", "ce", "balanced", "ccil")
    class_rows = (*SSIL.class_rows, "transformer.labels.weight", "raw")
    taught: Tensor
    moving: nn.Parameter | None

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        options: TransformerOptions = self.options
        self.transformer = MemoryTransformer(
            dimension, options.k, options.size, rank=options.rank, labels=options.labels
        )
        self.vote = NeighbourVote() if options.readout in ("nn", "mix") else None
        self.compiled = _compile(self.transformer.forward) if config.train.compile else None
        if self.sees_query:
            self.raw = nn.Parameter(torch.zeros(0, dimension), requires_grad=False)  # C,D: r_c, of length 1
            self.register_parameter("moving", None)  # T,D: those of the task's classes while they train, of any length
            self.log_scale = nn.Parameter(torch.tensor(2.5))  # log s
            self.register_buffer("taught", torch.zeros(0, dtype=torch.bool))  # classes the task has samples of

    @property
    def sees_query(self) -> bool:
        """Whether the scores have a part of the query as it came."""
        return bool(self.options.readout == "query")

    @property
    def width(self) -> int:
        return SIZES[self.options.size][2]

    def begin_task(self, task: Task) -> None:
        if self.options.readout == "nn":
            Method.begin_task(self, task)  # votes need no head
        else:
            super().begin_task(task)
        if self.transformer.labels is not None:
            self.transformer.labels.grow(task.seen)
        if self.sees_query:
            self.raw = nn.Parameter(torch.cat([self.raw, class_means(task).to(self.raw)]), requires_grad=False)
            self.taught = torch.bincount(task.train.y, minlength=task.seen).bool().to(self.taught.device)

    def begin_stage(self) -> None:
        if self.sees_query and self.moving is None:
            self.moving = nn.Parameter(self.raw[self.taught])

    def make_room(self, names: Iterable[str]) -> None:
        if self.sees_query:
            self.moving = nn.Parameter(self.raw[:0].clone()) if "moving" in names else None

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return ccil_stages(self, task) if self.config.train.loss == "ccil" else super().stages(task)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        """SS-IL's, or CCIL's whole training if train.loss says so."""
        if self.config.train.loss == "ccil":
            return ccil_terms(batch.rowwise(self.scores), batch, task)
        return super().loss(batch, task)

    def adapt(self, x: Tensor, neighbours: Neighbours | None, *, query_only: bool = False) -> Tensor:
        """Adapted tokens, the query first: with the neighbours' beside it, the paper's qualitative figure."""
        assert neighbours is not None
        forward = self.compiled if self.compiled is not None and torch.is_grad_enabled() else self.transformer
        real = None if neighbours.full else neighbours.mask
        adapted: Tensor = forward(x, neighbours.x, neighbours.y, real, query_only=query_only)
        return adapted

    def evidence(self, x: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor] | None:
        real = None if neighbours.full else neighbours.mask
        unit = F.normalize(self.adapt(x, neighbours), dim=2)  # B,T,E
        attention = self.transformer.attention(x, neighbours.x, neighbours.y, real)
        return (unit[:, 1:] @ unit[:, 0, :, None]).squeeze(2), attention[:, 1:]

    def embed(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        return self.adapt(x, neighbours, query_only=True)[:, 0]

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        first, *others = self.adapted_shares(x, neighbours).values()
        total = sum(others, start=first)
        return total + self.query_scores(x) if self.sees_query else total

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """Of the query as it came where that is seen, of the linear head, of the neighbours' votes."""
        adapted = self.adapted_shares(x, neighbours)
        return {QUERY: self.query_scores(x)} | adapted if self.sees_query else adapted

    def adapted_shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """Of the linear head, of the neighbours' votes, or of both."""
        if self.vote is None:
            return {WITH_NEIGHBOURS: self.head(self.embed(x, neighbours))}
        assert neighbours is not None
        adapted = self.adapt(x, neighbours)
        votes = {VOTES: self.vote(adapted, neighbours, int(self.seen))}
        return votes if self.options.readout == "nn" else votes | {WITH_NEIGHBOURS: self.head(adapted[:, 0])}

    def query_scores(self, x: Tensor) -> Tensor:
        """s cos(q, r_c): B,C. A row moves only in a task with samples of its class."""
        return self.log_scale.exp() * cosines(x, self.raw, self.moving, self.taught)

    @torch.no_grad()
    def end_task(self, task: Task, memory: Memory) -> None:
        if self.sees_query:
            self.raw[self.taught] = unit_rows(self.raw[self.taught] if self.moving is None else self.moving)
            self.moving = None


class MTNUnlocked(MTN):
    """End to end: the loss reaches the backbone through the query. Neighbours' features are constants that grow stale
    and are computed anew every so many steps (mtn.methods.learned.Bank). On vectors it is MTN."""

    defaults = {}  # noqa: RUF012 (the backbone is trained as the paper says)
    needs = replace(MTN.needs, backbone="own", images=True)


def _compile(forward: Callable[..., Tensor]) -> Callable[..., Tensor] | None:
    """The compiled training pass; None, and a warning, where there is no C++ compiler."""
    if any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        compiled: Callable[..., Tensor] = torch.compile(forward)
        return compiled
    warnings.warn("train.compile: no C++ compiler found, going on without", UserWarning, stacklevel=3)
    return None

"""iCaRL on frozen features: nearest mean of exemplars (Rebuffi et al., CVPR 2017).

Its binary cross-entropy and distillation train the features; where those are frozen, its answers do not depend on
them, so nothing is trained. Departs: exemplars are chosen as the recipe says, for the same memory in every row of a
table; herding, the paper's own, is memory.select = "herding".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.config import Config
from mtn.memory import Memory
from mtn.methods.base import Method, Stage
from mtn.neighbours import Neighbours
from mtn.stream import Task


class ICaRL(Method):
    """argmax_c <q, mu_c>, mu_c the mean of class c's exemplars at unit length."""

    rows = ("means",)
    means: Tensor

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.register_buffer("means", torch.zeros(0, dimension))

    def stages(self, task: Task) -> tuple[Stage, ...]:
        return ()

    def end_task(self, task: Task, memory: Memory) -> None:
        self.recall(memory)

    def recall(self, memory: Memory) -> None:
        total = torch.zeros(int(self.seen), self.dimension).index_add_(0, memory.y, memory.x)
        self.means = F.normalize(total, dim=1).to(self.means.device)

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        absent = ~self.means.any(1)  # a class without exemplars is never the answer
        return (x @ self.means.T).masked_fill(absent, -2.0)

"""TabR: retrieval with keys of its own, and values that know label and difference (Gorishniy et al., ICLR 2024).

Faithful: similarity -|k - k_i|^2 of learned keys; value W_Y(y_i) + T(k - k_i); the weighted sum is added to the encoded
query; a residual block and a linear layer answer; a query is never its own neighbour. Departs: candidates are the k
nearest exemplars by cosine, where TabR searches all training samples by its keys; the softmax over all seen classes is
corrected for how often each is drawn, as new classes outnumber replayed ones in a step.
"""

from torch import Tensor, nn

from mtn.config import Config
from mtn.losses import balanced_cross_entropy
from mtn.methods.base import Batch, LinearHead, Needs
from mtn.model import ClassEmbedding, rescale
from mtn.neighbours import Neighbours
from mtn.stream import Task

WIDTH = 128
"""Of encoded queries, keys and values."""


class TabR(LinearHead):
    """z = g(e + sum_i softmax(-|k - k_i|^2) (W_Y(y_i) + T(k - k_i))), e the encoded query, k its key."""

    needs = Needs(neighbours=True, backbone="none")
    class_rows = (*LinearHead.class_rows, "labels.weight")

    def __init__(self, dimension: int, config: Config) -> None:
        super().__init__(dimension, config)
        self.encoder = nn.Linear(dimension, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.labels = ClassEmbedding(WIDTH, scale=0.02)
        self.difference = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
        self.predictor = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    @property
    def width(self) -> int:
        return WIDTH

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.labels.grow(task.seen)

    def loss(self, batch: Batch, task: Task) -> dict[str, Tensor]:
        z = batch.rowwise(self.scores)
        return {"classification": balanced_cross_entropy(z, batch.y, batch.class_frequency)}

    def embed(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        assert neighbours is not None
        encoded = self.encoder(rescale(x))  # B,W
        apart = self.key(encoded)[:, None] - self.key(self.encoder(rescale(neighbours.x)))  # B,K,W
        similarity = (-apart.square().sum(2)).masked_fill(~neighbours.mask, -1e9)
        weights = similarity.softmax(1) * neighbours.mask  # B,K
        values = self.labels.weight[neighbours.y] + self.difference(apart)
        joined: Tensor = encoded + (weights[:, :, None] * values).sum(1)
        predicted: Tensor = joined + self.predictor(joined)
        return predicted

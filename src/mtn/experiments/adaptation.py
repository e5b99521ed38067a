"""A vision transformer is adapted to the classes of the first task, once, and frozen from then on.

One-session adaptation (APER, Zhou et al. 2023; RanPAC, McDonnell et al. 2023): any method for frozen features goes on
from there. Faithful: the pretrained weights stay, few new ones are trained on the first task alone. Departs: low-rank
updates W + B A of the projections of queries and values (Hu et al. 2022) in place of bottleneck adapters, as they can
be added to the weights in the end, which leaves a model that every command loads; and APER puts the vectors before and
after the adaptation side by side, here they are those after it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mtn.config import Train
from mtn.data.listing import Listing
from mtn.encoders import load_encoder
from mtn.encoders.hub import VisionModel
from mtn.errors import InputError
from mtn.images import Unreadable
from mtn.runtime import rng
from mtn.runtime.cores import core_count
from mtn.runtime.progress import Progress, silent
from mtn.storage import files
from mtn.stream import class_order, sizes
from mtn.training import minimise

ADAPTED = ("query", "value", "q_proj", "v_proj")
"""Last parts of the names of the projections that are adapted."""
RANK = 8
"""Of the updates."""
SCALE = 20.0
"""Of the cosines of the classifier, which is for this training alone."""
TRAIN = Train(optimizer="adamw", lr=2e-3, weight_decay=0.01, batch=32)


class LowRank(nn.Module):
    """W -> W + B A: B starts at zero, so that the model starts as it was."""

    def __init__(self, weight: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.up = nn.Parameter(torch.zeros(rows, RANK))
        self.down = nn.Parameter(torch.randn(RANK, columns, generator=generator) / columns**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """Of the same shape."""
        return weight + self.up @ self.down


@dataclass(frozen=True)
class Adaptation:
    """What was done."""

    classes: list[str]  # of the first task
    images: int
    parameters: int  # trained, the classifier's not among them
    accuracy: float  # per cent of the last epoch's images that the classifier got right as they were trained on


def adapt(
    listing: Listing,
    encoder: str,
    out: Path,
    first: int | None = None,
    order: int | str = 1993,
    epochs: int = 10,
    progress: Progress = silent,
) -> Adaptation:
    """Adapt the transformer in the folder `encoder` to the training images of the first classes; write it to `out`.

    `first` and `order` are stream.first and stream.order of the runs to come.
    """
    if not files.is_unused(out):
        raise InputError(f"--out: {out} is not an empty folder")
    model = load_encoder(encoder)
    if not isinstance(model, VisionModel):
        raise InputError(f"--encoder must be the folder of a vision transformer (transformers), got {encoder!r}")
    names = sorted(set(listing.labels))
    classes = [names[label] for label in class_order(names, order)][: sizes(len(names), first, None)[0]]
    number = {name: label for label, name in enumerate(classes)}
    labels, splits = list(listing.labels), list(listing.splits)
    rows = [row for row, label in enumerate(labels) if label in number and splits[row] == "train"]
    if listing.kind != "image" or not rows:
        raise InputError("DATA must hold training images of the classes of the first task")
    targets = torch.tensor([number[labels[row]] for row in rows])
    adapted = _with_low_rank(model.model, encoder)
    trainer = _Trainer(model, listing, rows, targets, len(classes))
    steps = epochs * -(-len(rows) // TRAIN.batch)
    parameters = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW([*parameters, trainer.head], TRAIN.lr, weight_decay=TRAIN.weight_decay)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for step in minimise(trainer.loss, optimiser, TRAIN, steps):
            progress("adapting", step, steps)
    trained = sum(parameter.numel() for parameter in parameters)
    for module in adapted:
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    done = Adaptation(classes, len(rows), trained, 100 * float(np.mean(trainer.right[-len(rows) :])))
    record = {"encoder": model.identity(), "order": order, "epochs": epochs, **vars(done)}
    files.write_folder(out, lambda folder: _write(model, record, folder))
    return done


def _with_low_rank(model: nn.Module, name: str) -> Sequence[nn.Module]:
    """Freeze a model but for updates of its projections; returns the modules that have one."""
    model.requires_grad_(False)
    generator = rng.generator("adaptation")
    found = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path.rpartition(".")[2] in ADAPTED
    ]
    if not found:
        raise InputError(f"--encoder {name!r}: it has no attention whose queries and values could be adapted")
    for module in found:
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, generator).to(module.weight))
    return found


class _Trainer:
    """The loss of each step: cross-entropy of a cosine classifier on the vectors of a batch."""

    def __init__(
        self, model: VisionModel, listing: Listing, rows: Sequence[int], targets: Tensor, classes: int
    ) -> None:
        self.model, self.listing, self.rows, self.targets = model, listing, rows, targets
        start = torch.randn(classes, model.dimension, generator=rng.generator("adaptation", "head"))
        self.head = nn.Parameter(start.to(model.device))
        self.right: list[bool] = []

    def loss(self, step: int) -> dict[str, Tensor]:
        """Of the batch with that number."""
        batches = -(-len(self.rows) // TRAIN.batch)
        epoch, batch = divmod(step, batches)
        order = torch.randperm(len(self.rows), generator=rng.generator("adaptation", epoch))
        chosen = order[batch * TRAIN.batch : (batch + 1) * TRAIN.batch]
        with ThreadPoolExecutor(core_count()) as pool:
            pixels = list(pool.map(self._pixels, [self.rows[row] for row in chosen.tolist()]))
        x = self.model.vectors(torch.from_numpy(np.stack(pixels)).to(self.model.device))
        logits = SCALE * F.normalize(x, dim=1) @ F.normalize(self.head, dim=1).T
        y = self.targets[chosen].to(logits.device)
        self.right += (logits.argmax(1) == y).tolist()
        return {"classification": F.cross_entropy(logits, y)}

    def _pixels(self, row: int) -> Any:
        try:
            return self.model.prepare(self.listing.locations[row].load())
        except Unreadable as error:
            raise InputError(f"{self.listing.ids[row]}: {error}") from None


def _write(model: VisionModel, record: dict[str, Any], folder: Path) -> None:
    model.save(folder)
    files.write_json(folder / "adaptation.json", record)

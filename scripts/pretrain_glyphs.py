"""Pre-train the embedded glyph encoder without labels (SimCLR) and write its weights into the package.

    python scripts/pretrain_glyphs.py --steps 2000
    python scripts/pretrain_glyphs.py --minutes 30 --out better.safetensors

The first line makes the shipped weights again; the number of steps of a timed run is noted in its file.

It sees only characters that are not classes, and only the training fonts. What it prints at the end is measured on the
validation images of the 1 000 classes without any fitting: the nearest training image and the nearest class mean.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from mtn.data import glyphs
from mtn.encoders import glyph

WARM = 100  # steps until the learning rate is reached
TIMED = 50  # steps after which the number of steps is known


def drawings() -> Tensor:
    """The other characters in the training fonts, each drawing once, (N, S, R, R) uint8."""
    parts = [glyphs.draw(glyphs.other_characters(font), font) for font in glyphs.FONTS["train"]]
    once = np.unique(np.concatenate(parts), axis=0)
    return torch.cat([glyphs.strokes(part).mul(255).byte() for part in np.array_split(once, 16)])


def views(drawn: Tensor, batch: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """Endless batches of two distorted images a drawing, (2 B, 1, 32, 32); no drawing twice in a batch."""
    while True:
        for rows in torch.from_numpy(generator.permutation(len(drawn))).split(batch)[:-1]:
            strokes = drawn[rows].float().div_(255).repeat(2, 1, 1, 1)
            yield glyphs.distort(strokes, glyphs.Distortion(), generator).unsqueeze(1)


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """Each view has to find its partner among all other views of the batch (SimCLR, eq. 1)."""
    z = F.normalize(z)
    similarity = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    partner = torch.arange(len(z)).roll(len(z) // 2)
    return F.cross_entropy(similarity, partner)


def learner(encoder: glyph.GlyphNetwork, projection: int) -> nn.Module:
    """The encoder with the head that only the loss sees."""
    width = encoder.dimension
    return nn.Sequential(
        encoder, nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, projection)
    )


def pretrain(options: argparse.Namespace) -> tuple[glyph.GlyphNetwork, int]:
    """SimCLR for `options.steps`, or for as many steps as fit the minutes, judged by the first fifty."""
    generator = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    encoder = glyph.GlyphNetwork(norm=True)
    model = learner(encoder, options.projection)
    optimiser = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=options.decay)
    batches = views(drawings(), options.batch, generator)
    steps, start = options.steps, time.monotonic()
    for step in itertools.count():
        if step == TIMED and not steps:
            steps = round(60 * options.minutes / (time.monotonic() - start) * TIMED)
        if step == steps:
            break
        for group in optimiser.param_groups:
            group["lr"] = options.lr * schedule(step, steps)
        loss = nt_xent(model(next(batches)), options.temperature)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"\rstep {step + 1} of {steps or '?'}  loss {loss.item():.3f} ", end="", flush=True)
    print()
    return encoder.folded(), steps


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate: linear up, then half a cosine down."""
    if step < WARM:
        return (step + 1) / WARM
    return (1 + math.cos(math.pi * (step - WARM) / (steps - WARM))) / 2


def nearest_image(queries: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """The label of the most similar row, for each query."""
    return torch.cat([labels[(part @ rows.T).argmax(1)] for part in queries.split(512)])


def evaluate(encoder: glyph.GlyphNetwork, classes: int) -> dict[str, float]:
    """Validation accuracy, per cent, of the nearest training image and of the nearest class mean, by cosine."""
    features, labels = {}, {}
    for split in ("train", "val"):
        images = np.concatenate([glyphs.render(split, label) for label in range(classes)])
        features[split] = F.normalize(torch.from_numpy(encoder.encode(images)))
        labels[split] = torch.arange(classes).repeat_interleave(glyphs.COUNTS[split])
    means = F.normalize(features["train"].unflatten(0, (classes, -1)).mean(1))
    predictions = {
        "1-NN": nearest_image(features["val"], features["train"], labels["train"]),
        "nearest mean": nearest_image(features["val"], means, torch.arange(classes)),
    }
    return {name: 100 * (predicted == labels["val"]).float().mean().item() for name, predicted in predictions.items()}


def provenance(options: argparse.Namespace, steps: int) -> dict[str, str]:
    """The command that makes the same weights; one entry, because their order in the file would be random."""
    names = ("seed", "batch", "lr", "decay", "temperature", "projection")
    arguments = [f"--steps {steps}", *(f"--{name} {getattr(options, name)}" for name in names)]
    return {"made": f"SimCLR: python scripts/pretrain_glyphs.py {' '.join(arguments)}"}


def save(encoder: glyph.GlyphNetwork, path: Path, made: dict[str, str]) -> None:
    """Half-precision weights, with a note of how they were made."""
    weights = {name: value.half().contiguous() for name, value in encoder.state_dict().items()}
    path.write_bytes(to_bytes(weights, metadata=made))


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="training time, about")
    parser.add_argument("--steps", type=int, default=0, help="exact number of steps, in place of the minutes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256, help="drawings a step; each gives two views")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--projection", type=int, default=128, help="width the loss is computed at")
    parser.add_argument("--classes", type=int, default=glyphs.CLASSES, help="classes of the evaluation")
    parser.add_argument("--out", type=Path, default=glyph.WEIGHTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder, steps = pretrain(options)
    save(encoder, options.out, provenance(options, steps))
    for name, value in evaluate(encoder, options.classes).items():
        print(f"{name} {value:.1f} %")


if __name__ == "__main__":
    main()

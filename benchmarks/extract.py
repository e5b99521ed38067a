"""Extraction by a ResNet-50 at 224 px: how long the encoder waits for images, and that memory does not grow with them.

python benchmarks/extract.py [images]
python benchmarks/extract.py --many [images]

The photographs are drawn here, JPEGs of 500 x 375 pixels; the weights are random, which costs the same time. `--many`
takes small images and the glyph encoder, in a folder and in a zip: what is left is what a list of many items needs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mtn import encoders
from mtn.data import extraction, sources
from mtn.encoders.base import Encoder
from mtn.encoders.resnet import resnet50
from mtn.images import as_rgb

SIDE = 224
HEADER = "| images | a second | waiting for decoding | peak memory |\n|---:|---:|---:|---:|"


class Random50(Encoder):
    """A ResNet-50 nobody trained."""

    dimension = 2048

    def __init__(self) -> None:
        self.network = resnet50().eval()

    def identity(self) -> dict[str, Any]:
        return {"name": "random ResNet-50"}

    def prepare(self, item: Any) -> np.ndarray:
        middle = as_rgb(item).resize((SIDE * 4 // 3, SIDE), Image.Resampling.BICUBIC)
        left = (middle.width - SIDE) // 2
        return np.asarray(middle.crop((left, 0, left + SIDE, SIDE)))

    @torch.inference_mode()
    def encode(self, batch: Any) -> np.ndarray:
        x = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2).float() / 255
        return self.network(x).numpy()


def draw(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        target = folder / f"class {number % 10}"
        target.mkdir(parents=True, exist_ok=True)
        coarse.save(target / f"{number}.jpg", quality=90)


def draw_small(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(count):
        target = folder / f"class {number % 100:03}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(target / f"image_{number:08}.png")


def once(data: str, store: str, encoder: str) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded = Random50() if encoder == "random" else encoders.load_encoder(encoder)
    made = extraction.extract(sources.open_source(data).list_items(), loaded, Path(store))
    clock, peak = made.clock, own_peak()
    seconds = clock.waiting + clock.working
    print(
        f"| {made.rows} | {made.rows / seconds:.1f} | {100 * clock.waiting / seconds:.1f} % | {peak:.0f} MB |",
        flush=True,
    )


def own_peak() -> float:
    """MB. That of `getrusage` begins with the peak of the process that started this one."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main(count: int) -> None:
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for part in (count // 4, count):
            folder = Path(scratch) / f"images-{part}"
            draw(folder, part)
            start(folder, "random")


def many(count: int) -> None:
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for part in (count // 10, count):
            folder = Path(scratch) / f"images-{part}"
            draw_small(folder, part)
            start(folder, "glyph")
            start(Path(shutil.make_archive(str(folder), "zip", folder)), "glyph")


def start(data: Path, encoder: str) -> None:
    """In a process of its own, whose memory is then nobody else's."""
    subprocess.run([sys.executable, __file__, "--once", str(data), f"{data}-store", encoder], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        once(*sys.argv[2:])
    elif sys.argv[1:2] == ["--many"]:
        many(int(sys.argv[2]) if sys.argv[2:] else 200_000)
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 800)

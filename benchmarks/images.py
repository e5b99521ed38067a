"""How long training waits for images: `python benchmarks/images.py`. Nothing here is asserted.

Files are decoded once, to the cache; a step gathers its bytes and augments them. Both are set against the whole step of
ssil, its teacher included, with the network of the recipe learned/tiny-imagenet-40 and the stem that is asked for.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from PIL import Image

from mtn import training
from mtn.batches import StageBatches
from mtn.config import Config
from mtn.data import load_data
from mtn.encoders.augment import augment
from mtn.recipes import recipe
from mtn.stream import Task, split

CLASSES, EACH, STEPS = 8, 150, 20


def photographs(folder: Path, side: int) -> None:
    """JPEG files of smooth colours with grain, which take as long to unpack as any."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        for number in range(EACH):
            coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((side, side))
            pixels = np.asarray(coarse) + rng.normal(0, 8, (side, side, 3))
            path = folder / ("test" if number % 5 == 0 else "train") / str(label)
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path / f"{number}.jpg")


def second_task(config: Config) -> tuple[training.Learner, Task, StageBatches]:
    tasks = split(load_data(config), config.stream)
    learner = training.Learner(config, *tasks[0].train.shape)
    learner.learn_task(tasks[0])
    learner.begin(tasks[1])
    return learner, tasks[1], learner.prepare(tasks[1], learner.method.stages(tasks[1])[0])


def seconds_of_steps(learner: training.Learner, task: Task, plan: StageBatches) -> tuple[float, float]:
    """A step, and the part of it in which data are made ready."""
    stage, config = learner.method.stages(task)[0], learner.config
    optimiser = training.make_optimiser(learner.method, config.train)
    learner.method.train()
    start = time.perf_counter()
    steps = training.minimise(
        lambda step: learner.method(stage, plan.batch(step), task), optimiser, config.train, STEPS
    )
    for _ in steps:
        pass
    whole = (time.perf_counter() - start) / STEPS
    start = time.perf_counter()
    for step in range(STEPS):
        augment(plan.batch(step).x, config.images)
    return whole, (time.perf_counter() - start) / STEPS


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--side", type=int, default=64)
    options.add_argument("--stem", choices=("small", "large"), default="small")
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MTN_CACHE"] = f"{scratch}/cache"
        data = Path(scratch) / "data"
        photographs(data, chosen.side)
        overrides = [f"stream.data={data}", "stream.first=6", "stream.step=2", "method.name=ssil", "train.epochs=1"]
        overrides += [f"images.side={chosen.side}", f"images.stem={chosen.stem}", "memory.total=96"]
        config = recipe("learned/tiny-imagenet-40", overrides)
        start = time.perf_counter()
        load_data(config)
        decoding = (time.perf_counter() - start) / (CLASSES * EACH)
        learner, task, plan = second_task(config)
        whole, ready = seconds_of_steps(learner, task, plan)
    epochs = recipe("learned/tiny-imagenet-40").train.epochs
    rescale = decoding * plan.size / epochs
    print(f"{chosen.side} pixels, {chosen.stem} stem, {plan.size} images a step on {chosen.threads} threads")
    print(f"step {1000 * whole:.1f} ms, of it gathering and augmenting {1000 * ready:.1f} ms: {ready / whole:.1%}")
    print(f"decoding {1000 * decoding:.2f} ms an image, once; over {epochs:g} epochs {rescale / whole:.1%} of a step")
    print(f"waiting for data: {(ready + rescale) / (whole + rescale):.1%}")


if __name__ == "__main__":
    main()

"""A run of the paper's size on made-up features: ImageNet-1k's shape, 500 + 5 x 100 classes, M = 20 000, k = 10.

python benchmarks/paper_size.py FOLDER [share]

FOLDER gets 1.28 million vectors of 2 048 numbers in float16, 5 GB; share 0.01 has a hundredth of them. The base is
learned in one epoch, the first task after it in the paper's ten, both are tested, and the protocol is reckoned from
what they took. Anonymous memory is what counts: mapped features are the system's to drop.
"""

import os
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from scale import Peak

from mtn import config, recipes
from mtn.data import load_data
from mtn.experiments.run import StreamTrainer
from mtn.recipes import with_changes
from mtn.runtime.progress import bar
from mtn.stream import Task, split

CLASSES, D, TRAIN, TEST = 1000, 2048, 1281, 50


def make_features(folder: Path, share: float) -> None:
    """Clustered vectors: a centre a class, noise around it that reaches the neighbours."""
    if (folder / "names.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((CLASSES, D), np.float32)
    for split_name, each in {"train": max(2, round(TRAIN * share)), "test": TEST if share == 1 else 5}.items():
        y = np.repeat(np.arange(CLASSES), each)
        shape = (len(y), D)
        x = np.lib.format.open_memmap(folder / f"x_{split_name}.npy", "w+", np.float16, shape)
        for label in range(CLASSES):
            x[label * each : (label + 1) * each] = centres[label] + 4 * generator.standard_normal((each, D), np.float32)
        x.flush()
        np.save(folder / f"y_{split_name}.npy", y)
    np.save(folder / "names.npy", np.array([f"class {label:03}" for label in range(CLASSES)]))


def learn_on(run: StreamTrainer, tasks: list[Task], chosen: config.Config) -> dict[str, float]:
    """Train and test on the tasks that are left; return the seconds of each part."""
    run.tasks, run.config, run.learner.config, run.learner.method.config = tasks, chosen, chosen, chosen
    before = dict(run.learner.effort.seconds)
    run.learn()
    parts = ("retrieval", "training", "evaluation")
    return {name: round(run.learner.effort.seconds[name] - before[name], 1) for name in parts}


def main(folder: Path, share: float) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    make_features(folder, share)
    values = {"data": str(folder), "first": 500, "step": 100}
    chosen = recipes.parse({"stream": values, "memory": {"total": 20000}, "train": {"compile": True}}, "here")
    tasks = split(load_data(chosen), chosen.stream)
    peak = Peak()
    with bar(Console()) as progress:
        run = StreamTrainer(chosen, tasks, folder / "state.safetensors", progress, save_every=600)
        base = learn_on(run, tasks[:1], with_changes(chosen, train={"epochs": 1}))
        after = learn_on(run, tasks[:2], chosen)
    epochs, effort = chosen.train.epochs, run.learner.effort
    whole = epochs * base["training"] + base["retrieval"] + (len(tasks) - 1) * (after["training"] + after["retrieval"])
    accuracy = [100 * sum(row) / count for row, count in zip(run.correct, tested(tasks), strict=False)]
    print(f"base of {len(tasks[0].train):,} samples, one epoch, seconds: {base}")
    print(f"task of {len(tasks[1].train):,} samples, {epochs:.0f} epochs, seconds: {after}")
    print(f"trained on {effort.trained_samples / effort.seconds['training']:,.0f} samples a second")
    print(f"accuracy after each: {', '.join(f'{one:.1f} %' for one in accuracy)}")
    print(f"500 + 5 x 100 with {epochs:.0f} epochs each, reckoned: {whole / 3600:.1f} hours, testing aside")
    print(f"peak of anonymous memory: {peak.gib():.2f} GiB")


def tested(tasks: list[Task]) -> list[int]:
    """Test samples after each task."""
    return list(accumulate(len(task.test) for task in tasks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)

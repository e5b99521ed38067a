"""A classifier of 1 000 classes, 20 000 exemplars, 512 numbers a vector: what one more class, a save and a query cost.

python benchmarks/classifier.py [method]
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mtn import MTNClassifier

CLASSES, EACH, D = 1000, 20, 512


def seconds(work: Callable[[], object], rounds: int = 1) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(method: str) -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES + 1, D)).astype(np.float32)

    def samples(y: np.ndarray) -> np.ndarray:
        return centres[y] + 0.8 * rng.standard_normal((len(y), D), dtype=np.float32)

    y = np.repeat(np.arange(CLASSES), EACH)
    it = MTNClassifier(method, settings={"train.epochs": 0, "train.min_steps": 1})
    print(f"{method}: fit without training, {len(y)} samples: {seconds(lambda: it.fit(samples(y), y)):.1f} s")
    trained = MTNClassifier(method).configuration()
    it.state_.learner.config = it.state_.learner.method.config = trained  # one more class is learned as by default
    new = np.full(100, CLASSES)
    x = samples(new)
    print(f"partial_fit of one class of 100 samples: {seconds(lambda: it.partial_fit(x, new)):.1f} s")
    queries = samples(rng.integers(0, CLASSES, 1000))
    it.predict(queries[:1])
    print(f"predict, one query: {1000 * seconds(lambda: it.predict(queries[:1]), 21):.1f} ms")
    print(f"predict, 1 000 queries: {1000 / seconds(lambda: it.predict(queries), 5):.0f} a second")
    print(f"explain, one query: {1000 * seconds(lambda: it.explain(queries[:1]), 5):.1f} ms")
    with tempfile.TemporaryDirectory() as folder:
        print(f"save: {seconds(lambda: it.save(folder)):.2f} s")
        print(f"saved again: {seconds(lambda: it.save(folder)):.2f} s")
        print(f"load: {seconds(lambda: MTNClassifier.load(folder)):.2f} s")
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"on disk: {size / 1e6:.1f} MB")
    print(f"forget: {seconds(lambda: it.forget(CLASSES)):.3f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "mtn")

"""Memories of millions: search against their size, recall on real vectors, and 203 094 classes in one classifier.

python benchmarks/scale.py sizes [most]          M from 2 000 to 4 062 000, or to `most`, d = 512, two bytes a number
python benchmarks/scale.py recall DATA...        .npz files, or names of data sets, as stream.data takes them
python benchmarks/scale.py landmarks [classes]   Landmarks v2's shape: 20 exemplars a class, then 100 classes more
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from mtn import MTNClassifier
from mtn.config import Budget
from mtn.data import load_vectors
from mtn.memory import Memory
from mtn.neighbours import Retrieval, nearest
from mtn.recipes import with_changes
from mtn.samples import Samples
from mtn.search import bit_codes, in_process_store

D, EACH, K = 512, 20, 10
SIZES = (2_000, 20_000, 200_000, 1_000_000, 4_062_000)
LANDMARKS = 203_094


class Peak(threading.Thread):
    """The most anonymous memory seen since it was last asked."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._most = 0.0
        self.start()

    def run(self) -> None:
        while True:
            self._most = max(self._most, anonymous())
            time.sleep(0.05)

    def gib(self) -> float:
        most, self._most = max(self._most, anonymous()), 0.0
        return most


def anonymous() -> float:
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 2**20


class Clusters:
    """Vectors around a centre a class, drawn when they are asked for, the same ones every time."""

    def __init__(self, classes: int) -> None:
        self.centres = np.random.default_rng(0).standard_normal((classes, D), np.float32)

    def draw(self, labels: np.ndarray, seed: int) -> np.ndarray:
        x = np.random.default_rng([1, seed]).standard_normal((len(labels), D), np.float32)
        x += self.centres[labels]
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return x


@contextmanager
def clock(what: str, peak: Peak, per: float = 0.0) -> Iterator[None]:
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    each = f" ({1000 * spent / per:.2f} ms each)" if per else ""
    print(f"  {what}: {spent:.1f} s{each}, peak {peak.gib():.1f} GiB", flush=True)


def remembered(x: np.ndarray, search: str) -> Memory:
    budget = Budget(total=len(x), search=search, precision="float16")  # type: ignore[arg-type]
    ids = torch.arange(len(x))
    return Memory(budget, store=in_process_store(budget, ids, ids // EACH, torch.from_numpy(x)))


def asked(x: np.ndarray) -> Samples:
    nobody = torch.full((len(x),), -1)
    return Samples(x, np.arange(len(x)), nobody, nobody)


def recall(found: Retrieval, exact: Retrieval) -> float:
    pairs = zip(found.index.tolist(), exact.index.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(all_)) / K for mine, all_ in pairs]))


def sizes(most: int) -> None:
    bit_codes.MINIMUM = 1
    for size in (size for size in SIZES if size <= most):
        clusters, peak = Clusters(size // EACH), Peak()
        x = np.empty((size, D), np.float16)
        for number, start in enumerate(range(0, size, 100_000)):
            rows = np.arange(start, min(start + 100_000, size))
            x[rows] = clusters.draw(rows // EACH, number)
        queries = asked(clusters.draw(np.random.default_rng(2).integers(0, size // EACH, 1024), -1 % 2**32))
        few = asked(queries.source[:1])
        print(f"M = {size:,}: {x.nbytes / 2**30:.2f} GiB of vectors", flush=True)
        peak.gib()
        memory = remembered(x, "exact")
        with clock("exact, 1 024 queries", peak, 1024):
            exact = nearest(queries, memory, K)
        with clock("exact, one query", peak, 1):
            nearest(few, memory, K)
        memory = remembered(x, "approximate")
        with clock("index built", peak):
            memory.prepare_for_queries()
        with clock("index, 1 024 queries", peak, 1024):
            found = nearest(queries, memory, K)
        with clock("index, one query", peak, 1):
            nearest(few, memory, K)
        print(f"  recall@{K} {recall(found, exact):.3f}", flush=True)


def recall_on(data: str) -> None:
    bit_codes.MINIMUM = 1
    loaded = load_vectors(data)
    peak, x = Peak(), loaded.train.x().numpy().astype(np.float16)
    queries = loaded.test.select(np.linspace(0, len(loaded.test) - 1, min(len(loaded.test), 2000)).astype(int))
    queries = asked(queries.x().numpy())
    print(f"{Path(data).name}: {len(x):,} x {x.shape[1]}, {len(queries):,} queries")
    with clock("exact", peak, len(queries)):
        exact = nearest(queries, remembered(x, "exact"), K)
    memory = remembered(x, "approximate")
    with clock("index built", peak):
        memory.prepare_for_queries()
    with clock("index", peak, len(queries)):
        found = nearest(queries, memory, K)
    print(f"  recall@{K} {recall(found, exact):.3f}")


def landmarks(classes: int) -> None:
    """Exemplars come 10 000 classes a call, hardly trained; the last 100 classes are learned as by default."""
    clusters, peak = Clusters(classes + 100), Peak()
    settings = {
        "memory.per_class": EACH,
        "memory.search": "approximate",
        "memory.precision": "float16",
        "method.size": "small",
        "train.epochs": 0.0,
        "train.min_steps": 1,
    }
    it = MTNClassifier("mtn", memory=None, settings=settings)
    print(f"{classes:,} classes, {EACH} exemplars each", flush=True)
    with clock("taken in", peak):
        for start in range(0, classes, 10_000):
            y = np.repeat(np.arange(start, min(start + 10_000, classes)), EACH)
            it.partial_fit(clusters.draw(y, start), y)
    queries = clusters.draw(np.random.default_rng(2).integers(0, classes, 1000), 3)
    with clock("first search, index built", peak):
        it.kneighbors(queries[:1])
    with clock("search, 1 000 queries", peak, 1000):
        it.kneighbors(queries)
    with clock("predict, 1 000 queries", peak, 1000):
        it.predict(queries)
    with clock("predict, one query", peak, 1):
        it.predict(queries[:1])
    whole = with_changes(it.state_.learner.config, train={"epochs": 10, "min_steps": 0})
    it.state_.learner.config = it.state_.learner.method.config = whole
    y = np.repeat(np.arange(classes, classes + 100), EACH)
    with clock("100 classes more, ten epochs", peak):
        it.partial_fit(clusters.draw(y, 4), y)
    new = clusters.draw(y, 5)
    with clock("predict, 2 000 queries of these", peak, 2000):
        print(f"  right: {100 * it.score(new, y):.1f} %")


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    what, *rest = sys.argv[1:] or [""]
    if what == "sizes":
        sizes(int(rest[0]) if rest else SIZES[-1])
    elif what == "recall":
        for one in rest:
            recall_on(one)
    elif what == "landmarks":
        landmarks(int(rest[0]) if rest else LANDMARKS)
    else:
        sys.exit(__doc__)

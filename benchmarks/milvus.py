"""A memory in Milvus against the one in the process: seconds to fill it, milliseconds to ask it.

python benchmarks/milvus.py memory.db http://localhost:19530
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from mtn.config import Budget
from mtn.memory import Memory
from mtn.neighbours import nearest
from mtn.samples import Samples
from mtn.search import make_store

DIMENSION, QUERIES, K, TIMES = 512, 160, 10, 5


def samples(count: int, first: int, seed: int) -> Samples:
    x = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return Samples(x, np.arange(count), torch.arange(count) % 100, torch.arange(first, first + count))


def least(do: Callable[[], object]) -> float:
    """Milliseconds, of the quickest time."""
    spent = []
    for _ in range(TIMES):
        start = time.perf_counter()
        do()
        spent.append(1000 * (time.perf_counter() - start))
    return min(spent)


def measure(size: int, uri: str | None) -> str:
    budget = Budget(total=size, store="exact" if uri is None else "milvus", uri=uri)
    store, queries = make_store(budget, (DIMENSION,)), samples(QUERIES, size, 1)
    memory, collection = Memory(budget, store=store), getattr(store, "collection", None)
    start = time.perf_counter()
    memory.add(samples(size, 0, 0), torch.Generator().manual_seed(0))
    filled = time.perf_counter() - start
    many = least(lambda: nearest(queries, memory, K))
    one = least(lambda: nearest(queries.select(torch.arange(1)), memory, K))
    rows = torch.arange(1000)

    def fetch() -> None:
        if collection is not None:
            collection._cache.clear()
        memory.vectors(rows)

    fetched = least(fetch)
    if collection is not None:
        collection.drop()
    return f"| {size} | {uri or 'exact'} | {filled:.1f} | {many:.0f} | {one:.1f} | {fetched:.1f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri", nargs="+")
    torch.set_num_threads(1)
    print(f"| exemplars | where | filled, s | {QUERIES} queries, ms | one, ms | 1 000 vectors, ms |")
    print("|---|---|---|---|---|---|")
    for size in (2_000, 20_000):
        for uri in (None, *parser.parse_args().uri):
            print(measure(size, uri), flush=True)

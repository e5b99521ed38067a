"""Exact search in 20 000 vectors of 512 numbers, k = 10: the way before, float32 alone, beside the search in bytes.

Then the kernels of a first pass that were compared. Processor time of one thread, in turns, the least of the rounds:

python benchmarks/search.py [rounds]
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mtn.search.byte_vectors import ByteVectors

M, D, K = 20_000, 512, 11


def before(columns: Tensor, query: Tensor) -> Tensor:
    """The search before there were bytes: a few queries at once were padded to four."""
    rows = torch.arange(max(len(query), 4)) % len(query)
    return (query[rows] @ columns).topk(K, dim=1).indices[: len(query)]


def least(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of the processor."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append(1000 * (time.process_time() - start))
    return {name: min(found) for name, found in times.items()}


def kernels(x: Tensor, code: Tensor, query: Tensor, query_code: Tensor) -> dict[str, Callable[[], object]]:
    """Ways to multiply queries with all vectors, as far as their packages are here."""
    half, query_half = x.bfloat16(), query.bfloat16()
    ways: dict[str, Callable[[], object]] = {
        "torch, float32": lambda: query @ x.T,
        "torch, bfloat16": lambda: query_half @ half.T,
        "torch, bytes": lambda: torch._int_mm(query_code, code.T),
        "numpy, float32": lambda: query.numpy() @ x.numpy().T,
    }
    try:
        import faiss

        faiss.omp_set_num_threads(1)
        for name, index in (
            ("faiss, float32, with the 11 nearest", faiss.IndexFlatIP(D)),
            ("faiss, bytes, with the 11 nearest", faiss.IndexScalarQuantizer(D, faiss.ScalarQuantizer.QT_8bit, 0)),
        ):
            index.train(x.numpy())
            index.add(x.numpy())
            ways[name] = lambda index=index: index.search(query.numpy(), K)
    except ImportError:
        print("faiss is not here")
    try:
        import simsimd

        ways["simsimd, bytes"] = lambda: simsimd.cdist(query_code.numpy(), code.numpy(), "cosine")
    except ImportError:
        print("simsimd is not here")
    return ways


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, D), dtype=np.float32)

    def samples(y: np.ndarray) -> Tensor:
        return F.normalize(torch.from_numpy(centres[y] + 0.8 * rng.standard_normal((len(y), D), dtype=np.float32)))

    x = samples(np.arange(M) // 20)
    columns, in_bytes = x.T.contiguous(), ByteVectors.of(x)
    for count in (1, 16, 1000):
        query = samples(rng.integers(0, 1000, count))
        ways = {
            "before": lambda query=query: before(columns, query),
            "in bytes": lambda query=query: in_bytes.search(query, K, [M]),
        }
        assert torch.equal(before(columns, query), in_bytes.search(query, K, [M])[0][1])
        query_code = (query / query.abs().amax(1, keepdim=True) * 127).round().to(torch.int8)
        for name, ms in least(ways | kernels(x, in_bytes.code, query, query_code), rounds).items():
            print(f"{count} queries, {name}: {ms:.2f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)

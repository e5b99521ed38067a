"""Speed as ratios measured in one run: `make bench`. Nothing here is asserted; the figures go to docs/results.

The reference is the straightforward way to write the same training: nn.TransformerEncoder over all tokens, neighbours
searched and the old model asked in every step, samples from a DataLoader.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mtn import batches, losses
from mtn.config import Config
from mtn.experiments.run import run
from mtn.memory import Memory
from mtn.methods import Method, Stage, make
from mtn.model import SIZES, rescale
from mtn.neighbours import top_k
from mtn.recipes import parse
from mtn.runtime import device
from mtn.samples import Samples
from mtn.stream import Task
from mtn.training import make_optimiser, minimise

D, M, K, OLD, NEW = 512, 20_000, 10, 500, 100
BATCH, REPLAY = 128, 32


def clustered(classes: range, each: int, seed: int) -> Samples:
    """Generated features: a direction a class, noise around it."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((OLD + NEW, D), dtype=np.float32)
    y = np.repeat(np.array(classes), each)
    x = centres[y] + 2 * rng.standard_normal((len(y), D), dtype=np.float32)
    return Samples(x, np.arange(len(y)), torch.from_numpy(y), torch.arange(len(y)) + seed * 10_000_000)


def configuration(**train: bool | str) -> Config:
    return parse({"stream": {"data": "generated"}, "memory": {"total": M}, "train": train}, "benchmark")


class Straightforward(nn.Module):
    """The same network the way one writes it first."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers, heads, width = SIZES["medium"]
        self.input = nn.Linear(D, width)
        self.query = nn.Parameter(torch.zeros(width))
        self.rank = nn.Parameter(torch.zeros(K, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        tokens = torch.cat(
            [(self.input(rescale(x)) + self.query)[:, None], self.input(rescale(near)) + self.rank], dim=1
        )
        logits: Tensor = self.head(self.encoder(tokens)[:, 0])
        return logits


class RowDataset(Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.x, self.y, self.id = F.normalize(torch.from_numpy(samples.source), dim=1), samples.y, samples.id

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.x[row], self.y[row], self.id[row]


def straightforward_steps(new: Samples, memory: Memory, workers: int) -> Callable[[int], None]:
    """A function that takes n training steps the straightforward way."""
    known = memory.part(memory.y < OLD)
    model, before = Straightforward(OLD + NEW), Straightforward(OLD).requires_grad_(False).eval()
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def batches_of(samples: Samples, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        loader = DataLoader(
            RowDataset(samples), size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
        while True:
            yield from loader

    new_batches, old_batches = batches_of(new, BATCH), batches_of(known.samples(), REPLAY)
    memory_x, known_x = memory.vectors(), known.vectors()

    def steps(count: int) -> None:
        for _ in range(count):
            x, y, ids = (torch.cat(parts) for parts in zip(next(new_batches), next(old_batches), strict=True))
            near = memory_x[top_k(x @ memory_x.T, ids, memory.id, K)[0]]
            with torch.no_grad():
                old = before(x, known_x[top_k(x @ known_x.T, ids, known.id, K)[0]])
            z = model(x, near)
            loss = losses.separated_softmax(z, y, OLD) + losses.taskwise_distillation(z, old, [slice(0, OLD)], 2.0)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()

    return steps


class Ours:
    """The package's own lesson and loop."""

    def __init__(self, new: Samples, memory: Memory, **train: bool | str) -> None:
        config = configuration(**train)
        old = memory.part(memory.y < OLD).samples()
        base = Task(0, (slice(0, OLD),), (), old, old)
        self.task = Task(1, (slice(0, OLD), slice(OLD, OLD + NEW)), (), new, new)
        before = make(D, configuration())
        before.begin_task(base)
        self.method: Method = make(D, config)
        self.method.begin_task(self.task)
        start = time.perf_counter()
        self.lesson = batches.prepare(self.task, Stage(self.method.loss), self.method, before.eval(), memory, config)
        self.once = time.perf_counter() - start
        optimiser = make_optimiser(self.method, config.train)
        self.loop = minimise(
            lambda step: self.method.loss(self.lesson.batch(step), self.task), optimiser, config.train, 10**9, task=1
        )

    def __call__(self, count: int) -> None:
        for _ in range(count):
            next(self.loop)


def timed(work: Callable[[int], None], count: int) -> float:
    start = time.perf_counter()
    work(count)
    return (time.perf_counter() - start) / count


def training(rounds: int, steps: int) -> dict[str, object]:
    """Samples/s of a ten-epoch task, what is done once a task included; rounds alternate, medians are compared."""
    new = clustered(range(OLD, OLD + NEW), 128, seed=1)
    memory = Memory(configuration().memory, D)
    memory.add(clustered(range(OLD), 40, seed=2), torch.Generator().manual_seed(0))
    memory.add(new, torch.Generator().manual_seed(1))
    ways: dict[str, Callable[[int], None]] = {}
    for workers in (0, 1, 2):
        ways[f"straightforward, {workers} workers"] = straightforward_steps(new, memory, workers)
    ours = {"eager": Ours(new, memory), "compiled": Ours(new, memory, compile=True)}
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        ours["bfloat16"] = Ours(new, memory, precision="bfloat16")
    ways |= ours
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(3)  # warm up, compile
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(timed(way, steps))
    step = {name: statistics.median(found) for name, found in times.items()}
    for name, mine in ours.items():
        step[name] += mine.once / (10 * len(new) / BATCH)
    rates = {name: (BATCH + REPLAY) / seconds for name, seconds in step.items()}
    best = max(rate for name, rate in rates.items() if name.startswith("straight"))
    gemm, work = gemm_rate(2048, 2048, 2048), 3 * flops_per_sample(query_only=True)
    return {
        "samples_per_second": {name: round(rate) for name, rate in rates.items()},
        "over_straightforward": {name: round(rates[name] / best, 2) for name in ours},
        "gemm_gflops_2048": round(gemm / 1e9, 1),
        "gemm_gflops_at_model_shapes": round(gemm_rate((BATCH + REPLAY) * (K + 1), 128, 512) / 1e9, 1),
        "share_of_gemm_rate": {name: round(work * rates[name] / gemm, 2) for name in ours},
    }


def flops_per_sample(*, query_only: bool) -> float:
    """Multiply-adds x 2 of one forward pass: projection, blocks (the last one for the query alone), head."""
    layers, _, width = SIZES["medium"]
    tokens = K + 1
    full = 2 * tokens * width * 12 * width + 4 * tokens * tokens * width
    last = 2 * width * (2 * tokens + 10) * width + 4 * tokens * width
    return 2 * tokens * D * width + (layers - 1) * full + (last if query_only else full) + 2 * width * (OLD + NEW)


def gemm_rate(n: int, k: int, m: int) -> float:
    a, b = torch.randn(n, k), torch.randn(k, m)
    repeat = max(3, int(2e10 / (2 * n * k * m)))
    for _ in range(3):
        a @ b
    return 2 * n * k * m / min(timed(lambda c: [a @ b for _ in range(c)] and None, repeat) for _ in range(3))


def search(rounds: int) -> dict[str, object]:
    """Exact search in 20 000 x 512 against scikit-learn's brute force."""
    memory = F.normalize(torch.randn(M, D), dim=1)
    ids, brute = (
        torch.arange(M),
        NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(memory.numpy()),
    )
    found: dict[str, object] = {}
    for size in (1, 160, 1024):
        x, none = F.normalize(torch.randn(size, D), dim=1), torch.full((size,), -1)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(
                timed(lambda c, x=x, none=none: [top_k(x @ memory.T, none, ids, K) for _ in range(c)] and None, 5)
            )
            theirs.append(timed(lambda c, x=x: [brute.kneighbors(x.numpy()) for _ in range(c)] and None, 5))
        ratio = statistics.median(theirs) / statistics.median(ours)
        found[f"{size} queries"] = {"ms": round(1000 * statistics.median(ours), 2), "times_as_fast": round(ratio, 2)}
    return found


def tasks_accumulate() -> dict[str, object]:
    """Training time of each task of a 1 + 12 task stream with equal tasks and a full memory: flat is the target."""
    rng = np.random.default_rng(0)
    classes, each = 13 * 20, 40
    centres = rng.standard_normal((classes, 128), dtype=np.float32)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", each), ("test", 5)):
        y = np.repeat(np.arange(classes), count)
        arrays |= {f"x_{split}": centres[y] + rng.standard_normal((len(y), 128), dtype=np.float32), f"y_{split}": y}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "data.npz", **arrays)
        stream = {"data": f"{folder}/data.npz", "first": 20, "step": 20}
        config = parse({"stream": stream, "memory": {"total": 800}, "method": {"size": "small"}}, "benchmark")
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}

        def progress(what: str, done: int, of: int) -> None:
            task, _, doing = what.partition(": ")
            if doing == "training":
                starts.setdefault(task, time.perf_counter())
                ends[task] = time.perf_counter()

        result = run(config, Path(folder) / "run", progress)
    seconds = [ends[task] - starts[task] for task in starts][1:]  # the base has no replay and no old model
    return {
        "seconds_per_task": [round(value, 2) for value in seconds],
        "last_three_over_first_three": round(statistics.mean(seconds[-3:]) / statistics.mean(seconds[:3]), 2),
        "peak_memory_mb": result["peak_memory_mb"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device.reset_peak_memory()
    found = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {arguments.threads} threads",
        "versions": device.versions(),
        "training (medium, k = 10, d = 512, M = 20 000, batch 128 + 32)": training(arguments.rounds, arguments.steps),
        "search in 20 000 x 512, k = 10, against scikit-learn brute force": search(arguments.rounds),
        "peak_memory_mb of the above": device.peak_memory_mb(),
        "time per task as tasks accumulate": tasks_accumulate(),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

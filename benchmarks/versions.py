"""An earlier version of the package and this one side by side: one more class, queries, the fit of a base.

python benchmarks/versions.py REVISION [rounds]     for example 4604feb, the version before the search in bytes

1 000 made-up classes, 20 000 exemplars, 512 numbers a vector, method `practical`. The earlier version is taken from
git; each measures in a process of its own, in turns. Processor time of one thread, the least of the rounds.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
CLASSES, EACH, D = 1000, 20, 512


def seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """Of the processor, a time."""
    start = time.process_time()
    for _ in range(repeat):
        work()
    return (time.process_time() - start) / repeat


def measure() -> dict[str, float]:
    """Of the version that is imported."""
    import torch

    from mtn import MTNClassifier

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES + 1, D)).astype(np.float32)

    def samples(y: np.ndarray) -> np.ndarray:
        return centres[y] + 0.8 * rng.standard_normal((len(y), D), dtype=np.float32)

    y = np.repeat(np.arange(CLASSES), EACH)
    x, new = samples(y), np.full(100, CLASSES)
    it = MTNClassifier("practical")
    found = {f"base fit of {CLASSES * EACH:,} samples": seconds(lambda: it.fit(x, y))}
    taught, state = samples(new), it.state_

    def teach(it: MTNClassifier, state: object, **more: bool) -> None:
        it._state = state  # the same model each time
        it.partial_fit(taught, new, **more)

    with tempfile.TemporaryDirectory() as folder:
        it.save(folder)
        loaded = MTNClassifier.load(folder)
    found["one class taught, the first lesson after loading"] = seconds(lambda: teach(loaded, loaded.state_))
    found["one class taught, neighbours of exemplars known"] = seconds(lambda: teach(it, state))
    if "polish" in inspect.signature(it.partial_fit).parameters:
        found["one class taught, without training"] = seconds(lambda: teach(it, state, polish=False), 3)
    it._state, queries = state, samples(rng.integers(0, CLASSES, 1000))
    it.assess(queries[:1]), it.explain(queries[:1])  # caches are filled
    found["predict, one query"] = seconds(lambda: it.predict(queries[:1]), 100)
    found["assess, one query"] = seconds(lambda: it.assess(queries[:1]), 50)
    found["explain, one query"] = seconds(lambda: it.explain(queries[:1]), 30)
    found["predict, 1 000 queries"] = seconds(lambda: it.predict(queries), 2)
    return found


def main(revision: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        times: dict[str, list[dict[str, float]]] = {"then": [], "now": []}
        for _ in range(rounds):
            for name, source in (("then", Path(folder) / "src"), ("now", ROOT / "src")):
                environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                child = [sys.executable, __file__, "--measure"]
                out = subprocess.run(child, env=environment, check=True, capture_output=True, text=True).stdout
                times[name].append(json.loads(out.splitlines()[-1]))
    print(f"| milliseconds | {revision} | now | times as fast |\n|---|---:|---:|---:|")
    for what in times["now"][0]:
        now = min(one[what] for one in times["now"])
        then = min((one[what] for one in times["then"] if what in one), default=None)
        before = f"{1000 * then:.1f} | {1000 * now:.1f} | {then / now:.2f}" if then else f"| {1000 * now:.1f} |"
        print(f"| {what} | {before} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(measure()))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)

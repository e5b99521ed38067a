"""Processor time of commands from start to end, beside `import torch`, which every answer needs.

python benchmarks/startup.py [--before CLONE] [--rounds 5]

CLONE is a worktree of an earlier commit, whose commands take turns with these. The model is the one of
examples/intents.csv, by the best encoder of sentences that is installed.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SENTENCE = "turn on the light"
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "mtn --help": ["-m", "mtn", "--help"],
    "mtn info": ["-m", "mtn", "info", "model"],
    "mtn predict, one sentence": ["-m", "mtn", "predict", "model", SENTENCE],
    "mtn explain, one sentence": ["-m", "mtn", "explain", "model", SENTENCE],
}


def processor_seconds(words: list[str], clone: Path, folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    clones = [clone.resolve() for clone in (given.before, ROOT) if clone is not None]
    with tempfile.TemporaryDirectory() as folder:
        processor_seconds(["-m", "mtn", "learn", "model", str(ROOT / "examples" / "intents.csv")], ROOT, folder)
        least: dict[str, list[float]] = {}
        for name, words in COMMANDS.items():
            rounds = [[processor_seconds(words, clone, folder) for clone in clones] for _ in range(given.rounds)]
            least[name] = [min(times) for times in zip(*rounds, strict=True)]
            ratio = least[name][-1] / least["import torch"][-1]
            print(f"{name}: {' -> '.join(f'{one:.2f}' for one in least[name])} s, {ratio:.2f} of torch", flush=True)


if __name__ == "__main__":
    main()

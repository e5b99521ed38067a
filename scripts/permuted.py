"""Whether neighbours matter: accuracy of finished runs after the last task, per cent, mean ± std over the runs.

python scripts/permuted.py runs/clinc150/mtn-seed*

"as found": with the neighbours of each query. "permuted": each query has those of another query. "none": no neighbour,
the transformer sees the query alone.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mtn import inference
from mtn.data import load_data
from mtn.neighbours import Retrieval, capped, nearest
from mtn.recipes import parse
from mtn.samples import Samples
from mtn.storage import files
from mtn.storage.tensors import load_tensors
from mtn.stream import split
from mtn.training import Learner


def kinds(found: Retrieval, seed: int = 0) -> Iterator[tuple[str, Retrieval]]:
    """The neighbours of N queries as found, moved on by one query of a random circle, and none."""
    circle = torch.randperm(len(found.index), generator=torch.Generator().manual_seed(seed))
    another = torch.empty_like(circle)
    another[circle] = circle.roll(1)
    yield "as found", found
    yield "permuted", found.of(another)
    yield "none", replace(found, index=torch.full_like(found.index, -1), full=False)


def measure(folder: Path) -> dict[str, float]:
    """Test accuracy with each kind of neighbours."""
    config = parse(files.read_json(folder / "result.json")["config"], str(folder))
    tasks = split(load_data(config), config.stream)
    learner = Learner(config, *tasks[0].train.shape)
    learner.load_state(load_tensors(folder / "state.safetensors")[0])
    test = Samples.join([task.test for task in tasks])
    retrieval = nearest(test, learner.memory, capped(config.method.k, learner.memory))
    accuracy = {}
    for name, neighbours in kinds(retrieval):
        right = [z.argmax(1) == test.y[rows] for rows, z in inference.scores(learner.method, test, neighbours)]
        accuracy[name] = 100 * float(torch.cat(right).double().mean())
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = [measure(folder) for folder in parser.parse_args().runs]
    for name in runs[0]:
        values = [run[name] for run in runs]
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        print(f"{name}: {np.mean(values):.2f}{spread} ({', '.join(f'{value:.2f}' for value in values)})")


if __name__ == "__main__":
    main()

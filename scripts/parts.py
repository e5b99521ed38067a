"""Accuracy of each part of `practical` after the last task of finished runs, and of all together.

python scripts/parts.py runs/clinc/practical-seed*

"rows alone" is the trained network without its transformer: cosines of the query as it was given. Where random features
have no weight, their discriminant has no scores.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from mtn.data import load_data
from mtn.methods.practical import Practical
from mtn.neighbours import nearest
from mtn.recipes import parse
from mtn.samples import Samples
from mtn.storage import files
from mtn.storage.tensors import load_tensors
from mtn.stream import split
from mtn.training import Learner

PARTS = ("prototypes", "network", "discriminant", "random features")


@torch.no_grad()
def measure(folder: Path) -> dict[str, float]:
    """Test accuracy of each part, per cent, and the weights that `practical` gives them."""
    config = parse(files.read_json(folder / "result.json")["config"], str(folder))
    tasks = split(load_data(config), config.stream)
    learner = Learner(config, *tasks[0].train.shape)
    learner.load_state(load_tensors(folder / "state.safetensors")[0])
    method, test = learner.method, Samples.join([task.test for task in tasks])
    assert isinstance(method, Practical)
    retrieval = nearest(test, learner.memory, config.method.k)
    correct: dict[str, list[torch.Tensor]] = {}
    for rows in test.chunks():
        x = test.x(rows)
        parts = method.parts(x, retrieval[rows])
        adapted = method.network.head(method.network.embed(x, retrieval[rows]))
        scores = dict(zip(PARTS, parts, strict=True))
        scores |= {"all": method.weighted(parts), "rows alone": scores["network"] - adapted}
        for name, logits in scores.items():
            correct.setdefault(name, []).append(logits.argmax(1) == test.y[rows])
    weights = {f"weight of {part}": weight for part, weight in zip(PARTS, method.weights.tolist(), strict=True)}
    return {name: 100 * float(torch.cat(right).double().mean()) for name, right in correct.items()} | weights


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

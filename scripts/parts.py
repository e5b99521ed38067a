"""What each part of `practical` knows after the last task of finished runs: prototypes, network, both.

python scripts/parts.py runs/clinc/practical-seed*

"rows alone" is the network without its transformer: cosines of the query as it came, of the same trained network.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from mtn import checkpoint, datasets
from mtn.config import parse
from mtn.learn import Learner
from mtn.methods.practical import Practical
from mtn.neighbours import nearest
from mtn.samples import Samples
from mtn.stream import split


@torch.no_grad()
def measure(folder: Path) -> dict[str, float]:
    config = parse(checkpoint.read_json(folder / "result.json")["config"], str(folder))
    tasks = split(datasets.of(config), config.stream)
    learner = Learner(config, *tasks[0].train.shape)
    learner.load_state(checkpoint.load(folder / "state.safetensors")[0])
    method, asked = learner.method, Samples.join([task.test for task in tasks])
    assert isinstance(method, Practical)
    found = nearest(asked, learner.memory, config.method.k)
    right: dict[str, list[torch.Tensor]] = {}
    for rows in asked.chunks():
        x = asked.x(rows)
        parts = method.parts(x, found[rows])
        adapted = method.network.head(method.network.embed(x, found[rows]))
        answers = {
            "prototypes": parts[0],
            "network": parts[1],
            "both": method.scores(x, found[rows]),
            "rows alone": parts[1] - adapted,
        }
        for name, z in answers.items():
            right.setdefault(name, []).append(z.argmax(1) == asked.y[rows])
    weights = dict(zip(("weight of prototypes", "weight of the network"), method.weights.tolist(), strict=True))
    return {name: 100 * float(torch.cat(one).double().mean()) for name, one in right.items()} | weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    found = [measure(folder) for folder in parser.parse_args().runs]
    for name in found[0]:
        values = [one[name] for one in found]
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        print(f"{name}: {np.mean(values):.2f}{spread} ({', '.join(f'{value:.2f}' for value in values)})")


if __name__ == "__main__":
    main()

"""What a class costs that is taught without training, and what is lost until it is trained: `practical`, one at a time.

python benchmarks/polish.py VECTORS.npz [classes]     (x_train, y_train, x_test, y_test)

All classes but the last ten are learned; from there each of the ten is taught by itself, without and with training.
"""

import copy
import statistics
import sys
import time

import numpy as np

from mtn import MTNClassifier

NEW = 10


def main(path: str, classes: int | None = None) -> None:
    arrays = np.load(path)
    x, y, queries, true = (arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    names = np.unique(y)[:classes]
    known = np.isin(y, names[:-NEW])
    base = MTNClassifier(settings={"train.epochs": 2}).fit(x[known], y[known])
    found: dict[str, list[float]] = {}
    for name in names[-NEW:]:
        mine, asked = y == name, np.isin(true, [*names[:-NEW], name])
        for way, polish in (("untrained", False), ("trained", True)):
            start = time.process_time()
            it = copy.copy(base).partial_fit(x[mine], y[mine], polish=polish)
            found.setdefault(f"{way}: processor seconds", []).append(time.process_time() - start)
            right = 100.0 * (it.predict(queries[asked]) == true[asked])
            found.setdefault(f"{way}: accuracy of the new class", []).append(right[true[asked] == name].mean())
            found.setdefault(f"{way}: accuracy of all", []).append(right.mean())
    for what, values in found.items():
        print(f"{what}: {statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)

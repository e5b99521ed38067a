"""How well queries of no known class are told apart, and how far probabilities can be believed.

python scripts/unknown.py clinc150_minilm.npz [--split test] [--seeds 0,1,2]

The file has x_train, y_train, x_val, x_test, y_val, y_test, and queries of no class in x_oos_val, x_oos_test. Half the
classes are taught first, the rest in five calls, with 10 exemplars a class.
"""

import argparse

import numpy as np
from sklearn.metrics import roc_auc_score

from mtn import MTNClassifier
from mtn.metrics import calibration_error


def teach(data: dict[str, np.ndarray], seed: int) -> MTNClassifier:
    classes = np.random.RandomState(1993).permutation(np.unique(data["y_train"]))
    it = MTNClassifier(memory=10 * len(classes), random_state=seed)
    first, *rest = np.array_split(classes, 2)
    for group in (first, *np.array_split(rest[0], 5)):
        mine = np.isin(data["y_train"], group)
        it.partial_fit(data["x_train"][mine].astype(np.float32), data["y_train"][mine])
    return it


def measure(it: MTNClassifier, known: np.ndarray, y: np.ndarray, strange: np.ndarray) -> dict[str, float]:
    found = {}
    signs = {
        "novelty": it.novelty,
        "max-softmax": lambda x: 1 - it.predict_proba(x).max(1),
        "k-NN distance": lambda x: it.kneighbors(x)[0].mean(1),
    }
    truth = np.r_[np.zeros(len(known)), np.ones(len(strange))]
    for name, sign in signs.items():
        a, b = sign(known), sign(strange)
        found[f"{name}: AUROC"] = 100 * roc_auc_score(truth, np.r_[a, b])
        found[f"{name}: found at 5 % false alarms"] = 100 * float((b > np.quantile(a, 0.95)).mean())
    found["own threshold: false alarms"] = 100 * float((it.novelty(known) > it.threshold_).mean())
    found["own threshold: found"] = 100 * float((it.novelty(strange) > it.threshold_).mean())
    shares = it.predict_proba(known)
    right = it.classes_[shares.argmax(1)] == y
    found["accuracy"] = 100 * float(right.mean())
    found["calibration error"] = 100 * calibration_error(shares.max(1), right)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    data = dict(np.load(asked.data, allow_pickle=False))
    known, y = data[f"x_{asked.split}"].astype(np.float32), data[f"y_{asked.split}"]
    strange = data[f"x_oos_{asked.split}"].astype(np.float32)
    runs = [measure(teach(data, int(seed)), known, y, strange) for seed in asked.seeds.split(",")]
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name}: {np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}")


if __name__ == "__main__":
    main()

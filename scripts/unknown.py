"""How well queries of no known class are told apart, and how far probabilities can be believed.

python scripts/unknown.py clinc150_minilm.npz [--split test] [--seeds 0,1,2]

The file has x_train, y_train, x_val, x_test, y_val, y_test, and queries of no class in x_oos_val, x_oos_test. Half the
classes are learned first, the rest in five calls, with 10 exemplars a class.
"""

import argparse
from collections.abc import Callable

import numpy as np
from sklearn.metrics import roc_auc_score

from mtn import MTNClassifier
from mtn.experiments.metrics import calibration_error


def train(data: dict[str, np.ndarray], seed: int) -> MTNClassifier:
    """A classifier that was given half of the classes first, the rest in five calls."""
    classes = np.random.RandomState(1993).permutation(np.unique(data["y_train"]))
    classifier = MTNClassifier(memory=10 * len(classes), random_state=seed)
    first, *rest = np.array_split(classes, 2)
    for group in (first, *np.array_split(rest[0], 5)):
        rows = np.isin(data["y_train"], group)
        classifier.partial_fit(data["x_train"][rows].astype(np.float32), data["y_train"][rows])
    return classifier


def measure(classifier: MTNClassifier, known: np.ndarray, y: np.ndarray, unknown: np.ndarray) -> dict[str, float]:
    """Per cent: AUROC and recall of unknown queries by three scores, accuracy and calibration error on known ones."""
    scores: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "novelty": classifier.novelty,
        "max-softmax": lambda x: 1 - classifier.predict_proba(x).max(1),
        "k-NN distance": lambda x: classifier.kneighbors(x)[0].mean(1),
    }
    metrics = {}
    is_unknown = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    for name, score in scores.items():
        of_known, of_unknown = score(known), score(unknown)
        metrics[f"{name}: AUROC"] = 100 * roc_auc_score(is_unknown, np.r_[of_known, of_unknown])
        metrics[f"{name}: found at 5 % false alarms"] = 100 * float((of_unknown > np.quantile(of_known, 0.95)).mean())
    threshold = classifier.threshold_
    metrics["own threshold: false alarms"] = 100 * float((classifier.novelty(known) > threshold).mean())
    metrics["own threshold: found"] = 100 * float((classifier.novelty(unknown) > threshold).mean())
    probabilities = classifier.predict_proba(known)
    correct = classifier.classes_[probabilities.argmax(1)] == y
    metrics["accuracy"] = 100 * float(correct.mean())
    metrics["calibration error"] = 100 * calibration_error(probabilities.max(1), correct)
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    data, split = dict(np.load(arguments.data, allow_pickle=False)), arguments.split
    known, y = data[f"x_{split}"].astype(np.float32), data[f"y_{split}"]
    unknown = data[f"x_oos_{split}"].astype(np.float32)
    runs = [measure(train(data, int(seed)), known, y, unknown) for seed in arguments.seeds.split(",")]
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name}: {np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}")


if __name__ == "__main__":
    main()

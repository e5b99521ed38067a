"""How well queries of no known class are told apart, how far probabilities and the estimated accuracy can be believed.

python scripts/unknown.py clinc150_minilm.npz flowers102_mbv2.npz glyphs-200 omniglot [--out cells.jsonl] [--fast]

Of each data set the first fifth of the classes (order 1993 + seed) is never taught: near unknowns. Far unknowns are
x_oos_test of the file where there is one, or else the queries of the other data set whose vectors are as long, or else
queries whose components are shuffled among them. Two streams each. Blocks: half of the classes, then the rest in five
lessons. One by one: all but 18 classes, then these. Every third class after the first lesson has 5 to 10 samples.
`--fast` teaches `knn`, which trains nothing: where all samples are remembered, it calls the same queries unknown.
Cells that `--out` has are not measured again.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from mtn import MTNClassifier, recipe
from mtn.data import load_data
from mtn.experiments.metrics import calibration_chance, calibration_error
from mtn.samples import Samples

ALONE = 18
"""Classes that are taught one by one."""
ANSWERS = "answers"


@dataclass(frozen=True)
class DataSet:
    """Training and evaluation samples of all classes, and queries of none if the file has some."""

    train: tuple[np.ndarray, np.ndarray]
    queries: tuple[np.ndarray, np.ndarray]
    strange: np.ndarray | None

    @staticmethod
    def read(source: str, split: str) -> "DataSet":
        train, queries = load_data(recipe("practical", [f'stream.data="{source}"'])).split(split)
        strange = None
        if source.endswith(".npz"):
            found = np.load(source, allow_pickle=False)
            strange = found.get(f"x_oos_{'test' if split == 'test' else 'val'}")
        return DataSet(_arrays(train), _arrays(queries), None if strange is None else strange.astype(np.float32))

    def far(self, others: list["DataSet"]) -> np.ndarray:
        """Queries that are of no class of this data set."""
        x = self.queries[0]
        alike = [other.queries[0] for other in others if other is not self and other.queries[0].shape[1] == x.shape[1]]
        if self.strange is not None:
            return self.strange
        return alike[0] if alike else np.random.default_rng(0).permuted(x, axis=0)


def _arrays(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    return samples.x().numpy(), samples.y.numpy()


@dataclass(frozen=True)
class Stream:
    """Lessons as rows of the training samples; classes that few samples were taught of, and that none was."""

    lessons: list[np.ndarray]
    known: np.ndarray
    small: np.ndarray
    near: np.ndarray

    @staticmethod
    def of(y: np.ndarray, kind: str, seed: int) -> "Stream":
        order, random = np.random.RandomState(1993 + seed).permutation(np.unique(y)), np.random.default_rng(seed)
        near, known = np.split(order, [len(order) // 5])
        first, later = np.split(known, [len(known) // 2 if kind == "blocks" else len(known) - ALONE])
        sizes = {label: 5 + number % 6 for number, label in enumerate(later[::3])}
        groups = [first, *(np.array_split(later, 5) if kind == "blocks" else later[:, None])]
        rows = [[random.permutation(np.flatnonzero(y == c))[: sizes.get(c)] for c in group] for group in groups]
        return Stream([np.concatenate(lesson) for lesson in rows], known, np.array(list(sizes)), near)


def measure(data: DataSet, far: np.ndarray, kind: str, seed: int, fast: bool) -> dict[str, Any]:
    """Per cent, and the stated probability of each answer and whether it is right. A fast run cannot tell all of it."""
    (x, y), (queries, truth) = data.train, data.queries
    stream = Stream.of(y, kind, seed)
    classifier = MTNClassifier("knn" if fast else "practical", random_state=seed)
    errors: list[list[float]] = [[], []]
    for lesson in stream.lessons:
        classifier.partial_fit(x[lesson], y[lesson])
        if not fast:
            for position, error in enumerate(_errors(classifier, queries, truth, np.unique(y[lesson]))):
                errors[position] += [] if error is None else [error]
    known, small = np.isin(truth, stream.known), np.isin(truth[np.isin(truth, stream.known)], stream.small)
    probabilities, novelty = classifier.assess(queries[known])
    near, strange = classifier.novelty(queries[np.isin(truth, stream.near)]), classifier.novelty(far)
    found: dict[str, float] = {"false alarms": (novelty > classifier.threshold_).mean()}
    found["false alarms, 5 to 10 samples"] = (novelty[small] > classifier.threshold_).mean()
    for name, values in (("near", near), ("far", strange)):
        unknown = np.r_[np.zeros(len(novelty)), np.ones(len(values))]
        found[f"{name} found"] = (values > classifier.threshold_).mean()
        found[f"{name} AUROC"] = roc_auc_score(unknown, np.r_[novelty, values])
    if not fast:
        correct, stated = classifier.classes_[probabilities.argmax(1)] == truth[known], probabilities.max(1)
        found |= {"accuracy": correct.mean(), "calibration error": calibration_error(stated, correct)}
        found |= {"estimate": np.mean(errors[0]), "estimate, new classes": np.mean(errors[1])}
        found |= {"|estimate|": np.abs(errors[0]).mean(), "|estimate|, new classes": np.abs(errors[1]).mean()}
    percent: dict[str, Any] = {name: 100 * float(value) for name, value in found.items()}
    return percent if fast else percent | {ANSWERS: [stated.tolist(), correct.tolist()]}


def _errors(
    classifier: MTNClassifier, queries: np.ndarray, truth: np.ndarray, new: np.ndarray
) -> Iterator[float | None]:
    """Estimated less true accuracy after a lesson, over all classes and over the new ones."""
    known = np.isin(truth, classifier.classes_)
    right, entry = classifier.predict(queries[known]) == truth[known], classifier.history_[-1]
    for key, rows in (("estimated_accuracy", slice(None)), ("estimated_accuracy_new", np.isin(truth[known], new))):
        yield None if entry[key] is None else entry[key] - right[rows].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--streams", default="blocks,one by one")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = arguments.out.read_text("utf-8").splitlines() if arguments.out and arguments.out.exists() else []
    cells = {tuple(cell["cell"]): cell["found"] for cell in map(json.loads, lines)}
    sets = {source: DataSet.read(source, arguments.split) for source in arguments.data}
    for seed in map(int, arguments.seeds.split(",")):
        for kind in arguments.streams.split(","):
            for source, data in sets.items():
                cell = (source, kind, seed, arguments.fast)
                if cell not in cells:
                    cells[cell] = measure(data, data.far(list(sets.values())), kind, seed, arguments.fast)
                    if arguments.out:
                        with arguments.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps({"cell": cell, "found": cells[cell]}) + "\n")
    for source in sets:
        for kind in arguments.streams.split(","):
            runs = [found for (name, stream, _, _), found in cells.items() if (name, stream) == (source, kind)]
            print(f"{source}, {kind}, {len(runs)} runs")
            for name in dict.fromkeys(key for run in runs for key in run if key != ANSWERS):
                values = [run[name] for run in runs if name in run]
                print(f"  {name}: {np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}")
            answers = [np.array(run[ANSWERS]) for run in runs if ANSWERS in run]
            if answers:
                stated, right = np.concatenate(answers, axis=1)
                error, chance = 100 * calibration_error(stated, right), 100 * calibration_chance(stated)
                print(f"  calibration error of {len(stated)} answers: {error:.1f}, by chance up to {chance:.1f}")


if __name__ == "__main__":
    main()

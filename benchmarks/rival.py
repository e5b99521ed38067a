"""MTNClassifier beside adaptive-classifier on sentences of CLINC150: the same vectors, class order, lessons, queries.

    pip install adaptive-classifier==0.3.1 'memory-transformer[text]'   # in an environment of its own
    mtn extract clinc150.json --encoder minilm --out clinc150-minilm
    python benchmarks/rival.py clinc150.json clinc150-minilm --step 15 --seeds 0,1,2

75 classes first, then --step at a time. A line of JSON each contestant and seed; seconds are processor time, one
thread. Both get the vectors of the store, so that no time goes to encoding and no difference comes from it; 32
sentences are encoded by adaptive-classifier itself, to see that they are the vectors that it would have.
"""

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adaptive_classifier import AdaptiveClassifier

from mtn import MTNClassifier
from mtn.encoders.packaged import PACKAGED

FIRST = 75
VECTORS: dict[str, torch.Tensor] = {}
"""Sentence -> vector, 384 numbers."""


class WithVectors(AdaptiveClassifier):
    """It, on vectors that are there already."""

    def _get_embeddings(self, texts: list[str]) -> list[torch.Tensor]:
        return [VECTORS[text] for text in texts]


class Rival:
    """adaptive-classifier with a configuration."""

    def __init__(self, seed: int, **config: Any) -> None:
        np.random.seed(seed)  # noqa: NPY002 (it draws what it replays from NumPy's global state)
        self.model = WithVectors(str(PACKAGED["minilm"].require("minilm")), "cpu", config, seed, use_onnx=False)

    def teach(self, texts: list[str], labels: list[str]) -> None:
        self.model.add_examples(texts, labels)

    def answer(self, texts: list[str]) -> list[str]:
        return [self.model.predict(text, k=1)[0][0] for text in texts]

    def again(self, folder: Path) -> None:
        self.model.save(str(folder), include_onnx=False)
        self.model = WithVectors.load(str(folder), "cpu", use_onnx=False)


class Ours:
    """MTNClassifier with a method."""

    def __init__(self, seed: int, method: str) -> None:
        self.model = MTNClassifier(method, memory=1500, random_state=seed)

    def teach(self, texts: list[str], labels: list[str]) -> None:
        self.model.partial_fit(vectors(texts), labels)

    def answer(self, texts: list[str]) -> list[str]:
        return list(self.model.predict(vectors(texts)))

    def again(self, folder: Path) -> None:
        self.model.save(folder)
        self.model = MTNClassifier.load(folder)


CONTESTANTS: dict[str, Callable[[int], Rival | Ours]] = {
    "slda": lambda seed: Ours(seed, "slda"),
    "practical": lambda seed: Ours(seed, "practical"),
    "adaptive-classifier, all examples": lambda seed: Rival(seed),
    "adaptive-classifier, 10 a class": lambda seed: Rival(seed, max_examples_per_class=10),
}


def vectors(texts: list[str]) -> np.ndarray:
    """N,384."""
    return torch.stack([VECTORS[text] for text in texts]).numpy()


def read(data: Path, store: Path) -> dict[str, dict[str, list[str]]]:
    """Split -> class -> sentences; fills VECTORS."""
    splits = json.loads(data.read_text("utf-8"))
    rows = np.concatenate([np.load(file) for file in sorted(store.glob("x-*.npy"))]).astype(np.float32)
    with (store / "samples.csv").open(encoding="utf-8") as file:
        for line, row in zip(csv.DictReader(file), rows, strict=True):
            split, number = line["id"].split("/")
            VECTORS[splits[split][int(number)][0]] = torch.nn.functional.normalize(torch.from_numpy(row), dim=0)
    found: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for split, classes in found.items():
        for text, label in splits[split]:
            classes.setdefault(label, []).append(text)
    return found


def check_vectors(texts: list[str]) -> float:
    """The smallest cosine of a vector of the store and that of adaptive-classifier's own encoding."""
    own = AdaptiveClassifier(str(PACKAGED["minilm"].require("minilm")), "cpu", use_onnx=False)._get_embeddings(texts)
    return min(float(a @ VECTORS[text]) for a, text in zip(own, texts, strict=True))


def contest(
    it: Rival | Ours, data: dict[str, dict[str, list[str]]], lessons: list[list[str]], every: bool, reload: bool
) -> dict[str, Any]:
    """Teach lesson after lesson. `every`: all seen classes are asked after each, not its own alone; all at the end."""
    teaching = asking = storing = 0.0
    asked, seen, at_first, averages = 0, [], [], []

    def share(found: dict[str, list[bool]], labels: list[str]) -> float:
        return 100 * float(np.mean([one for label in labels for one in found[label]]))

    def right(labels: list[str]) -> dict[str, list[bool]]:
        nonlocal asking, asked
        texts = [text for label in labels for text in data["test"][label]]
        start = time.process_time()
        answers = iter(it.answer(texts))
        asking, asked = asking + time.process_time() - start, asked + len(texts)
        return {label: [next(answers) == label for _ in data["test"][label]] for label in labels}

    for lesson in lessons:
        texts = [(text, label) for label in lesson for text in data["train"][label]]
        start = time.process_time()
        it.teach([text for text, _ in texts], [label for _, label in texts])
        teaching += time.process_time() - start
        seen += lesson
        if reload:
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                it.again(Path(folder))
                storing += time.process_time() - start
        found = right(seen if every else lesson)
        at_first.append(share(found, lesson))
        averages.append(share(found, list(found)))
    last = right(seen)
    ends = [share(last, lesson) for lesson in lessons]
    return {
        "average": float(np.mean(averages)) if every else None,
        "last": share(last, seen),
        "newest": float(np.mean(at_first[1:])),
        "forgetting": float(np.mean(np.array(at_first[:-1]) - np.array(ends[:-1]))),
        "seconds_teaching": teaching,
        "seconds_a_lesson": teaching / len(lessons),
        "ms_a_query": 1000 * asking / asked,
        "seconds_saving_and_loading": storing / len(lessons) if reload else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--step", type=int, default=15)
    parser.add_argument("--classes", type=int, default=150, help="of the class order, how many")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--reload", action="store_true", help="save and load after each lesson")
    parser.add_argument("--only", default="", help="part of a contestant's name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = read(options.data, options.store)
    names = sorted(data["train"])
    order = [names[place] for place in np.random.RandomState(1993).permutation(len(names))][: options.classes]
    starts = range(FIRST, len(order), options.step)
    lessons = [order[:FIRST], *(order[start : start + options.step] for start in starts)]
    print(json.dumps({"smallest cosine": check_vectors(data["train"][order[0]][:32])}), flush=True)
    for seed in map(int, options.seeds.split(",")):
        for name, make in CONTESTANTS.items():
            if options.only in name:
                result = contest(make(seed), data, lessons, options.step > 1, options.reload)
                facts = {"contestant": name, "step": options.step, "seed": seed, "reload": options.reload}
                print(json.dumps(facts | {key: value and round(value, 3) for key, value in result.items()}), flush=True)


if __name__ == "__main__":
    main()

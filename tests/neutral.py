"""Shows that a change of the code changes no number: record with one version, compare with another.

    python tests/neutral.py record FOLDER     # with the version before
    python tests/neutral.py compare FOLDER    # with the version after; exits with 1 and a line for each difference

What is recorded: the result of every method on a small stream of vectors and of most methods on images, the answers of
a classifier with every method and every kind of memory, saved models with their answers, an extracted store, and runs
that were interrupted in the middle of a task. Results are compared bit for bit, so both versions must run on the same
machine; `fingerprint` tells whether they did. `tests/fixtures/v0` is such a folder, made by the first version. Numbers
that were meant to change since are in its `renewed.json`, which stands above what the first version recorded:

    python tests/neutral.py renew FOLDER METHOD    # what this version finds for the method is what is meant
"""

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: sums round by the number of threads

import numpy as np
import torch
from PIL import Image

from mtn import MTNClassifier, recipe
from mtn.classifier.state import ESTIMATES

torch.set_num_threads(1)

CLASSES, DIMENSION = 12, 16
NOT_RECORDED = {"recorded": "on another machine"}
"""Numbers that changed since the first version, and were renewed where they do not come out the same bit for bit."""
TIMES = ("seconds", "processor_seconds", "train_samples_per_second", "peak_memory_mb", "versions")
"""What differs between two runs of the same version."""
SETTINGS = {"train.min_steps": 12, "train.batch": 32, "train.epochs": 2, "method.size": "small"}
PAPER = {
    "method.readout": "cls",
    "train.loss": "ss",
    "train.optimizer": "sgd",
    "train.lr": 0.1,
    "train.weight_decay": 1e-4,
    "train.replay": 32,
}
"""The paper's values, which `mtn` had before it declared its own."""
LEARNED = ("mtn", "mtn-unlocked", "ssil", "ccil-sd", "podnet", "lucir-balanced", "bic", "icarl", "knn", "joint")
"""Methods that are run on images, where a backbone is trained."""
METHODS = (
    *("mtn", "mtn-unlocked", "ssil", "ccil", "ccil-sd", "podnet", "lucir", "lucir-free", "lucir-balanced", "bic"),
    *("icarl", "knn", "ncm", "slda", "ridge", "ranpac", "er", "gdumb", "lwf", "finetune", "joint", "practical"),
)
"""Those of the first version."""
MEMORIES = {
    "float16": {"memory.precision": "float16"},
    "herding": {"memory.select": "herding"},
    "reservoir": {"memory.select": "reservoir"},
    "per-class": {"memory.per_class": 3},
    "labels": {"method.labels": True},
    "votes": {"method.readout": "mix"},
    "no-rank": {"method.rank": False},
}
INTERRUPTED = {"mtn": 1, "bic": 3, "joint": 1, "practical": 2}
"""Method -> which training (from 0 on) is interrupted in its middle; of bic the second stage of the second task."""


CALIBRATION = ("novelty", "threshold", "temperature")
"""What a classifier that is taught now has otherwise than the first version's, on purpose: how the unknown and the
temperature are fitted. Models that the first version saved are compared in these too."""


# ---- data


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    centres = rng.standard_normal((CLASSES, DIMENSION))
    found: dict[str, np.ndarray] = {}
    for split, count in (("train", 20), ("test", 12)):
        y = np.repeat(np.arange(CLASSES), count)
        found |= {f"x_{split}": (centres[y] + 0.9 * rng.standard_normal((len(y), DIMENSION))).astype(np.float32)}
        found |= {f"y_{split}": y}
    return found


def write_images(folder: Path, classes: int = 6, count: int = 12) -> None:
    """A bright square a class, at a place of its own, in noise."""
    rng = np.random.default_rng(5)
    for label in range(classes):
        for number in range(count):
            image = rng.integers(0, 90, (16, 16, 3), np.uint8)
            row, column = divmod(label, 3)
            image[2 + 7 * row : 8 + 7 * row, 5 * column : 5 + 5 * column] += 120
            path = folder / ("train" if number < 8 else "test") / f"c{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)


SENTENCES = [
    ("turn the lamp on", "light"),
    ("switch on the light please", "light"),
    ("make it brighter in here", "light"),
    ("what is my balance", "money"),
    ("how much money do I have", "money"),
    ("show me my account", "money"),
    ("play some jazz", "music"),
    ("put on a song", "music"),
    ("I want to hear music", "music"),
]


# ---- what is measured


def config(data: Path, method: str, **more: Any) -> Any:
    values = {
        "stream.data": str(data),
        "stream.first": 6,
        "stream.step": 3,
        "memory.total": 48,
        "method.k": 5,
        "method.size": "small",
        "method.name": method,
        "train.min_steps": 12,
        "train.batch": 32,
        "train.epochs": 2,
        "train.replay": 8,
        "train.max_draws": 0,
        "train.optimizer": "sgd",  # the first version gave every method the same
        "train.lr": 0.1,
        "train.weight_decay": 1e-4,
        "train.precision": "float32",
    }
    if method == "practical":
        values["method.random_features"] = 0  # it had none
    return recipe("glyphs-1k", [f"{key}={json.dumps(value)}" for key, value in (values | more).items()])


IMAGES = {
    "stream.first": 4,
    "stream.step": 2,
    "images.side": 16,
    "images.network": "resnet10",
    "images.width": 4,
    "train.min_steps": 6,
}


def run(chosen: Any, out: Path, *progress: Any, **options: Any) -> dict[str, Any]:
    from mtn.experiments.run import run as start

    return start(chosen, out, *progress, **options)


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same configuration have in common."""
    return {key: value for key, value in result.items() if key not in (*TIMES, "config", "data")}


def results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    vectors, images = folder / "vectors.npz", folder / "images"
    np.savez(vectors, **arrays())
    write_images(images)
    for method in METHODS:
        yield f"vectors/{method}", plain(run(config(vectors, method), folder / "runs" / method))
    for name, more in MEMORIES.items():
        yield f"vectors/mtn/{name}", plain(run(config(vectors, "mtn", **more), folder / "runs" / f"mtn-{name}"))
    for method in LEARNED:
        yield f"images/{method}", plain(run(config(images, method, **IMAGES), folder / "runs" / f"images-{method}"))


def taught(method: str, settings: dict[str, Any] | None = None, **parameters: Any) -> MTNClassifier:
    """Eight classes, then four more with more of the first, then one is forgotten, exemplars change."""
    data = arrays()
    x, y = data["x_train"], np.array([f"class {label}" for label in data["y_train"]])
    first = data["y_train"] < 8
    again = ~first | (data["y_train"] == 0)
    known = {} if method in ("ncm", "slda", "ridge", "ranpac", "knn") else SETTINGS
    known = known | (PAPER if method == "mtn" else {})
    model = MTNClassifier(method, memory=48, k=5, settings={**known, **(settings or {})}, **parameters)
    model.fit(x[first], y[first], ids=[f"a{row}" for row in range(first.sum())])
    model.partial_fit(x[again], y[again], ids=[f"b{row}" for row in range(again.sum())])
    model.forget("class 3")
    if model.memory_:
        model.remove_exemplar(model.memory_[0].id)
        model.relabel_exemplar(model.memory_[1].id, "class 5")
    return model


def answers(model: MTNClassifier, x: Any) -> dict[str, Any]:
    near = [
        [[one.id, one.label, one.before, one.after, one.attention] for one in answer.neighbours]
        for answer in model.explain(x)
    ]
    return {
        "classes": model.classes_.tolist(),
        "probability": model.predict_proba(x).tolist(),
        "novelty": model.novelty(x).tolist(),
        "neighbours": near[:6],
        "memory": [[one.id, one.label] for one in model.memory_],
        "history": [{key: entry[key] for key in entry if key not in ESTIMATES} for entry in model.history_],
        "temperature": model.temperature_,
        "threshold": model.threshold_,
    }


def classifiers(recorded: dict[str, Any] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The answers of classifiers; probabilities with the temperature that was `recorded`, if any was."""
    x = arrays()["x_test"][::6]
    makers = {f"classifier/{method}": (method, {}) for method in METHODS}
    makers |= {f"classifier/mtn/{name}": ("mtn", more) for name, more in MEMORIES.items() if name != "per-class"}
    for name, (method, more) in makers.items():
        model = taught(method, more)
        if name in (recorded or {}):
            model._state = replace(model.state_, temperature=recorded[name]["temperature"])
        yield name, answers(model, x)


# ---- what is kept on disk


def make_models(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Models of every kind, saved, and what they answered before they were."""
    x = arrays()["x_test"][::6]
    makers: dict[str, Callable[[], MTNClassifier]] = {
        "practical": lambda: taught("practical"),
        "mtn": lambda: taught("mtn", {"method.labels": True}),
        "joint": lambda: taught("joint"),
        "knn-float16": lambda: taught("knn", {"memory.precision": "float16"}),
        "icarl-herding": lambda: taught("icarl", {"memory.select": "herding"}),
        "ranpac": lambda: taught("ranpac", {"method.units": 40}),
        "bic": lambda: taught("bic"),
    }
    for name, make in makers.items():
        model = make()
        model.save(folder / name)
        yield f"model/{name}", answers(model, x)
    images = folder.parent / "images"
    model = MTNClassifier("mtn", memory=24, k=5, settings=SETTINGS | PAPER, encoder="glyph").fit(images)
    model.save(folder / "images")
    yield "model/images", answers(model, images / "test" / "c1")
    text = MTNClassifier("mtn", memory=24, k=3, settings=SETTINGS | PAPER, encoder="hashing")
    text.fit([one for one, _ in SENTENCES], [label for _, label in SENTENCES]).save(folder / "text")
    yield "model/text", answers(text, ["the lamp please", "my money"])
    MTNClassifier(encoder="hashing").save(folder / "untaught")


def interrupt(chosen: Any, out: Path, training: int) -> None:
    """Stop in the middle of the training with this number."""
    number, before = -1, 1

    def say(what: str, done: int, of: int) -> None:
        nonlocal number, before
        if not what.endswith("training"):
            return
        number, before = number + (done <= before), done
        if number == training and done > of // 2:
            raise KeyboardInterrupt

    try:
        run(chosen, out, say, save_every=0.0)
    except KeyboardInterrupt:
        return
    raise AssertionError(f"{out} was not interrupted")


def extract(images: Path, out: Path) -> None:
    from typer.testing import CliRunner

    from mtn.cli.main import app

    done = CliRunner().invoke(app, ["extract", str(images), "--encoder", "glyph", "--out", str(out)])
    assert done.exit_code == 0, done.output


def fingerprint() -> dict[str, str]:
    """Where numbers come out the same, bit for bit. Processors of one name differ by family and model."""
    try:
        pairs = (line.partition(":")[::2] for line in Path("/proc/cpuinfo").read_text().splitlines())
        about = {name.strip(): value.strip() for name, value in pairs}
        model = " ".join(about[key] for key in ("model name", "cpu family", "model") if key in about)
    except OSError:
        model = platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    return {"processor": f"{model} {capability}", "torch": torch.__version__, "numpy": np.__version__}


# ---- the two commands


def record(folder: Path) -> None:
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = dict([*results(Path(scratch)), *classifiers()])
    vectors = folder / "vectors.npz"
    np.savez_compressed(vectors, **arrays())
    write_images(folder / "images")
    found |= dict(make_models(folder / "models"))
    here = Path.cwd()
    os.chdir(folder)  # so that the runs name their data by relative paths
    try:
        for method, training in INTERRUPTED.items():
            interrupt(config(Path("vectors.npz"), method), Path("runs") / method, training)
        extract(Path("images"), Path("store"))
        extract(Path("images"), Path("begun"))
        for file in Path("begun").iterdir():
            if file.name != "plan.json":
                file.unlink()
    finally:
        os.chdir(here)
    write(folder / "recorded.json", {"fingerprint": fingerprint(), "found": found})


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n", "utf-8")


def read(folder: Path) -> dict[str, Any]:
    """What was recorded. An interrupted run ends as one that was not, unless `renewed.json` says otherwise."""
    recorded: dict[str, Any] = json.loads((folder / "recorded.json").read_text("utf-8"))
    found = recorded["found"]
    found |= {f"resumed/{method}": found[f"vectors/{method}"] for method in INTERRUPTED}
    if (folder / "renewed.json").exists():
        renewed = json.loads((folder / "renewed.json").read_text("utf-8"))
        same = renewed["fingerprint"] == fingerprint()
        found |= {name: one if same else NOT_RECORDED for name, one in renewed["found"].items()}
    return recorded


def renew(folder: Path, method: str) -> None:
    """Record what this version finds for a method whose numbers are meant to change; saved models stay as they are.

    What was renewed on another machine is left out, as this one cannot tell whether it is still so.
    """
    path, vectors = folder / "renewed.json", folder / "vectors.npz"
    renewed = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found = renewed["found"] if renewed.get("fingerprint") == fingerprint() else {}
    with tempfile.TemporaryDirectory() as scratch:
        found[f"vectors/{method}"] = plain(run(config(vectors, method), Path(scratch) / "run"))
        if method in INTERRUPTED:
            found |= {name: one for name, one in resume(folder, Path(scratch)) if name == f"resumed/{method}"}
    found[f"classifier/{method}"] = answers(taught(method), arrays()["x_test"][::6])
    write(path, {"fingerprint": fingerprint(), "found": found})


def open_models(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The answers of the saved models, loaded."""
    x, images = arrays()["x_test"][::6], folder / "images" / "test" / "c1"
    asked: dict[str, Any] = {"images": images, "text": ["the lamp please", "my money"]}
    for path in sorted((folder / "models").iterdir()):
        if path.name != "untaught":
            yield f"model/{path.name}", answers(MTNClassifier.load(path), asked.get(path.name, x))


def resume(folder: Path, scratch: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The interrupted runs and the begun store, gone on with in a copy."""
    shutil.copytree(folder, scratch, dirs_exist_ok=True)
    here = Path.cwd()
    os.chdir(scratch)
    try:
        for method in INTERRUPTED:
            done = run(config(Path("vectors.npz"), method), Path("runs") / method)
            yield f"resumed/{method}", plain(done)
        extract(Path("images"), Path("begun"))
        for file in sorted(Path("store").iterdir()):
            same = file.read_bytes() == (Path("begun") / file.name).read_bytes()
            yield f"store/{file.name}", {"same": same}
    finally:
        os.chdir(here)


def normal(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value))


def differences(recorded: dict[str, Any], found: dict[str, Any]) -> list[str]:
    lines = []
    for name, now in found.items():
        then = recorded.get(name, {"same": True})
        if then == NOT_RECORDED:
            continue
        changed = CALIBRATION if name.startswith("classifier/") else ()
        for key in sorted((then.keys() | now.keys()).difference(changed)):
            if normal(now.get(key)) != then.get(key):
                lines.append(f"{name}: {key} was {str(then.get(key))[:160]}, is {str(now.get(key))[:160]}")
    return lines


def compare(folder: Path) -> list[str]:
    """A line for each difference between what was recorded and what this version finds."""
    recorded = read(folder)
    if recorded["fingerprint"] != fingerprint():
        return [f"recorded on {recorded['fingerprint']}, this is {fingerprint()}: record again on this machine"]
    with tempfile.TemporaryDirectory() as scratch:
        measured = dict([*results(Path(scratch)), *classifiers(recorded["found"]), *open_models(folder)])
    lines = differences(recorded["found"], measured)
    with tempfile.TemporaryDirectory() as scratch:
        lines += differences(recorded["found"], dict(resume(folder, Path(scratch))))
    return lines


if __name__ == "__main__":
    command, target = sys.argv[1], Path(sys.argv[2])
    if command == "record":
        record(target)
    elif command == "renew":
        renew(target, sys.argv[3])
    else:
        found = compare(target)
        print("\n".join(found) or "identical")  # noqa: T201
        sys.exit(bool(found))

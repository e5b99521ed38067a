"""A classifier <-> what `store` keeps of it: facts, weights, memory and a short card for people."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mtn import checkpoint, config, encoders, milvus, store
from mtn.errors import InputError
from mtn.learn import Learner
from mtn.machine import versions
from mtn.samples import Samples

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier

C = TypeVar("C", bound="MTNClassifier")

# ---- a classifier -> a folder


def save(it: "MTNClassifier", folder: Path) -> None:
    if not it.__sklearn_is_fitted__():  # nothing but what it will take
        bare = {"versions": versions(), "parameters": _parameters(it), "source": getattr(it, "source_", {})}
        return store.save(folder, bare, {}, "# A classifier that has been taught nothing yet\n")
    learner, here, home = it._learner, it._collection(), folder.resolve()
    if here is not None and it._folder not in (None, home):
        here = milvus.Collection(here.uri, milvus.fresh_name(), here.dimension)
        learner.memory = learner.memory.moved(here)
    before = _collection_in(home)
    facts = _facts(it) | ({} if here is None else {"memory": here.place()})
    store.save(folder, facts, {"weights": learner.method.state_dict(), "memory": _memory(it)}, _card(it))
    it._folder = home
    learner.memory.settle()
    if before is not None and (here is None or before.place() != here.place()):
        before.drop()


def _facts(it: "MTNClassifier") -> dict[str, Any]:
    return {
        "versions": versions(),
        "parameters": _parameters(it),
        "configuration": it._learner.config.model_dump(),
        "labels": {"kind": it._kind, "names": it._names},
        "features": {"count": it.n_features_in_, "names": list(getattr(it, "feature_names_in_", []))},
        "source": it.source_,
        "calls": it._stops,
        "arrived": it._arrived,
        "ids": [[number, own] for number, own in it._own_ids.items()],
        "temperature": it.temperature_,
        "threshold": it.threshold_,
        "usual": [[one if math.isfinite(one) else None for one in row] for row in it._usual.tolist()],
        "history": it.history_,
    }


def _memory(it: "MTNClassifier") -> dict[str, Tensor]:
    memory = it._learner.memory.state() | _pack(it._thumbnails)
    if it._learner.past:
        past = Samples.join(it._learner.past)
        memory |= {"past.x": torch.from_numpy(past.source[past.rows]), "past.y": past.y, "past.id": past.id}
    return memory


def _parameters(it: "MTNClassifier") -> dict[str, Any]:
    parameters = it.get_params(deep=False)
    if not isinstance(it.random_state, int | None) and it.__sklearn_is_fitted__():
        parameters["random_state"] = it._learner.config.seed
    if not isinstance(it.encoder, str | None):  # a function is given again when the model is loaded
        parameters["encoder"] = None
    try:
        plain: dict[str, Any] = json.loads(json.dumps(parameters))
    except TypeError as error:
        raise InputError(f"parameters must be plain values to be saved: {error}") from None
    return plain


def _card(it: "MTNClassifier") -> str:
    counts = torch.bincount(it._learner.memory.y, minlength=len(it._names))
    rows = "".join(f"| {it._names[place]} | {int(counts[place])} |\n" for place in it._columns().tolist())
    return f"""# A classifier of {len(it._live())} classes

Method `{it.method}`, feature vectors of {it.n_features_in_} numbers, {len(it._learner.memory)} exemplars
remembered; learned in {len(it._stops)} calls from {it._arrived} samples. Written by mtn {versions()["mtn"]}.

```python
from mtn import MTNClassifier

classifier = MTNClassifier.load("this folder")
classifier.predict(X)
```

| class | exemplars |
|---|---:|
{rows}"""


def _collection_in(folder: Path) -> milvus.Collection | None:
    """The one that the model saved in a folder has."""
    if not (folder / "model.json").exists():
        return None
    place = checkpoint.read_json(folder / "model.json").get("memory")
    return None if place is None else milvus.Collection(place["uri"], place["name"], 0)


def _pack(images: dict[int, np.ndarray]) -> dict[str, Tensor]:
    """Images of any sizes as one row of bytes, with their ids and shapes."""
    if not images:
        return {}
    shapes = [(number, *(*image.shape, 0)[:3]) for number, image in images.items()]
    flat = np.concatenate([image.ravel() for image in images.values()])
    return {"thumbnails.pixels": torch.from_numpy(flat), "thumbnails.shapes": torch.tensor(shapes)}


# ---- a folder -> a classifier


def load(of: type[C], folder: Path) -> C:
    facts, parts = store.load(folder)
    try:
        it = of(**facts["parameters"])
        it.source_, it._folder = _source(facts.get("source", {})), folder.resolve()
        if "labels" in facts:
            _restore(it, facts, parts)
        return it
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise InputError(f"{folder / 'model.json'} is damaged: {type(error).__name__} {error}") from None


def _restore(it: "MTNClassifier", facts: dict[str, Any], parts: dict[str, dict[str, Tensor]]) -> None:
    memory = parts["memory"]
    it.n_features_in_ = facts["features"]["count"]
    if facts["features"]["names"]:
        it.feature_names_in_ = np.array(facts["features"]["names"], dtype=object)
    it._learner = _learner(facts)
    checkpoint.restore(it._learner.method, _weights(facts, parts["weights"]))
    it._learner.memory.load_state(memory)
    if "past.x" in memory:
        x = memory["past.x"].numpy()
        it._learner.past = [Samples(x, np.arange(len(x)), memory["past.y"], memory["past.id"])]
    it._kind, it._names = facts["labels"]["kind"], facts["labels"]["names"]
    it._learner.method.forgotten = {place for place, name in enumerate(it._names) if name is None}
    it._stops, it._arrived, it.history_ = facts["calls"], facts["arrived"], facts["history"]
    it._own_ids, it._thumbnails = dict(facts["ids"]), _unpack(memory)
    it.temperature_, it.threshold_ = facts["temperature"], facts["threshold"]
    usual = [[math.inf if one is None else one for one in row] for row in facts["usual"]]
    it._usual = torch.tensor(usual, dtype=torch.float64)


def _learner(facts: dict[str, Any]) -> Learner:
    chosen = config.parse(facts["configuration"], "model.json")
    module, colon, _ = chosen.method.name.partition(":")
    if colon and module not in sys.modules:  # nothing is run because a file says so
        raise InputError(f"the model has a method of its own, {chosen.method.name!r}: import {module} first")
    place, width = facts.get("memory"), facts["features"]["count"]
    there = None if place is None else milvus.Collection(place["uri"], place["name"], width)
    with torch.random.fork_rng(devices=[]):
        return Learner(chosen, width, collection=there)


def _weights(facts: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Up to format 1 the network of `practical` saw the adapted query alone: rows of zeros score nothing, as then."""
    if facts["format"] > 1 or facts["configuration"]["method"]["name"] != "practical":
        return weights
    rest = dict(weights)
    nothing = torch.zeros_like(rest["prototypes"])
    added = {"raw": nothing, "log_scale": torch.tensor(0.0), "taught": rest.pop("taught")}
    return rest | checkpoint.put(added, "network.")


def _source(recorded: dict[str, Any]) -> dict[str, Any]:
    """Models of earlier versions have no more than the name of the one encoder there was."""
    if recorded.get("encoder") == "glyph":
        return {"encoder": encoders.load("glyph").identity(), "kind": "image"}
    return {**recorded}


def _unpack(tensors: dict[str, Tensor]) -> dict[int, np.ndarray]:
    if "thumbnails.pixels" not in tensors:
        return {}
    images, flat, shapes = {}, tensors["thumbnails.pixels"].numpy(), tensors["thumbnails.shapes"]
    sizes = shapes[:, 1] * shapes[:, 2] * shapes[:, 3].clamp(min=1)
    starts = (sizes.cumsum(0) - sizes).tolist()
    for (number, *shape), start, size in zip(shapes.tolist(), starts, sizes.tolist(), strict=True):
        images[number] = flat[start : start + size].reshape(shape if shape[2] else shape[:2])
    return images

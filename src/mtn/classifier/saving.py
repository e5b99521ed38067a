"""A classifier's state <-> facts and tensors of a model folder."""

import copy
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mtn import encoders, recipes
from mtn.classifier import schema, tensor_checks
from mtn.classifier.card import model_card
from mtn.classifier.queries import SCORE_MULTIPLE
from mtn.classifier.state import ESTIMATES, ClassifierState
from mtn.errors import InputError, UnavailableError
from mtn.methods.discriminant import no_sums
from mtn.neighbours import Neighbours
from mtn.runtime.capacity import check_fits
from mtn.runtime.device import versions
from mtn.samples import Samples
from mtn.search import Location, drop_collection, make_store, new_location, permitted_uri
from mtn.storage.model_folder import read_index, save_model_folder
from mtn.storage.recorded import Recorded
from mtn.storage.tensors import add_prefix
from mtn.training import Learner

MOST_REHEARSED = 2**12
"""Neighbours of the query that a loaded method has to score; with more of them it need not."""

# ---- a state -> a folder


def save_untaught(folder: Path, parameters: Mapping[str, Any], source: Mapping[str, Any]) -> None:
    """Write a classifier that has learned nothing: its parameters, and what it will take."""
    facts = {"versions": versions(), "parameters": plain_parameters(parameters), "source": source}
    save_model_folder(folder, facts, {}, "# A classifier that has been taught nothing yet\n")


def save_state(
    state: ClassifierState, folder: Path, parameters: Mapping[str, Any], milvus: str | None
) -> tuple[ClassifierState, Location | None]:
    """Write a state; returns it as it is now, and the collection that the folder's model had in Milvus before.

    A collection belongs to one folder: saved to another one, the exemplars are copied into a new collection. `milvus`
    is a URI that the user named, beside that in the settings.
    """
    state.memory.verify()  # now, and not when the new state is on disk
    state = state if parameters["keep_text"] else replace(state, texts={})
    location, home = state.memory.location, folder.resolve()
    if location is not None and state.folder not in (None, home):
        store = make_store(state.learner.config.memory, (state.feature_count,), new_location(location.uri))
        state, location = state.with_memory(state.memory.moved(store)), store.location
    replaced = _location_in(home, _named_uris(state, parameters, milvus))
    facts = _facts(state, parameters)
    tensors = {"weights": state.learner.method.state_dict(), "memory": _memory_tensors(state)}
    save_model_folder(folder, facts, tensors, model_card(state))
    return replace(state, folder=home), replaced


def release_unsaved(state: ClassifierState, replaced: Location | None = None) -> ClassifierState:
    """Once a state is on disk: delete what it does not name from Milvus, and the collection it replaced."""
    if state.memory.location is not None:
        memory = copy.copy(state.memory)
        memory.commit()
        state = state.with_memory(memory)
    if replaced is not None and replaced.name != getattr(state.memory.location, "name", None):
        try:
            drop_collection(replaced)
        except UnavailableError:
            raise
        except InputError as error:  # the user did not name it
            warnings.warn(f"{replaced} is not used any longer, and stays: {error}", stacklevel=3)
    return state


def plain_parameters(parameters: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
    """Parameters as JSON gives them back; `seed` stands for a random_state that is a generator."""
    plain = dict(parameters)
    if not isinstance(plain["random_state"], int | None) and seed is not None:
        plain["random_state"] = seed
    if not isinstance(plain["encoder"], str | None):  # a function is given again when the model is loaded
        plain["encoder"] = None
    try:
        read_back: dict[str, Any] = json.loads(json.dumps(plain))
    except TypeError as error:
        raise InputError(f"parameters must be plain values to be saved: {error}") from None
    return read_back


def _facts(state: ClassifierState, parameters: Mapping[str, Any]) -> dict[str, Any]:
    parameters = plain_parameters(parameters, state.learner.config.seed)
    return {"versions": versions(), "parameters": parameters, **describe_state(state)}


def describe_state(state: ClassifierState) -> dict[str, Any]:
    """What model.json says of a state, as plain values."""
    feature_names = [] if state.feature_names is None else list(state.feature_names)
    location, weights = state.memory.location, dict(state.learner.method.named_buffers()).get("weights")
    names = ("prototypes", "network", "discriminant")
    parts = {} if weights is None else dict(zip(names, weights.tolist(), strict=False))
    exemplars = torch.bincount(state.memory.y, minlength=len(state.names)).tolist()
    return {
        "configuration": state.learner.config.model_dump(),
        "labels": {"kind": state.label_kind, "names": state.names},
        "features": {"count": state.feature_count, "names": feature_names},
        "source": state.source,
        "calls": state.stops,
        "arrived": state.arrived,
        "ids": [[number, id] for number, id in state.own_ids.items()],
        "temperature": state.temperature,
        "threshold": state.threshold,
        "usual": [[value if math.isfinite(value) else None for value in row] for row in state.usual.tolist()],
        "class_distance": None if state.class_distance is None else state.class_distance.tolist(),
        "history": state.history,
        "summary": {"exemplars": exemplars, "kept": state.learner.kept(), "weights": parts},
        **({} if location is None else {"memory": location._asdict()}),
    }


def _memory_tensors(state: ClassifierState) -> dict[str, Tensor]:
    """Exemplars, thumbnails, texts, and all samples so far of a method that keeps them."""
    tensors = state.memory.state() | _pack(state.thumbnails) | _pack_texts(state.texts)
    if state.learner.past:
        past = Samples.join(state.learner.past)
        tensors |= {"past.x": torch.from_numpy(past.source[past.rows]), "past.y": past.y, "past.id": past.id}
    return tensors


def _named_uris(state: ClassifierState, parameters: Mapping[str, Any], milvus: str | None) -> list[str]:
    """The URIs of Milvus that the user named."""
    uris = [milvus, (parameters["settings"] or {}).get("memory.uri"), getattr(state.memory.location, "uri", None)]
    return [uri for uri in uris if uri is not None and not isinstance(uri, Recorded)]


def _location_in(folder: Path, uris: Sequence[str]) -> Location | None:
    """The collection that the model saved in a folder has in Milvus."""
    if not (folder / "model.json").exists():
        return None
    recorded = read_index(folder).get("memory")
    return None if recorded is None else Location(permitted_uri(recorded["uri"], folder, uris), recorded["name"])


def _pack(images: Mapping[int, np.ndarray]) -> dict[str, Tensor]:
    """Images of any sizes as one row of bytes, with their numbers and shapes."""
    if not images:
        return {}
    shapes = [(number, *(*image.shape, 0)[:3]) for number, image in images.items()]
    flat = np.concatenate([image.ravel() for image in images.values()])
    return {"thumbnails.pixels": torch.from_numpy(flat), "thumbnails.shapes": torch.tensor(shapes)}


def _pack_texts(texts: Mapping[int, str]) -> dict[str, Tensor]:
    """Texts in UTF-8 as one row of bytes, with their numbers and sizes."""
    if not texts:
        return {}
    encoded = [text.encode() for text in texts.values()]
    sizes = torch.tensor([(number, len(content)) for number, content in zip(texts, encoded, strict=True)])
    return {"texts.bytes": torch.frombuffer(bytearray(b"".join(encoded)), dtype=torch.uint8), "texts.sizes": sizes}


# ---- a folder -> a state


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Whatever goes wrong in using what a file says is one line that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a stranger's file may break anything
        kind = "" if isinstance(error, schema.Damage) else f"{type(error).__name__} "
        raise InputError(f"{path} is damaged: {kind}{' '.join(str(error).split())[:300]}") from None


def restore_parameters(facts: Mapping[str, Any], folder: Path, milvus: str | None) -> dict[str, Any]:
    """The classifier's parameters, with all text as `Recorded` but for the URI that the user names.

    Whether to compile is up to the user, too.
    """
    parameters = {name: _recorded(value) for name, value in facts["parameters"].items()}
    if parameters.get("settings"):
        recorded = parameters["settings"].items()
        settings = {key: _recorded(value) for key, value in recorded if key != "train.compile"}
        if "memory.uri" in settings:
            settings["memory.uri"] = milvus or permitted_uri(settings["memory.uri"], folder)
        parameters["settings"] = settings or None
    return parameters


def _recorded(value: Any) -> Any:
    return Recorded(value) if isinstance(value, str) else value


def restore_source(facts: Mapping[str, Any]) -> dict[str, Any]:
    """How the model's vectors were made. Early versions wrote no more than the name of the one encoder there was."""
    recorded = facts.get("source", {})
    if recorded.get("encoder") == "glyph":
        return {"encoder": encoders.load_encoder("glyph").identity(), "kind": "image"}
    return {**recorded}


def restore_state(
    facts: Mapping[str, Any], parts: Mapping[str, dict[str, Tensor]], folder: Path, milvus: str | None
) -> ClassifierState | None:
    """The state that `save_state` wrote; None for a classifier that had learned nothing. Connects to nothing."""
    if "labels" not in facts:
        return None
    paths = {part: folder / entry["name"] for part, entry in facts["files"].items()}
    with damage_reported(paths["memory"]):
        tensor_checks.check_memory(facts, parts["memory"])
        thumbnails, texts = _unpack(parts["memory"]), _unpack_texts(parts["memory"])
    learner = _new_learner(facts, folder / "model.json", _restore_location(facts, folder, milvus))
    with damage_reported(paths["weights"]):
        _restore_weights(learner, _current_weights(facts, parts["weights"]), len(facts["labels"]["names"]))
    with damage_reported(paths["memory"]):
        _restore_memory(learner, parts["memory"])
    names = facts["features"]["names"]
    distance = facts.get("class_distance")
    usual = [[math.inf if value is None else value for value in row] for row in facts["usual"]]
    return ClassifierState(
        learner=learner,
        label_kind=facts["labels"]["kind"],
        feature_count=facts["features"]["count"],
        feature_names=np.array(names, dtype=object) if names else None,
        source=restore_source(facts),
        names=tuple(facts["labels"]["names"]),
        stops=tuple(facts["calls"]),
        arrived=facts["arrived"],
        own_ids=dict(facts["ids"]),
        thumbnails=thumbnails,
        texts=texts,
        history=tuple(dict.fromkeys(ESTIMATES) | entry for entry in facts["history"]),
        temperature=facts["temperature"],
        threshold=facts["threshold"],
        usual=torch.tensor(usual, dtype=torch.float64),
        class_distance=None if distance is None else torch.tensor(distance, dtype=torch.float64),
        folder=folder.resolve(),
    )


def _restore_location(facts: Mapping[str, Any], folder: Path, milvus: str | None) -> Location | None:
    """The collection that has the exemplars; at `milvus`, if the user says where it is."""
    recorded = facts.get("memory")
    if recorded is None:
        return None
    return Location(milvus or permitted_uri(recorded["uri"], folder), recorded["name"])


def _restore_memory(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    learner.memory.load_state(tensors)
    if "past.x" in tensors:
        x = tensors["past.x"].numpy()
        learner.past = [Samples(x, np.arange(len(x)), tensors["past.y"], tensors["past.id"])]


@torch.no_grad()
def _restore_weights(learner: Learner, tensors: dict[str, Tensor], classes: int) -> None:
    """Put weights into the method, which then has to score a query: tensors may not fit to each other."""
    method = learner.method
    tensor_checks.check_weights(method, tensors, classes)
    learner.restore(tensors)
    width, k, device = method.dimension, learner.config.method.k, method.seen.device
    if bool(method.forgotten.all()) or k > MOST_REHEARSED:
        return
    x, y = torch.ones(1, k, width, device=device) / width**0.5, torch.zeros(1, k, dtype=torch.long, device=device)
    neighbours = Neighbours(x, y, torch.ones(1, k, device=device), torch.ones_like(y, dtype=torch.bool), full=True)
    scores = method.scores(x[:, 0], neighbours if method.needs.neighbours else None)
    if scores.shape != (1, classes):
        raise schema.Damage(f"it scores {list(scores.shape[1:])} classes, not {classes}")


def _new_learner(facts: Mapping[str, Any], path: Path, location: Location | None) -> Learner:
    """As it was made, before its weights and exemplars are put in."""
    sections = dict(facts["configuration"])
    # where the exemplars are, the folder says elsewhere; whether to compile is up to the user
    for section, keys in (("memory", ("store", "uri")), ("train", ("compile",)), ("images", ("side", "weights"))):
        sections[section] = {key: value for key, value in sections.get(section, {}).items() if key not in keys}
    if facts["format"] <= 6 and sections["method"]["name"] == "practical":
        sections["method"] = {**sections["method"], "random_features": 0}
    config = recipes.parse(sections, str(path), import_methods=False)
    width = facts["features"]["count"]
    check_fits(config, width, len(facts["labels"]["names"]), SCORE_MULTIPLE, budget=False)
    with torch.random.fork_rng(devices=[]):
        return Learner(config, width, store=make_store(config.memory, (width,), location))


def _current_weights(facts: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The method's state as this version has it, from that of any earlier format.

    Up to format 2 the names alone told which classes were forgotten. Up to format 1 the network of `practical` saw the
    adapted query alone: rows of zeros add nothing to scores. Up to format 4 it had no discriminant: it has no weight.
    Up to format 5 it doubted no label. Up to format 6 it had no random features.
    """
    state = dict(weights)
    if facts["configuration"]["method"]["name"] == "practical":
        if facts["format"] <= 1:
            nothing = torch.zeros_like(state["prototypes"])
            added = {"raw": nothing, "log_scale": torch.tensor(0.0), "taught": state.pop("taught")}
            state |= add_prefix(added, "network.")
        if facts["format"] <= 4:
            state["weights"] = F.pad(state["weights"], (0, 1))
        if facts["format"] <= 5:
            state["moments.doubt"] = torch.zeros(2)
        if facts["format"] <= 6:
            state["weights"] = F.pad(state["weights"], (0, 1))
            state |= add_prefix(no_sums(len(state["moments.count"])), "fourier.")
    if facts["format"] <= 2:
        forgotten = torch.tensor([name is None for name in facts["labels"]["names"]], dtype=torch.bool)
        owners = [name.removesuffix("seen") for name in state if name.rpartition(".")[2] == "seen"]
        state |= {f"{owner}forgotten": forgotten.clone() for owner in owners}
    return state


def _unpack(tensors: Mapping[str, Tensor]) -> dict[int, np.ndarray]:
    """What `_pack` made."""
    if "thumbnails.pixels" not in tensors:
        return {}
    images, flat, shapes = {}, tensors["thumbnails.pixels"].numpy(), tensors["thumbnails.shapes"]
    sizes = shapes[:, 1] * shapes[:, 2] * shapes[:, 3].clamp(min=1)
    starts = (sizes.cumsum(0) - sizes).tolist()
    for (number, *shape), start, size in zip(shapes.tolist(), starts, sizes.tolist(), strict=True):
        images[number] = flat[start : start + size].reshape(shape if shape[2] else shape[:2])
    return images


def _unpack_texts(tensors: Mapping[str, Tensor]) -> dict[int, str]:
    """What `_pack_texts` made."""
    if "texts.bytes" not in tensors:
        return {}
    content, texts, start = tensors["texts.bytes"].numpy().tobytes(), {}, 0
    for number, size in tensors["texts.sizes"].tolist():
        texts[number] = content[start : start + size].decode()
        start += size
    return texts

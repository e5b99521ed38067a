"""Classifiers and runs with their memory in Milvus, and what a collection holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mtn import MTNClassifier
from mtn.config import Config
from mtn.memory import Memory
from mtn.recipes import with_changes
from mtn.search import Location, MilvusStore
from mtn.search.collection import Collection
from mtn.storage import files
from mtn.storage.tensors import load_tensors
from runs import without_timings
from service import QUICK


def stored_ids(collection: Collection) -> list[int]:
    """Ids in a collection, each as often as it is there."""
    client, name = collection._connect(), collection.location.name
    client.load_collection(name)
    rows = client.query_iterator(name, batch_size=1000, filter="id >= 0", output_fields=["id"])
    found = sorted(entry["id"] for batch in iter(rows.next, []) for entry in batch)
    assert client.query(name, filter="id >= 0", output_fields=["count(*)"])[0]["count(*)"] == len(found)
    return found


def settings(uri: str, **others: Any) -> dict[str, Any]:
    return QUICK | {"memory.store": "milvus", "memory.uri": uri} | others


def classifier(uri: str | None, memory: int = 60) -> MTNClassifier:
    return MTNClassifier("mtn", memory=memory, k=5, settings=QUICK if uri is None else settings(uri))


def collection_in(memory: Memory) -> Collection:
    assert isinstance(memory.store, MilvusStore)
    return memory.store.collection


def collection_of(one: MTNClassifier) -> Collection:
    return collection_in(one.state_.memory)


def whole(one: MTNClassifier) -> bool:
    """The collection has what the model remembers, once each, and nothing else."""
    return stored_ids(collection_of(one)) == sorted(one.state_.learner.memory.id.tolist())


def in_milvus(config: Config, uri: str) -> Config:
    return with_changes(config, memory={"store": "milvus", "uri": uri})


def run_collection(config: Config, folder: Path) -> Collection:
    assert config.memory.uri is not None
    return Collection(Location(config.memory.uri, (folder / "collection").read_text()), 16)


def assert_as_exact(folder: Path, config: Config, exact: Path, result: dict[str, Any]) -> None:
    """Accuracies, exemplars and weights of a run are those of the run in the other folder."""
    assert without_timings(result) == without_timings(files.read_json(exact / "result.json"))
    ours, theirs = (load_tensors(one / "state.safetensors")[0] for one in (folder, exact))
    for name in theirs:
        if name != "memory.x":
            assert torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-5), name
    assert torch.equal(ours["memory.id"], theirs["memory.id"])
    collection = run_collection(config, folder)  # a connection of its own
    assert stored_ids(collection) == sorted(theirs["memory.id"].tolist())
    assert torch.equal(collection.vectors(theirs["memory.id"]), theirs["memory.x"])


def cut_off(monkeypatch: pytest.MonkeyPatch, before: int, after: int | None = None) -> None:
    """Interrupt before the call of that number reaches Milvus, and after another has."""
    ask, calls = Collection._call, 0

    def cut(self: Collection, what: Callable[[Any], Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == before:
            raise KeyboardInterrupt
        done = ask(self, what)
        if calls == after:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Collection, "_call", cut)

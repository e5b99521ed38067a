"""A memory in Milvus: the same neighbours and answers as with a memory in the process.

Milvus Lite runs with all tests; a real server process, of the package `milvus`, with `make slow`.
"""

import copy
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cluster_data import LABELS, TEST, TRAIN
from milvus_memory import (
    classifier,
    collection_in,
    collection_of,
    cut_off,
    in_milvus,
    stored_ids,
    whole,
)
from milvus_process import MilvusProcess
from mtn import MTNClassifier
from mtn.cli import main
from mtn.config import Budget, Config
from mtn.data import load_data
from mtn.data.glyphs import prepare
from mtn.errors import InputError, UnavailableError
from mtn.experiments.run import run
from mtn.memory import Memory
from mtn.neighbours import nearest_within
from mtn.recipes import parse, with_changes
from mtn.samples import Samples
from mtn.search import MilvusStore, new_location
from mtn.search import collection as milvus
from runs import without_timings
from service import Service

pytestmark = pytest.mark.usefixtures("milvus_permission")

for package in ("pymilvus", "milvus_lite"):
    pytest.importorskip(package, reason=f"{package} is not there: pip install '.[milvus]'")


CLINC = Path(__file__).parents[2] / "shared" / "data" / "clinc150_minilm.npz"


# ---- the same neighbours


def data(name: str) -> tuple[Samples, Samples, int]:
    """Exemplars in two tasks, queries, and exemplars of each class."""
    if name == "clinc150" and not CLINC.exists():
        pytest.skip(f"{CLINC} is not there")
    path = str(CLINC) if name == "clinc150" else name
    config = parse({"stream": {"data": path}, "memory": {"total": 1}}, "test")
    found = load_data(config)
    return found.train, found.test, 10 if name == "clinc150" else 2


def glyphs() -> str:
    """The large set if it has been made on this machine: that takes a minute."""
    cache = prepare(200).parent
    return "glyphs-1k" if any(cache.glob("glyphs-1000-*")) else "glyphs-200"


@pytest.mark.parametrize("which", ["clinc150", "glyphs"])
def test_the_neighbours_are_those_of_the_exact_search(which: str, milvus_uri: str) -> None:
    train, test, each = data(glyphs() if which == "glyphs" else which)
    classes = int(train.y.max()) + 1
    here = Memory(Budget(per_class=each), train.dimension)
    far = Memory(here.budget, store=MilvusStore.empty(new_location(milvus_uri), train.dimension))
    for part in (train.y < classes // 2, train.y >= classes // 2, train.y < classes // 4):  # the last displaces others
        for memory in (here, far):
            memory.add(train.select(part), torch.Generator().manual_seed(int(part.sum())))
    assert torch.equal(here.id, far.id)
    assert len(far.state()["hidden"])  # still there, and nobody's neighbours
    asked = (test, here.samples())
    queries = Samples.join([one.select(torch.arange(0, len(one), max(len(one) // 150, 1))) for one in asked])
    known = int((here.y < classes // 2).sum())
    both = [nearest_within(queries, one, 10, (len(here), known)) for one in (here, far)]
    for exact, found in zip(*both, strict=True):
        assert torch.allclose(exact.similarity, found.similarity, atol=1e-6)
        differ = exact.index != found.index  # only where two exemplars are as near as each other
        assert differ.float().mean() < 1e-3
        assert torch.equal(exact[slice(0, 50)].x[~differ[:50]], found[slice(0, 50)].x[~differ[:50]])
    held = torch.arange(len(here)) % 5 == 0
    exact, found = (nearest_within(queries, one.part(~held), 10, (int((~held).sum()),))[0] for one in (here, far))
    assert torch.allclose(exact.similarity, found.similarity, atol=1e-6)
    far.commit()
    assert stored_ids(collection_in(far)) == sorted(here.id.tolist())
    collection_in(far).drop()


def test_a_classifier_answers_as_with_its_memory_in_the_process(milvus_uri: str, tmp_path: Path) -> None:
    parts = [slice(0, 180), slice(180, 240), slice(240, 300)]
    one, other = classifier(None), classifier(milvus_uri)
    for part in parts:
        one.partial_fit(TRAIN[part], LABELS[part])
        other.partial_fit(TRAIN[part], LABELS[part])
    np.testing.assert_allclose(other.predict_proba(TEST), one.predict_proba(TEST), atol=1e-5)
    assert [exemplar.id for exemplar in other.memory_] == [exemplar.id for exemplar in one.memory_]
    other.save(tmp_path / "model")
    assert whole(other)
    again = MTNClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(TEST), other.predict_proba(TEST))
    assert "x" not in dict(again.state_.learner.memory.state())


@pytest.mark.parametrize("method", ["practical", "knn", "icarl", "bic", "gdumb"])
def test_every_kind_of_method_learns_alike(method: str, configure: Callable[..., Config], tmp_path: Path) -> None:
    """Held-out exemplars, votes, means of exemplars, two stages, training on the memory alone."""
    config = configure(method={"name": method})
    exact = run(config, tmp_path / "exact")
    assert without_timings(run(in_milvus(config, str(tmp_path / "m.db")), tmp_path / "far")) == without_timings(exact)


def test_more_vectors_than_the_cache_holds_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "CACHE_BYTES", 4 * 16 * 7)  # seven vectors
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    two = classifier(None).fit(TRAIN[:180], LABELS[:180])
    np.testing.assert_allclose(one.predict_proba(TEST), two.predict_proba(TEST), atol=1e-5)
    assert len(collection_of(one)._cache) <= 7


# ---- nothing lost, nothing doubled


def test_what_is_forgotten_is_gone_once_saved(milvus_uri: str, tmp_path: Path) -> None:
    one = classifier(milvus_uri).fit(TRAIN[:180], LABELS[:180])
    one.save(tmp_path / "model")
    gone = one.state_.learner.memory.id[one.state_.learner.memory.y == 0]
    one.forget("class 00").remove_exemplar(one.memory_[0].id)
    one.save(tmp_path / "model")
    assert whole(one) and not set(gone.tolist()) & set(stored_ids(collection_of(one)))
    one.relabel_exemplar(one.memory_[0].id, "class 03")
    one.partial_fit(TRAIN[:30], LABELS[:30])  # ... and taught again
    one.save(tmp_path / "model")
    assert whole(one)
    collection = collection_of(one)
    entries = collection._get(one.state_.learner.memory.id.tolist(), ["id", "label", "task"])
    labels = {entry["id"]: entry["label"] for entry in entries}
    assert [labels[number] for number in one.state_.learner.memory.id.tolist()] == one.state_.learner.memory.y.tolist()
    assert {entry["task"] for entry in entries} == {0, 1}
    collection.drop()


def test_no_two_folders_share_a_collection(tmp_path: Path) -> None:
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    one.save(tmp_path / "a")
    answers = one.predict_proba(TEST)
    one.save(tmp_path / "b")
    one.partial_fit(TRAIN[180:240], LABELS[180:240]).save(tmp_path / "b")
    first = MTNClassifier.load(tmp_path / "a")
    assert whole(one) and whole(first) and collection_of(one).location != collection_of(first).location
    assert np.array_equal(first.predict_proba(TEST), answers)
    old = collection_of(first)
    first.fit(TRAIN[:60], LABELS[:60]).save(tmp_path / "a")  # learned anew: in a new one, and the old one goes
    assert whole(first)
    with pytest.raises(InputError, match="does not exist"):
        there_is = old.count(1)
        raise AssertionError(there_is)
    assert collection_of(copy.deepcopy(first)).location == collection_of(first).location


# ---- moving


def test_moved_there_and_back_a_memory_is_the_same_bit_for_bit(milvus_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    classifier(None).fit(TRAIN[:180], LABELS[:180]).save(folder)
    before = MTNClassifier.load(folder)
    state = before.state_.learner.memory.state()
    said = CliRunner().invoke(main.app, ["memory", "move", str(folder), milvus_uri])
    assert said.exit_code == 0, said.output
    moved = MTNClassifier.load(folder)
    assert whole(moved) and moved.settings["memory.uri"] == milvus_uri
    np.testing.assert_allclose(moved.predict_proba(TEST), before.predict_proba(TEST), atol=1e-6)
    assert (moved.predict(TEST) == before.predict(TEST)).all()
    info = json.loads(CliRunner().invoke(main.app, ["info", str(folder), "--json"]).output)
    assert info["store"]["uri"] == milvus_uri and info["store"]["name"] in (folder / "model.json").read_text()
    assert f"in Milvus at {milvus_uri}" in CliRunner().invoke(main.app, ["info", str(folder)]).output
    old = collection_of(moved)
    said = CliRunner().invoke(main.app, ["memory", "move", str(folder), "exact"])
    assert said.exit_code == 0, said.output
    back = MTNClassifier.load(folder)
    for name, tensor in back.state_.learner.memory.state().items():
        assert torch.equal(tensor, state[name]), name
    assert back.settings == before.settings
    assert np.array_equal(back.predict_proba(TEST), before.predict_proba(TEST))
    with pytest.raises(InputError):
        old.count(1)
    back.partial_fit(TRAIN[180:240], LABELS[180:240])


@pytest.mark.parametrize("to", ["milvus", "exact"])
@pytest.mark.parametrize("call", range(1, 10, 2))
def test_a_move_cut_off_leaves_a_whole_model(
    call: int, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, folder = str(tmp_path / "m.db"), tmp_path / "model"
    classifier(uri if to == "exact" else None).fit(TRAIN[:90], LABELS[:90]).save(folder)
    before = MTNClassifier.load(folder).predict_proba(TEST)
    cut_off(monkeypatch, before=call)
    CliRunner().invoke(main.app, ["memory", "move", str(folder), uri if to == "milvus" else "exact"])
    monkeypatch.undo()
    np.testing.assert_allclose(MTNClassifier.load(folder).predict_proba(TEST), before, atol=1e-6)


# ---- a server that is not there


def test_a_dead_server_is_one_clear_error_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "PATIENCE", 1.0)
    with socket.socket() as one:  # bound, and nobody listens
        one.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{one.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(UnavailableError, match=uri) as error:
            classifier(uri).fit(TRAIN[:90], LABELS[:90])
        assert time.monotonic() - start < 10 and "\n" not in str(error.value)


def test_what_cannot_be_is_said(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory in ({"store": "milvus"}, {"uri": "a.db"}, {"store": "milvus", "uri": "a.txt"}):
        with pytest.raises(InputError, match=r"memory\.uri"):
            configure(memory=memory)
    with pytest.raises(InputError, match="exemplars are images"):
        in_milvus(with_changes(configure(), images={"side": 8}), "a.db")
    config = configure(method={"name": "knn"})
    assert in_milvus(config, "a.db").digest() == config.digest()  # the same run, wherever its vectors are
    assert with_changes(in_milvus(config, "a.db"), seed=3).memory.uri == "a.db"
    run(config, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=r"memory\.store must stay what it was, exact"):
        run(in_milvus(config, str(tmp_path / "a.db")), tmp_path / "run")
    one = classifier(str(tmp_path / "a.db")).fit(TRAIN[:90], LABELS[:90])
    one.save(tmp_path / "model")
    collection_of(one).delete(one.state_.learner.memory.id[:3])
    with pytest.raises(InputError, match="has 57 of this memory's 60 exemplars"):
        MTNClassifier.load(tmp_path / "model").predict(TEST)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(InputError, match=r"pip install '.*\[milvus\]'"):
        classifier(str(tmp_path / "b.db")).fit(TRAIN[:90], LABELS[:90])


@pytest.mark.slow
def test_the_service_teaches_and_forgets_with_its_memory_in_a_server(
    milvus_server: MilvusProcess, tmp_path: Path
) -> None:
    """The worker, a forked process, connects by itself; so does the server, which is asked meanwhile."""
    folder = tmp_path / "model"
    classifier(milvus_server.uri, memory=200).fit(TRAIN[:180], LABELS[:180]).save(folder)
    with Service(folder) as service:
        assert service.finish(service.learn(TRAIN[180:240], LABELS[180:240].tolist()).json()["job"])["state"] == "done"
        assert len(service.known()) == 8 and len(service.answers(TEST[:20])) == 20
        service.client.delete("/classes/class 00")
        service.until(lambda: "class 00" not in service.known())
    assert whole(MTNClassifier.load(folder))


@pytest.mark.slow
def test_a_forked_process_connects_by_itself(milvus_server: MilvusProcess) -> None:
    one = classifier(milvus_server.uri).fit(TRAIN[:90], LABELS[:90])
    here, there_ = one.predict(TEST[:3]).tolist(), os.pipe()
    if not (child := os.fork()):
        collection_of(one)._cache.clear()
        os.write(there_[1], json.dumps(one.predict(TEST[:3]).tolist()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(there_[0], 10_000)) == here

"""A memory in Milvus: the same neighbours, and nothing lost or doubled whatever stops when.

Milvus Lite runs with all tests; a real server process, of the package `milvus`, with `make slow`.
"""

import copy
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mtn import MTNClassifier, checkpoint, cli, datasets, learn, milvus
from mtn.config import Budget, Config, parse
from mtn.datasets.glyphs import prepare
from mtn.errors import InputError, Passing
from mtn.memory import Memory
from mtn.milvus import Collection, Remote
from mtn.neighbours import nearest_within
from mtn.run import run
from mtn.samples import Samples
from service import LABELS, QUICK, TEST, TRAIN, Service
from test_learn import steady

for package in ("pymilvus", "milvus_lite"):
    pytest.importorskip(package, reason=f"{package} is not there: pip install 'mtn[milvus]'")

CLINC = Path(__file__).parents[2] / "shared" / "data" / "clinc150_minilm.npz"

RUN = """
import sys, torch
from pathlib import Path
from mtn.config import Config
from mtn.run import run
torch.set_num_threads(1)
config = Config.model_validate_json(Path(sys.argv[1]).read_text())
far = config.replace(memory={"store": "milvus", "uri": sys.argv[3]})
run(far, Path(sys.argv[2]), lambda what, done, of: print(".", end="", flush=True), save_every=0.05)
"""


class Server:
    """The real one, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        from milvus import MilvusServer

        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self.process = MilvusServer()
        self.process.set_base_dir(str(folder))
        self.process.listen_port = port
        self.uri = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        self.process.start()
        self.process.config.resolve = lambda: None  # or it might be another port after a stop

    def stop(self) -> None:
        """As `stop` of the package, which gives up on a busy machine: a second to end, then it is killed."""
        running = self.process.server_proc
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(1)
        running.kill()
        running.wait()
        self.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("milvus", reason="milvus, the server, is not there: pip install milvus")
    one = Server(tmp_path_factory.mktemp("milvus"))
    with (Path(tempfile.gettempdir()) / "mtn-milvus.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # there is one pid file on a machine
        one.start()
        yield one
        one.stop()


@pytest.fixture(params=["lite", pytest.param("server", marks=pytest.mark.slow)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lite":
        return str(tmp_path / "memory.db")
    found: str = request.getfixturevalue("server").uri
    return found


def there(collection: Collection) -> list[int]:
    """Ids in a collection, each as often as it is there."""
    client = collection._connect()
    client.load_collection(collection.name)
    rows = client.query_iterator(collection.name, batch_size=1000, filter="id >= 0", output_fields=["id"])
    found = sorted(entry["id"] for batch in iter(rows.next, []) for entry in batch)
    assert client.query(collection.name, filter="id >= 0", output_fields=["count(*)"])[0]["count(*)"] == len(found)
    return found


def settings(uri: str, **others: Any) -> dict[str, Any]:
    return QUICK | {"memory.store": "milvus", "memory.uri": uri} | others


def classifier(uri: str | None, memory: int = 60) -> MTNClassifier:
    return MTNClassifier("mtn", memory=memory, k=5, settings=QUICK if uri is None else settings(uri))


def collection_of(one: MTNClassifier) -> Collection:
    found = one._collection()
    assert found is not None
    return found


def whole(one: MTNClassifier) -> bool:
    """The collection has what the model remembers, once each, and nothing else."""
    return there(collection_of(one)) == sorted(one._learner.memory.id.tolist())


def in_milvus(config: Config, uri: str) -> Config:
    return config.replace(memory={"store": "milvus", "uri": uri})


def run_collection(config: Config, folder: Path) -> Collection:
    found = milvus.collection(config.memory, 16, (folder / "collection").read_text())
    assert found is not None
    return found


def assert_as_exact(folder: Path, config: Config, exact: Path, result: dict[str, Any]) -> None:
    """Accuracies, exemplars and weights of a run are those of the run in the other folder."""
    assert steady(result) == steady(checkpoint.read_json(exact / "result.json"))
    ours, theirs = (checkpoint.load(one / "state.safetensors")[0] for one in (folder, exact))
    for name in theirs:
        if name != "memory.x":
            assert torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-5), name
    assert torch.equal(ours["memory.id"], theirs["memory.id"])
    collection = run_collection(config, folder)  # a connection of its own
    assert there(collection) == sorted(theirs["memory.id"].tolist())
    assert torch.equal(collection.vectors(theirs["memory.id"]), theirs["memory.x"])


# ---- the same neighbours


def data(name: str) -> tuple[Samples, Samples, int]:
    """Exemplars in two tasks, queries, and exemplars of each class."""
    if name == "clinc150" and not CLINC.exists():
        pytest.skip(f"{CLINC} is not there")
    path = str(CLINC) if name == "clinc150" else name
    config = parse({"stream": {"data": path}, "memory": {"total": 1}}, "test")
    found = datasets.of(config)
    return found.train, found.test, 10 if name == "clinc150" else 2


def glyphs() -> str:
    """The large set if it has been made on this machine: that takes a minute."""
    cache = prepare(200).parent
    return "glyphs-1k" if any(cache.glob("glyphs-1000-*")) else "glyphs-200"


@pytest.mark.parametrize("which", ["clinc150", "glyphs"])
def test_the_neighbours_are_those_of_the_exact_search(which: str, uri: str) -> None:
    train, test, each = data(glyphs() if which == "glyphs" else which)
    classes = int(train.y.max()) + 1
    here = Memory(Budget(per_class=each), train.dimension)
    far = Memory(here.budget, train.dimension, collection=Collection(uri, milvus.fresh_name(), train.dimension))
    for part in (train.y < classes // 2, train.y >= classes // 2, train.y < classes // 4):  # the last displaces others
        for memory in (here, far):
            memory.add(train.select(part), torch.Generator().manual_seed(int(part.sum())))
    assert torch.equal(here.id, far.id)
    assert isinstance(far.x, Remote) and len(far.x.hidden)  # still there, and nobody's neighbours
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
    collection = far.x.collection
    far.settle()
    assert there(collection) == sorted(here.id.tolist())
    collection.drop()


def test_a_classifier_answers_as_with_its_memory_in_the_process(uri: str, tmp_path: Path) -> None:
    parts = [slice(0, 180), slice(180, 240), slice(240, 300)]
    one, other = classifier(None), classifier(uri)
    for part in parts:
        one.partial_fit(TRAIN[part], LABELS[part])
        other.partial_fit(TRAIN[part], LABELS[part])
    np.testing.assert_allclose(other.predict_proba(TEST), one.predict_proba(TEST), atol=1e-5)
    assert [exemplar.id for exemplar in other.memory_] == [exemplar.id for exemplar in one.memory_]
    other.save(tmp_path / "model")
    assert whole(other)
    again = MTNClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(TEST), other.predict_proba(TEST))
    assert "x" not in dict(again._learner.memory.state())


@pytest.mark.parametrize("method", ["practical", "knn", "icarl", "bic", "gdumb"])
def test_every_kind_of_method_learns_alike(method: str, configure: Callable[..., Config], tmp_path: Path) -> None:
    """Held-out exemplars, votes, means of exemplars, two stages, training on the memory alone."""
    config = configure(method={"name": method})
    exact = run(config, tmp_path / "exact")
    assert steady(run(in_milvus(config, str(tmp_path / "m.db")), tmp_path / "far")) == steady(exact)


def test_more_vectors_than_the_cache_holds_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "CACHE", 4 * 16 * 7)  # seven vectors
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    two = classifier(None).fit(TRAIN[:180], LABELS[:180])
    np.testing.assert_allclose(one.predict_proba(TEST), two.predict_proba(TEST), atol=1e-5)
    assert len(collection_of(one)._cache) <= 7


# ---- nothing lost, nothing doubled


def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(
    configure: Callable[..., Config], uri: str, tmp_path: Path
) -> None:
    config = configure(train={"min_steps": 40})
    run(config, tmp_path / "exact")
    (tmp_path / "config.json").write_text(config.model_dump_json())
    out, chance = tmp_path / "killed", random.Random()
    command = [sys.executable, "-c", RUN, str(tmp_path / "config.json"), str(out), uri]
    for _ in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read(chance.randrange(1, 80))  # so many steps, of 160 in all
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = checkpoint.read_json(out / "result.json")
    assert_as_exact(out, in_milvus(config, uri), tmp_path / "exact", result)


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


@pytest.mark.parametrize("call", [1, 2, 3, 9, 14, 15, 16, 17, 18, 25])
def test_cut_off_at_any_call_a_task_is_repeated_without_loss(
    call: int, configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after the call that reaches Milvus."""
    config = configure(method={"name": "knn"})
    exact = run(config, tmp_path / "exact")
    far = in_milvus(config, str(tmp_path / "m.db"))
    cut_off(monkeypatch, before=call, after=call + 7)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(far, tmp_path / "far", save_every=0.0)
    result = run(far, tmp_path / "far", save_every=0.0)
    monkeypatch.undo()
    assert steady(result) == steady(exact)
    assert_as_exact(tmp_path / "far", far, tmp_path / "exact", result)


def test_a_lesson_that_fails_leaves_the_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, control = tmp_path / "model", classifier(None).fit(TRAIN[:180], LABELS[:180])
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    one.save(folder)
    before, ids = one.predict_proba(TEST), there(collection_of(one))

    def fail(*_: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(learn.Learner, "train", fail)
        with pytest.raises(RuntimeError):
            one.partial_fit(TRAIN[180:300], LABELS[180:300])
    assert len(there(collection_of(one))) > len(ids)  # of the attempt; nobody sees them
    assert np.array_equal(one.predict_proba(TEST), before)
    again = MTNClassifier.load(folder)
    assert np.array_equal(again.predict_proba(TEST), before)
    again.partial_fit(TRAIN[240:270], LABELS[240:270])  # under ids of the attempt
    again.save(folder)
    assert whole(again)
    control.partial_fit(TRAIN[240:270], LABELS[240:270])
    np.testing.assert_allclose(again.predict_proba(TEST), control.predict_proba(TEST), atol=1e-5)


def test_a_kill_between_saving_and_deleting_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, one = tmp_path / "model", classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    one.save(folder)
    one.partial_fit(TRAIN[180:240], LABELS[180:240])
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "settle", lambda self: None)
        one.save(folder)
    again = MTNClassifier.load(folder)
    assert not whole(again)
    assert np.array_equal(again.predict_proba(TEST), one.predict_proba(TEST))  # what is left behind is not asked
    again.save(folder)
    assert whole(again)


def test_a_run_killed_after_its_last_save_cleans_up(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = in_milvus(configure(method={"name": "knn"}), str(tmp_path / "m.db")), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "settle", lambda self: None)
        first = run(config, out)
    collection = run_collection(config, out)
    left = len(there(collection))
    (out / "result.json").unlink()
    assert steady(run(config, out)) == steady(first)
    assert len(there(collection)) == 60 < left


def test_what_is_forgotten_is_gone_once_saved(uri: str, tmp_path: Path) -> None:
    one = classifier(uri).fit(TRAIN[:180], LABELS[:180])
    one.save(tmp_path / "model")
    gone = one._learner.memory.id[one._learner.memory.y == 0]
    one.forget("class 00").remove_exemplar(one.memory_[0].id)
    one.save(tmp_path / "model")
    assert whole(one) and not set(gone.tolist()) & set(there(collection_of(one)))
    one.relabel_exemplar(one.memory_[0].id, "class 03")
    one.partial_fit(TRAIN[:30], LABELS[:30])  # ... and taught again
    one.save(tmp_path / "model")
    assert whole(one)
    collection = collection_of(one)
    entries = collection._get(one._learner.memory.id.tolist(), ["id", "label", "task"])
    labels = {entry["id"]: entry["label"] for entry in entries}
    assert [labels[number] for number in one._learner.memory.id.tolist()] == one._learner.memory.y.tolist()
    assert {entry["task"] for entry in entries} == {0, 1}
    collection.drop()


def test_no_two_folders_share_a_collection(tmp_path: Path) -> None:
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    one.save(tmp_path / "a")
    answers = one.predict_proba(TEST)
    one.save(tmp_path / "b")
    one.partial_fit(TRAIN[180:240], LABELS[180:240]).save(tmp_path / "b")
    first = MTNClassifier.load(tmp_path / "a")
    assert whole(one) and whole(first) and collection_of(one).name != collection_of(first).name
    assert np.array_equal(first.predict_proba(TEST), answers)
    old = collection_of(first)
    first.fit(TRAIN[:60], LABELS[:60]).save(tmp_path / "a")  # learned anew: in a new one, and the old one goes
    assert whole(first)
    with pytest.raises(InputError, match="does not exist"):
        there_is = old.count(1)
        raise AssertionError(there_is)
    assert collection_of(copy.deepcopy(first)).place() == collection_of(first).place()


# ---- moving


def test_moved_there_and_back_a_memory_is_the_same_bit_for_bit(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    classifier(None).fit(TRAIN[:180], LABELS[:180]).save(folder)
    before = MTNClassifier.load(folder)
    state = before._learner.memory.state()
    said = CliRunner().invoke(cli.app, ["memory", "move", str(folder), uri])
    assert said.exit_code == 0, said.output
    moved = MTNClassifier.load(folder)
    assert whole(moved) and moved.settings["memory.uri"] == uri
    np.testing.assert_allclose(moved.predict_proba(TEST), before.predict_proba(TEST), atol=1e-6)
    assert (moved.predict(TEST) == before.predict(TEST)).all()
    info = json.loads(CliRunner().invoke(cli.app, ["info", str(folder), "--json"]).output)
    assert info["store"]["uri"] == uri and info["store"]["name"] in (folder / "model.json").read_text()
    assert f"in Milvus at {uri}" in CliRunner().invoke(cli.app, ["info", str(folder)]).output
    old = collection_of(moved)
    said = CliRunner().invoke(cli.app, ["memory", "move", str(folder), "exact"])
    assert said.exit_code == 0, said.output
    back = MTNClassifier.load(folder)
    for name, tensor in back._learner.memory.state().items():
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
    CliRunner().invoke(cli.app, ["memory", "move", str(folder), uri if to == "milvus" else "exact"])
    monkeypatch.undo()
    np.testing.assert_allclose(MTNClassifier.load(folder).predict_proba(TEST), before, atol=1e-6)


# ---- a server that is not there


def test_a_dead_server_is_one_clear_error_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "PATIENCE", 1.0)
    with socket.socket() as one:  # bound, and nobody listens
        one.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{one.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(Passing, match=uri) as error:
            classifier(uri).fit(TRAIN[:90], LABELS[:90])
        assert time.monotonic() - start < 10 and "\n" not in str(error.value)


def test_what_cannot_be_is_said(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory in ({"store": "milvus"}, {"uri": "a.db"}, {"store": "milvus", "uri": "a.txt"}):
        with pytest.raises(InputError, match=r"memory\.uri"):
            configure(memory=memory)
    with pytest.raises(InputError, match="exemplars are images"):
        in_milvus(configure().replace(images={"side": 8}), "a.db")
    config = configure(method={"name": "knn"})
    assert in_milvus(config, "a.db").digest() == config.digest()  # the same run, wherever its vectors are
    assert in_milvus(config, "a.db").replace(seed=3).memory.uri == "a.db"
    run(config, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=r"memory\.store must stay what it was, exact"):
        run(in_milvus(config, str(tmp_path / "a.db")), tmp_path / "run")
    one = classifier(str(tmp_path / "a.db")).fit(TRAIN[:90], LABELS[:90])
    one.save(tmp_path / "model")
    collection_of(one).delete(one._learner.memory.id[:3])
    with pytest.raises(InputError, match="has 57 of this memory's 60 exemplars"):
        MTNClassifier.load(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(InputError, match=r"pip install 'mtn\[milvus\]'"):
        classifier(str(tmp_path / "b.db")).fit(TRAIN[:90], LABELS[:90])


@pytest.mark.slow
def test_a_server_that_is_stopped_and_started_within_a_run_loses_and_doubles_nothing(
    server: Server, configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when something is to be deleted, and when neighbours are to be looked up; it comes back in a while."""
    monkeypatch.setattr(milvus, "PATIENCE", 600.0)  # a busy machine takes minutes to start one
    config = configure(train={"min_steps": 20})
    run(config, tmp_path / "exact")
    moments = {"task 2/4: training", "task 3/4: testing"}
    back: list[threading.Thread] = []

    def outage(what: str, done: int, of: int) -> None:
        if what in moments:
            moments.discard(what)
            for thread in back:
                thread.join()
            server.stop()
            back.append(threading.Timer(3, server.start))
            back[-1].start()

    far = in_milvus(config, server.uri)
    result = run(far, tmp_path / "far", outage, save_every=0.0)
    assert not moments
    for thread in back:
        thread.join()
    assert_as_exact(tmp_path / "far", far, tmp_path / "exact", result)


@pytest.mark.slow
def test_the_service_teaches_and_forgets_with_its_memory_in_a_server(server: Server, tmp_path: Path) -> None:
    """The worker, a forked process, connects by itself; so does the server, which is asked meanwhile."""
    folder = tmp_path / "model"
    classifier(server.uri, memory=200).fit(TRAIN[:180], LABELS[:180]).save(folder)
    with Service(folder) as service:
        assert service.finish(service.learn(TRAIN[180:240], LABELS[180:240].tolist()).json()["job"])["state"] == "done"
        assert len(service.known()) == 8 and len(service.answers(TEST[:20])) == 20
        service.client.delete("/classes/class 00")
        service.until(lambda: "class 00" not in service.known())
    assert whole(MTNClassifier.load(folder))


@pytest.mark.slow
def test_a_forked_process_connects_by_itself(server: Server) -> None:
    one = classifier(server.uri).fit(TRAIN[:90], LABELS[:90])
    here, there_ = one.predict(TEST[:3]).tolist(), os.pipe()
    if not (child := os.fork()):
        collection_of(one)._cache.clear()
        os.write(there_[1], json.dumps(one.predict(TEST[:3]).tolist()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(there_[0], 10_000)) == here

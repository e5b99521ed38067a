"""A model folder from a stranger connects to no Milvus that the user did not name, and no token goes there."""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cluster_data import LABELS, TEST, TRAIN
from mtn import MTNClassifier
from mtn.cli import main
from mtn.errors import InputError
from mtn.search import MilvusStore, collection
from mtn.search.permission import check_permission, normalise_uri, permitted_uri, token_for
from mtn.serve.journal import Change, Job
from mtn.serve.worker import TeachingBatch, apply_batch
from mtn.storage.recorded import Recorded
from service import QUICK
from strangers import call, edit

for package in ("pymilvus", "milvus_lite"):
    pytest.importorskip(package, reason=f"{package} is not there: pip install '.[milvus]'")
grpc = pytest.importorskip("grpc")

TOKEN = "root:a-secret-of-mine"
PERMIT = "name it by --milvus .* or in MTN_MILVUS_ALLOW"


class Listener:
    """A socket on the loopback that counts who connects."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


class Recorder(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What a server is told by those who connect: it answers every call with an error."""

    def __init__(self) -> None:
        self.metadata: list[str] = []

    def service(self, handler_call_details: Any) -> None:
        self.metadata += [f"{key}: {value}" for key, value in handler_call_details.invocation_metadata]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The URI of a gRPC server, and whether anybody sent the token to it."""
    monkeypatch.setattr(collection, "PATIENCE", 0.2)
    recorder, server = Recorder(), grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((recorder,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    forms = [TOKEN, base64.b64encode(TOKEN.encode()).decode()]
    yield f"http://127.0.0.1:{port}", lambda: any(form in line for line in recorder.metadata for form in forms)
    server.stop(None)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTN_MILVUS_TOKEN", TOKEN)
    for name in ("MTN_MILVUS_ALLOW", "MTN_MILVUS_TOKEN_HOST"):
        monkeypatch.delenv(name, raising=False)


def saved(folder: Path, uri: str | None = None) -> Path:
    """A model with its exemplars in Milvus, which says that they are at `uri`."""
    settings = QUICK | {"memory.store": "milvus", "memory.uri": str(folder.parent / "memory.db")}
    MTNClassifier("mtn", memory=60, k=5, settings=settings).fit(TRAIN[:90], LABELS[:90]).save(folder)
    if uri is not None:
        edit(folder, memory__uri=uri, parameters__settings=settings | {"memory.uri": uri})
    return folder


def test_loading_and_describing_a_model_connects_to_nothing(listener: Listener, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", listener.uri)
    loaded = MTNClassifier.load(model)
    assert len(loaded.memory_) == 60 and loaded.info()["store"]["uri"] == listener.uri
    assert call("info", str(model))[0] == 0
    assert listener.connections == 0


def test_a_folder_s_milvus_is_not_connected_to_unless_it_is_named(listener: Listener, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", listener.uri)
    before = (model / "model.json").read_bytes()
    acts: list[Callable[[MTNClassifier], Any]] = [
        lambda loaded: loaded.predict(TEST),
        lambda loaded: loaded.explain(TEST[:2]),
        lambda loaded: loaded.fit(TRAIN[:90], LABELS[:90]),
        lambda loaded: loaded.partial_fit(TRAIN[90:120], LABELS[90:120]),
        lambda loaded: loaded.forget("class 00"),
        lambda loaded: loaded.remove_exemplar(loaded.memory_[0].id),
        lambda loaded: loaded.rename("class 00", "other").save(model),
        lambda loaded: loaded.save(tmp_path / "other"),
        lambda loaded: loaded.move_memory(None),
    ]
    for act in acts:
        with pytest.raises(InputError, match=PERMIT):
            act(MTNClassifier.load(model))
    np.savez(tmp_path / "more.npz", x=TRAIN[90:120], y=LABELS[90:120])
    np.save(tmp_path / "asked.npy", TEST)
    asked, more = str(tmp_path / "asked.npy"), str(tmp_path / "more.npz")
    commands = [
        ["predict", asked],
        ["explain", asked],
        ["learn", more],
        ["forget", "class 00"],
        ["rename", "class 00", "b"],
    ]
    for command, *words in commands:
        code, said = call(command, str(model), *words)
        assert code == 2 and "--milvus" in said and listener.uri in said, said
    assert call("memory", "move", str(model), "exact")[0] == 2
    job = Job("1", "waiting", 0.0, 0, None, [], Change("forget", "class 00"))
    assert "--milvus" in apply_batch(model, TeachingBatch([job], []), lambda *_: None).error
    code, said = call("serve", str(model), "--port", "0")
    assert code == 2 and "--milvus" in said, said
    assert listener.connections == 0 and (model / "model.json").read_bytes() == before


def test_an_untaught_model_s_milvus_is_not_connected_to(listener: Listener, tmp_path: Path) -> None:
    model, uris = tmp_path / "model", (listener.uri, str(tmp_path / "made.db"))
    for uri in uris:
        settings = QUICK | {"memory.store": "milvus", "memory.uri": uri}
        MTNClassifier("mtn", memory=60, k=5, settings=settings, encoder="hashing").save(model)
        with pytest.raises(InputError, match=PERMIT):
            MTNClassifier.load(model).fit(TRAIN[:90], LABELS[:90])
    assert listener.connections == 0 and not (tmp_path / "made.db").exists()


def test_a_configuration_in_a_folder_names_no_milvus(listener: Listener, tmp_path: Path) -> None:
    model = tmp_path / "model"
    MTNClassifier("knn", memory=60, k=5).fit(TRAIN[:90], LABELS[:90]).save(model)
    budget = json.loads((model / "model.json").read_text())["configuration"]["memory"]
    edit(model, configuration__memory=budget | {"store": "milvus", "uri": listener.uri})
    loaded = MTNClassifier.load(model)
    assert len(loaded.partial_fit(TRAIN[90:120], LABELS[90:120]).predict(TEST)) and listener.connections == 0


def test_saving_over_a_stranger_s_model_does_not_connect_to_its_milvus(listener: Listener, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", listener.uri)
    mine = MTNClassifier("knn", memory=60, k=5).fit(TRAIN[:90], LABELS[:90])
    with pytest.warns(UserWarning, match="is not used any longer, and stays"):
        mine.save(model)
    assert listener.connections == 0
    assert MTNClassifier.load(model).predict(TEST).tolist() == mine.predict(TEST).tolist()


@pytest.mark.parametrize("by", ["argument", "option", "environment"])
def test_a_milvus_that_is_named_is_used(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(tmp_path / "model")
    uri = str(tmp_path / "memory.db")
    np.save(tmp_path / "asked.npy", TEST)
    with pytest.raises(InputError, match=PERMIT):
        MTNClassifier.load(model).predict(TEST)
    if by == "argument":
        loaded = MTNClassifier.load(model, milvus=uri)
        assert loaded.partial_fit(TRAIN[90:120], LABELS[90:120]).predict(TEST).shape == (120,)
        loaded.save(model)
        loaded.move_memory(None).save(model)
        return
    if by == "environment":
        monkeypatch.setenv("MTN_MILVUS_ALLOW", f"http://elsewhere:19530, {uri}")
    option = ["--milvus", uri] if by == "option" else []
    assert call("predict", str(model), str(tmp_path / "asked.npy"), *option)[0] == 0
    assert call("forget", str(model), "class 00", *option)[0] == 0
    assert call("memory", "move", str(model), "exact", *option)[0] == 0
    assert "class 00" not in MTNClassifier.load(model).predict(TEST)


def test_a_file_in_the_folder_itself_may_be_opened(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    inside = MTNClassifier.load(model, milvus=str(tmp_path / "memory.db")).move_memory(str(model / "memory.db"))
    inside.save(model)
    assert np.array_equal(MTNClassifier.load(model).predict(TEST), inside.predict(TEST))
    (model / "link.db").symlink_to(tmp_path / "memory.db")
    for outside in (model / "link.db", model / ".." / "memory.db"):
        assert isinstance(permitted_uri(str(outside), model), Recorded)


def test_a_model_whose_milvus_has_moved_is_found_where_the_user_says(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    answers = MTNClassifier.load(model, milvus=str(tmp_path / "memory.db")).predict_proba(TEST)
    edit(model, memory__uri="http://gone.example:19530")
    moved = MTNClassifier.load(model, milvus=str(tmp_path / "memory.db"))
    assert np.array_equal(moved.predict_proba(TEST), answers)
    moved.save(model)
    assert json.loads((model / "model.json").read_text())["memory"]["uri"] == str(tmp_path / "memory.db")


def test_a_token_goes_to_the_server_it_is_for(
    server: tuple[str, Callable[[], bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, token_arrived = server
    model = saved(tmp_path / "model", uri)

    def connect(milvus: str | None = None) -> None:
        with pytest.raises(InputError) as error:
            MTNClassifier.load(model, milvus=milvus).predict(TEST)
        assert TOKEN not in str(error.value) and "MTN_MILVUS_ALLOW" not in str(error.value)

    monkeypatch.setenv("MTN_MILVUS_ALLOW", uri)
    connect()
    assert not token_arrived()  # it may be asked, and is not said to be the token's
    monkeypatch.setenv("MTN_MILVUS_TOKEN_HOST", "milvus.example")
    connect()
    connect(milvus=uri)
    assert not token_arrived()
    monkeypatch.setenv("MTN_MILVUS_TOKEN_HOST", uri.removeprefix("http://"))
    connect()
    assert token_arrived()


def test_a_token_goes_to_a_server_that_the_user_types(server: tuple[str, Callable[[], bool]], tmp_path: Path) -> None:
    uri, token_arrived = server
    model = saved(tmp_path / "model", uri)
    with pytest.raises(InputError):
        MTNClassifier.load(model, milvus=uri).predict(TEST)
    assert token_arrived()


def test_uris_are_compared_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MTN_MILVUS_ALLOW", "http://mine:19530/ , ")
    check_permission(Recorded("http://mine:19530"))
    for uri in ("http://mine:19530.evil", "http://mine:19531", "https://mine:19530", "http://mine:19530@evil", ""):
        with pytest.raises(InputError, match="MTN_MILVUS_ALLOW"):
            check_permission(Recorded(uri))
    monkeypatch.setenv("MTN_MILVUS_TOKEN_HOST", "Mine")
    assert token_for("http://mine:1") == TOKEN and token_for("https://MINE") == TOKEN
    for uri in ("http://mine@evil:19530", "http://evil/mine", "http://mine.evil", "http://evil:mine", "mine.db"):
        assert token_for(uri) == ""
    assert isinstance(normalise_uri(Recorded("http://a/")), Recorded)
    assert not isinstance(permitted_uri("http://a/", tmp_path, ["http://a"]), Recorded)


def test_an_exemplar_that_is_missing_is_noticed_at_the_first_use(tmp_path: Path) -> None:
    uri, model = str(tmp_path / "memory.db"), saved(tmp_path / "model")
    store = MTNClassifier.load(model, milvus=uri).state_.memory.store
    assert isinstance(store, MilvusStore)
    store.collection.delete(store.id[:3])
    loaded = MTNClassifier.load(model, milvus=uri)
    for act in (loaded.predict, lambda x: loaded.forget("class 00"), lambda x: loaded.save(model)):
        with pytest.raises(InputError, match="has 57 of this memory's 60 exemplars"):
            act(TEST)
    assert CliRunner().invoke(main.app, ["info", str(model)]).exit_code == 0


@pytest.mark.parametrize("by", ["command", "service"])
def test_forgotten_vectors_leave_milvus_though_the_first_attempt_was_killed(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, model = str(tmp_path / "memory.db"), saved(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(MilvusStore, "commit", lambda self: self)  # killed after the model was saved
        assert call("forget", str(model), "class 00", "--milvus", uri)[0] == 0
    store = MTNClassifier.load(model, milvus=uri).state_.memory.store
    assert isinstance(store, MilvusStore) and store.collection.count(9) > len(store)
    if by == "command":
        code, said = call("forget", str(model), "class 00", "--milvus", uri)
        assert code == 2 and "no class 'class 00'" in said
    else:
        job = Job("1", "waiting", 0.0, 1, None, [], Change("forget", "class 00"))
        assert apply_batch(model, TeachingBatch([job], []), lambda *_: None, uri).kind == "done"
    assert store.collection.count(9) == len(store)

"""Every store keeps, finds and saves the same rows, wherever its vectors are."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mtn import MTNClassifier
from mtn.config import Budget
from mtn.errors import InputError, UnavailableError
from mtn.memory import Memory
from mtn.samples import Samples
from mtn.search import (
    BitCodeStore,
    InProcessStore,
    Location,
    MilvusStore,
    VectorStore,
    bit_codes,
    collection,
    drop_collection,
    make_store,
    new_location,
)
from mtn.storage.tensors import load_tensors, save_tensors

D, CLASSES, EACH = 16, 6, 10
N = CLASSES * EACH


def unit_vectors(count: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, D, generator=torch.Generator().manual_seed(seed)), dim=1)


X = unit_vectors(N, 0)
Y = torch.arange(N) // EACH
IDS = 500 + torch.randperm(N, generator=torch.Generator().manual_seed(1))
QUERIES = unit_vectors(20, 2)

Make = Callable[..., VectorStore]


@pytest.fixture(params=["in process", "bit codes", "milvus"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """An empty store of each kind; those in Milvus are in a local file."""
    if request.param == "bit codes":
        pytest.importorskip("faiss", reason="pip install '.[ann]'")
        monkeypatch.setattr(bit_codes, "MINIMUM", 1)
        monkeypatch.setattr(bit_codes, "CANDIDATES", N)  # every vector is a candidate: the search is exact
    if request.param == "milvus":
        for package in ("pymilvus", "milvus_lite"):
            pytest.importorskip(package, reason="pip install '.[milvus]'")
    options = {
        "in process": {},
        "bit codes": {"search": "approximate"},
        "milvus": {"store": "milvus", "uri": str(tmp_path / "m.db")},
    }[request.param]
    return lambda **more: make_store(Budget(total=N, **options, **more), (D,))


def filled(make: Make) -> VectorStore:
    """All classes, in two tasks."""
    half = N // 2
    store = make().add(IDS[:half], Y[:half], lambda rows: X[:half][rows])
    return store.add(IDS[half:], Y[half:], lambda rows: X[half:][rows])


def assert_has(store: VectorStore, rows: Tensor) -> None:
    """The store has these rows of X, in this order."""
    assert len(store) == len(rows) and store.shape == (len(rows), D)
    assert torch.equal(store.id, IDS[rows]) and torch.equal(store.y, Y[rows])
    assert store.read(slice(None)).dtype == torch.float32
    torch.testing.assert_close(store.read(slice(None)), X[rows], atol=0, rtol=0)


def assert_finds(store: VectorStore, rows: Tensor, k: int = 7) -> None:
    """A search of the store finds what a sorted list of all cosines begins with, among all rows and the first ones."""
    firsts = [len(rows), int((Y[rows] < 3).sum())]
    for first, (scores, nearest) in zip(firsts, store.search(QUERIES, k, firsts), strict=True):
        cosines = QUERIES @ X[rows[:first]].T
        expected = cosines.sort(dim=1, descending=True)
        width = min(k, first)
        assert nearest[:, :width].tolist() == expected.indices[:, :width].tolist()
        torch.testing.assert_close(scores[:, :width], expected.values[:, :width], atol=1e-6, rtol=0)
        assert (nearest[:, width:] < 0).all()


# ---- rows


def test_added_rows_stand_behind_those_there_are(make: Make) -> None:
    store = filled(make)
    assert_has(store, torch.arange(N))
    assert_finds(store, torch.arange(N))


def test_an_empty_store_has_no_rows_and_no_neighbours(make: Make) -> None:
    store = make()
    assert_has(store, torch.arange(0))
    ((scores, nearest),) = store.search(QUERIES, 5, [0])
    assert not (nearest >= 0).any() and len(nearest) == len(scores) == len(QUERIES)
    assert store.matrix().shape == (0, D)
    store.prepare_for_queries()
    emptied = filled(make).take(torch.arange(0))
    assert_has(emptied, torch.arange(0))
    ((_, nearest),) = emptied.search(QUERIES, 5, [0])
    assert not (nearest >= 0).any()


@pytest.mark.parametrize("rows", [torch.tensor([3, 17, 18, 40, 59]), torch.arange(N) % 3 == 0])
def test_taken_rows_alone_are_read_and_found(make: Make, rows: Tensor) -> None:
    store = filled(make)
    expected = torch.arange(N)[rows]
    for part in (store.take(rows), store.subset(rows)):
        assert_has(part, expected)
        assert_finds(part, expected)
    assert_has(store, torch.arange(N))  # a store does not change
    assert_finds(store, torch.arange(N))


def test_rows_are_taken_in_any_order(make: Make) -> None:
    reverse = torch.arange(N).flip(0)
    assert_has(filled(make).take(reverse), reverse)
    again = torch.arange(N)
    assert_finds(filled(make).take(reverse).take(reverse), again)


def test_rows_are_replaced_while_others_are_added(make: Make) -> None:
    store = make().add(IDS[:40], Y[:40], lambda rows: X[:40][rows])
    keep = torch.arange(0, 40, 2)
    store = store.add(IDS[40:], Y[40:], lambda rows: X[40:][rows], keep=keep)
    expected = torch.cat([keep, torch.arange(40, N)])
    assert_has(store, expected)
    assert_finds(store, expected)


def test_removed_rows_may_come_back_with_other_vectors(make: Make) -> None:
    store, kept = filled(make), Y < 5
    others = unit_vectors(EACH, 7)
    store = store.take(kept).add(IDS[~kept], Y[~kept], lambda rows: others[rows]).commit()
    assert torch.equal(store.read(slice(N - EACH, N)), others)
    scores, nearest = store.search(others, 1, [N])[0]
    assert nearest.squeeze(1).tolist() == list(range(N - EACH, N))
    torch.testing.assert_close(scores, torch.ones(EACH, 1))


def test_a_label_changes(make: Make) -> None:
    store = filled(make).relabel(N - 1, 2)
    assert store.y.tolist() == [*Y.tolist()[:-1], 2] and torch.equal(store.id, IDS)
    ordered = store.take(torch.argsort(store.y, stable=True))
    (_, nearest), (_, old) = ordered.search(X[N - 1 :], 1, [N, 3 * EACH + 1])
    assert nearest.tolist() == old.tolist() == [[3 * EACH]]


# ---- reading


@pytest.mark.parametrize(
    "rows", [slice(3, 9), torch.tensor([5, 0, 5]), torch.tensor([[1, 2], [30, 1]]), torch.zeros(0, dtype=torch.long)]
)
def test_rows_are_read_in_any_shape(make: Make, rows: Tensor | slice) -> None:
    assert torch.equal(filled(make).read(rows), X[rows])


def test_a_store_is_a_source_of_samples(make: Make) -> None:
    store = filled(make)
    samples = Samples(store.matrix(), np.arange(N), store.y, store.id)
    assert samples.shape == (D,)
    torch.testing.assert_close(samples.select(Y == 4).x(), X[Y == 4])


def test_preparation_for_queries_changes_no_answer(make: Make) -> None:
    store = filled(make)
    store.prepare_for_queries()
    assert_finds(store, torch.arange(N))
    assert_finds(store.take(Y < 4), torch.arange(N)[Y < 4])


def test_vectors_are_kept_in_half_precision_where_the_store_has_it(make: Make) -> None:
    store = make(precision="float16").add(IDS, Y, lambda rows: X[rows])
    if store.location is None:
        assert store.state()["x"].dtype == torch.float16
        assert torch.equal(store.read(slice(None)), X.half().float())
    scores, nearest = store.search(QUERIES, 7, [N])[0]
    torch.testing.assert_close(scores, (QUERIES @ X.T).topk(7).values, atol=2e-3, rtol=0)
    assert scores.dtype == torch.float32 and nearest.shape == (len(QUERIES), 7)
    assert store.read(nearest).dtype == torch.float32


# ---- on disk


def test_a_saved_store_is_the_same_and_goes_on(make: Make, tmp_path: Path) -> None:
    store = filled(make).take(Y != 1)
    save_tensors(tmp_path / "state", store.state(), {})
    empty = make_store(Budget(total=1), (D,), store.location)
    loaded = empty.load_state(load_tensors(tmp_path / "state")[0]).verified()
    rows = torch.arange(N)[Y != 1]
    for one in (store, loaded, loaded.commit()):
        assert_has(one, rows)
        assert_finds(one, rows)
    grown = loaded.add(IDS[Y == 1], Y[Y == 1], lambda part: X[Y == 1][part])
    assert_has(grown, torch.cat([rows, torch.arange(N)[Y == 1]]))


def test_committed_rows_are_gone_and_the_others_stay(make: Make) -> None:
    store = filled(make).take(Y < 4)
    assert_finds(store.commit(), torch.arange(N)[Y < 4])
    assert_has(store.commit().commit(), torch.arange(N)[Y < 4])
    if isinstance(store, MilvusStore):
        with pytest.raises(UnavailableError, match="misses 10 exemplars"):
            store.collection.vectors(IDS[Y == 4])
        assert store.collection.count(store.tasks) == 4 * EACH


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
def test_a_copy_is_the_same_store(make: Make, twin: Callable[[VectorStore], VectorStore]) -> None:
    store = filled(make)
    store.prepare_for_queries()
    assert_has(twin(store), torch.arange(N))
    assert_finds(twin(store), torch.arange(N))


def test_a_state_of_another_kind_of_store_is_refused() -> None:
    here, far = make_store(Budget(total=1), (D,)), MilvusStore.empty(Location("http://localhost:1", "a"), D)
    with pytest.raises(InputError, match=r"memory\.store must stay what it was, exact"):
        far.load_state(here.state())
    with pytest.raises(InputError, match=r"memory\.store must stay what it was, milvus"):
        here.load_state(far.state())


# ---- the choice, and the connection


def test_the_configuration_chooses_the_store(tmp_path: Path) -> None:
    here = make_store(Budget(total=1), (D,))
    assert type(here) is InProcessStore and here.location is None
    assert type(make_store(Budget(total=1, search="approximate"), (D,))) is BitCodeStore
    images = make_store(Budget(total=1, precision="float16"), (8, 8, 3))
    assert images.shape == (0, 8, 8, 3) and images.state()["x"].dtype == torch.uint8
    budget = Budget(total=1, store="milvus", uri=str(tmp_path / "m.db"))
    first, second = make_store(budget, (D,)), make_store(budget, (D,))
    assert isinstance(first, MilvusStore) and first.shape == (0, D)
    assert first.location is not None and second.location is not None
    assert first.location.uri == second.location.uri == str(tmp_path / "m.db")
    assert first.location.name != second.location.name
    assert make_store(Budget(total=1), (D,), first.location).location == first.location
    assert str(first) == f"Milvus, collection {first.location.name!r} at {tmp_path / 'm.db'}"


def test_nothing_connects_before_vectors_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymilvus", reason="pip install '.[milvus]'")
    monkeypatch.setattr(collection, "PATIENCE", 0.5)
    location = new_location("http://127.0.0.1:9")  # where no server listens
    memory = Memory(Budget(total=N), store=make_store(Budget(total=N), (D,), location))
    state = {"id": IDS, "y": Y, "hidden": IDS[:0], "tasks": torch.tensor(1)}
    memory.load_state(state | {"priority": torch.zeros(N, dtype=torch.float64), "arrived": torch.tensor(N)})
    assert len(memory) == N and memory.location == location and memory.sample_shape == (D,)
    part = memory.part(memory.y < 3)
    assert len(part) == 3 * EACH and memory.state().keys() >= {"hidden", "tasks"}
    memory.commit()  # nothing is hidden: there is nothing to delete
    for connects in (memory.verify, memory.vectors, lambda: drop_collection(location)):
        with pytest.raises(UnavailableError, match=location.uri):
            connects()


def test_a_server_that_answers_in_the_end_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exceptions = pytest.importorskip("pymilvus.exceptions", reason="pip install '.[milvus]'")
    far = collection.Collection(new_location("http://127.0.0.1:9"), D)
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)
    monkeypatch.setattr(far, "_connect", lambda: "client")

    def request(client: str) -> str:
        if len(pauses) < 7:
            raise exceptions.MilvusException(collection.CONNECTION_LOST, "no\nconnection")
        return client

    assert far._call(request) == "client"
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert [record.message for record in caplog.records] == [f"Milvus, {far}: no answer, trying again"]

    pauses.clear()
    with pytest.raises(InputError, match="no such collection") as error:  # final: no retry
        far._call(lambda client: _raise(exceptions.MilvusException(100, "no such\ncollection")))
    assert not pauses and not isinstance(error.value, UnavailableError)
    with pytest.raises(ZeroDivisionError):  # not of Milvus
        far._call(lambda client: _raise(ZeroDivisionError()))
    assert not pauses


def _raise(error: Exception) -> None:
    raise error


# ---- what reads exemplars


@pytest.mark.parametrize("method", ["icarl", "knn", "bic"])
def test_a_method_learns_from_exemplars_in_half_precision(method: str) -> None:
    settings = {"train.min_steps": 2, "train.epochs": 0}
    x, y = X.numpy(), Y.numpy()
    full = MTNClassifier(method, memory=30, k=3, settings=settings).fit(x, y)
    half = MTNClassifier(method, memory=30, k=3, settings=settings | {"memory.precision": "float16"}).fit(x, y)
    assert [exemplar.id for exemplar in half.memory_] == [exemplar.id for exemplar in full.memory_]
    np.testing.assert_allclose(half.decision_function(x), full.decision_function(x), atol=1e-2)

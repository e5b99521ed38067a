"""Threads that share a classifier: each answer is that of a whole state, nothing taught is lost, copies are apart."""

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster_data import ARRAYS, LABELS, TRAIN
from mtn import MTNClassifier
from mtn.search import bit_codes

QUICK = {"method.size": "small", "train.epochs": 1, "train.min_steps": 2}
X, Y = TRAIN, LABELS
TEST = ARRAYS["x_test"][:24]
NAMES = sorted(set(Y.tolist()))


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Threads change places every 10 microseconds: what can be mixed up is."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def classifier(method: str, **settings: Any) -> MTNClassifier:
    return MTNClassifier(method, memory=60, k=5, settings=QUICK | settings)


def teach(it: MTNClassifier, *names: str) -> MTNClassifier:
    rows = np.isin(Y, names)
    return it.partial_fit(X[rows], Y[rows], ids=[f"{name} {row}" for row, name in enumerate(Y[rows])])


QUESTIONS: dict[str, Callable[[MTNClassifier], Any]] = {
    "predict": lambda it: it.predict(TEST).tolist(),
    "predict unknown": lambda it: it.predict(TEST, unknown="?").tolist(),
    "predict_proba": lambda it: it.predict_proba(TEST).tolist(),
    "assess": lambda it: [part.tolist() for part in it.assess(TEST)],
    "explain": lambda it: it.explain(TEST),
    "kneighbors": lambda it: [part.tolist() for part in it.kneighbors(TEST)],
    "memory_": lambda it: it.memory_,
}


def steps(it: MTNClassifier) -> Iterator[object]:
    """Everything that teaches, one call after the other."""
    for name in NAMES[4:]:
        yield teach(it, name)
        yield it.rename(name, f"new {name}")
    for name in NAMES[:3]:
        yield it.forget(name)
    for row in (0, 7):
        yield it.relabel_exemplar(it.memory_[row].id, f"new {NAMES[5]}")
        yield it.remove_exemplar(it.memory_[row].id)


def asked_while_taught(it: MTNClassifier) -> None:
    """Answers that threads get while another teaches: each is that of a state before or after a call."""
    states, stop = [copy.copy(it)], threading.Event()
    answers: dict[str, list[Any]] = {question: [] for question in QUESTIONS}

    def ask(question: str) -> None:
        while not stop.is_set():
            answer = QUESTIONS[question](it)
            if answer not in answers[question][-1:]:
                answers[question].append(answer)

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        asking = [pool.submit(ask, question) for question in QUESTIONS]
        try:
            for _ in steps(it):
                states.append(copy.copy(it))
        finally:
            stop.set()
    for done in asking:
        done.result()
    for question, found in answers.items():
        whole = [QUESTIONS[question](state) for state in states]
        assert found and all(answer in whole for answer in found), question


@pytest.mark.parametrize("method", ["knn", "practical", "icarl"])
def test_an_answer_is_that_of_a_whole_state_whatever_is_taught_meanwhile(method: str) -> None:
    asked_while_taught(teach(classifier(method), *NAMES[:4]))


def test_the_index_of_a_large_memory_is_not_shared_by_two_states(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(bit_codes, "MINIMUM", 40)
    asked_while_taught(teach(classifier("knn", **{"memory.search": "approximate"}), *NAMES[:4]))


def test_classes_taught_from_several_threads_are_all_there() -> None:
    it = classifier("knn")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: teach(it, name), NAMES[:6]))  # the first of them starts the model
    assert it.classes_.tolist() == NAMES[:6]
    assert sorted(entry["classes"] for entry in it.history_) == [1, 2, 3, 4, 5, 6]
    assert {exemplar.label for exemplar in it.memory_} == set(NAMES[:6]) and len(it.memory_) == 60
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(it.forget, NAMES[:3]))
        list(pool.map(lambda name: it.rename(name, name.upper()), NAMES[3:6]))
    assert it.classes_.tolist() == [name.upper() for name in NAMES[3:6]]


def test_a_model_is_saved_whole_while_it_is_taught(tmp_path: Path) -> None:
    it = teach(classifier("knn"), *NAMES[:2])
    with ThreadPoolExecutor(3) as pool:
        teaching = pool.map(lambda name: teach(it, name), NAMES[2:8])
        saving = [pool.submit(it.save, tmp_path) for _ in range(6)]
        for done in saving:
            done.result()
            again = MTNClassifier.load(tmp_path)
            assert again.predict_proba(TEST).shape[1] == len(again.classes_) == again.history_[-1]["classes"]
        list(teaching)
    it.save(tmp_path)
    assert MTNClassifier.load(tmp_path).classes_.tolist() == NAMES[:8]


@pytest.mark.parametrize("method", ["practical", "slda", "knn", "knn approximate"])
def test_the_first_questions_may_come_at_once(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loaded model computes once and keeps is computed by the first question."""
    name, _, search = method.partition(" ")
    if search:
        pytest.importorskip("faiss")
        monkeypatch.setattr(bit_codes, "MINIMUM", 40)
    it = teach(classifier(name, **{"memory.search": search or "exact"}), *NAMES)
    it.save(tmp_path)
    expected = it.predict_proba(TEST)
    for _ in range(5):
        loaded, together = MTNClassifier.load(tmp_path), threading.Barrier(6)

        def ask(_: int, it: MTNClassifier = loaded, start: threading.Barrier = together) -> np.ndarray:
            start.wait()
            return it.predict_proba(TEST)

        with ThreadPoolExecutor(6) as pool:
            assert all(np.array_equal(answer, expected) for answer in pool.map(ask, range(6)))


def test_classifiers_that_learn_in_several_threads_learn_what_they_would_alone() -> None:
    def learned(method: str) -> np.ndarray:
        return teach(teach(classifier(method), *NAMES[:6]), *NAMES[6:]).predict_proba(TEST)

    methods, random = ["practical", "mtn", "er", "icarl"], torch.get_rng_state()
    alone = [learned(method) for method in methods]
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(*both) for both in zip(pool.map(learned, methods), alone, strict=True))
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_and_what_it_was_made_of_go_their_own_ways(duplicate: Callable[[Any], Any]) -> None:
    it = teach(classifier("icarl"), *NAMES[:6])
    twin = duplicate(it)
    before = {question: ask(it) for question, ask in QUESTIONS.items()}
    assert {question: ask(twin) for question, ask in QUESTIONS.items()} == before
    for _ in steps(twin):
        pass
    assert {question: ask(it) for question, ask in QUESTIONS.items()} == before
    after = {question: ask(twin) for question, ask in QUESTIONS.items()}
    it.forget(NAMES[5]).annotate(note="mine")
    assert {question: ask(twin) for question, ask in QUESTIONS.items()} == after
    assert it.history_[-1]["note"] == "mine" and not any("note" in entry for entry in twin.history_)


def test_a_copy_can_be_made_while_a_classifier_is_taught_and_asked() -> None:
    it = teach(classifier("practical"), *NAMES[:2])
    with ThreadPoolExecutor(3) as pool:
        teaching = pool.map(lambda name: teach(it, name), NAMES[2:6])
        asking = pool.submit(lambda: [it.predict(TEST) for _ in range(50)])
        for twin in [copy.deepcopy(it) for _ in range(10)]:
            assert twin.predict_proba(TEST).shape == (len(TEST), len(twin.classes_))
        asking.result()
        list(teaching)
    assert it.classes_.tolist() == NAMES[:6]


# ---- torch's own threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_steps_take_one_thread_whoever_loaded_torch(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {}
    it = MTNClassifier(
        "mtn",
        memory=60,
        k=5,
        settings=QUICK,
        progress=lambda work, done, total: seen.setdefault(work, set()).add(torch.get_num_threads()),
    )
    it.fit(X, Y)
    assert seen["training"] == {1} and seen["searching"] == {2} and torch.get_num_threads() == 2
    monkeypatch.setattr("mtn.runtime.threads.SMALL_STEP", 10)  # large steps take all
    it.partial_fit(X, Y)
    assert seen["training"] == {1, 2} and torch.get_num_threads() == 2


def test_an_error_in_a_step_gives_the_threads_back(two_threads: None) -> None:
    def stop(work: str, done: int, total: int) -> None:
        if work == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MTNClassifier("mtn", memory=60, k=5, settings=QUICK, progress=stop).fit(X, Y)
    assert torch.get_num_threads() == 2


def test_the_steps_of_a_run_take_the_threads_there_are(two_threads: None, train_learner: Callable[..., Any]) -> None:
    assert train_learner("ncm", 1).limit_threads is False

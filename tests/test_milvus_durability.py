"""A memory in Milvus: nothing is lost or doubled, whatever stops when."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cluster_data import LABELS, TEST, TRAIN
from milvus_memory import (
    assert_as_exact,
    classifier,
    collection_of,
    cut_off,
    in_milvus,
    run_collection,
    stored_ids,
    whole,
)
from milvus_process import MilvusProcess
from mtn import MTNClassifier, training
from mtn.config import Config
from mtn.experiments.run import run
from mtn.memory import Memory
from mtn.search import collection as milvus
from mtn.storage import files
from processes import RunProcess
from runs import without_timings

pytestmark = pytest.mark.usefixtures("milvus_permission")

for package in ("pymilvus", "milvus_lite"):
    pytest.importorskip(package, reason=f"{package} is not there: pip install '.[milvus]'")


def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(
    configure: Callable[..., Config], milvus_uri: str, tmp_path: Path
) -> None:
    config = configure(train={"min_steps": 40})
    run(config, tmp_path / "exact")
    out, far, chance = tmp_path / "killed", in_milvus(config, milvus_uri), random.Random(0)
    for _ in range(2):
        process = RunProcess(far, out)
        process.wait(chance.randrange(1, 80))  # so many steps, of 160 in all
        time.sleep(chance.uniform(0.0, 0.05))
        process.kill()
    assert RunProcess(far, out).end() == 0
    result = files.read_json(out / "result.json")
    assert_as_exact(out, far, tmp_path / "exact", result)


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
    assert without_timings(result) == without_timings(exact)
    assert_as_exact(tmp_path / "far", far, tmp_path / "exact", result)


def test_a_lesson_that_fails_leaves_the_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, control = tmp_path / "model", classifier(None).fit(TRAIN[:180], LABELS[:180])
    one = classifier(str(tmp_path / "m.db")).fit(TRAIN[:180], LABELS[:180])
    one.save(folder)
    before, ids = one.predict_proba(TEST), stored_ids(collection_of(one))

    def fail(*_: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patch:
        patch.setattr(training.Learner, "train", fail)
        with pytest.raises(RuntimeError):
            one.partial_fit(TRAIN[180:300], LABELS[180:300])
    assert len(stored_ids(collection_of(one))) > len(ids)  # of the attempt; nobody sees them
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
        patch.setattr(Memory, "commit", lambda self: None)
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
        patch.setattr(Memory, "commit", lambda self: None)
        first = run(config, out)
    collection = run_collection(config, out)
    left = len(stored_ids(collection))
    (out / "result.json").unlink()
    assert without_timings(run(config, out)) == without_timings(first)
    assert len(stored_ids(collection)) == 60 < left


@pytest.mark.slow
def test_a_server_that_is_stopped_and_started_within_a_run_loses_and_doubles_nothing(
    milvus_server: MilvusProcess, configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            milvus_server.stop()
            back.append(threading.Timer(3, milvus_server.start))
            back[-1].start()

    far = in_milvus(config, milvus_server.uri)
    result = run(far, tmp_path / "far", outage, save_every=0.0)
    assert not moments
    for thread in back:
        thread.join()
    assert_as_exact(tmp_path / "far", far, tmp_path / "exact", result)

"""What the first version computed and wrote: this version computes the same, and opens it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral

V0 = Path(__file__).parent / "fixtures" / "v0"
RECORDED = neutral.read(V0)
same_machine = pytest.mark.skipif(
    RECORDED["fingerprint"] != neutral.fingerprint(),
    reason="numbers are the same bit for bit on the same processor and libraries alone: tests/neutral.py records anew",
)


def check(found: dict[str, Any]) -> None:
    assert not neutral.differences(RECORDED["found"], found)


@same_machine
def test_results_of_every_method_are_the_same(tmp_path: Path) -> None:
    check(dict(neutral.results(tmp_path)))


@same_machine
def test_answers_of_a_classifier_are_the_same() -> None:
    check(dict(neutral.classifiers(RECORDED["found"])))


@same_machine
def test_interrupted_runs_and_a_begun_store_go_on_to_the_same_end(tmp_path: Path) -> None:
    check(dict(neutral.resume(V0, tmp_path)))


def test_saved_models_of_every_format_answer_as_they_did(tmp_path: Path) -> None:
    shutil.copytree(V0, tmp_path / "v0")
    for name, now in neutral.open_models(tmp_path / "v0"):
        then = RECORDED["found"][name]
        assert now["classes"] == then["classes"] and now["memory"] == then["memory"]
        np.testing.assert_allclose(now["probability"], then["probability"], atol=1e-5)
        np.testing.assert_allclose(now["novelty"], then["novelty"], rtol=1e-4, atol=1e-4)
        if RECORDED["fingerprint"] == neutral.fingerprint():
            check({name: now})


def test_a_difference_is_noticed() -> None:
    found = {"vectors/mtn": RECORDED["found"]["vectors/mtn"] | {"last_accuracy": 0.0}}
    assert len(neutral.differences(RECORDED["found"], found)) == 1

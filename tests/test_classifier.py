"""The estimator: scikit-learn's own contract, and what it promises beyond it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mtn
from classifiers import QUICK, classifier, some
from cluster_data import ARRAYS, LABELS, TEST, TRAIN, TRUE
from hub_server import HubServer
from mtn import MTNClassifier, batches, calibration
from mtn.classifier import as_queries, queries
from mtn.errors import InputError

ROOT = Path(__file__).parent.parent


X, Y = TRAIN, LABELS


@parametrize_with_checks([MTNClassifier(settings={"train.min_steps": 20}), MTNClassifier("slda")])
def test_scikit_learn_conformity(estimator, check) -> None:
    check(estimator)


# ---- learning


def test_classes_of_any_number_come_unannounced_and_stay_sorted() -> None:
    it = classifier(settings=QUICK | {"train.min_steps": 60})
    for group in ([7], [3, 11], [0, 1, 2, 4, 5, 6]):
        it.partial_fit(X[some(*group)], Y[some(*group)])
    assert it.classes_.tolist() == [f"class {label:02}" for label in (0, 1, 2, 3, 4, 5, 6, 7, 11)]
    assert it.state_.names[:3] == ("class 07", "class 03", "class 11")  # inside, order of arrival
    known = np.isin(TRUE, it.classes_)
    assert it.score(TEST[known], TRUE[known]) > 0.6
    assert np.array_equal(it.classes_[it.predict_proba(TEST).argmax(1)], it.predict(TEST))
    assert np.array_equal(it.classes_[it.decision_function(TEST).argmax(1)], it.predict(TEST))
    it.partial_fit(X[some(7)][:5], Y[some(7)][:5])  # more of a known one
    it.partial_fit(X[some(8)][:1], Y[some(8)][:1])  # a class with one sample
    assert [entry["new_classes"] for entry in it.history_] == [1, 2, 6, 0, 1]
    assert [entry["classes"] for entry in it.history_] == [1, 3, 9, 9, 10]
    assert [entry["accuracy_before"] is None for entry in it.history_] == [True, True, True, False, True]
    assert len(it.memory_) <= 60


@pytest.mark.parametrize("method", ["practical", "knn", "mtn", "slda"])
def test_the_accuracy_after_a_lesson_is_estimated_where_something_was_not_trained_on(method: str) -> None:
    it = classifier(method).fit(X[some(0, 1, 2, 3)], Y[some(0, 1, 2, 3)])
    it.partial_fit(X[some(4, 5)], Y[some(4, 5)]).partial_fit(X[some(0)][:4], Y[some(0)][:4])
    found = [(entry["estimated_accuracy"], entry["estimated_accuracy_new"]) for entry in it.history_]
    if method in ("mtn", "slda"):  # everything was trained on; nothing is remembered
        assert found == [(None, None)] * 3
    else:
        assert all(0 <= value <= 1 for pair in found[:2] for value in pair)
        assert found[0][0] == found[0][1] and found[2][1] is None  # all classes are new, then none is


def test_an_interrupt_in_the_middle_leaves_the_old_model(fitted: MTNClassifier, monkeypatch: Any) -> None:
    before, weights = fitted.predict_proba(TEST), dict(vars(fitted))

    def interrupt(self: object, step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt
        return original(self, step)

    original = batches.StageBatches.batch
    monkeypatch.setattr(batches.StageBatches, "batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(X, np.repeat("new", len(X)))
    assert vars(fitted) == weights and np.array_equal(fitted.predict_proba(TEST), before)


def test_the_same_seed_gives_the_same_answers_and_the_global_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    one, other, free = (classifier(random_state=seed).fit(X, Y).predict_proba(TEST) for seed in (1, 1, None))
    assert np.array_equal(one, other) and not np.array_equal(one, free)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["mtn", "knn", "ssil", "podnet", "ranpac"])
def test_an_answer_does_not_depend_on_what_else_is_asked(method: str) -> None:
    it = classifier(method).fit(X, Y)
    whole = it.predict_proba(TEST)
    np.testing.assert_allclose(
        np.concatenate([it.predict_proba(TEST[i : i + 1]) for i in range(9)]), whole[:9], 0, 1e-12
    )
    assert it.classes_.dtype.kind == "U"
    np.testing.assert_allclose(it.predict_proba(TEST[:13]), whole[:13], 0, 1e-12)


def test_what_is_kept_is_not_the_callers_array() -> None:
    for method in ("joint", "knn"):
        mine, theirs = X.copy(), X.copy()
        one, other = classifier(method).fit(mine, Y), classifier(method).fit(theirs, Y)
        mine[:] = 0
        extra = np.repeat("new", 5)
        answers = [it.partial_fit(X[:5] + 9, extra).predict_proba(TEST) for it in (one, other)]
        assert np.array_equal(*answers)


def test_settings_are_checked_like_those_of_a_recipe() -> None:
    with pytest.raises(InputError, match=r"unknown key 'train.min_step': did you mean 'train.min_steps'"):
        classifier(settings={"train.min_step": 3}).fit(X, Y)
    with pytest.raises(InputError, match=r"MTNClassifier: method\.k should be greater than or equal to 1, got 0"):
        classifier(k=0).fit(X, Y)
    with pytest.raises(InputError, match=r"'stream.data' is not for here"):
        classifier(settings={"stream.data": "x"}).fit(X, Y)
    with pytest.raises(InputError, match=r"false_alarms must be .* got 1\.5"):
        classifier(false_alarms=1.5).fit(X, Y)
    assert len(classifier("knn", settings={"memory.per_class": 2}).fit(X, Y).memory_) == 24


def test_importing_the_package_loads_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, mtn; print([name for name in ('torch', 'sklearn', 'matplotlib') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="MTNClasifier"):
        mtn.MTNClasifier  # noqa: B018


# ---- what is remembered


def test_neighbours_by_hand_and_ids_of_ones_own(fitted: MTNClassifier) -> None:
    distances, rows = fitted.kneighbors(TEST[:4], 3)
    unit = fitted.state_.learner.memory.vectors().double().numpy()
    cosines = TEST[:4] / np.linalg.norm(TEST[:4], axis=1, keepdims=True) @ unit.T
    assert np.array_equal(rows, np.argsort(-cosines, axis=1)[:, :3])
    np.testing.assert_allclose(distances, 1 - np.take_along_axis(cosines, rows, 1), atol=1e-6)
    record = fitted.memory_[rows[0, 0]]
    number = int(str(record.id).removeprefix("file "))
    assert record.position == rows[0, 0] and record.label == Y[number]
    assert np.array_equal(fitted.thumbnails_[record.id], (np.arange(12) + 12 * number).astype(np.uint8).reshape(3, 4))
    with pytest.raises(InputError, match="n_neighbors must be from 1 to 60"):
        fitted.kneighbors(TEST, 61)


def test_running_numbers_never_meet_ids_of_ones_own() -> None:
    it = classifier("knn").fit(X[:10], Y[:10], ids=range(10, 20))
    with pytest.raises(InputError, match="the running number 10 is one of yours already"):
        it.partial_fit(X[10:20], Y[10:20])
    it.partial_fit(X[10:20], Y[10:20], ids=range(10))
    assert sorted(one.id for one in it.memory_) == list(range(20))


def test_exemplars_are_removed_and_relabelled_and_means_follow(tmp_path: Path) -> None:
    it = classifier("icarl").fit(X, Y)
    first = it.memory_[0]
    it.relabel_exemplar(first.id, "class 05")
    assert next(one for one in it.memory_ if one.id == first.id).label == "class 05"
    memory = it.state_.learner.memory
    mean = torch.nn.functional.normalize(memory.vectors(memory.y == it.state_.names.index("class 05")).sum(0), dim=0)
    torch.testing.assert_close(it.state_.learner.method.means[it.state_.names.index("class 05")], mean)
    it.remove_exemplar(first.id)
    assert len(it.memory_) == 59 and first.id not in [one.id for one in it.memory_]
    with pytest.raises(InputError, match="no exemplar has the id"):
        it.remove_exemplar(first.id)


def test_a_class_is_renamed_and_thumbnails_go_with_what_is_forgotten(fitted: MTNClassifier) -> None:
    before = fitted.predict(TEST)
    fitted.rename("class 03", "a third")
    after = fitted.predict(TEST)
    assert np.array_equal(np.where(before == "class 03", "a third", before), after)
    with pytest.raises(InputError, match="is already the label of another class"):
        fitted.rename("a third", "class 04")
    with pytest.raises(InputError, match="same type as the labels"):
        fitted.rename("a third", 3)
    fitted.forget("a third")
    assert len(fitted.thumbnails_) == len(fitted.memory_) == 55


# ---- the unknown, and probabilities


def test_unknown_beyond_the_share_of_false_alarms() -> None:
    it = classifier("knn", false_alarms=0.1).fit(X[some(*range(6))], Y[some(*range(6))])
    answers = it.predict(TEST, unknown="nothing known")
    new = np.isin(TRUE, it.classes_, invert=True)
    assert (answers[new] == "nothing known").mean() > 2 * (answers[~new] == "nothing known").mean()
    assert set(answers) <= {*it.classes_, "nothing known"} and answers.dtype.kind == "U"
    assert it.predict(TEST, unknown=-1).dtype == object
    assert np.array_equal(it.novelty(TEST) > it.threshold_, answers == "nothing known")
    guesses = np.array([f"guess {row}" for row in range(len(TEST))])
    expected = np.where(answers == "nothing known", guesses, answers)
    assert it.predict(TEST, unknown=guesses).tolist() == it.predict(TEST, unknown=list(guesses)).tolist()
    assert it.predict(TEST, unknown=guesses).tolist() == expected.tolist()
    with pytest.raises(InputError, match=f"unknown must be one label, or one a query, {len(TEST)}, got 2"):
        it.predict(TEST, unknown=["a", "b"])
    with pytest.raises(InputError, match="keeps no exemplars"):
        classifier("slda").fit(X, Y).predict(X, unknown="?")


def test_the_threshold_is_exceeded_by_the_asked_share() -> None:
    # of 100, 100 x 0.05 - 1.645 sqrt(100 x 0.05 x 0.95) = 1.4 may exceed it; of 1 000, 38.7; of 50, none
    assert calibration.threshold(np.arange(100.0), 0.05) == 98.0
    assert calibration.threshold(np.arange(1000.0)[::-1], 0.05) == 961.0
    assert calibration.threshold(np.arange(50.0), 0.05) == 49.0 and calibration.threshold(np.arange(9.0), 0.0) == 8.0


def test_the_temperature_is_that_of_least_log_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 5, generator=generator)
    y = torch.multinomial((z / 0.5).softmax(1), 1, generator=generator).squeeze(1)  # the truth has T = 0.5
    assert calibration.temperature(z, y) == pytest.approx(0.5, rel=0.1)
    assert calibration.temperature(4 * z, y) == pytest.approx(2.0, rel=0.1)
    assert calibration.temperature(torch.eye(5), torch.arange(5)) > 1e-2  # perfect answers do not ask for T = 0


# ---- bad input: one clear error, and the model as it was


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda it: it.predict(TEST[:, :5]), "X has 5 features, but MTNClassifier is expecting 16"),
        (lambda it: it.partial_fit(X[:, :5], Y), "X has 5 features"),
        (lambda it: it.partial_fit(np.where(X > 2, np.nan, X), Y), "contains NaN"),
        (lambda it: it.predict(np.zeros((0, 16))), "0 sample"),
        (lambda it: it.partial_fit(np.full((2, 16), "a"), ["x", "y"]), "could not convert string to float"),
        (lambda it: it.partial_fit(X, Y[:-1]), "inconsistent numbers of samples"),
        (lambda it: it.partial_fit(X, ARRAYS["y_train"]), r"same type as the labels before \(str\), got int"),
        (lambda it: it.partial_fit(X[:2], np.array(["a", 1], object)), "all strings or all integers, got int and str"),
        (lambda it: it.partial_fit(X, Y, classes=["class 00"]), "must be of the labels in `classes`"),
        (lambda it: it.partial_fit(X[:2], Y[:2], ids=["a", "a"]), "got 'a' twice"),
        (lambda it: it.partial_fit(X[:1], Y[:1], ids=[it.memory_[0].id]), "from those remembered"),
        (lambda it: it.partial_fit(X[:2], Y[:2], ids=["a"]), "ids must be one a sample, 2, got 1"),
        (lambda it: it.partial_fit(X[:2], Y[:2], ids=[None, 1.5]), "strings or integers, got None"),
        (lambda it: it.partial_fit(X[:2], Y[:2], thumbnails=np.zeros((2, 3, 3))), "thumbnails must be uint8"),
        (lambda it: it.forget("class 3"), "no class 'class 3': did you mean 'class 03'"),
        (lambda it: it.fit(X[:, :4], [1.5] * len(X)), "Unknown label type"),
        (lambda it: it.set_params(method="nothing").fit(X, Y), "no method 'nothing'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(fitted: MTNClassifier, act: Any, message: str) -> None:
    before = fitted.predict_proba(TEST)
    with pytest.raises(ValueError, match=message):
        act(fitted)
    assert np.array_equal(fitted.predict_proba(TEST), before) and fitted.n_features_in_ == 16


def test_before_anything_is_learned_every_question_is_refused() -> None:
    for ask in ("predict", "predict_proba", "novelty", "explain", "kneighbors", "forget", "save"):
        with pytest.raises(NotFittedError):
            getattr(MTNClassifier(), ask)(TEST)


# ---- the documentation


def test_every_snippet_of_the_how_tos_runs(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.writers.add("")  # whoever has no token
    names = ("teach", "explain", "unknown", "route", "evaluate", "forget", "hub")
    pages = "\n".join((ROOT / "docs" / "how-to" / f"{name}.md").read_text("utf-8") for name in names)
    code = "\n".join(re.findall(r"```python\n(.*?)```", pages, re.DOTALL))
    code = code.replace("memory=2000", "memory=60, settings={'train.epochs': 3, 'train.min_steps': 10}")
    old = some(0, 1, 2, 3)
    exec(code, {"X": X[old], "y": Y[old], "X_new": X[~old], "y_new": Y[~old]})
    assert (tmp_path / "evidence.png").stat().st_size > 1000 and "me/my-model" in hub.repositories


# ---- among scikit-learn's own


def test_in_a_pipeline_and_cross_validated() -> None:
    it = make_pipeline(StandardScaler(), classifier())
    assert cross_val_score(it, X, Y, cv=3).mean() > 0.8
    assert clone(it).fit(X, Y).predict(TEST).shape == TRUE.shape


def test_a_notebook_shows_the_parameters_and_what_was_learned() -> None:
    it = classifier()
    assert "memory" in it._repr_mimebundle_()["text/html"] and "exemplars, " not in it._repr_mimebundle_()["text/html"]
    shown = it.fit(X[some(0, 1)], np.where(Y[some(0, 1)] == "class 00", "<b>", "other"))._repr_mimebundle_()
    assert (
        f"2 classes, {len(it.memory_)} exemplars, 1 lessons" in shown["text/html"] and "&lt;b&gt;" in shown["text/html"]
    )
    with config_context(display="text"):
        assert list(it._repr_mimebundle_()) == ["text/plain"]


def test_a_table_with_named_columns() -> None:
    names = [f"feature {place}" for place in range(X.shape[1])]
    it = classifier().fit(pd.DataFrame(X, columns=names), pd.Series(Y))
    assert it.feature_names_in_.tolist() == names
    table = pd.DataFrame(TEST, columns=names)
    assert np.array_equal(it.predict(table), classifier().fit(X, Y).predict(TEST))
    with pytest.raises(ValueError, match="feature names should match"):
        it.predict(table[names[::-1]])


def test_an_answer_does_not_depend_on_how_many_are_scored_at_once(
    fitted: MTNClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, known = fitted.predict(TEST), fitted.predict(TEST, unknown="?")
    monkeypatch.setattr("mtn.classifier.queries.MAX_SCORES", 1)
    assert fitted.predict(TEST).tolist() == whole.tolist()
    assert fitted.predict(TEST, unknown="?").tolist() == known.tolist()


def test_k_is_capped_at_what_is_remembered_with_a_note() -> None:
    it = classifier(k=1000)
    with pytest.warns(UserWarning, match="k = 1000, but 60 exemplars are remembered: so many are looked up"):
        it.fit(TRAIN, LABELS)
    assert len(it.explain(TEST[:1])[0].neighbours) == 60
    near = queries.nearest_exemplars(it.state_, as_queries(TEST[:3]), 1000)
    assert near.index.shape == (3, 60) and near.full

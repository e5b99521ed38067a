"""mtn evaluate: every number against one computed by hand, at the command line and in Python."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mtn
from mtn import MTNClassifier
from mtn.errors import InputError
from mtn.experiments.metrics import calibration_chance

AXES = np.eye(4, dtype=np.float32)
CLASSES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def insects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with the class of the nearest of four axes."""
    folder = tmp_path_factory.mktemp("insects") / "model"
    near = np.repeat(AXES, 5, 0) + 0.05 * np.random.default_rng(0).standard_normal((20, 4))
    MTNClassifier("knn", k=1).fit(near, np.repeat(CLASSES, 5)).save(folder)
    return folder


# six samples of known classes, four of them answered rightly, and two of a class that is not known
X = AXES[[0, 0, 1, 1, 1, 2, 3, 3]]
Y = ["ant", "bee", "bee", "bee", "ant", "cat", "eel", "eel"]


def test_every_number_is_the_one_computed_by_hand(insects: Path) -> None:
    classifier = MTNClassifier.load(insects)
    found = mtn.evaluate(classifier, X, Y, ids=list("abcdefgh"))
    assert (found.samples, found.accuracy) == (6, pytest.approx(4 / 6))
    assert found.balanced_accuracy == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    by_label = {one.label: one for one in found.classes}
    assert list(by_label) == ["ant", "bee", "cat"]
    assert (by_label["bee"].samples, by_label["bee"].right) == (3, 2)
    assert by_label["bee"].recall == pytest.approx(2 / 3) and by_label["bee"].precision == pytest.approx(2 / 3)
    assert by_label["cat"].recall == by_label["cat"].precision == 1
    assert [(one.label, one.answer, one.samples, one.examples) for one in found.confusions] == [
        ("ant", "bee", 1, ["e"]),
        ("bee", "ant", 1, ["b"]),
    ]
    confidence = classifier.predict_proba(X[:6]).max(1)
    # two bins of three answers, two of them right in each: (2/3 - confidence)^2 is below the variance 2/3 (1/3) / 2
    assert 0.95 < confidence.min() < confidence.max() < 2 / 3 + 1 / 3 and found.calibration_error == 0
    assert found.calibration_chance == pytest.approx(calibration_chance(confidence))
    called = classifier.novelty(X) > classifier.threshold_
    assert found.called_unknown == pytest.approx(called[:6].mean())
    assert (found.unknown_samples, found.unknown_found) == (2, pytest.approx(called[6:].mean()))


def test_what_is_unlike_all_classes_is_found(insects: Path) -> None:
    classifier = MTNClassifier.load(insects)
    found = mtn.evaluate(classifier, np.concatenate([AXES, -AXES]), [*CLASSES, *["other"] * 4])
    assert (found.called_unknown, found.unknown_found, found.accuracy) == (0, 1, 1)
    assert mtn.evaluate(MTNClassifier("ncm").fit(AXES, CLASSES), AXES, CLASSES).called_unknown is None
    nothing = mtn.evaluate(classifier, AXES[:1], ["other"])
    assert nothing.accuracy is None and nothing.classes == [] and nothing.unknown_samples == 1


def test_samples_come_in_portions(insects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = MTNClassifier.load(insects)
    whole = mtn.evaluate(classifier, X, Y)
    monkeypatch.setattr("mtn.experiments.evaluation.PORTION", 3)
    assert mtn.evaluate(classifier, X, Y) == whole


def test_labels_must_be_there_and_as_many(insects: Path, tmp_path: Path) -> None:
    classifier = MTNClassifier.load(insects)
    with pytest.raises(InputError, match="y must be given"):
        mtn.evaluate(classifier, X)
    with pytest.raises(InputError, match="equally long, got 8, 3 and 3"):
        mtn.evaluate(classifier, X, Y[:3])
    np.save(tmp_path / "q.npy", X)
    with pytest.raises(InputError, match="has no labels to compare answers with"):
        mtn.evaluate(classifier, tmp_path / "q.npy")


def test_the_command_prints_a_table_json_and_a_figure(call, insects: Path) -> None:
    np.savez("d.npz", x_train=AXES, y_train=CLASSES, x_test=X, y_test=Y)
    code, out, err = call("evaluate", str(insects), "d.npz", "--out", "figure.png")
    assert code == 0 and not err
    assert out.startswith("accuracy 66.7 % on 6 samples of 3 classes\nbalanced accuracy 72.2 % (mean over classes)\n")
    assert "2 more samples have a label that the model does not know: " in out
    lines = [line.split() for line in out.splitlines()]
    assert lines[6][:3] == ["class", "samples", "recall"] and lines[7][:2] == ["ant", "2"]  # the lowest recall first
    assert ["bee", "ant", "1", "d.npz:1"] in lines and lines[-1] == ["figure.png"]
    assert min(Image.open("figure.png").size) > 300
    code, out, err = call("evaluate", str(insects), "d.npz", "--json", "--out", "figure.svg")
    facts = json.loads(out)
    assert err == "figure.svg\n" and facts["samples"] == 6 and len(facts["confusions"]) == 2
    code, _, err = call("evaluate", str(insects), "d.npz", "--out", "figure.gif")
    assert code == 2 and "--out must end in .png or .svg" in err


def test_the_figure_has_a_column_for_classes_that_are_not_shown_only_if_they_are_answered(
    insects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def columns() -> list[str]:
        axes = mtn.plot_evaluation(mtn.evaluate(MTNClassifier.load(insects), X, Y)).axes[0]
        return [label.get_text() for label in axes.get_xticklabels()]

    assert columns() == ["ant", "bee", "cat"]
    monkeypatch.setattr("mtn.experiments.evaluation_figure.SHOWN", 1)
    assert columns() == ["ant", "another"]


def test_a_table_with_splits_is_measured_on_its_test_rows(call, insects: Path) -> None:
    rows = ["1,0,0,0,ant,train", "1,0,0,0,bee,test", "0,1,0,0,bee,test", "0,0,1,0,,test"]
    Path("t.csv").write_text("\n".join(["a,b,c,d,label,split", *rows]))
    code, out, err = call("evaluate", str(insects), "t.csv")
    assert code == 0 and out.startswith("accuracy 50.0 % on 2 samples of 1 classes\n")
    assert err == "left out: t.csv:2: it has no label\n"


def test_sentences_are_the_examples_of_a_confusion(call, tmp_path: Path) -> None:
    MTNClassifier("knn", k=1, encoder="hashing").fit(["lamp on", "play jazz"], ["light", "music"]).save("model")
    Path("t.csv").write_text("utterance;intent\nlamp on;music\nplay jazz;music\n")
    code, out, _ = call("evaluate", "model", "t.csv", "--text", "utterance", "--label", "intent")
    assert code == 0 and out.splitlines()[-1].split() == ["music", "light", "1", "lamp", "on"]

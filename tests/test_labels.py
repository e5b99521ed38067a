"""Labels are never merged without a word: in Python, in files that the commands read, and in the service."""

import json
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from mtn import MTNClassifier
from mtn.classifier.labels import check_labels, parse_label
from mtn.data import load_vectors
from mtn.data.class_names import appearance
from mtn.data.reader import Reader
from mtn.errors import InputError
from service import Service, write_model

X = np.random.default_rng(0).standard_normal((4, 6))
COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))

MERGED = {
    "a number and its text": [1, "1"],
    "a truth value and a number": [True, 2],
    "a truth value and its text": [True, "True"],
    "a number of another type": [1, 1.0],
    "a null byte": ["a", "a\0"],
    "only a null byte": ["\0", "b"],
    "beyond 64 bits": [2**63, -1],
    "far beyond 64 bits": [10**30, 1],
    "an accent composed and not": [COMPOSED, DECOMPOSED],
    "a zero-width space": ["a", "a\u200b"],
    "a soft hyphen": ["a", "a\u00ad"],
    "a space at the end": ["a", "a "],
    "a variation selector": ["\u2764", "\u2764\ufe0f"],
    "a lone surrogate": ["\ud800", "b"],
}
UNSEEN = {
    "nothing": "",
    "a space": " ",
    "a soft hyphen": "\u00ad",
    "zero width": "\u200b\u200d\ufeff",
    "a direction override": "\u202e",
    "a name with a direction override": "cat\u202egpj",
    "a control character": "\x07",
    "a name with an escape sequence": "\x1b[31mred",
    "a line break": "a\nb",
    "a Hangul filler": "\u3164",
    "a blank Braille cell": "\u2800",
    "a lone surrogate": "a\udfff",
}
FINE = [
    "cat",
    "Katze \U0001f408",
    "\u732b",
    "\u0642\u0637\u0629",
    "a\u200db",
    "1",
    "\U0001f468\u200d\U0001f469",
    COMPOSED,
]


def column(labels: list[object]) -> pandas.Series:
    """Of a data frame."""
    return pandas.Series(labels, dtype=object)


def taught(*labels: object) -> MTNClassifier:
    """A model of these classes."""
    return MTNClassifier("ncm").fit(X[: len(labels)], list(labels))


@pytest.mark.parametrize("labels", MERGED.values(), ids=MERGED)
@pytest.mark.parametrize("kind", [list, tuple, lambda labels: np.array(labels, dtype=object), column])
def test_labels_that_would_be_merged_are_refused(labels: list[object], kind) -> None:
    if kind is column and any(isinstance(label, str) and "\ud800" in label for label in labels):
        pytest.skip("pandas refuses it first")
    with pytest.raises(InputError) as error:
        MTNClassifier("ncm").fit(X[:2], kind(labels))
    assert len(str(error.value).splitlines()) == 1
    classifier = taught("x", "y")
    with pytest.raises(InputError):
        classifier.partial_fit(X[:2], kind(labels))
    assert classifier.classes_.tolist() == ["x", "y"]


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN)
def test_names_that_cannot_be_seen_are_refused(name: str) -> None:
    classifier = taught("x", "y")
    for attempt in (
        lambda: taught("x", name),
        lambda: classifier.partial_fit(X[:1], [name]),
        lambda: classifier.rename("x", name),
    ):
        with pytest.raises(InputError, match="label"):
            attempt()


def test_labels_that_can_be_told_apart_are_kept_apart() -> None:
    classifier = MTNClassifier("ncm").fit(np.eye(8), FINE)
    assert classifier.predict(np.eye(8)).tolist() == FINE
    classifier.partial_fit(np.eye(8), FINE)  # known ones may come again
    assert taught(1, 2).classes_.tolist() == [1, 2] and taught(True, False).classes_.tolist() == [False, True]
    check_labels(np.array([[1], [2]]))  # no list of labels: scikit-learn's to refuse
    check_labels([[1], ["1"]])


def test_a_label_must_not_look_like_one_that_is_known() -> None:
    classifier = taught(COMPOSED, "b")
    for new in (DECOMPOSED, "b\u200b", " b"):
        with pytest.raises(InputError, match="must look different"):
            classifier.partial_fit(X[:1], [new])
        with pytest.raises(InputError, match="must look different"):
            classifier.rename("b" if new == DECOMPOSED else COMPOSED, new)
    assert classifier.rename(COMPOSED, DECOMPOSED).classes_.tolist() == ["b", DECOMPOSED]  # itself it may look like


def test_a_label_of_another_type_is_no_class() -> None:
    classifier = taught(0, 1)
    for label in (True, 1.0, "1", None):
        with pytest.raises(InputError, match="no class"):
            classifier.forget(label)
        with pytest.raises(InputError):
            classifier.rename(label, 5)
    with pytest.raises(InputError, match="same type"):
        classifier.rename(1, True)
    with pytest.raises(InputError, match="in `classes`"):
        classifier.partial_fit(X[:1], [1], classes=["1"])
    with pytest.raises(InputError, match="in `classes`"):
        classifier.partial_fit(X[:1], [1], classes=[True])
    assert classifier.forget(np.int64(1)).classes_.tolist() == [0]


def test_text_stands_for_one_number_only_as_it_is_written() -> None:
    assert parse_label("10", "int") == 10 and parse_label("-3", "int") == -3 and parse_label("0", "int") == 0
    assert parse_label("1.5", "float") == 1.5 and parse_label("True", "bool") is True
    for text in ("01", "1_0", "+1", " 1", "\uff11", "-0", "1.0", "9" * 5000, str(2**63)):
        with pytest.raises(InputError, match="whole numbers"):
            parse_label(text, "int")
    for text in ("1e400", "nan", "inf", "x"):
        with pytest.raises(InputError, match="are numbers"):
            parse_label(text, "float")


def test_appearance_is_what_can_be_seen() -> None:
    assert appearance(DECOMPOSED) == appearance(COMPOSED) == COMPOSED
    assert appearance("\u202aa\u200b b\u00ad ") == "a b" and appearance("\u3164\u2800\ufe0f") == ""


# ---- files


def table(path: Path, *labels: str) -> Path:
    rows = "".join(f"{row},{row * row},{label}\n" for row, label in enumerate(labels, 1))
    path.write_text(f"u,v,label\n{rows}", "utf-8")
    return path


def parquet_table(path: Path, *labels: str) -> Path:
    pandas.DataFrame({"u": range(len(labels)), "v": 1.0, "label": labels}).to_parquet(path)
    return path


@pytest.mark.parametrize("write, suffix", [(table, ".csv"), (parquet_table, ".parquet")])
def test_labels_of_a_table_are_not_merged(tmp_path: Path, write, suffix: str) -> None:
    for labels in (("a", "a\0"), ("a", "\u200b"), ("a", "\u202eb")):
        path = write(tmp_path / f"t{suffix}", *labels, *labels)
        with pytest.raises(InputError, match="label"):
            load_vectors(str(path))
        with pytest.raises(InputError, match="label"):
            Reader().to_learn(path)
    path = write(tmp_path / f"t{suffix}", *[COMPOSED, DECOMPOSED] * 3)
    with pytest.raises(InputError, match="must look different"):
        load_vectors(str(path))
    with pytest.raises(InputError, match="must look different"):
        MTNClassifier("ncm").fit(path)


def test_folders_of_one_name_are_not_merged(tmp_path: Path) -> None:
    for name in (COMPOSED, DECOMPOSED):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name / "1.png")
    if len(list((tmp_path / "images").iterdir())) < 2:
        pytest.skip("the file system merges them")
    with pytest.raises(InputError, match="must look different"):
        Reader("glyph").to_learn(tmp_path / "images")


def test_sentences_have_visible_labels(tmp_path: Path) -> None:
    for label in ("\u00ad", "a\0", "\ud800"):
        (tmp_path / "s.json").write_text(json.dumps({"train": [["text", label]]}))
        with pytest.raises(InputError):
            Reader("hashing").to_learn(tmp_path / "s.json")


def test_names_of_arrays_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=X, y=[0, 1, 0, 1], names=["a", "a"])
    with pytest.raises(InputError, match="differ"):
        Reader().to_learn(path)
    splits = {"x_train": X, "y_train": np.array(["a", "a\u200b"] * 2), "x_test": X, "y_test": ["a"] * 4}
    np.savez(path, **splits)
    with pytest.raises(InputError, match="must look different"):
        load_vectors(str(path))


# ---- the service


def test_the_service_merges_no_labels(tmp_path: Path) -> None:
    with Service(write_model(tmp_path / "model", 1, method="ncm")) as service:
        vectors = np.eye(2, 16).tolist()
        for labels in ([1, "1"], [True, "True"], ["a", "a\0"], ["a", "a\u200b"], ["\u00ad", "b"], ["\u202e", "b"]):
            answer = service.client.post("/learn", content=json.dumps({"vectors": vectors, "labels": labels}),
                                         headers={"content-type": "application/json"})  # fmt: skip
            assert answer.status_code in (400, 422) and len(answer.json()["error"].splitlines()) == 1, labels
        assert len(service.client.get("/classes").json()["classes"]) == 6
    log = service.log.read_text()
    assert "Traceback" not in log


# ---- vectors of one direction


def test_vectors_that_differ_only_in_length_are_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="differ only in length") as caught:
        MTNClassifier("ncm").fit([[1.0], [2.0], [3.0]], ["a", "b", "c"])
    assert len(caught) == 1
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 32)).astype(np.float32)
    y = np.arange(500) % 5
    x[-1], y[-1], y[0] = 3 * x[0], 4, 0
    with pytest.warns(UserWarning, match="cosine") as caught:
        MTNClassifier("ncm").fit(x, y)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_other_vectors_are_not_warned_of() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 32))
    y = np.arange(500) % 5
    x[1] = x[0]  # the same vector with two labels has nothing to do with lengths
    x[7] = 2 * x[2]  # of one class
    x[10] = -x[11]
    x[20] = x[21] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MTNClassifier("ncm").fit(x, y)


def test_a_run_warns_of_lengths(tmp_path: Path) -> None:
    arrays = {"x_train": np.array([[1.0], [2.0]]), "y_train": [0, 1], "x_test": np.array([[1.0]]), "y_test": [0]}
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.warns(UserWarning, match="differ only in length"):
        load_vectors(str(tmp_path / "d.npz"))

"""Asking a model at the command line: order and names of answers, columns, sentences and paths, files of answers."""

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dataset_files import write_images
from mtn import MTNClassifier
from mtn.data.reader import Reader
from mtn.data.sources import is_sentence
from mtn.data.table_files import Columns
from mtn.errors import InputError

SAID = ["play some jazz", "turn on the light", "music please", "lights on please"]
MEANT = ["music", "light", "music", "light"]


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentences."""
    folder = tmp_path_factory.mktemp("sentences") / "model"
    MTNClassifier("knn", k=1, encoder="hashing").fit(SAID, MEANT).save(folder)
    return folder


def answers(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def write_table(path: Path, header: str = "text,label", separator: str = ",") -> Path:
    rows = [header, *map(separator.join, zip(SAID, MEANT, strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


# ---- the order and the names of the rows


def test_answers_stand_in_the_order_of_the_table_with_its_text_and_how_many_are_right(call, sentences: Path) -> None:
    write_table(Path("t.csv"))
    code, out, err = call("predict", str(sentences), "t.csv", "--json")
    assert code == 0 and [one["input"] for one in answers(out)] == [f"t.csv:{row}" for row in range(4)]
    assert [one["text"] for one in answers(out)] == SAID
    assert [one["label"] for one in answers(out)] == [one["true_label"] for one in answers(out)] == MEANT
    assert err == "4 of 4 right (100.0 %)\n"
    Path("t.csv").write_text("id,text,label\nb,music please,light\na,lights on please,light\nc,lights off,dark\n")
    code, out, _ = call("predict", str(sentences), "t.csv")
    assert [line.split()[0] for line in out.splitlines()] == ["input", "b", "a", "c", "1"]
    assert out.endswith("\n1 of 2 right (50.0 %); 1 more have a label that the model does not know\n")


def test_a_text_file_is_named_by_its_lines_and_json_keeps_its_order(call, sentences: Path) -> None:
    Path("a.txt").write_text("\n\nmusic please\nlights on\n")
    _, out, _ = call("predict", str(sentences), "a.txt", "--json")
    assert [(one["input"], one["text"]) for one in answers(out)] == [
        ("a.txt:3", "music please"),
        ("a.txt:4", "lights on"),
    ]
    split = {"train": [["x", "music"]], "test": [[text, label] for text, label in zip(SAID, MEANT, strict=True)]}
    Path("s.json").write_text(json.dumps(split))
    _, out, err = call("predict", str(sentences), "s.json", "--json")
    assert [one["text"] for one in answers(out)] == SAID and "4 of 4 right" in err


def test_learning_still_sorts_by_label(tmp_path: Path) -> None:
    learned = Reader("hashing").to_learn(write_table(tmp_path / "t.csv"))
    assert learned.labels is not None and learned.labels.tolist() == sorted(MEANT)
    assert learned.texts == [text for _, text in sorted(zip(MEANT, SAID, strict=True), key=lambda pair: pair[0])]


def test_a_folder_of_classes_tells_the_labels_and_a_flat_one_does_not(call, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes", classes=2, count=2)
    MTNClassifier("knn", encoder="glyph").fit(folder).save(tmp_path / "model")
    _, out, err = call("predict", "model", "shapes", "--json")
    assert [one["true_label"] for one in answers(out)] == ["class 0"] * 2 + ["class 1"] * 2
    assert err == "4 of 4 right (100.0 %)\n"
    _, out, err = call("predict", "model", "shapes/class 0", "--json")
    assert len(answers(out)) == 2 and not err and "true_label" not in answers(out)[0]


def test_vectors_with_labels_say_how_many_are_right(call, tmp_path: Path) -> None:
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    MTNClassifier("knn", k=1).fit(x, y).save(tmp_path / "model")
    np.savez("d.npz", x_train=x[:1], y_train=y[:1], x_test=x, y_test=y[::-1])
    assert call("predict", "model", "d.npz")[1].endswith("\n0 of 4 right (0.0 %)\n")
    Path("t.csv").write_text("Label\ta\tb\tc\td\n3\t0\t0\t0\t1\n0\t0\t1\t0\t0\n\t1\t0\t0\t0\n")
    code, out, _ = call("predict", "model", "t.csv")
    assert code == 0 and out.endswith("\n1 of 2 right (50.0 %)\n")
    np.save("q.npy", x)
    assert "right" not in call("predict", "model", "q.npy")[1]


# ---- columns


@pytest.mark.parametrize(
    ("header", "separator", "options"),
    [
        ("Text,LABEL", ",", []),
        ("text;label", ";", []),
        ("text\tlabel", "\t", []),
        ("sentence;intent", ";", ["--text", "sentence", "--label", "intent"]),
        ("Sentence,Intent", ",", ["--text", "sentence", "--label", "INTENT"]),
        ("text,label,sentence,intent", ",", ["--text", "sentence", "--label", "intent"]),
    ],
)
def test_columns_are_found_or_told(call, tmp_path: Path, header: str, separator: str, options: list[str]) -> None:
    write_table(tmp_path / "t.csv", header, separator)
    if header.count(",") == 3:
        rows = [f"other,wrong,{text},{label}" for text, label in zip(SAID, MEANT, strict=True)]
        (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    code, out, err = call("learn", "model", "t.csv", "--method", "knn", *options)
    assert code == 0 and "0 -> 2 classes, 4 samples" in out, err
    code, out, err = call("predict", "model", "t.csv", "--json", *options)
    assert [one["text"] for one in answers(out)] == SAID and "4 of 4 right" in err
    assert call("extract", "t.csv", "--encoder", "hashing", "--out", "store", *options)[0] == 0


def test_a_column_of_paths_is_told(call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes", classes=2, count=3)
    files = sorted(tmp_path.glob("shapes/*/*.png"))
    rows = [f"{file.relative_to(tmp_path)},a note,{file.parent.name}" for file in files]
    (tmp_path / "t.csv").write_text("\n".join(["file,text,kind", *rows]))
    told = ["--path", "FILE", "--label", "kind"]
    code, out, err = call("learn", "model", "t.csv", "--encoder", "glyph", "--method", "knn", *told)
    assert code == 0 and "0 -> 2 classes, 6 samples" in out, err
    assert "6 of 6 right" in call("predict", "model", "t.csv", *told)[1]
    code, _, err = call("learn", "model", "t.csv", *told, "--text", "text")
    assert code == 2 and "--path and --text exclude each other" in err


def test_usual_synonyms_are_found(call, sentences: Path) -> None:
    write_table(Path("t.csv"), "Sentence,intent")
    assert "0 -> " in call("learn", "model", "t.csv", "--encoder", "hashing", "--method", "knn")[1]
    assert "4 of 4 right" in call("predict", "model", "t.csv")[1]
    assert Columns().rename(["sentence", "utterance"], Path("t.csv")) == ["sentence", "utterance"]  # which one?
    assert Columns().rename(["path", "question", "class"], Path("t.csv")) == ["path", "question", "label"]
    assert Columns(text="class").rename(["class", "target"], Path("t.csv")) == ["text", "target"]


def test_a_column_that_is_not_there_is_told_with_those_that_are(call, sentences: Path) -> None:
    write_table(Path("t.csv"), "words,kind")
    how = "(mtn learn, predict, evaluate and extract take --path NAME, --text NAME and --label NAME)"
    code, _, err = call("learn", "model", "t.csv")
    assert code == 2 and err == f"error: t.csv lacks the column 'label'; its columns are words, kind {how}\n"
    code, _, err = call("learn", "model", "t.csv", "--text", "utterance")
    assert code == 2 and "t.csv has no column 'utterance' (--text); its columns are words, kind" in err
    code, _, err = call("predict", str(sentences), "t.csv")
    assert code == 2 and "the column 'words' must hold numbers" in err and "--text names it" in err


def test_named_columns_take_the_place_of_others() -> None:
    header = ["id", "Text", "label", "path", "intent"]
    path = Path("t.csv")
    assert Columns().rename(header, path) == ["id", "text", "label", "path", "intent"]
    assert Columns(label="intent").rename(header, path) == ["id", "text", "label (not used)", "path", "label"]
    assert Columns(text="Text").rename(header, path) == ["id", "text", "label", "path (not used)", "intent"]


# ---- sentences and paths


@pytest.mark.parametrize("missing", ["asked.csv", "my questions.TXT", "data/asked", "on/off", "photo.jpeg"])
def test_a_path_that_does_not_exist_is_never_a_sentence(call, sentences: Path, missing: str) -> None:
    code, out, err = call("predict", str(sentences), missing)
    assert code == 2 and not out and f"INPUT: no file or folder {missing!r}; to ask it as a sentence" in err
    with pytest.raises(InputError, match="as a list"):
        MTNClassifier.load(sentences).predict(missing)
    assert len(MTNClassifier.load(sentences).predict([missing])) == 1


@pytest.mark.parametrize("text", ["lamp on", "play. some. jazz.", "folder: what is in it", "what is 3.5", "a.b"])
def test_what_does_not_look_like_a_path_is_a_sentence(text: str) -> None:
    assert is_sentence(text)


@pytest.mark.parametrize("words", [[], ["-"]])
def test_standard_input_is_sentences(call, sentences: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"turn it on/off\n\nmusic please\n")))
    code, out, _ = call("predict", str(sentences), *words, "--json")
    assert code == 0
    assert [(one["input"], one["text"]) for one in answers(out)] == [
        ("stdin:1", "turn it on/off"),
        ("stdin:3", "music please"),
    ]


def test_standard_input_without_sentences_is_an_error(call, sentences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, expected in ((b"\n", "holds no sentences"), (b"\xff", "is not UTF-8 text")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        code, _, err = call("predict", str(sentences))
        assert code == 2 and expected in err
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    assert "INPUT is missing" in call("predict", str(sentences))[2]


# ---- files of answers


def test_answers_are_written_to_a_file(call, sentences: Path) -> None:
    write_table(Path("t.csv"))
    code, out, _ = call("predict", str(sentences), "t.csv", "--output", "o.csv")
    assert code == 0 and out == "o.csv: 4 answers\n4 of 4 right (100.0 %)\n"
    with Path("o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == SAID and [row["label"] for row in rows] == MEANT
    assert list(rows[0]) == ["input", "text", "label", "probability", "novelty", "unknown", "true_label"]
    assert call("predict", str(sentences), "t.csv", "--output", "o.json")[0] == 0
    assert [one["label"] for one in json.loads(Path("o.json").read_text())] == MEANT
    code, _, err = call("predict", str(sentences), "t.csv", "--output", "o.txt")
    assert code == 2 and "--output must end in .csv or .json, got 'o.txt'" in err
    assert "no/o.csv" in call("predict", str(sentences), "t.csv", "--output", "no/o.csv")[2]
    assert sorted(file.name for file in Path().iterdir()) == ["o.csv", "o.json", "t.csv"]

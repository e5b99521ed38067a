"""Sentences are kept with what is remembered, shown as evidence, and gone when it is gone."""

import copy
import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mtn import MTNClassifier
from mtn.classifier import saving
from mtn.classifier.teaching import MOST_TEXT
from mtn.errors import InputError

QUICK = {"method.size": "small", "train.epochs": 1, "train.min_steps": 0}
SENTENCES = [
    f"{verb} the {thing}" for verb in ("turn on", "dim", "paint", "sell") for thing in ("lamp", "hall", "door")
]
LABELS = ["light"] * 6 + ["other"] * 6


@cache
def learned(keep_text: bool, memory: int) -> MTNClassifier:
    it = MTNClassifier(memory=memory, k=3, settings=QUICK, encoder="hashing", keep_text=keep_text)
    return it.partial_fit(SENTENCES, LABELS)


def taught(keep_text: bool = True, memory: int = 100) -> MTNClassifier:
    return copy.copy(learned(keep_text, memory))


def content(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_the_query_and_its_neighbours_are_sentences_before_and_after_the_disk(tmp_path: Path) -> None:
    it = taught()
    it.save(tmp_path)
    for one in (it, MTNClassifier.load(tmp_path)):
        (answer,) = one.explain(["dim the lamp"])
        assert answer.text == answer.neighbours[0].text == "dim the lamp"
        assert all(near.text == SENTENCES[near.id] for near in answer.shown())
        assert [exemplar.text for exemplar in one.memory_] == [SENTENCES[exemplar.id] for exemplar in one.memory_]
    vectors = it.reader().encode_items(SENTENCES[:1])
    assert vectors is not None
    (unnamed,) = it.explain(vectors.x)
    assert unnamed.text is None and unnamed.neighbours[0].text == SENTENCES[0]


def test_what_is_forgotten_removed_or_displaced_is_in_no_byte(tmp_path: Path) -> None:
    it = taught()
    it.save(tmp_path)
    assert all(text.encode() in content(tmp_path) for text in SENTENCES)
    it = MTNClassifier.load(tmp_path).forget("light").remove_exemplar(SENTENCES.index("paint the door"))
    it.save(tmp_path)
    left = [text for text in SENTENCES if text.encode() in content(tmp_path)]
    assert left == [text for text in SENTENCES[6:] if text != "paint the door"]
    small = taught(memory=4)
    small.save(tmp_path / "small")
    kept = sorted(exemplar.text for exemplar in small.memory_)
    assert len(kept) == 4 and kept == sorted(text for text in SENTENCES if text.encode() in content(tmp_path / "small"))


def test_a_model_that_keeps_no_text_has_none_on_disk(tmp_path: Path) -> None:
    for it in (taught(keep_text=False), taught().set_params(keep_text=False)):
        it.save(tmp_path)
        assert not any(text.encode() in content(tmp_path) for text in SENTENCES)
    again = MTNClassifier.load(tmp_path)
    assert again.keep_text is False and again.explain(["dim the lamp"])[0].neighbours[0].text is None


CODES, LONG = "\x1b]0;owned\x07", "word " * 2000
HOSTILE = [CODES, "\u202eevil", "", " ", "🙂 שלום 世界", LONG, "x" * 10_000, "\ud800 lone", "a\nb\u2028c"]


def test_any_sentence_can_be_kept_and_is_cut_at_a_word(tmp_path: Path) -> None:
    it = MTNClassifier(memory=100, k=3, settings=QUICK, encoder="hashing")
    it.partial_fit([*HOSTILE, "plain"], ["strange"] * len(HOSTILE) + ["plain"])
    it.save(tmp_path)
    texts = {exemplar.id: exemplar.text for exemplar in MTNClassifier.load(tmp_path).memory_}
    kept = [texts[number] for number in range(len(HOSTILE))]
    assert kept[:2] == HOSTILE[:2] and kept[2] is None and kept[4] == HOSTILE[4] and kept[7] == "? lone"
    assert kept[5] is not None and kept[5].endswith("word…") and MOST_TEXT - 5 <= len(kept[5]) <= MOST_TEXT
    assert kept[6] == "x" * (MOST_TEXT - 1) + "…"


def test_the_commands_show_sentences_and_no_terminal_codes(call, tmp_path: Path) -> None:
    rows = [*zip(SENTENCES, LABELS, strict=True), ("\x1b[31m sell \u202e it all", "other"), ("sell " * 500, "other")]
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    quick = [f"--set={key}={value}" for key, value in (QUICK | {"method.k": 3}).items()]
    assert call("new", "model", "--encoder", "hashing", *quick)[0] == call("learn", "model", "table.csv")[0] == 0
    code, shown, _ = call("explain", "model", "dim the lamp", "\x1b[31m sell it all", "sell " * 500)
    assert code == 0 and "dim the lamp: light, p = " in shown
    assert "similarity  once adapted  attention  text\n" in shown and "  dim the lamp\n" in shown
    assert " query itself " in shown and "  ahead of other by " in shown
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[31m sell" in shown
    assert max(map(len, shown.splitlines())) <= 120
    (answer,) = map(json.loads, call("explain", "model", "dim the lamp", "--json")[1].splitlines())
    assert answer["text"] == answer["neighbours"][0]["text"] == "dim the lamp"
    assert sum(answer["shares"].values()) == pytest.approx(answer["score"], abs=1e-5)
    assert call("explain", "model", " ")[2] == "error: INPUT must not be empty\n"
    call("forget", "model", "light")
    assert not any(text.encode() in content(tmp_path / "model") for text in SENTENCES[:6])
    assert "--no-keep-text is for a new model" in call("learn", "model", "table.csv", "--no-keep-text")[2]
    assert call("new", "bare", "--encoder", "hashing", "--no-keep-text")[0] == 0
    assert MTNClassifier.load("bare").keep_text is False


@pytest.mark.parametrize("change", ["sizes", "utf-8"])
def test_damaged_texts_are_named(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = saving._pack_texts

    def damaged(texts):
        tensors = pack(texts)
        if change == "sizes":
            tensors["texts.sizes"][0, 1] += 1
        else:
            tensors["texts.bytes"][0] = 0xFF
        return tensors

    monkeypatch.setattr(saving, "_pack_texts", damaged)
    taught().save(tmp_path)
    with pytest.raises(InputError, match=r"memory-.* is damaged"):
        MTNClassifier.load(tmp_path)


def test_old_answers_do_not_depend_on_text() -> None:
    with_text, without = taught(), taught(keep_text=False)
    assert np.array_equal(with_text.predict_proba(SENTENCES), without.predict_proba(SENTENCES))

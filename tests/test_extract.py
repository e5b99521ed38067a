"""Extraction: the same bytes however often it is killed, nothing lost, and one clear line for what cannot be read."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import processes
from commands import file_contents
from dataset_files import write_images, write_sentences
from mtn import MTNClassifier, encoders
from mtn.data import extraction, feature_store, load_vectors
from mtn.data.listing import File, Listing, Sentence
from mtn.encoders.base import Encoder
from mtn.errors import InputError

DATA = Path(__file__).parents[2] / "shared" / "data"


class Counting(Encoder):
    """The length of a sentence, and how often it was asked."""

    kind = "text"
    dimension = 2

    def __init__(self) -> None:
        self.asked = 0

    def identity(self) -> dict[str, Any]:
        return {"name": "counting", "weights": "none"}

    def prepare(self, item: Any) -> Any:
        return len(item)

    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        self.asked += len(batch)
        return np.array([[one, 1.0] for one in batch], np.float32)


def sentences(count: int) -> Listing:
    ids = [str(row) for row in range(count)]
    return Listing(ids, [str(row % 7) for row in range(count)], ["train"] * count,
                   [Sentence("x" * (1 + row % 50)) for row in range(count)], "text")  # fmt: skip


# ---- a store


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "SHARD", 10)
    monkeypatch.setattr(Encoder, "batch", 4)


@pytest.mark.parametrize("count", [1, 10, 35])
def test_every_item_is_encoded_once_and_in_order(tmp_path: Path, small: None, count: int) -> None:
    encoder = Counting()
    made = extraction.extract(sentences(count), encoder, tmp_path / "store")
    assert (made.rows, made.skipped, made.before, encoder.asked) == (count, [], 0, count)
    store = feature_store.load_feature_store(tmp_path / "store")
    np.testing.assert_array_equal(store.x[:][:, 0], [1 + row % 50 for row in range(count)])
    assert store.ids.tolist() == [str(row) for row in range(count)]
    assert store.x.dtype == np.float16 and all(isinstance(part, np.memmap) for part in store.x.parts)
    again = extraction.extract(sentences(count), encoder, tmp_path / "store")
    assert again.before == count and encoder.asked == count


def test_rows_are_gathered_from_all_shards(tmp_path: Path, small: None) -> None:
    extraction.extract(sentences(35), Counting(), tmp_path / "store")
    x = feature_store.load_feature_store(tmp_path / "store").x
    whole = np.concatenate(x.parts)
    rows = np.random.default_rng(0).integers(0, 35, 100)
    np.testing.assert_array_equal(x[rows], whole[rows])
    np.testing.assert_array_equal(x[7:23], whole[7:23])
    np.testing.assert_array_equal(np.asarray(x, np.float32), whole.astype(np.float32))
    assert x.shape == (35, 2) and len(x) == 35


def test_a_damaged_shard_is_named_and_made_again(tmp_path: Path, small: None) -> None:
    folder = tmp_path / "store"
    extraction.extract(sentences(35), Counting(), folder)
    whole, shard = file_contents(folder), folder / "x-00002.npy"
    for broken in (shard.read_bytes()[:-3], b"", shard.read_bytes()[:-1] + b"?"):
        shard.write_bytes(broken)
        with pytest.raises(InputError, match=r"x-00002\.npy is damaged: .*mtn extract command that made"):
            feature_store.load_feature_store(folder)
        encoder = Counting()
        extraction.extract(sentences(35), encoder, folder)
        assert encoder.asked == 10 and file_contents(folder) == whole


def test_a_shard_with_a_damaged_note_is_made_again(tmp_path: Path, small: None) -> None:
    folder = tmp_path / "store"
    extraction.extract(sentences(35), Counting(), folder)
    whole, note = file_contents(folder), folder / "x-00002.json"
    right = json.loads(note.read_text())
    changed = [right | change for change in ({"rows": None}, {"sha256": 1}, {"skipped": 3}, {"skipped": [[99, "x"]]})]
    for broken in ("", "[]", "{}", "\0", *map(json.dumps, changed)):
        note.write_text(broken)
        encoder = Counting()
        extraction.extract(sentences(35), encoder, folder)
        assert encoder.asked == 10 and file_contents(folder) == whole


def test_a_store_belongs_to_its_data_and_its_encoder(tmp_path: Path, small: None) -> None:
    folder = tmp_path / "store"
    extraction.extract(sentences(35), Counting(), folder)
    with pytest.raises(InputError, match="was begun with another items, now 34 instead of 35"):
        extraction.extract(sentences(34), Counting(), folder)
    with pytest.raises(InputError, match="was begun with another encoder"):
        extraction.extract(sentences(35), encoders.load_encoder("hashing"), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"not empty and not a store: it holds 'thesis\.txt'"):
        extraction.extract(sentences(35), Counting(), tmp_path / "mine")


def test_an_unfinished_store_says_so(tmp_path: Path, small: None) -> None:
    folder = tmp_path / "store"
    extraction.extract(sentences(35), Counting(), folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="is not complete: run the same mtn extract command again"):
        feature_store.load_feature_store(folder)


@pytest.mark.parametrize(
    "lie",
    [{"format": "1"}, {"shards": 3}, {"shards": [{"rows": 5}]}, {"shards": [{"rows": -1, "sha256": "x"}]},
     {"samples": None}, {"encoder": []}, {"encoder": {"name": 3}}, {"kind": "sound"}],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_lies_is_one_line(tmp_path: Path, small: None, lie: dict[str, Any]) -> None:
    folder = tmp_path / "store"
    extraction.extract(sentences(5), Counting(), folder)
    facts = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(facts | lie))
    with pytest.raises(InputError, match="is damaged: it is not the manifest of a store"):
        feature_store.load_feature_store(folder)
    facts["shards"][0]["rows"] = 0
    (folder / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"is damaged: samples\.csv has 5 rows, the shards do not"):
        feature_store.load_feature_store(folder)


def test_without_a_test_split_every_fifth_sample_of_a_class_is_for_test(tmp_path: Path, small: None) -> None:
    extraction.extract(sentences(35), Counting(), tmp_path / "store")
    data = load_vectors(str(tmp_path / "store"))
    assert (
        len(data.test) == 7 and len(data.train) == 28 and not set(data.test.id.tolist()) & set(data.train.id.tolist())
    )
    assert sorted(data.test.y.tolist()) == list(range(7))


def test_a_vector_that_float16_cannot_hold_is_left_out(tmp_path: Path) -> None:
    class Huge(Counting):
        def encode(self, batch: Sequence[Any]) -> np.ndarray:
            x = super().encode(batch)
            x[1, 0], x[2, 0] = 1e6, np.nan
            return x

    made = extraction.extract(sentences(5), Huge(), tmp_path / "store")
    assert made.rows == 3 and [line.split(":")[0] for line in made.skipped] == ["1", "2"]
    assert "beyond float16" in made.skipped[0]


# ---- kills, and a full disk


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "mtn", *arguments], cwd=cwd, **pipes, **options)


def test_killed_three_times_the_store_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    write_sentences(tmp_path / "said.json")
    words = ["extract", "said.json", "--encoder", "hashing", "--out"]
    done = processes.start(processes.command, [*words, "whole"], tmp_path)
    for shard in (0, 1, 3):  # killed as soon as it is there
        process = processes.start(processes.command, [*words, "killed"], tmp_path)
        deadline = time.monotonic() + 120
        while not (tmp_path / "killed" / f"x-{shard:05d}.json").exists() and process.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        processes.kill(process)
    last = processes.start(processes.command, [*words, "killed"], tmp_path)
    for process in (last, done):
        process.join()
        assert process.exitcode == 0
    expected = file_contents(tmp_path / "whole")
    assert file_contents(tmp_path / "killed") == expected and len(expected) == 2 * 5 + 4


def test_a_full_disk_is_one_line_and_what_is_done_stays(tmp_path: Path) -> None:
    write_sentences(tmp_path / "said.json", 6000)
    command = ["extract", "said.json", "--encoder", "hashing", "--out", "store"]

    def limit() -> None:  # the system refuses to write a file beyond it, as it does on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    process = start(*command, cwd=tmp_path, preexec_fn=limit)
    _, err = process.communicate()
    assert process.returncode == 2 and err.count("\n") == 1
    assert "cannot be written: File too large; what is done is kept: make room" in err
    assert sorted(os.listdir(tmp_path / "store")) == [".lock", "plan.json"]
    assert start(*command, cwd=tmp_path).wait() == 0


# ---- what cannot be read


def png_of(width: int, height: int) -> bytes:
    """The beginning of a picture that would fill the memory."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = write_images(tmp_path / "shapes", classes=3, count=4)
    (folder / "class 2").rename(folder / "ქართული класс 类")
    (folder / "empty").mkdir()
    whole = (folder / "class 0" / "0.png").read_bytes()
    (folder / "class 0" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "class 0" / "text.jpg").write_text("hello")
    (folder / "class 1" / "vast.png").write_bytes(png_of(50_000, 50_000))
    return folder


def test_what_cannot_be_read_is_listed_with_its_path_and_why(call, mixed: Path) -> None:
    code, out, err = call("extract", "shapes", "--encoder", "glyph", "--out", "store")
    assert code == 0 and "store: 12 vectors of 3 classes, 3 left out" in out
    lines = dict(line.removeprefix("left out: ").split(": ", 1) for line in err.splitlines() if "." in line)
    assert set(lines) >= {"class 0/cut.png", "class 0/text.jpg", "class 1/vast.png"}
    assert "not an image" in lines["class 0/text.jpg"]
    assert lines["class 1/vast.png"] == "it has more than 100,000,000 pixels: shrink it first"
    assert "empty" in err
    assert "ქართული класс 类" in feature_store.load_feature_store(Path("store")).labels
    assert call("extract", "shapes", "--encoder", "glyph", "--out", "store", "--strict")[0] == 1


def test_a_zip_makes_the_vectors_of_its_folder_and_tells_what_is_damaged(call, mixed: Path) -> None:
    shutil.make_archive("shapes", "zip", "shapes")
    content = Path("shapes.zip").read_bytes()
    with zipfile.ZipFile("shapes.zip") as archive:
        start = archive.getinfo("class 1/0.png").header_offset + 30 + len("class 1/0.png")
    Path("shapes.zip").write_bytes(content[:start] + b"\xff" * 8 + content[start + 8 :])
    for data in ("shapes", "shapes.zip"):
        code, out, err = call("extract", data, "--encoder", "glyph", "--out", f"of {data}")
        assert code == 0 and ("11 vectors" if data == "shapes.zip" else "12 vectors") in out
    assert "left out: class 1/0.png: the zip is damaged: " in err
    folder, archived = (
        feature_store.load_feature_store(Path("of shapes")),
        feature_store.load_feature_store(Path("of shapes.zip")),
    )
    same = folder.ids != "class 1/0.png"
    np.testing.assert_array_equal(folder.ids[same], archived.ids)
    np.testing.assert_array_equal(folder.x[:][same], archived.x[:])


def test_a_model_learns_what_can_be_read_unless_told_to_be_strict(call, mixed: Path) -> None:
    quick = ["--method", "knn"]
    code, _, err = call("learn", "model", "shapes", *quick, "--strict")
    assert code == 2 and "--strict: " in err and not Path("model").exists()
    assert call("learn", "model", "shapes", *quick)[0] == 0
    assert MTNClassifier.load("model").classes_.tolist() == ["class 0", "class 1", "ქართული класс 类"]


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    broken = Listing(["a"], ["x"], ["train"], [File("absent.png")])
    with pytest.raises(InputError, match="none of 1 images can be read; a: "):
        extraction.extract(broken, encoders.load_encoder("glyph"), tmp_path / "store")


# ---- a store wherever vectors are


def test_a_store_is_learned_from_asked_about_and_compared(call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes" / "train", classes=4, count=6)
    write_images(tmp_path / "shapes" / "test", classes=4, count=2)
    assert call("extract", "shapes", "--encoder", "glyph", "--out", "store")[0] == 0
    assert call("learn", "model", "store", "--method", "knn")[0] == 0
    code, out, _ = call("predict", "model", "store", "--json")
    assert code == 0 and len(out.splitlines()) == 8
    code, out, _ = call("predict", "model", "shapes/test/class 1/0.png", "--json")  # the encoder is known
    assert json.loads(out)["label"] == "class 1"
    by_image = MTNClassifier.load("model").predict([Image.open("shapes/test/class 1/0.png")])
    assert by_image.tolist() == ["class 1"]
    made = ["--methods", "knn,ncm", "--set", "stream.data=store", "--set", "stream.first=2", "--set", "stream.step=1"]
    code, out, err = call("compare", "demo", *made, "--set", "memory.total=16", "--out", "runs")
    assert code == 0, err


def test_a_store_of_another_encoder_is_refused(call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes")
    write_sentences(tmp_path / "said.json", 40)
    assert call("extract", "said.json", "--encoder", "hashing", "--out", "said")[0] == 0
    assert call("learn", "model", "shapes", "--method", "knn")[0] == 0
    before = file_contents(tmp_path / "model")
    code, _, err = call("learn", "model", "said")
    assert code == 2 and "made by another encoder than the model's" in err
    code, _, err = call("predict", "model", "said.json")
    assert code == 2 and "this model takes images, got sentences" in err
    assert file_contents(tmp_path / "model") == before


@pytest.mark.skipif(not DATA.exists(), reason="needs the data beside the repository")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "encoder", "stream"),
    [
        (["flowers102_images.zip"], "glyph", (51, 17)),
        (["tiny-imagenet-40.zip"], "glyph", (20, 5)),
        (["images_background_small1.zip", "images_background_small2.zip"], "glyph", (122, 30)),
        (["clinc150.json"], "hashing", (75, 15)),
    ],
)
def test_real_data_go_from_files_to_a_comparison(call, data, encoder, stream) -> None:
    code, _, err = call("extract", *(str(DATA / name) for name in data), "--encoder", encoder, "--out", "store")
    assert code == 0, err
    made = ["--set", "stream.data=store", "--set", f"stream.first={stream[0]}", "--set", f"stream.step={stream[1]}"]
    code, _, err = call("compare", "demo", "--methods", "knn,slda", *made, "--out", "runs", "--jobs", "1")
    assert code == 0, err

"""What a name or a path is: recognised once, and the same at every door, which are run, learn, predict and extract."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dataset_files import (
    WNIDS,
    cifar,
    csv_file,
    drawings,
    landmark_table,
    linked,
    parquet,
    plant,
    tiny,
    write_folder,
    write_images,
    zipped,
)
from mtn import encoders
from mtn.config import Config
from mtn.data import extraction, load_data, load_vectors
from mtn.data.reader import Reader
from mtn.data.sources import Format, open_source
from mtn.errors import InputError
from mtn.recipes import parse

RNG = np.random.default_rng(3)
Y = np.repeat(["a", "b", "c", "d"], 6)
X = (RNG.standard_normal((4, 5)).repeat(6, 0) + 0.1 * RNG.standard_normal((24, 5))).astype(np.float32)
SPLITS = {"x_train": X, "y_train": Y, "x_test": X[::2], "y_test": Y[::2]}
COLUMNS: dict[str, list[Any]] = {**{f"f{d}": X[:, d].astype(float).tolist() for d in range(5)}, "label": Y.tolist()}
SENTENCES = {"text": ["lamp on", "lamp off", "play jazz"], "label": ["light", "light", "music"]}


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    with path.open("wb") as file:  # under any name
        np.savez(file, **arrays)
    return path


def write_store(path: Path) -> Path:
    listing = open_source(write_images(path.with_name("seen"))).list_items()
    extraction.extract(listing, encoders.load_encoder("glyph"), path)
    return path


def write_table_of_paths(path: Path) -> Path:
    files = sorted(write_images(path.with_name("pictures")).rglob("*.png"))
    return csv_file(path, {"path": list(map(str, files)), "label": [file.parent.name for file in files]})


def write_zip(path: Path) -> Path:
    return Path(shutil.make_archive(str(path.with_suffix("")), "zip", write_images(path.with_name("zipped"))))


def write_landmarks(path: Path) -> Path:
    path.mkdir()
    landmark_table(path / "train.csv", {label: 51 for label in range(1000)})
    return path


def write_png(path: Path) -> Path:
    Image.new("L", (32, 32), 200).save(path)
    return path


Make = Callable[[Path], Path | str]

VECTORS: dict[str, tuple[Make, Format]] = {
    "data set": (lambda path: "glyphs-2", Format.DATASET),
    "store": (lambda path: write_store(path / "store"), Format.STORE),
    "npz": (lambda path: write_npz(path / "d.npz", **SPLITS), Format.ARRAYS),
    "npz of another name": (lambda path: write_npz(path / "d.dat", **SPLITS), Format.ARRAYS),
    "npz named zip": (lambda path: write_npz(path / "d.zip", **SPLITS), Format.ARRAYS),
    "folder of npy": (lambda path: write_folder(path / "d", **SPLITS), Format.ARRAYS),
    "csv": (lambda path: csv_file(path / "d.csv", COLUMNS), Format.VECTOR_TABLE),
    "csv as text": (lambda path: str(csv_file(path / "d.CSV", COLUMNS)), Format.VECTOR_TABLE),
    "parquet": (lambda path: parquet(path / "d.parquet", COLUMNS), Format.VECTOR_TABLE),
}
ITEMS: dict[str, tuple[Make, str, str]] = {
    "folder": (lambda path: write_images(path / "d"), "folder", "images"),
    "zip": (lambda path: write_zip(path / "d.zip"), "folder", "images"),
    "named layout": (lambda path: f"folder:{write_images(path / 'd')}", "folder", "images"),
    "tiny-imagenet": (lambda path: plant(path / "d", tiny()), "tiny-imagenet", "images"),
    "tiny-imagenet zipped": (lambda path: zipped(path / "d.zip", tiny()), "tiny-imagenet", "images"),
    "imagenet-1k": (
        lambda path: linked(path / "d", [f"{part}/{WNIDS[0]}/1.JPEG" for part in ("train", "val")]),
        "imagenet-1k",
        "images",
    ),
    "cifar-100": (lambda path: cifar(path / "d"), "cifar-100", "images"),
    "omniglot": (lambda path: plant(path / "images_background", drawings("Greek", 1, 0)), "omniglot", "images"),
    "table of paths": (lambda path: write_table_of_paths(path / "d.csv"), "table", "images"),
    "table of sentences": (lambda path: csv_file(path / "d.csv", SENTENCES), "table", "sentences"),
    "parquet of sentences": (lambda path: parquet(path / "d.pq", SENTENCES), "table", "sentences"),
    "json": (
        lambda path: plant(path, {"d.json": json.dumps({"train": [["hi", "x"], ["ho", "y"]]})}) / "d.json",
        "sentences",
        "sentences",
    ),
}
QUERIES: dict[str, tuple[Make, Format]] = {
    "npy": (lambda path: write_folder(path / "d", q=X) / "q.npy", Format.ARRAY),
    "image": (lambda path: write_png(path / "d.png"), Format.IMAGE),
    "text": (lambda path: plant(path, {"d.txt": "lamp on\n"}) / "d.txt", Format.TEXT),
}


@pytest.fixture(autouse=True)
def small_glyphs(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The data set that comes with the package, with two classes, is made once."""
    monkeypatch.setenv("MTN_CACHE", str(tmp_path_factory.getbasetemp() / "glyphs of test_sources"))


def refusal(door: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        door()
    assert "\n" not in str(error.value)
    return str(error.value)


def images_config(data: Any, side: int | None = 8) -> Config:
    return parse({"stream": {"data": data}, "images": {"side": side}, "memory": {"total": 8}}, "test")


# ---- every format at every door


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_are_run_on_and_learned_from_and_need_no_encoder(tmp_path: Path, case: str) -> None:
    make, format = VECTORS[case]
    data = make(tmp_path)
    source = open_source(data)
    assert source.format is format and source.holds_vectors
    run, learned, asked = load_vectors(str(data)), Reader().to_learn(data), Reader().to_ask(data)
    assert len(run.train) and len(run.test) and len(run.names) in (2, 4)
    assert learned.labels is not None and set(learned.labels) == set(run.names)
    assert learned.x.shape[1] == asked.x.shape[1] == run.train.dimension
    if format is Format.DATASET:  # which has images, too
        assert len(source.list_items()) == 300
        assert load_data(images_config(data)).train.shape == (8, 8, 3)
        return
    assert f"DATA: {source.path} is {format.value}" in refusal(source.list_items)
    assert "vectors need no encoder" in refusal(source.list_items)
    assert "vectors need no images.side" in refusal(lambda: load_data(images_config(str(data))))


@pytest.mark.parametrize("case", ITEMS)
def test_items_are_learned_from_and_extracted_and_a_run_names_the_command(tmp_path: Path, case: str) -> None:
    make, layout, kind = ITEMS[case]
    data = make(tmp_path)
    source = open_source(data)
    assert (source.format, source.layout, source.holds_vectors) == (Format.ITEMS, layout, False)
    listing = source.list_items()
    assert f"{listing.kind}" == {"images": "image", "sentences": "text"}[kind] == source.kind
    learned = Reader().to_learn(data)
    assert learned.labels is not None and set(learned.labels) <= set(listing.labels)
    message = refusal(lambda: load_vectors(str(data)))
    assert f"stream.data: {source.path} holds {kind}, of which an encoder makes vectors" in message
    assert f"`mtn extract {source.path} --encoder NAME --out STORE`, then set stream.data=STORE" in message
    assert ("images.side" in message) == (kind == "images")
    if kind == "sentences":
        assert "holds sentences: leave out images.side" in refusal(lambda: load_data(images_config(str(data))))


@pytest.mark.parametrize("case", QUERIES)
def test_what_has_no_labels_is_only_asked_about(tmp_path: Path, case: str) -> None:
    make, format = QUERIES[case]
    data = make(tmp_path)
    assert open_source(data).format is format
    assert len(Reader().to_ask(data))
    assert refusal(lambda: load_vectors(str(data))).startswith("stream.data must be an .npz, .csv or .parquet file")
    assert refusal(lambda: Reader().to_learn(data)).startswith("DATA must be an .npz, .csv or .parquet file")
    expected = "vectors need no encoder" if format is Format.ARRAY else "DATA must be an .npz"
    assert expected in refusal(open_source(data).list_items)


def test_landmarks_are_recognised_by_their_table(tmp_path: Path) -> None:
    source = open_source(write_landmarks(tmp_path / "d"))
    assert (source.format, source.layout) == (Format.ITEMS, "landmarks-1k")
    assert "mtn extract" in refusal(lambda: load_vectors(str(tmp_path / "d")))


def test_a_run_on_images_takes_what_extraction_takes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_images(tmp_path / "d" / part)
    named = load_data(images_config(f"folder:{tmp_path / 'd'}"))
    assert len(named.train) == len(named.test) == 6
    assert torch.equal(named.train.x(), load_data(images_config(str(tmp_path / "d"))).train.x())


DOORS: dict[str, Callable[[str], object]] = {
    "stream.data": load_vectors,
    "DATA": Reader().to_learn,
    "INPUT": Reader().to_ask,
    "--data": lambda data: open_source(data, "--data").list_items(),
}


@pytest.mark.parametrize("parameter", DOORS)
def test_errors_are_worded_the_same_at_every_door(tmp_path: Path, parameter: str) -> None:
    door = DOORS[parameter]
    absent = f"{parameter}: no file or folder"
    assert refusal(lambda: door("no/such.npz")) == f"{absent} 'no/such.npz'"
    assert (
        refusal(lambda: door("glyphs200")) == f"{absent} 'glyphs200', nor is it a data set: did you mean 'glyphs-200'?"
    )
    assert f"{absent} 'imagnet-1k:x', and no layout 'imagnet-1k': did you mean" in refusal(lambda: door("imagnet-1k:x"))
    assert refusal(lambda: door("folder:none")) == f"{absent} 'none'"
    strange = str(plant(tmp_path, {"d.docx": "hello"}) / "d.docx")
    message = refusal(lambda: door(strange))
    assert message.startswith(f"{parameter} must be an ") and message.endswith(f", got {strange!r}")
    packed = str(plant(tmp_path, {"d.tar.gz": ""}) / "d.tar.gz")
    assert f"tar xf {packed}" in refusal(lambda: door(packed))


def test_a_folder_without_vectors_or_images_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    message = refusal(lambda: load_vectors(str(tmp_path / "d")))
    assert message.startswith(f"{tmp_path}/d holds neither vectors nor images: stream.data must be an .npz")


def test_a_path_is_not_a_name_and_text_may_be_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "glyphs-200")
    assert open_source("glyphs-200").format is Format.DATASET
    assert open_source("./glyphs-200").layout == open_source(Path("glyphs-200")).layout == "folder"
    write_images(tmp_path / "a:b")
    assert open_source("a:b").layout == open_source("folder:a:b").layout == "folder"
    assert "~nobody-of-that-name" in refusal(lambda: open_source("~nobody-of-that-name/x.npz"))


def test_several_paths_must_be_parts_of_one_data_set(tmp_path: Path) -> None:
    vectors, folder = write_npz(tmp_path / "d.npz", **SPLITS), write_images(tmp_path / "d")
    assert f"{vectors} is an .npz file or a folder of .npy files" in refusal(lambda: open_source([folder, vectors]))
    both = [f"folder:{folder}", f"omniglot:{folder}"]
    assert "DATA must be of one layout, got folder, omniglot" in refusal(lambda: open_source(both))
    assert len(open_source([f"folder:{folder}", str(write_images(tmp_path / "e"))]).list_items()) == 12


def test_a_sentence_is_not_taken_for_a_path_or_a_name() -> None:
    reader = Reader("hashing")
    for sentence in ("glyphs-200", "folder: what is in it", "~ what", "x" * 5000, "null \0 byte"):
        assert reader.to_ask(sentence).ids == [sentence]


# ---- tables of vectors


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_without_a_test_split_every_fifth_row_of_a_class_is_for_test(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    suffix = "csv" if write is csv_file else "parquet"
    data = load_vectors(str(write(tmp_path / f"d.{suffix}", COLUMNS)))
    assert data.names == ["a", "b", "c", "d"] and data.validation is None
    assert data.test.id.tolist() == [1, 7, 13, 19] and data.test.y.tolist() == [0, 1, 2, 3]
    assert len(data.train) == 20 and not set(data.train.id.tolist()) & set(data.test.id.tolist())
    torch.testing.assert_close(data.test.x(), torch.nn.functional.normalize(torch.from_numpy(X[[1, 7, 13, 19]])))


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_a_column_split_says_what_is_for_test(tmp_path: Path, write: Callable[..., Path]) -> None:
    splits = ["Train", "train", "train", "valid", "test", "unused"] * 4
    table = COLUMNS | {"split": splits, "id": list(range(100, 124))}
    path = write(tmp_path / f"d.{'csv' if write is csv_file else 'parquet'}", table)
    data = load_vectors(str(path))
    assert data.validation is not None
    assert [len(part) for part in (data.train, data.validation, data.test)] == [12, 4, 4]
    assert data.train.dimension == 5 and data.test.id.tolist() == [4, 10, 16, 22]
    learned, asked = Reader().to_learn(path), Reader().to_ask(path)
    assert len(learned) == 12 and learned.source == asked.source == {"columns": [f"f{d}" for d in range(5)]}
    assert learned.ids is not None and [int(id) for id in learned.ids[:4]] == [100, 101, 102, 106]
    assert len(asked) == 24  # of a table, all rows are asked about


def test_whole_numbers_are_labels_in_their_order(tmp_path: Path) -> None:
    numbers = COLUMNS | {"label": np.repeat([10, 9, 2, 1], 6).tolist()}
    assert load_vectors(str(parquet(tmp_path / "d.parquet", numbers))).names == ["1", "2", "9", "10"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"label": None}, "lacks the column 'label'; its columns are f0, f1"),
        ({"split": ["test"] * 24}, "has no sample in the split 'train'"),
        ({"split": ["train"] * 18 + ["test"] * 6}, "the split 'test' has the label d, of which 'train' has no sample"),
        ({"split": ["train"] * 23 + [""]}, "the column 'split' is empty in row 23"),
        ({"f0": ["x"] * 24}, "line 2: the column 'f0' must hold numbers, got 'x'"),
        ({"f0": ["nan"] * 24}, "the table has a NaN or infinite value in row 0"),
    ],
)
def test_a_bad_table_is_one_clear_error(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    columns = {name: values for name, values in (COLUMNS | change).items() if values is not None}
    path = csv_file(tmp_path / "d.csv", columns)
    message = refusal(lambda: load_vectors(str(path)))
    assert str(path) in message and expected in message


# ---- the commands


def test_one_table_of_vectors_at_the_doors_of_the_commands(call, tmp_path: Path) -> None:
    csv_file(tmp_path / "d.csv", COLUMNS)
    stream = ["--set", "stream.data=d.csv", "--set", "stream.first=2", "--set", "stream.step=1"]
    run = ["run", "clinc150", *stream, "--set", "method.name=knn", "--set", "memory.total=16", "--out", "run"]
    code, _, err = call(*run)
    assert code == 0, err
    code, out, err = call("learn", "model", "d.csv", "--method", "knn")
    assert code == 0 and "0 -> 4 classes, 24 samples" in out, err
    code, out, _ = call("predict", "model", "d.csv", "--json")
    assert code == 0 and len(out.splitlines()) == 24
    code, _, err = call("extract", "d.csv", "--encoder", "glyph", "--out", "store")
    assert code == 2 and "d.csv is a table of vectors, as it lacks the column 'path' (of images) or 'text'" in err
    assert "its columns are f0, f1, f2, f3, f4, label (" in err and "vectors need no encoder" in err
    assert err.count("\n") == 1
    assert not Path("store").exists()


def test_one_folder_of_images_at_the_doors_of_the_commands(call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes")
    code, _, err = call("run", "demo", "--set", "stream.data=shapes")
    assert code == 2 and err.count("\n") == 1 and "`mtn extract shapes --encoder NAME --out STORE`" in err
    assert call("learn", "model", "folder:shapes", "--method", "knn")[0] == 0
    assert call("extract", "folder:shapes", "--encoder", "glyph", "--out", "store")[0] == 0
    code, _, err = call("extract", "store", "--encoder", "glyph", "--out", "again")
    assert code == 2 and "store is a store written by mtn extract: vectors need no encoder" in err


def test_the_data_set_of_the_package_at_the_doors_of_the_commands(call) -> None:
    code, out, err = call("learn", "model", "glyphs-2", "--method", "knn")
    assert code == 0 and "0 -> 2 classes, 200 samples" in out, err
    code, out, _ = call("predict", "model", "glyphs-2", "--json")
    assert code == 0 and len(out.splitlines()) == 60
    code, out, err = call("extract", "glyphs-2", "--encoder", "glyph", "--out", "store")
    assert code == 0 and "store: 300 vectors of 2 classes" in out, err

"""Tables and JSON files of items -> a listing; what a listing costs; which layout is taken."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataset_files import (
    WNIDS,
    csv_file,
    linked,
    listing,
    parquet,
    picture,
    pixels,
    plant,
    refused,
    rows,
    shared,
    tiny,
    zipped,
)
from mtn.data import imagenet
from mtn.data.layouts import LAYOUTS
from mtn.data.listing import File

# ---- tables and sentences


PATHS = {
    "path": ["b/2.png", "b/1.png", "a.png"],
    "extra": [1, 2, 3],
    "label": ["x", "x", "7"],
    "split": ["valid", "Test", "train"],
}


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_a_table_of_paths(tmp_path, write):
    linked(tmp_path, ["a.png"])
    found = listing([write(tmp_path / f"t.{'csv' if write is csv_file else 'parquet'}", PATHS)])
    assert rows(found) == [("train", "7", "a.png"), ("val", "x", "b/2.png"), ("test", "x", "b/1.png")]
    assert pixels(found.locations[0].load()) == pixels(picture(0))


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_a_table_of_sentences(tmp_path, write):
    columns = {"text": ['so, "late"', "hi", "bye\nnow"], "label": ["b", "a", "b"]}
    path = tmp_path / f"t.{'csv' if write is csv_file else 'parquet'}"
    found = listing([write(path, columns)])
    assert rows(found) == [("train", "a", "train/1"), ("train", "b", "train/0"), ("train", "b", "train/2")]
    assert [place.load() for place in found.locations] == ["hi", 'so, "late"', "bye\nnow"] and found.kind == "text"
    assert listing([write(path, columns | {"id": [5, 6, 7]})]).ids == ["6", "5", "7"]


def test_absolute_paths_and_several_labels_of_one_image(tmp_path):
    linked(tmp_path / "far", ["a.png"])
    columns = {"path": [str(tmp_path / "far/a.png")] * 2, "label": ["x", "y"]}
    assert "several items" in refused(csv_file(tmp_path / "t.csv", columns))
    found = listing([csv_file(tmp_path / "t.csv", columns | {"id": ["1", "2"]})])
    assert pixels(found.locations[1].load()) == pixels(picture(0))


@pytest.mark.parametrize("write", [csv_file, parquet])
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"file": ["a"], "label": ["x"]}, ["lacks the column 'path'", "'text'", "file, label"]),
        ({"path": ["a"], "kind": ["x"]}, ["lacks the column 'label'", "path, kind"]),
        ({"path": ["a"], "text": ["b"], "label": ["x"]}, ["both", "'path'", "'text'"]),
        ({"path": ["a", "b"], "label": ["x", ""]}, ["'label' is empty in row 1"]),
        ({"text": [], "label": []}, ["holds no sentences"]),
    ],
)
def test_a_table_that_lacks_something_is_told_what(tmp_path, write, columns, words):
    path = write(tmp_path / f"t.{'csv' if write is csv_file else 'pq'}", columns)
    assert all(word in refused(path) for word in [str(path), *words])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "path,label\na\n"),
        ("t.csv", b"path,label\n\xff,1\n"),
        ("t.csv", ""),
        ("t.pq", b"PAR1"),
        ("t.csv", "path,label,label\na,b,c"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, name, content):
    assert str(tmp_path / name) in refused(plant(tmp_path, {name: content}) / name)


def test_sentences_as_json(tmp_path):
    content = {"oos_val": [["huh", "oos"]], "val": [["c", "x"]], "train": [["b", "y"], ["a", "x"], ["d", "x"]]}
    found = listing([plant(tmp_path, {"s.json": json.dumps(content)}) / "s.json"])
    assert rows(found) == [
        ("train", "x", "train/1"),
        ("train", "x", "train/2"),
        ("train", "y", "train/0"),
        ("val", "x", "val/0"),
        ("oos_val", "oos", "oos_val/0"),
    ]
    assert found.locations[0].load() == "a" and found.kind == "text"


@pytest.mark.parametrize("content", ["{", "[]", '{"train": [["a"]]}', '{"train": "ab"}', '{"train": [["a", 1]]}', "{}"])
def test_json_that_is_not_of_sentences_is_refused(tmp_path, content):
    assert "s.json" in refused(plant(tmp_path, {"s.json": content}) / "s.json")


def test_the_real_clinc():
    found = listing(shared("clinc150.json"))
    expected = {"train": 15000, "val": 3000, "test": 4500, "oos_train": 100, "oos_val": 100, "oos_test": 1000}
    assert Counter(found.splits) == expected
    assert list(dict.fromkeys(found.splits)) == ["train", "val", "test", "oos_test", "oos_train", "oos_val"]
    assert len({label for part, label, _ in rows(found) if part == "train"}) == 150


# ---- memory


def many(path: Path, count: int) -> Path:
    names = [f"class {row % 100:03}/image_{row:08}.png" for row in range(count)]
    if path.suffix == ".csv":
        return csv_file(path, {"path": names, "label": [str(row % 100) for row in range(count)]})
    return zipped(path, dict.fromkeys(names, b"")) if path.suffix else linked(path, names)


GROWTH = """
import re, sys
from pathlib import Path
from mtn.data.sources import open_source

def peak_after(path):  # getrusage would begin with the peak of whoever started this process
    found = open_source(path).list_items()
    return len(found), found.ids[-1], int(re.search("VmHWM:\\s*(.*) kB", Path("/proc/self/status").read_text())[1])

few, many = map(peak_after, sys.argv[1:])
print(many[0] - few[0], many[2] - few[2], many[1])
"""


@pytest.mark.parametrize("name", ["folder", "a.zip"])
def test_a_listing_takes_no_more_memory_for_more_items(tmp_path, name):
    """In a process of its own, where SQLite's memory counts, too. Packed in memory, an item would take 125 bytes."""
    paths = [str(many(tmp_path / f"{count} {name}", count)) for count in (20_000, 40_000)]
    made = subprocess.run([sys.executable, "-c", GROWTH, *paths], capture_output=True, text=True, check=True)
    more, kilobytes, last = made.stdout.split(maxsplit=2)
    assert int(more) == 20_000 and last.strip() == "class 099/image_00039999.png"
    assert int(kilobytes) < 2_000


def test_a_full_disk_for_temporary_files_is_one_clear_error(tmp_path):
    path = many(tmp_path / "a.csv", 20_000)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); {LISTED}"
    made = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "cannot be kept in a temporary file" in made.stdout and "SQLITE_TMPDIR" in made.stdout


LISTED = """
import sys
from pathlib import Path
from mtn.data.sources import open_source
from mtn.errors import InputError
try:
    open_source(sys.argv[1]).list_items()
except InputError as error:
    print(error)
"""


def test_threads_read_a_listing_at_once(tmp_path):
    found = listing([many(tmp_path / "a.csv", 2_000)])
    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(found.locations.__getitem__, range(2_000)))
    assert places == found.locations and [Path(place.path).name for place in places] == [
        Path(id).name for id in found.ids
    ]


def test_a_listing_is_read_as_lists_are(tmp_path):
    found = listing([linked(tmp_path, ["cat/1.png", "cat/2.png", "dog/3.png"])])
    assert found.ids == ["cat/1.png", "cat/2.png", "dog/3.png"] and found.ids != ["cat/1.png"]
    assert found.labels[-1] == "dog" and found.labels[:2] == ["cat", "cat"] and "dog" in found.labels
    assert found.locations[1:] == [File(f"{tmp_path}/{name}") for name in ("cat/2.png", "dog/3.png")]
    assert pickle.loads(pickle.dumps(found.locations[0])) == found.locations[0]
    with pytest.raises(IndexError):
        found.ids[3]


# ---- which layout


def test_an_unknown_layout_gets_the_closest_one(tmp_path):
    assert "no layout 'imagenet1k': did you mean 'imagenet-1k'?" in refused(tmp_path, layout="imagenet1k")
    assert all(name in refused(tmp_path, layout="?") for name in LAYOUTS)


def test_a_layout_may_be_forced(tmp_path):
    plant(tmp_path, tiny())
    assert {label for label in listing([tmp_path], "folder").labels if label != "images"} == set(WNIDS[:2])


@pytest.mark.parametrize("name", ["missing", "a.txt"])
def test_what_is_no_data_set_is_refused(tmp_path, name):
    plant(tmp_path, {"a.txt": ""})
    assert str(tmp_path / name) in refused(tmp_path / name)


def test_paths_that_are_no_parts_of_one_data_set_are_refused(tmp_path):
    one, two = (csv_file(tmp_path / name, PATHS) for name in ("a.csv", "b.csv"))
    assert str(two) in refused(one, two)
    folder = linked(tmp_path / "folder", ["cat/1.png"])
    assert "different layouts: folder, table" in refused(one, folder)
    assert "one folder" in refused(folder, folder, layout="imagenet-1k")
    assert "one folder" in refused(plant(tmp_path, {imagenet.TRAIN: b""}), folder, layout="imagenet-1k")

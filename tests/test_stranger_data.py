"""A stranger's data files are measured before they are read."""

import io
import os
import socket
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import mtn
from mtn import MTNClassifier, images
from mtn.data import arrays, load_vectors, parquet_files, trees, zips
from mtn.data.listing import File
from mtn.data.reader import Reader
from mtn.data.sources import open_source
from mtn.data.vector_tables import read_vector_table
from mtn.errors import InputError
from mtn.storage import files
from strangers import refused

GB = 10**9
SPLITS = {"x_train": np.eye(4), "y_train": np.arange(4), "x_test": np.eye(4), "y_test": np.arange(4)}


# ---- arrays


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file with any header."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + content


def declared(shape: str, descr: str = "<f8") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


HEADERS = {
    "more than memory": declared("(1000000000, 1000)"),
    "more than 64 bits": declared("(99999999999999999999, 4)"),
    "less than nothing": declared("(-1, 4)"),
    "no bytes an item": declared("(1000000000000,)", "|S0"),
    "text of gigabytes": declared("(4,)", "<U1000000000"),
    "no header": "",
    "half a header": "{'descr': '<f8', 'shape",
    "nested": "(" * 3000,
    "another type": "[1, 2]",
    "a number of thousands of digits": declared(f"({'9' * 5000},)"),
    "objects": declared("(4,)", "|O"),
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("name", ["x_train", "y_train"])
def test_the_shape_in_a_header_is_not_believed(tmp_path: Path, header: str, name: str) -> None:
    members = {key: saved(array) for key, array in SPLITS.items()} | {name: npy(header, b"\0" * 64)}
    path = npz(tmp_path / "d.npz", members)
    with refused("x_train|y_train"):
        arrays.load_arrays(path)
    with refused():
        arrays.unpack(path, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    folder = tmp_path / "folder"
    folder.mkdir()
    for key, content in members.items():
        (folder / f"{key}.npy").write_bytes(content)
    with refused(name):
        arrays.load_arrays(folder)


def lying_zip(path: Path, content: bytes, size: int, name: str, method: int = 8, summed: int | None = None) -> Path:
    """A zip whose one member has more bytes than it declares; the checksum is that of the declared, or of `summed`."""
    with zipfile.ZipFile(path, "w", {0: zipfile.ZIP_STORED, 8: zipfile.ZIP_DEFLATED}[method]) as archive:
        archive.writestr(name, content)
    changed = bytearray(path.read_bytes())
    checksum = zlib.crc32(content[: size if summed is None else summed])
    for signature, position in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        start = changed.index(signature) + position
        changed[start : start + 4] = struct.pack("<L", checksum)
        changed[start + 8 : start + 12] = struct.pack("<L", size)
    path.write_bytes(changed)
    return path


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize("more", [1, 1000, 50_000_000])
def test_a_member_of_an_npz_that_holds_more_than_it_declares_is_refused(tmp_path: Path, more: int, method: int) -> None:
    array = saved(np.arange(8.0))
    for summed in (len(array), len(array) + 1, len(array) + more):
        path = lying_zip(tmp_path / "d.npz", array + b"\0" * more, len(array), "x.npy", method, summed)
        with refused("more than the|Bad CRC", megabytes=20), pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrays.array_files, "BLOCK", 1 << 16)
            arrays.read_arrays(path, ["x"])
    whole = npz(tmp_path / "whole.npz", {"x": array})
    np.testing.assert_array_equal(arrays.read_arrays(whole, ["x"])["x"], np.arange(8.0))


def test_an_npz_of_many_members_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", {f"{number}": b"" for number in range(10_001)}, zipfile.ZIP_STORED)
    with refused("more than 10000 members"):
        arrays.load_arrays(path)


def test_an_npz_is_not_unpacked_onto_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "d.npz", **SPLITS)
    monkeypatch.setattr(arrays.array_files.shutil, "disk_usage", lambda path: Room())
    with refused("No space left"):
        arrays.unpack(tmp_path / "d.npz", tmp_path / "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.npz"]


class Room:
    free = 10


# ---- zips


def png(side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize("size", [10, None])
def test_a_member_of_a_zip_has_the_bytes_it_declares(tmp_path: Path, method: int, size: int | None) -> None:
    content = png()
    path = lying_zip(tmp_path / "d.zip", content + b"\0", len(content) if size is None else size, "cat/1.png", method)
    (location,) = open_source(path).list_items().locations
    with pytest.raises(images.Unreadable, match="bytes that the directory declares"):
        location.load()


def test_a_bomb_in_a_zip_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.png", bytes(50_000_000))
    monkeypatch.setattr(zips, "LARGEST_MEMBER", 10_000_000)
    tracemalloc.start()
    (location,) = open_source(path).list_items().locations
    with pytest.raises(images.Unreadable, match="GB are unpacked"):
        location.load()
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_folders_in_folders_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/" * 5000 + "1.png", png())
    with refused("folders deep"):
        open_source(path)
    folder = Path(tmp_path / "images" / "cat")
    folder.mkdir(parents=True)
    at = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(1100):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(at)
    with refused("folders deep|File name too long"):
        open_source(tmp_path / "images").list_items()
    assert list(trees.Folder(tmp_path / "images" / "cat" / "a").entries()[0]) == ["a"]
    os.system(f"rm -rf {tmp_path / 'images'}")  # deeper than shutil goes


def test_an_extra_field_of_many_parts_is_read_at_once() -> None:
    start = time.thread_time()
    assert list(zips._large_numbers(b"\x02\0\0\0" * 16_000 + struct.pack("<2HQ", 1, 8, 7))) == [7]
    assert time.thread_time() - start < 0.1


# ---- tables


def test_a_header_of_thousands_of_columns_takes_milliseconds(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(8000)]
    rows = "\n".join(",".join("1" for _ in names) + f",{label}" for label in "ab")
    (tmp_path / "t.csv").write_text(f"{','.join(names)},label\n{rows}\n")

    def least_seconds(read: Callable[[], Any]) -> float:
        """Of three tries, for a busy machine."""
        taken = []
        for _ in range(3):
            start = time.thread_time()
            assert read().x.shape == (2, 8000)
            taken.append(time.thread_time() - start)
        return min(taken)

    assert least_seconds(lambda: read_vector_table(tmp_path / "t.csv", labelled=True)) < 0.3
    reader = Reader(None, {"columns": names[::-1]}, 8000)
    assert least_seconds(lambda: reader.to_ask(tmp_path / "t.csv")) < 0.5
    (tmp_path / "t.csv").write_text(",".join(["c"] * 200_000) + "\n")
    with refused("all different", seconds=2):
        read_vector_table(tmp_path / "t.csv", labelled=True)


def write_parquet(path: Path, **columns: object) -> Path:
    parquet.write_table(pyarrow.table(columns), path, store_schema=False)
    return path


def repeated(text: str, count: int) -> pyarrow.DictionaryArray:
    """A column of one text, which a file has once."""
    return pyarrow.DictionaryArray.from_arrays(np.zeros(count, np.int32), [text])


def test_a_parquet_file_of_few_bytes_and_many_rows_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3_000_000
    path = write_parquet(tmp_path / "t.parquet", u=np.zeros(count), v=np.zeros(count), label=["a"] * count)
    assert path.stat().st_size < 1e6
    monkeypatch.setattr(parquet_files, "machine_memory", lambda: 8 * 2 * count)
    with refused("3000000 rows of 2 columns, 0.048 GB"):
        parquet_files.read_numbers(path, ["u", "v"])
    with refused("more than half of this machine's memory|more text"):
        load_vectors(str(path))


def test_a_dictionary_of_long_cells_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    path = write_parquet(tmp_path / "t.parquet", u=np.zeros(count), label=repeated("a" * 200_000, count))
    assert path.stat().st_size < 1e6  # of 4 GB of text
    with refused("a cell of more than 131072 bytes"):
        read_vector_table(path, labelled=True)
    path = write_parquet(tmp_path / "t.parquet", u=np.zeros(count), label=repeated("a" * 100_000, count))
    with refused("more text"):
        read_vector_table(path, labelled=True)
    path = write_parquet(tmp_path / "s.parquet", text=repeated("a" * 100_000, count), label=repeated("x", count))
    with refused("more text"):
        list(open_source(path).list_items().labels)
    path = write_parquet(tmp_path / "t.parquet", u=np.zeros(count), label=repeated("a" * 20_000, count))
    monkeypatch.setattr(parquet_files, "machine_memory", lambda: GB)
    with refused("more text"):
        read_vector_table(path, labelled=True)


def test_one_long_label_among_many_short_ones_is_measured(tmp_path: Path) -> None:
    rows = 200_000
    path = write_parquet(tmp_path / "t.parquet", u=np.zeros(rows), label=["a" * 100_000, *["b"] * (rows - 1)])
    with refused("200000 rows, and a label, split or id of 100000 characters", seconds=30, megabytes=200):
        read_vector_table(path, labelled=True)


def test_damaged_parquet_files_are_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write_parquet(tmp_path / "t.parquet", u=rng.random(500), label=[f"l{n % 7}" for n in range(500)])
    whole = path.read_bytes()
    assert len(read_vector_table(path, labelled=True).x) == 500
    for trial in range(150):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), 1 + trial % 5):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged[: len(whole) if trial % 3 else rng.integers(len(whole))])
        try:
            read_vector_table(path, labelled=True)
        except InputError as error:
            assert len(str(error).splitlines()) == 1


def test_columns_of_a_parquet_file_that_are_no_cells(tmp_path: Path) -> None:
    for label in ([[1], [2]], [{"a": 1}, {"a": 2}], [b"a", b"b"]):
        path = write_parquet(tmp_path / "t.parquet", u=[1.0, 2.0], label=label)
        with refused("text or numbers|integers or strings"):
            read_vector_table(path, labelled=True)
    path = write_parquet(tmp_path / "t.parquet", u=[1.0, None], label=["a", "b"])
    with refused("empty cells"):
        read_vector_table(path, labelled=True)
    path = write_parquet(tmp_path / "t.parquet", u=["a", "b"], label=["a", "b"])
    with refused("must hold numbers"):
        read_vector_table(path, labelled=True)


# ---- what is no file


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet", ".json", ".txt", ".zip", ".png", ".tar", ""])
def test_pipes_sockets_and_devices_are_refused_before_they_are_opened(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / f"socket{suffix}"))
        for kind in ("pipe", "device", "socket"):
            path = tmp_path / f"{kind}{suffix}"
            with refused(f"is a {kind}, not a file", seconds=1):
                Reader().to_ask(path)
            with refused(f"is a {kind}, not a file", seconds=1):
                load_vectors(str(path))
            with refused("", seconds=1):
                arrays.unpack(path, tmp_path / "new")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipes_inside_of_data_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(png())
    os.mkfifo(tmp_path / "cat" / "2.png")
    samples = Reader("glyph").to_learn(tmp_path)
    assert len(samples) == 1 and "it is a pipe, not a file" in samples.skipped[0]
    (tmp_path / "t.csv").write_text("path,label\n/dev/zero,a\n")
    with refused("it is a device, not a file", seconds=2):
        Reader("glyph").to_learn(tmp_path / "t.csv")
    os.mkfifo(tmp_path / "words.txt")
    with refused("is a pipe"):
        trees.Folder(tmp_path).lines("words.txt")
    with refused("is a pipe"):
        files.read_json(tmp_path / "words.txt")


def test_a_file_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    for name in ("a.webp", "a.json", "a.txt", "a.toml", "model.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10 * GB)  # sparse
    with pytest.raises(images.Unreadable, match=r"it has 10.0 GB"):
        File(str(tmp_path / "a.webp")).load()
    with refused("GB are read"):
        Reader("hashing").to_learn(tmp_path / "a.json")
    with refused("GB are read"):
        Reader("hashing").to_ask(tmp_path / "a.txt")
    with refused("GB are read"):
        mtn.recipe(str(tmp_path / "a.toml"))
    with refused("model.json must have at most"):
        MTNClassifier.load(tmp_path)

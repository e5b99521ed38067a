"""Vectors of one's own: what is taken, and what is refused with the file and the array named."""

import zipfile

import numpy as np
import pytest
import torch

from array_files import GOOD, as_folder, as_npz, refused, same, splits
from mtn.data import arrays, load_vectors
from mtn.errors import InputError

both = pytest.mark.parametrize("store", [as_npz, as_folder])


# ---- what is taken


@both
def test_vectors_labels_and_names_are_those_given(tmp_path, store):
    data = arrays.load_arrays(store(tmp_path, GOOD))
    assert data.names == ["0", "1", "2"]
    assert data.train.y.tolist() == [2, 0, 1, 0, 1, 2]
    assert data.validation.y.tolist() == [1, 1, 0]
    assert data.test.y.tolist() == [0, 2, 2, 1]
    expected = GOOD["x_test"] / np.linalg.norm(GOOD["x_test"], axis=1, keepdims=True)
    np.testing.assert_allclose(data.test.x().numpy(), expected, atol=1e-6)


def test_npz_and_folder_give_the_same_samples(tmp_path):
    same(arrays.load_arrays(as_npz(tmp_path, GOOD)), arrays.load_arrays(as_folder(tmp_path, GOOD)))


def test_a_path_as_text_leads_to_the_same_samples(tmp_path):
    path = as_npz(tmp_path, GOOD)
    same(load_vectors(str(path)), arrays.load_arrays(path))


@both
def test_ids_are_unique_over_all_splits(tmp_path, store):
    ids = torch.cat([split.id for split in splits(arrays.load_arrays(store(tmp_path, GOOD)))])
    assert sorted(ids.tolist()) == list(range(6 + 3 + 4))


@both
def test_the_validation_split_is_optional(tmp_path, store):
    data = arrays.load_arrays(store(tmp_path, {name: GOOD[name] for name in arrays.REQUIRED}))
    assert data.validation is None
    assert torch.cat([data.train.id, data.test.id]).unique().numel() == 10


@both
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", ">f4"])
def test_vectors_of_any_real_type_have_unit_length_in_float32(tmp_path, store, dtype):
    x = np.array([[3, 4], [0, 2], [1, 0], [5, 12], [8, 6], [1, 1]]).astype(dtype)
    labels = np.arange(6) % 2
    data = arrays.load_arrays(store(tmp_path, {"x_train": x, "y_train": labels, "x_test": x, "y_test": labels}))
    assert data.train.x().dtype == torch.float32
    torch.testing.assert_close(data.train.x()[:2], torch.tensor([[0.6, 0.8], [0, 1]]))
    torch.testing.assert_close(data.train.x().norm(dim=1), torch.ones(6))


@pytest.mark.parametrize("scale", [1e-20, 1e30, 1e39])
def test_vectors_of_any_finite_length_are_scaled_to_one_or_refused(tmp_path, scale):
    path = as_npz(tmp_path, GOOD | {"x_test": GOOD["x_test"].astype(np.float64) * scale})
    try:
        x = arrays.load_arrays(path).test.x()
    except InputError as error:
        assert str(path) in str(error) and "x_test" in str(error)
    else:
        torch.testing.assert_close(x.norm(dim=1), torch.ones(4))


@both
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", ">i4"])
def test_integer_labels_of_any_width_and_value_become_names(tmp_path, store, dtype):
    content = GOOD | {name: (GOOD[name] * 50).astype(dtype) for name in ("y_train", "y_val", "y_test")}
    data = arrays.load_arrays(store(tmp_path, content))
    assert data.names == ["0", "50", "100"]  # in the order of the numbers, not of the text
    assert data.test.y.tolist() == [0, 2, 2, 1] and data.test.y.dtype == torch.int64


@both
@pytest.mark.parametrize("dtype", ["U", "S"])
def test_string_and_bytes_labels_are_class_names(tmp_path, store, dtype):
    words = np.array(["pear", "fig", "apple"])  # sorted: apple, fig, pear
    content = GOOD | {name: words[GOOD[name]].astype(dtype) for name in ("y_train", "y_val", "y_test")}
    data = arrays.load_arrays(store(tmp_path, content))
    assert data.names == ["apple", "fig", "pear"]
    assert data.test.y.tolist() == [2, 0, 0, 1]


@both
@pytest.mark.parametrize("dtype", ["U", "S"])
def test_names_name_the_classes(tmp_path, store, dtype):
    data = arrays.load_arrays(store(tmp_path, GOOD | {"names": np.array(["pear", "fig", "apple"]).astype(dtype)}))
    assert data.names == ["pear", "fig", "apple"]
    assert data.test.y.tolist() == [0, 2, 2, 1]


def test_names_without_training_samples_are_left_out(tmp_path):
    labels = {name: GOOD[name] * 2 for name in ("y_train", "y_val", "y_test")}  # 0, 2 and 4 of five names
    data = arrays.load_arrays(as_npz(tmp_path, GOOD | labels | {"names": np.array(["a", "b", "c", "b", "e"])}))
    assert data.names == ["a", "c", "e"]
    assert data.test.y.tolist() == [0, 2, 2, 1]


def test_a_folder_is_memory_mapped(tmp_path):
    data = arrays.load_arrays(as_folder(tmp_path, GOOD))
    assert all(isinstance(split.source, np.memmap) for split in splits(data))
    assert not data.train.source.flags.writeable


def test_other_arrays_in_the_file_do_no_harm(tmp_path):
    path = as_npz(tmp_path, GOOD | {"note": np.array(["hello"], dtype=object)})
    same(arrays.load_arrays(path), arrays.load_arrays(as_folder(tmp_path, GOOD)))


# ---- what is refused


def spoilt(name: str, row: int, value: float) -> dict:
    x = GOOD[name].copy()
    x[row, 1] = value
    return {name: x}


BAD = {
    "NaN": (spoilt("x_train", 4, np.nan), ["x_train", "row 4"]),
    "infinite": (spoilt("x_test", 2, np.inf), ["x_test", "row 2"]),
    "minus infinite": (spoilt("x_val", 0, -np.inf), ["x_val", "row 0"]),
    "train lengths": ({"y_train": GOOD["y_train"][:5]}, ["x_train", "y_train", "6", "5"]),
    "test lengths": ({"x_test": GOOD["x_test"][:3]}, ["x_test", "y_test", "3", "4"]),
    "test width": ({"x_test": np.ones((4, 3))}, ["x_test", "4", "3"]),
    "validation width": ({"x_val": np.ones((3, 5))}, ["x_val", "4", "5"]),
    "1-d x": ({"x_train": np.ones(6)}, ["x_train", "(6,)"]),
    "0-d x": ({"x_train": np.array(1.0)}, ["x_train"]),
    "3-d x": ({"x_test": np.ones((4, 2, 2))}, ["x_test", "(4, 2, 2)"]),
    "empty x": ({"x_test": np.ones((0, 4)), "y_test": np.ones(0, int)}, ["x_test", "(0, 4)"]),
    "text x": ({"x_train": np.full((6, 4), "a")}, ["x_train"]),
    "complex x": ({"x_train": np.ones((6, 4), complex)}, ["x_train", "complex"]),
    "2-d y": ({"y_train": np.ones((6, 1), int)}, ["y_train", "(6, 1)"]),
    "0-d y": ({"y_test": np.array(1)}, ["y_test"]),
    "real y": ({"y_train": np.ones(6)}, ["y_train", "float64"]),
    "object y": ({"y_train": np.array([0, 1, 2, 0, 1, 2], object)}, ["y_train", "dtype=str"]),
    "object x": ({"x_test": np.ones((4, 4), object)}, ["x_test"]),
    "object names": ({"names": np.array(["a", "b", "c"], object)}, ["names", "dtype=str"]),
    "unknown test label": ({"y_test": np.array([0, 2, 7, 1])}, ["y_test", "7"]),
    "test label below all": ({"y_test": np.array([0, -1, 2, 1])}, ["y_test", "-1"]),
    "unknown validation label": ({"y_val": np.array([0, 9, 1])}, ["y_val", "9"]),
    "text among numbers": ({"y_test": np.array(["0", "2", "2", "1"])}, ["y_test"]),
    "bytes that are no text": (
        {name: np.array([b"a", b"b", b"\xff"])[GOOD[name]] for name in ("y_train", "y_val", "y_test")},
        ["y_train"],
    ),
    "bytes among text": (
        {
            "y_train": np.array(["a", "b", "c"])[GOOD["y_train"]],
            "y_val": np.array(["a", "b", "c"])[GOOD["y_val"]],
            "y_test": np.array([b"a", b"b", b"\xff"])[GOOD["y_test"]],
        },
        ["y_test"],
    ),
    "too few names": ({"names": np.array(["a", "b"])}, ["names"]),
    "names twice": ({"names": np.array(["a", "b", "a"])}, ["names"]),
    "2-d names": ({"names": np.array([["a", "b", "c"]])}, ["names"]),
    "0-d names": ({"names": np.array("a")}, ["names"]),
    "negative label with names": (
        {name: GOOD[name] - 1 for name in ("y_train", "y_val", "y_test")} | {"names": np.array(["a", "b", "c"])},
        ["names"],
    ),
    "text labels with names": (
        {name: GOOD[name].astype(str) for name in ("y_train", "y_val", "y_test")} | {"names": np.array(["a", "b"])},
        ["names"],
    ),
}


@both
@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_by_file_and_array(tmp_path, store, case):
    change, words = BAD[case]
    refused(store(tmp_path, GOOD | change), *words)


@both
@pytest.mark.parametrize("missing", arrays.REQUIRED)
def test_a_missing_array_is_named(tmp_path, store, missing):
    path = store(tmp_path, {name: array for name, array in GOOD.items() if name != missing})
    assert refused(path).startswith(f"{path} lacks {missing};")


@both
@pytest.mark.parametrize("missing", ["x_val", "y_val"])
def test_half_a_validation_split_is_refused(tmp_path, store, missing):
    refused(store(tmp_path, {name: array for name, array in GOOD.items() if name != missing}), "x_val", "y_val")


def test_a_bad_value_far_down_is_found_in_its_row(tmp_path):
    x = np.ones((20_000, 4), np.float16)  # longer than what is checked at once
    x[17_123, 3] = np.nan
    refused(as_folder(tmp_path, GOOD | {"x_train": x, "y_train": np.arange(20_000) % 3}), "x_train", "row 17123")


def test_what_is_no_zip_is_refused(tmp_path):
    for content in (b"", b"hello", b"\x93NUMPY\x01\x00"):
        (tmp_path / "data.npz").write_bytes(content)
        refused(tmp_path / "data.npz", "not an .npz")


def test_a_truncated_npz_is_refused_wherever_it_ends(tmp_path):
    path = as_npz(tmp_path, GOOD)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        refused(path)


def test_a_truncated_array_in_a_folder_is_refused_wherever_it_ends(tmp_path):
    folder = as_folder(tmp_path, GOOD)
    for name in ("x_test", "y_test"):
        file = folder / f"{name}.npy"
        whole = file.read_bytes()
        for length in range(0, len(whole), 9):
            file.write_bytes(whole[:length])
            refused(folder, name)
        file.write_bytes(whole)


def test_a_changed_byte_among_the_numbers_is_noticed(tmp_path):
    path = as_npz(tmp_path, GOOD)
    whole = path.read_bytes()
    place = whole.index(GOOD["x_train"].tobytes())
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    refused(path)


def test_a_damaged_npz_gives_no_other_error(tmp_path):
    """Where the damage does no harm it may load; its numbers are then those that were saved."""
    path = tmp_path / "data.npz"
    small = {"x_train": np.eye(2), "y_train": np.arange(2), "x_test": np.eye(2), "y_test": np.arange(2)}
    np.savez_compressed(path, **small)
    whole = path.read_bytes()
    strange = {}
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            data = arrays.load_arrays(path)
        except InputError:
            continue
        except Exception as error:
            strange[repr(error)] = place
            continue
        assert torch.equal(data.train.x(), torch.eye(2)) and data.test.y.tolist() == [0, 1]
    assert not strange


def test_a_damaged_header_in_a_folder_gives_no_other_error(tmp_path):
    folder = as_folder(tmp_path, GOOD)
    file = folder / "y_test.npy"
    whole = file.read_bytes()
    strange = {}
    for place in range(128):  # the header
        for bit in (0, 4, 6):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            try:
                arrays.load_arrays(folder)
            except InputError:
                continue
            except Exception as error:
                strange[repr(error)] = place
    assert not strange


def test_a_member_that_is_no_array_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in arrays.REQUIRED:
            archive.writestr(f"{name}.npy", "not an array")
    refused(path, "x_train")


def test_an_npz_in_the_place_of_an_npy_is_refused(tmp_path):
    folder = as_folder(tmp_path, GOOD)
    (folder / "x_train.npy").write_bytes(as_npz(tmp_path, GOOD).read_bytes())
    refused(folder, "x_train")


def test_a_missing_path_is_named(tmp_path):
    refused(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"no file or folder 'none/there\.npz'$"):
        load_vectors("none/there.npz")
    with pytest.raises(InputError, match="did you mean 'glyphs-200'"):
        load_vectors("glyphs200")

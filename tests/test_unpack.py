"""Arrays larger than memory: an .npz is refused, and unpacked into a folder that is memory-mapped."""

import os
import zipfile

import numpy as np
import pytest

from array_files import GOOD, as_npz, refused, same
from mtn.data import arrays
from mtn.errors import InputError


@pytest.fixture
def ram(monkeypatch):
    """Gives the machine as many bytes as asked."""
    return lambda size: monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": size}.__getitem__)


def test_an_npz_beyond_half_of_the_memory_is_refused_with_the_way_out(tmp_path, ram):
    ram(100)
    path = as_npz(tmp_path, GOOD)
    assert refused(path).endswith(f"mtn convert {path} {tmp_path / 'data'}")


def test_the_limit_is_half_of_the_memory(tmp_path, ram):
    path = as_npz(tmp_path, GOOD)
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    ram(2 * size)
    assert len(arrays.load_arrays(path).train) == 6
    ram(2 * size - 2)
    refused(path, "half of this machine's memory")


def test_unpack_makes_the_folder_that_loads_to_the_same_samples(tmp_path, ram):
    path = as_npz(tmp_path, GOOD | {"names": np.array(["pear", "fig", "apple"])})
    loaded = arrays.load_arrays(path)
    ram(100)
    arrays.unpack(path, tmp_path / "data")
    same(arrays.load_arrays(tmp_path / "data"), loaded)
    assert isinstance(arrays.load_arrays(tmp_path / "data").train.source, np.memmap)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "data.npz"]


def test_unpack_takes_a_compressed_npz_and_makes_folders_above(tmp_path):
    np.savez_compressed(tmp_path / "data.npz", **GOOD)
    arrays.unpack(tmp_path / "data.npz", tmp_path / "new" / "data")
    same(arrays.load_arrays(tmp_path / "new" / "data"), arrays.load_arrays(tmp_path / "data.npz"))


def test_unpack_refuses_an_existing_folder_and_leaves_it(tmp_path):
    path = as_npz(tmp_path, GOOD)
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match="data exists already"):
        arrays.unpack(path, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_unpack_refuses_a_damaged_npz_and_leaves_nothing(tmp_path, save):
    path = tmp_path / "data.npz"
    save(path, **GOOD)
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 0x40  # within the first array
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"data\.npz"):
        arrays.unpack(path, tmp_path / "data")
    assert list(tmp_path.iterdir()) == [path]


def test_unpack_refuses_a_zip_without_the_arrays(tmp_path):
    np.savez(tmp_path / "data.npz", other=np.ones(3))
    with pytest.raises(InputError, match="x_train"):
        arrays.unpack(tmp_path / "data.npz", tmp_path / "data")
    assert not (tmp_path / "data").exists()

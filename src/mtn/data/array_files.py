"""Arrays in .npy and .npz files. What a header declares is compared with the bytes there are before memory is taken
for it, and nothing is ever unpickled."""

import copy
import math
import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from lzma import LZMAError
from pathlib import Path
from typing import IO

import numpy as np

from mtn.data import zips
from mtn.errors import InputError
from mtn.storage import files

DAMAGE = (ValueError, OSError, EOFError, SyntaxError, RuntimeError, MemoryError, OverflowError, TypeError,
          tokenize.TokenError, zipfile.BadZipFile, zlib.error, LZMAError)  # fmt: skip
"""What NumPy and zipfile raise on damaged files; RecursionError is a RuntimeError."""
MOST_MEMBERS = 10_000
"""Members of an .npz file: zipfile keeps a record of each in memory."""
LARGEST_LABELS = 1 << 33
"""Bytes of an .npy file that is read, not memory-mapped."""
BLOCK = 1 << 22
"""Bytes that are copied at once."""
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""What reads the header of a version of the format; the third is for records, which have no use here."""


def read_npy(path: Path, mapped: bool = True) -> np.ndarray:
    """One array, memory-mapped or read."""
    with _reported(str(path)):
        files.require_regular(path, None if mapped else LARGEST_LABELS)
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        return array


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file has."""
    with _open_npz(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        present = [name for name in names if f"{name}.npy" in entries]
        size = sum(entries[f"{name}.npy"].file_size for name in present)
        if hasattr(os, "sysconf") and size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2:
            raise InputError(
                f"{path} holds {size / 1e9:.1f} GB, more than half of this machine's memory; "
                f"make it a folder, which is memory-mapped: mtn convert {path} {path.with_suffix('')}"
            )
        arrays = {}
        for name in present:
            with _reported(f"{path}: {name}"):
                arrays[name] = _read_member(archive, entries[f"{name}.npy"])
        return arrays


def unpack_npz(path: Path, folder: Path, names: Sequence[str]) -> None:
    """Write the named arrays of an .npz file as .npy files into a folder, in blocks: they need not fit into memory."""
    with _open_npz(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.removesuffix(".npy") in names]
        needed, free = sum(entry.file_size for entry in entries), shutil.disk_usage(folder).free
        if needed > free:
            raise InputError(
                f"{path} cannot be unpacked: No space left on device, {folder.parent} has {free / 1e9:.3g} GB, "
                f"{needed / 1e9:.3g} GB are needed"
            )
        for entry in entries:
            with archive.open(entry) as stream:
                _check_header(stream, entry.file_size)
            with _one_byte_more(archive, entry) as stream, (folder / entry.filename).open("wb") as target:
                shutil.copyfileobj(stream, target, BLOCK)
                _check_size(stream, entry)


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in an .npz file."""
    with _open_npz(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextmanager
def _open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        files.require_regular(path)
        if len(list(islice(zips.read_entries(path), MOST_MEMBERS + 1))) > MOST_MEMBERS:
            raise zipfile.BadZipFile(f"it has more than {MOST_MEMBERS} members")
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not an .npz file: {error}") from None
    with archive:
        yield archive


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as stream:
        _check_header(stream, entry.file_size)
    with _one_byte_more(archive, entry) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        while stream.read(BLOCK):  # to the end, where the checksum is compared
            pass
        _check_size(stream, entry)
    return array


def _one_byte_more(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    """A member's content and one byte of what comes after it: zipfile stops at the declared size, and says nothing."""
    longer = copy.copy(entry)
    longer.file_size += 1
    return archive.open(longer)


def _check_size(stream: IO[bytes], entry: zipfile.ZipInfo) -> None:
    if stream.tell() > entry.file_size:
        raise ValueError(f"it holds more than the {entry.file_size} bytes that it declares")


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise unless the array that a header declares takes no more than the `size` bytes there are."""
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"it has version {version[0]}.{version[1]} of the format: save it as a plain array")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(
            "it holds Python objects; save labels and names as plain arrays, e.g. np.asarray(labels, dtype=str)"
        )
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"its header declares {str(shape)[:80]} of {dtype.str[:20]}, which is no array")
    declared = file.tell() + math.prod(shape) * dtype.itemsize
    if declared > size:
        raise ValueError(f"its header declares {_bytes(declared)} bytes, it has {size}")


def _bytes(count: int) -> str:
    return str(count) if count < 2**64 else "more than 2^64"


@contextmanager
def _reported(description: str) -> Iterator[None]:
    """What goes wrong in reading a file becomes an error of one line that begins with the description."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{description} cannot be read: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """The first line of an error's message, of bounded length."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

"""Atomic writes (a temporary file, synced, then renamed over the old one), bounded reads, and locks on folders."""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mtn.errors import InputError

PARTIAL = re.compile(r"\..+\.partial")
"""What `write` is writing, or was when its process was killed."""
LARGEST_TEXT = 1 << 30
"""Bytes of a text file that is read whole."""
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
"""What a path may be that is neither a file nor a folder: reading it might wait for ever, or never end."""


def make_folder(folder: Path) -> None:
    """Make a folder and its parents unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None


def is_unused(folder: Path, *own: str) -> bool:
    """Whether a folder is missing or empty but for files named in `own` and for what a process leaves that is killed
    before it has written anything: its lock, and what was to become a file."""
    if not folder.is_dir():
        return not folder.exists()
    return all(name in (".lock", *own) or PARTIAL.fullmatch(name) for name in os.listdir(folder))


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a temporary file, and rename it to `path`: a reader sees the old file or all of the new one.

    An OSError names the file, however it came about: what a full disk raises in the middle of writing does not.
    """
    temporary = path.with_name(f".{path.name}.partial")  # always the same name: the next write replaces a killed one's
    try:
        with named_errors(path):
            fill(temporary)
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    finally:
        with suppress(OSError):  # a disk that cannot be written has already said so
            temporary.unlink(missing_ok=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Have an OSError name the path, unless it names another one that is not temporary."""
    try:
        yield
    except OSError as error:
        named = isinstance(error.filename, str) and not PARTIAL.fullmatch(os.path.basename(error.filename))
        if named and error.errno:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def write_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write files into a temporary folder, and rename it to `folder`; of several processes one wins."""
    make_folder(folder.parent)
    with named_errors(folder), tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        complete = Path(scratch) / "complete"
        complete.mkdir()
        fill(complete)
        for path in (*complete.iterdir(), complete):
            _sync(path)
        try:
            complete.rename(folder)
        except OSError:
            if not folder.is_dir():  # unless another process was first
                raise
    _sync(folder.parent)


def continue_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write files into a folder of a fixed temporary name, which is renamed to `folder` when it is complete.

    A process that is killed leaves what it wrote to the next one; of several, one fills and the others wait.
    """
    make_folder(folder.parent)
    partial = folder.with_name(f".{folder.name}.partial")
    with named_errors(folder), lock(folder.parent, wait=True):
        if folder.is_dir():  # another process was first
            return
        partial.mkdir(exist_ok=True)
        fill(partial)
        for path in (*partial.iterdir(), partial):
            _sync(path)
        partial.rename(folder)
        _sync(folder.parent)


def require_room(folder: Path, size: int, what: str, advice: str = "") -> None:
    """Refuse to write `size` bytes on a disk that has no room: to a memory-mapped file it would kill the process."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{folder.parent} has {free / 1e9:.1f} GB free, {what} need {size / 1e9:.1f}: "
            f"name a folder with more room in MTN_CACHE{advice}"
        )


@contextmanager
def lock(folder: Path, wait: bool = False) -> Iterator[None]:
    """Let one process at a time write in `folder`; the system frees the lock however that process ends.

    Another one is refused, or waits.
    """
    file_lock = FileLock(folder / ".lock", blocking=wait, thread_local=False)
    try:
        os.stat(os.path.join(folder, ""))  # fails unless it is a folder; FileLock would make a missing one
        file_lock.acquire()
    except Timeout:
        raise InputError(f"another process is at work in {folder}: wait for it, or name another folder") from None
    except OSError as error:
        raise InputError(f"cannot write in the folder {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        file_lock.release()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write(path, lambda temporary: temporary.write_text(text, "utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def require_regular(path: Path, largest: int | None = None) -> None:
    """Raise, before a file is opened, if it is a pipe, a socket or a device, or has more than `largest` bytes."""
    status = path.stat()
    kind = KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise InputError(f"{path} is {kind}, not a file")
    if largest is not None and status.st_size > largest:
        raise InputError(f"{path} has {status.st_size / 1e9:.1f} GB: at most {largest / 1e9:.2g} GB are read")


def read_text(path: Path, encoding: str = "utf-8", largest: int = LARGEST_TEXT) -> str:
    """The text of a file of bounded size."""
    require_regular(path, largest)
    return path.read_text(encoding)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise InputError(f"{path} is damaged: it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    except InputError:
        raise
    except ValueError:  # Python's limit of digits
        raise InputError(f"{path} is damaged: it has a number of thousands of digits") from None


def _sync(path: Path) -> None:
    """Wait until the disk holds a file, or a folder's entries; Windows syncs only files, and only writable handles."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A model folder -> the bytes of a zip file, part by part: what `model.json` names, and nothing else of the folder."""

import hashlib
import io
import os
import re
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from mtn.errors import InputError
from mtn.storage.model_folder import read_index

PART_BYTES = 2**20
"""That are read at once."""
TRIES = 20
"""To find a folder whose model is not replaced while its files are opened."""


class Archive:
    """The files of a model, opened together: a model that is saved meanwhile changes nothing of them."""

    def __init__(self, folder: Path) -> None:
        self.name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name).strip(".-") or "model"
        self._open = ExitStack()
        self._files = _open_together(folder, self._open)

    def close(self) -> None:
        """Let the files go."""
        self._open.close()

    def parts(self) -> Iterator[bytes]:
        """The zip file, of one folder. The tensors are not compressed: they would hardly be smaller."""
        written = _Written()
        with zipfile.ZipFile(written, "w") as archive:
            for name, file in self._files.items():
                facts = os.fstat(file.fileno())
                entry = zipfile.ZipInfo(f"{self.name}/{name}", time.localtime(facts.st_mtime)[:6])
                entry.file_size = facts.st_size  # it decides whether the entry is one for large files
                with archive.open(entry, "w") as target:
                    while part := file.read(PART_BYTES):
                        target.write(part)
                        yield written.take()
        yield written.take()


class _Written(io.RawIOBase):
    """A stream that keeps what is written to it until it is taken."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:  # type: ignore[override]
        self._bytes += content
        return len(content)

    def take(self) -> bytes:
        """What was written since the last time."""
        content = bytes(self._bytes)
        self._bytes.clear()
        return content


def _open_together(folder: Path, stack: ExitStack) -> dict[str, BinaryIO]:
    """The files of one state of the model, by name; the stack closes them. Whoever saves another state renames its
    model.json into place, and deletes the files of the state before."""
    for _ in range(TRIES):
        opened: dict[str, BinaryIO] = {}

        def add(name: str, opened: dict[str, BinaryIO] = opened) -> BinaryIO:
            opened[name] = stack.enter_context((folder / name).open("rb"))
            return opened[name]

        try:
            index = add("model.json")
            facts = read_index(folder)
            if "memory" in facts:
                raise InputError("the memory of this model is in Milvus: move it into the model's folder first")
            for entry in facts["files"].values():
                add(entry["name"])
            if _is_of(facts.get("card"), folder / "README.md"):
                add("README.md")
            if os.fstat(index.fileno()).st_ino == (folder / "model.json").stat().st_ino:
                return opened
        except FileNotFoundError:
            pass
        stack.close()
    raise InputError("the model is being saved: try again in a moment")


def _is_of(digest: str | None, card: Path) -> bool:
    """Whether a card is the one of this state: one of an earlier state may name what was forgotten since."""
    return card.is_file() and hashlib.sha256(card.read_bytes()).hexdigest() == digest

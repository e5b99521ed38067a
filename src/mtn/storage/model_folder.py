"""A model <-> a folder that is whole at any moment: model.json names the other files, and is renamed into place last.

Those files are named after what is in them, so a new model never overwrites the one that stands. model.json has their
checksums and its own. Whoever takes the lock of the folder deletes what a killed process left. Nothing is unpickled.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtn.errors import InputError
from mtn.storage import files

if TYPE_CHECKING:  # model.json alone is read without torch
    from torch import Tensor

FORMAT = 7
TENSOR_FILE = re.compile(r"(weights|memory)-[0-9a-f]{16}\.safetensors")
PARTIAL_FILE = re.compile(rf"\.({TENSOR_FILE.pattern}|model\.json|README\.md)\.partial")
"""What a killed process leaves behind."""
CARD = "# A classifier "
"""How README.md begins."""
MOST_BYTES, MOST_VALUES = 2**29, 2**24
"""Of a model.json: so much is read into memory, and may take thirty times as much there."""

Tensors = Mapping[str, "Tensor"]

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""Folders whose lock this thread holds: it saves there without taking the lock again."""


@contextmanager
def hold_model_folder(folder: Path) -> Iterator[None]:
    """Lock a folder from reading a model to saving it, so that no other process saves in between.

    What a process that was killed while saving has left is deleted. Folders made for the lock are removed again if
    there is no model in the end.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    _claim(folder)
    with files.lock(folder):
        token = _held.set(_held.get() | {folder})
        try:
            if (folder / "model.json").is_file():
                _delete_leftovers(folder, read_index(folder))
            yield
        finally:
            _held.reset(token)
            if not (folder / "model.json").exists():
                with suppress(OSError):
                    (folder / ".lock").unlink()
                    for path in made:
                        path.rmdir()


def save_model_folder(folder: Path, facts: Mapping[str, Any], parts: Mapping[str, Tensors], card: str) -> None:
    """Write a model; `parts` are tensors by file: weights, memory. Other files in the folder are left alone."""
    _claim(folder)
    with nullcontext() if folder in _held.get() else files.lock(folder):
        entries = {part: _write(folder, part, tensors) for part, tensors in parts.items()}
        index = {"format": FORMAT, **facts, "files": entries, "card": hashlib.sha256(card.encode()).hexdigest()}
        index = json.loads(json.dumps(index))  # as it will be read
        text = json.dumps({**index, "checksum": checksum(index)}, indent=1, ensure_ascii=False) + "\n"
        _check_size(folder / "model.json", len(text.encode()), _count_values(text))
        files.write_text(folder / "model.json", text)
        files.write_text(folder / "README.md", card)
        _delete_leftovers(folder, index)


def read_model_folder(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, "Tensor"]]]:
    """The facts, and the tensors by file. An error names the file that is wrong."""
    facts = read_index(folder)
    return facts, {part: _read(folder / file["name"], file["sha256"]) for part, file in facts["files"].items()}


def read_index(folder: Path) -> dict[str, Any]:
    """The facts in model.json, which are as they were written, and name files of the folder alone."""
    require_model(folder)
    path = folder / "model.json"
    try:
        _check_size(path, path.stat().st_size, 0)
        text = path.read_bytes().decode("utf-8")
        _check_size(path, 0, _count_values(text))
        facts = json.loads(text)
        intact = isinstance(facts, dict) and facts.get("checksum") in (None, checksum(facts))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} is damaged: {str(error) or type(error).__name__}") from None
    if not isinstance(facts, dict) or type(facts.get("format")) is not int or facts["format"] < 1:
        raise InputError(f"{path} is damaged: it is not the index of a model")
    if facts["format"] > FORMAT:
        raise InputError(f"{path} has format {facts['format']}, this version of mtn reads up to {FORMAT}: upgrade mtn")
    if not intact or (facts["format"] >= 3 and "checksum" not in facts):
        raise InputError(f"{path} is damaged: its checksum does not match")
    _check_entries(path, facts.get("files"))
    return facts


def checksum(facts: Mapping[str, Any]) -> str:
    """Of everything in model.json but the checksum itself."""
    content = {key: value for key, value in facts.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def require_model(folder: Path) -> None:
    """An error if the folder holds no model."""
    if not (folder / "model.json").is_file():
        raise InputError(f"{folder} holds no model: there is no file {folder / 'model.json'}")


def _claim(folder: Path) -> None:
    """Make the folder, or check that it holds a model, or nothing but what a first save that was killed left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    present = [file.name for file in folder.iterdir()]
    if "model.json" in present:
        read_index(folder)
        return
    if any(not (TENSOR_FILE.fullmatch(name) or PARTIAL_FILE.fullmatch(name) or name == ".lock") for name in present):
        raise InputError(f"{folder} is not empty and not a model: save to another folder")


def _delete_leftovers(folder: Path, facts: Mapping[str, Any]) -> None:
    """Delete files of other states than that in model.json: they may hold what was forgotten since."""
    named = {entry["name"] for entry in facts["files"].values()}
    for file in folder.iterdir():
        if file.name not in named and (TENSOR_FILE.fullmatch(file.name) or PARTIAL_FILE.fullmatch(file.name)):
            file.unlink()
    card = folder / "README.md"
    if "card" in facts and card.is_file():
        content = card.read_bytes()
        if content.startswith(CARD.encode()) and hashlib.sha256(content).hexdigest() != facts["card"]:
            card.unlink()  # the next save writes it anew


def _check_size(path: Path, size: int, values: int) -> None:
    if size > MOST_BYTES or values > MOST_VALUES:
        raise InputError(f"{path} must have at most {MOST_BYTES} bytes and {MOST_VALUES} values")


def _count_values(text: str) -> int:
    """At least as many as the values in JSON."""
    return sum(map(text.count, ",[{"))


def _check_entries(path: Path, entries: Any) -> None:
    """Refuse names of files that `save_model_folder` does not give: one could be a path out of the folder."""
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise InputError(f"{path} is damaged: it does not name its files")
    for part, entry in entries.items():
        name, digest = entry.get("name"), entry.get("sha256")
        if not (isinstance(name, str) and isinstance(digest, str) and TENSOR_FILE.fullmatch(name)):
            raise InputError(f"{path} is damaged: {name!r} is not the name of a model's file")
        if not name.startswith(f"{part}-"):
            raise InputError(f"{path} is damaged: {name!r} is not the name of a file of {part!r}")


def _write(folder: Path, part: str, tensors: Tensors) -> dict[str, str]:
    """Write tensors into a file named after their checksum, unless it is there; its entry in model.json."""
    from safetensors import torch as safetensors

    content: bytes = safetensors.save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"{part}-{digest[:16]}.safetensors"
    if not (path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest):
        files.write(path, lambda temporary: temporary.write_bytes(content))
    return {"name": path.name, "sha256": digest}


def _read(path: Path, digest: str) -> dict[str, "Tensor"]:
    """The tensors of a file that has this checksum."""
    from safetensors import SafetensorError
    from safetensors import torch as safetensors

    try:
        if not path.is_file():  # reading a pipe would not end
            raise InputError(f"{path} cannot be read: there is no such file")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except MemoryError:
        raise InputError(f"{path} cannot be read: it does not fit into memory") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} is damaged: it is not the file that was saved")
    try:
        tensors: dict[str, Tensor] = safetensors.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError, MemoryError, RecursionError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    # Cloned: in the file's own buffer a tensor lies at any address, and products round by alignment.
    return {key: tensor.clone() for key, tensor in tensors.items()}

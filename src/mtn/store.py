"""A model <-> a folder that is whole at any moment: model.json names the other files, and is renamed into place last.

Those files are named after what is in them, so a new model never overwrites the one that stands. Nothing is ever
unpickled: a folder from a stranger is safe to open.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from mtn import checkpoint
from mtn.errors import InputError

FORMAT = 2
OURS = re.compile(r"(weights|memory)-[0-9a-f]{16}\.safetensors")
PARTIAL = re.compile(rf"\.({OURS.pattern}|model\.json|README\.md)\.partial")  # left behind by a kill

Tensors = Mapping[str, Tensor]

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""Folders that this thread holds: in these it may save."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder for longer than a save, so that load, change and save are one.

    If there is no model in the end, what was made here goes again.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    _claim(folder)
    with checkpoint.lock(folder):
        token = _held.set(_held.get() | {folder})
        try:
            yield
        finally:
            _held.reset(token)
            if not (folder / "model.json").exists():
                with suppress(OSError):
                    (folder / ".lock").unlink()
                    for path in made:
                        path.rmdir()


def save(folder: Path, facts: Mapping[str, Any], parts: Mapping[str, Tensors], card: str) -> None:
    """`parts` are tensors by file: weights, memory. What else lies in the folder of a model is left alone."""
    _claim(folder)
    with nullcontext() if folder in _held.get() else checkpoint.lock(folder):
        files = {name: _write(folder, name, tensors) for name, tensors in parts.items()}
        checkpoint.write_json(folder / "model.json", {"format": FORMAT, **facts, "files": files})
        checkpoint.write_text(folder / "README.md", card)
        named = {entry["name"] for entry in files.values()}
        for file in folder.iterdir():
            if file.name not in named and (OURS.fullmatch(file.name) or PARTIAL.fullmatch(file.name)):
                file.unlink()


def load(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The facts, and the tensors by file. An error names the file that is wrong."""
    look(folder)
    index = folder / "model.json"
    facts = checkpoint.read_json(index)
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise InputError(f"{index} is damaged: it is not the index of a model")
    if facts["format"] > FORMAT:
        raise InputError(f"{index} has format {facts['format']}, this version of mtn reads up to {FORMAT}: upgrade mtn")
    try:
        parts = {name: _read(folder, str(file["name"]), file["sha256"]) for name, file in facts["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{index} is damaged: it does not name its files") from None
    return facts, parts


def look(folder: Path) -> None:
    """An error where there is no model."""
    if not (folder / "model.json").is_file():
        raise InputError(f"{folder} holds no model: there is no file {folder / 'model.json'}")


def _claim(folder: Path) -> None:
    """Make the folder, or see that it is a model's, or of a first save that was cut off."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    present = [file.name for file in folder.iterdir()]
    if "model.json" in present:
        facts = checkpoint.read_json(folder / "model.json")
        if isinstance(facts, dict) and "format" in facts and "files" in facts:
            return
        raise InputError(f"{folder / 'model.json'} is not of a model of mtn: save to another folder")
    if any(not (OURS.fullmatch(name) or PARTIAL.fullmatch(name) or name == ".lock") for name in present):
        raise InputError(f"{folder} is not empty and not a model: save to another folder")


def _write(folder: Path, name: str, tensors: Tensors) -> dict[str, str]:
    content = safetensors.save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"{name}-{digest[:16]}.safetensors"
    if not (path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest):
        checkpoint.write(path, lambda temporary: temporary.write_bytes(content))
    return {"name": path.name, "sha256": digest}


def _read(folder: Path, name: str, digest: str) -> dict[str, Tensor]:
    if not OURS.fullmatch(name):  # nor a path out of the folder
        raise InputError(f"{folder / 'model.json'} is damaged: {name!r} is not the name of a model's file")
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} is damaged: it is not the file that was saved")
    try:
        tensors = safetensors.load(content)
    except (SafetensorError, ValueError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from None
    # Cloned: in the file's own buffer a tensor lies at any address, and products round by alignment.
    return {name: tensor.clone() for name, tensor in tensors.items()}

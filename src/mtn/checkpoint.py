"""State on disk, safe formats only: a file is written beside its place, synced, then renamed over it."""

import fcntl
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mtn.errors import InputError


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` make a file, and put it at `path` whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")  # one name: what a kill leaves behind is overwritten
    try:
        fill(temporary)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_folder(folder: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` put files into a folder that has its name only when complete. Of several processes, all succeed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        complete = Path(scratch) / "complete"
        complete.mkdir()
        fill(complete)
        for path in (*complete.iterdir(), complete):
            _sync(path)
        try:
            complete.rename(folder)
        except OSError:
            if not folder.is_dir():  # nobody was first
                raise
    _sync(folder.parent)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Only one process at a time may write in `folder`; the system frees the lock however that process ends."""
    try:
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise InputError(f"cannot write in the folder {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is at work in {folder}: wait for it, or name another folder") from None
        yield
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    write(path, lambda temporary: temporary.write_text(text, "utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and JSON facts in one file, so that they can never be of different moments."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    write(path, lambda temporary: save_file(whole, temporary, {"facts": text, "checksum": _checksum(whole, text)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote; an error that names the file if a single bit of it is off."""
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned: in the file's own buffer a tensor lies at any address, and products round by alignment.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        whole = metadata["checksum"] == _checksum(tensors, metadata["facts"])
        facts = json.loads(metadata["facts"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged or not a state of mtn: {error}") from None
    if not whole:
        raise InputError(f"{path} is damaged: its checksum does not match")
    return tensors, facts


def restore(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved tensors into `module`, whatever size its growing parts had when they were saved."""
    own = module.state_dict()
    if own.keys() != tensors.keys():
        raise InputError(f"saved state has other tensors than {type(module).__name__}: {sorted(own.keys() ^ tensors)}")
    for name, tensor in tensors.items():
        owner_name, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        tensor = lay_out(tensor, own[name])
        if leaf in owner._parameters:
            trains = getattr(owner, leaf).requires_grad
            setattr(owner, leaf, nn.Parameter(tensor, requires_grad=trains))
        else:
            setattr(owner, leaf, tensor)


def lay_out(tensor: Tensor, like: Tensor) -> Tensor:
    """On the device of `like` and, at the same size, in its strides: sums and products round by them."""
    return torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor.to(like.device)


def take(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`, by their own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def put(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    total = zlib.crc32(facts.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

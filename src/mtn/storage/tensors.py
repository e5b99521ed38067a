"""Named tensors and JSON values in one safetensors file with a checksum. Nothing is ever unpickled."""

import errno
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mtn.errors import InputError
from mtn.storage import files


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON values into one file, so that they always belong together."""
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    metadata = {"facts": text, "checksum": _checksum(contiguous, text)}

    def fill(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, metadata)
        except SafetensorError as error:  # it has a number and a text of the system's error, but is no OSError
            raise _system_error(error) from None

    files.write(path, fill)


def _system_error(error: SafetensorError) -> OSError:
    """The OSError that safetensors reports in words of its own: `... (os error 28)`."""
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote; an error that names the file if a single bit of it has changed."""
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned, because tensors in the file's buffer are not aligned, and alignment changes how products round.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        intact = metadata["checksum"] == _checksum(tensors, metadata["facts"])
        facts = json.loads(metadata["facts"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged or not a state of mtn: {error}") from None
    if not intact:
        raise InputError(f"{path} is damaged: its checksum does not match")
    return tensors, facts


def restore_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved tensors into `module`; those that grow with the classes may have another size than the module's."""
    current = module.state_dict()
    if current.keys() != tensors.keys():
        different = sorted(current.keys() ^ tensors.keys())
        raise InputError(f"saved state has other tensors than {type(module).__name__}: {different}")
    for name, tensor in tensors.items():
        owner_name, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        tensor = lay_out(tensor, current[name])
        if leaf in owner._parameters:
            requires_grad = getattr(owner, leaf).requires_grad
            setattr(owner, leaf, nn.Parameter(tensor, requires_grad=requires_grad))
        else:
            setattr(owner, leaf, tensor)


def lay_out(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` on the device of `like` and, if the shapes agree, with its strides, which change how sums round."""
    return torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor.to(like.device)


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def add_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with `prefix` before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    total = zlib.crc32(facts.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"

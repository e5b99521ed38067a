"""Pictures or sentences -> vectors. The libraries behind an encoder are imported when it is asked for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mtn.encoders import function, glyph, hub, onnx, text
from mtn.encoders.base import Encoder
from mtn.errors import InputError, closest
from mtn.machine import find_device

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")
OTHERS = "package.module:function, an .onnx file, a folder of transformers or sentence-transformers, a hub name"


def load(name: str | Callable[..., Any], device: str = "auto") -> Encoder:
    """By a name of `ENCODERS`, or else what `OTHERS` says; a function may also be given itself."""
    where = find_device(device)
    if not isinstance(name, str):
        return function.Function(name)
    if name in ENCODERS or name.startswith("simclr-r50:"):
        return ENCODERS[name.partition(":")[0]](name, where)
    if FUNCTION.fullmatch(name):
        return function.find(name)
    if name.lower().endswith(".onnx"):
        return onnx.OnnxModel(Path(name), name)
    if name and Path(name).is_dir():
        return _folder(Path(name), name, where)
    if HUB.fullmatch(name):
        return _cached(name, name, where)
    raise InputError(f"no encoder {name!r}: {closest(name, ENCODERS)} (or {OTHERS})")


def _simclr(name: str, device: torch.device) -> Encoder:
    from mtn.encoders import simclr  # it needs a data set's folder

    return simclr.SimCLR(simclr.find(name), name, device)


def _cached(name: str, repository: str, device: torch.device) -> Encoder:
    folder = hub.cached(repository)
    if folder is None:
        raise InputError(
            f"encoder {name!r}: its weights are not in the local hub cache; fetch them by `hf download {repository}`, "
            f"then run again, or give the path of a folder that holds them"
        )
    return _folder(folder, name, device, folder.name)


def _folder(folder: Path, name: str, device: torch.device, revision: str | None = None) -> Encoder:
    if (folder / "modules.json").is_file():
        return text.SentenceModel(folder, name, device, revision)
    if (folder / "config.json").is_file():
        return hub.VisionModel(folder, name, device, revision)
    raise InputError(
        f"encoder {name!r}: the folder must hold config.json (transformers) or modules.json (sentence-transformers)"
    )


ENCODERS: dict[str, Callable[[str, torch.device], Encoder]] = {
    "glyph": lambda name, device: glyph.Glyph(),
    "clip-vit-b32": lambda name, device: _cached(name, "openai/clip-vit-base-patch32", device),
    "simclr-r50": _simclr,
    "hashing": lambda name, device: text.Hashing(),
}

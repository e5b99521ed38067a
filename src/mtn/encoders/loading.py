"""A name, a path or a function -> an encoder. The libraries behind it are imported when it is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mtn.encoders import catalogue, efficientnet, glyph, hub, minilm, onnx, simclr, text
from mtn.encoders.base import Encoder
from mtn.encoders.function import FUNCTION, FunctionEncoder, find_function
from mtn.errors import InputError, closest
from mtn.runtime.device import find_device
from mtn.storage.recorded import Recorded
from mtn.storage.repositories import downloads_allowed

OTHERS = (
    "package.module:function, an .onnx file, a folder of transformers or sentence-transformers, a hub name[@revision]"
)


def load_encoder(name: str | Callable[..., Any], device: str = "auto") -> Encoder:
    """An encoder by a name of `ENCODERS` or one of `OTHERS`, or of a function itself.

    Weights of the hub that are not in the local cache are fetched if MTN_DOWNLOAD=1 allows it. A name that a file gives
    (`Recorded`) is looked up in `ENCODERS` and in the local cache alone.
    """
    torch_device = find_device(device)
    if isinstance(name, Recorded):
        return _load_recorded(name, torch_device)
    if not isinstance(name, str):
        return FunctionEncoder(name)
    if name in ENCODERS or name.startswith("simclr-r50:"):
        return ENCODERS[name.partition(":")[0]](name, torch_device)
    if FUNCTION.fullmatch(name):
        return find_function(name)
    if name.lower().endswith(".onnx"):
        return onnx.OnnxModel(Path(name), name)
    if name and Path(name).is_dir():
        return _from_folder(Path(name), name, torch_device)
    if catalogue.find_repository(name) is not None:
        return _from_hub(name, torch_device)
    raise InputError(f"no encoder {name!r}: {closest(name, ENCODERS)} (or {OTHERS})")


load = load_encoder
"""The documented name of the first version."""


def _load_recorded(name: Recorded, device: torch.device) -> Encoder:
    """No path is opened, and nothing is imported or fetched: an ONNX file or a folder of weights could be anybody's.

    `name@commit` is the commit of the hub that a model was taught with. It is looked for first: with that of today the
    same weights may come, or others, which are refused later.
    """
    if name in ENCODERS and catalogue.find_repository(name) is None:
        return ENCODERS[name](name, device)
    plain, _, _ = name.partition("@")
    repository = catalogue.find_repository(plain)
    folder = None if repository is None else catalogue.cached_folder(name) or catalogue.cached_folder(plain)
    if folder is None:
        hint = "" if repository is None else f" (`mtn encoders get {plain}` fetches it, if you trust it)"
        raise InputError(
            f"the model's encoder is {plain!r}, which is neither in the package nor in the local hub cache{hint}, and "
            f"what a folder names is not opened: give the encoder (--encoder)"
        )
    return _from_folder(folder, plain, device, folder.name)


def _from_hub(name: str, device: torch.device) -> Encoder:
    folder = catalogue.cached_folder(name)
    if folder is None and downloads_allowed():
        folder = catalogue.fetch_encoder(name)
    if folder is None:
        raise catalogue.missing_weights(name)
    return _from_folder(folder, name, device, folder.name)


def _from_folder(folder: Path, name: str, device: torch.device, revision: str | None = None) -> Encoder:
    if (folder / "modules.json").is_file():
        return text.SentenceModel(folder, name, device, revision)
    if (folder / "config.json").is_file():
        return hub.VisionModel(folder, name, device, revision)
    raise InputError(
        f"encoder {name!r}: the folder must hold config.json (transformers) or modules.json (sentence-transformers)"
    )


ENCODERS: dict[str, Callable[[str, torch.device], Encoder]] = {
    "glyph": lambda name, device: glyph.GlyphEncoder(),
    "photos": lambda name, device: efficientnet.EfficientNetEncoder(name, device, side=224, width=1.0, depth=1.0),
    "photos-lite2": lambda name, device: efficientnet.EfficientNetEncoder(name, device, side=260, width=1.1, depth=1.2),
    "minilm": minilm.MiniLM,
    "simclr-r50": lambda name, device: simclr.SimCLR(simclr.find_weights(name), name, device),
    "hashing": lambda name, device: text.HashingEncoder(),
    **{name: _from_hub for name, entry in catalogue.CATALOGUE.items() if entry.repository is not None},
}
"""Name -> what makes the encoder, given the name and the device."""

"""What a run is done on: device, versions of the libraries, memory used."""

import platform
from pathlib import Path

import numpy as np
import torch

from mtn.errors import InputError
from mtn.runtime import distributed
from mtn.version import __version__


def find_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the first there is of cuda, mps and cpu."""
    single = distributed.world_size() == 1  # processes cannot exchange tensors on mps
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available() and single, "cpu": True}
    if name == "auto":
        name = next(device for device in present if present[device])
    if not present.get(name):
        raise InputError(f"device = {name!r} is not there; present: {', '.join(d for d in present if present[d])}")
    return torch.device(name)


def find_precision(name: str, device: torch.device) -> torch.dtype:
    """The type of training's products, if the device multiplies in it; a processor that does not would be slower."""
    present = {
        "cuda": torch.cuda.is_bf16_supported,
        "cpu": lambda: torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
    }
    lower = name != "float32" and present.get(device.type, lambda: False)()
    if name == "bfloat16" and not lower:
        raise InputError(f"train.precision = 'bfloat16': this machine's {device.type} does not multiply in it")
    return torch.bfloat16 if lower else torch.float32


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    python = platform.python_version()
    return {"mtn": __version__, "torch": torch.__version__, "numpy": np.__version__, "python": python}


def reset_peak_memory() -> None:
    """Measure the peak from here on, so that runs in one process do not share it; on Linux only."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_mb() -> float | None:
    """Largest resident size of this process since the reset; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return round(int(status.split("VmHWM:")[1].split()[0]) / 1024, 1)

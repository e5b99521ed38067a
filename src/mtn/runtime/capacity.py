"""What fits into this machine's memory: sizes are estimated from shapes before anything is allocated."""

import os
from pathlib import Path

from mtn.config import Config
from mtn.errors import InputError

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""What a container may use, in bytes, or `max`."""
UNKNOWN = 1 << 43
"""Where the system does not tell: more than machines have, so that only the absurd is refused."""
QUERIES = 1024
"""Queries whose neighbours are read at once."""
FLOAT, DOUBLE = 4, 8
EXPANSIONS = "units", "random_features"
"""Options of methods that say how many numbers a sample is turned into, whose products are summed."""


def machine_memory() -> int:
    """Bytes of this machine's memory, or of what its container may use."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = UNKNOWN
    try:
        limit = CGROUP.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def check_fits(
    config: Config, width: int, classes: int, samples: int, *, uses_neighbours: bool = True, budget: bool = True
) -> None:
    """Refuse numbers of a configuration that need more memory than there is, with what they would take.

    `width` is the number of values of a sample (D, or of an image H * W * 3), `classes` and `samples` are those of the
    data: a batch has no more samples. Without `budget` the exemplars that may be kept do not count: of a model that
    exists they are what they are.
    """
    memory, method, train = config.memory, config.method, config.train
    batch, replay = min(train.batch, samples), min(train.replay, samples)
    value = 1 if config.images.side is not None else FLOAT
    kept = 2 if memory.precision == "float16" else value
    expanded = {name: getattr(method, name) for name in EXPANSIONS if name in type(method).model_fields}
    k = method.k if uses_neighbours else 0
    rows = min(max(batch, QUERIES), samples)  # read at once with their neighbours
    attention = k * k if "readout" in type(method).model_fields else 0  # of a transformer
    exemplars = budget and memory.store == "exact"
    channels = 8 * config.images.width if config.images.side is not None else 0
    needs = {
        "memory.total": (memory.total, exemplars * (memory.total or 0) * width * kept),
        "memory.per_class": (memory.per_class, exemplars * (memory.per_class or 0) * classes * width * kept),
        "method.k": (k, (2 * k * samples + rows * (k * width + attention)) * FLOAT),
        **{f"method.{name}": (u, (u * u + u * (classes + width)) * DOUBLE) for name, u in expanded.items()},
        "train.batch": (train.batch, batch * (k + 1) * width * FLOAT),
        "train.replay": (train.replay, replay * (k + 1) * width * FLOAT),
        "images.width": (config.images.width, 9 * channels * channels * FLOAT),
    }
    room = machine_memory()
    for key, (number, size) in needs.items():
        if size > room:
            raise InputError(
                f"{key} = {number} would take {size / 1e9:,.1f} GB of memory, this machine has {room / 1e9:.1f} GB"
            )

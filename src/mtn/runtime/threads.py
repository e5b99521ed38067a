"""How many threads torch takes for a training step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_STEP = 10**9
"""Multiplications of a step that one thread does in some hundredths of a second."""


@contextmanager
def limited_threads(multiplications: int) -> Iterator[None]:
    """Compute small steps with one thread, and have as many as before again in the end.

    OpenMP's threads spin while they wait for each other at the end of each product. Where other programs use the cores
    too, one of them always waits for a core: a small step then takes many times as long, and burns the other cores.
    OMP_WAIT_POLICY=passive would cure that, too, but OpenMP reads it when torch is loaded, and no later.
    """
    threads = torch.get_num_threads()
    if threads == 1 or multiplications > SMALL_STEP:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

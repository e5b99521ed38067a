"""How many processor cores this process may use."""

import os


def core_count() -> int:
    """The cores this process is allowed to run on; all of the machine's where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

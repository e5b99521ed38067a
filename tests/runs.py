"""What tests of runs share."""

from typing import Any

MEASURED = ("seconds", "processor_seconds", "train_samples_per_second", "peak_memory_mb")


def without_timings(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from one machine, or one minute, to the next."""
    return {key: value for key, value in result.items() if key not in MEASURED}

"""What tests of the commands share; the fixture that runs one is `call` in conftest.py."""

from pathlib import Path

TINY = ["--set", "stream.first=6", "--set", "stream.step=3", "--set", "memory.total=40", "--set", "method.size=small",
        "--set", "train.epochs=1", "--set", "train.min_steps=5"]  # fmt: skip
"""Options of a run on the clusters that takes a second."""
DISK = 1 << 20
"""Bytes of the file system that the fixture `disk` mounts."""


def file_contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by relative path."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

"""How long work tells that it goes on."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def silent(what: str, done: int, of: int) -> None:
    """Says nothing."""

"""A configuration -> the command that gives it: the nearest shipped recipe, and what must be set beside it."""

import functools
import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from mtn.config import Config
from mtn.errors import InputError
from mtn.methods import METHODS
from mtn.recipes import assignment, comparison, recipe_names, with_changes

FREE = ("seed", "stream.order", "method.name", "device", "tuned")
"""Keys that `mtn compare` takes in another way, or that are no part of what is compared."""


def compare_command(config: Config, seeds: Sequence[int], orders: Sequence[int | str]) -> str | None:
    """`mtn compare` of one method with these seeds and class orders; None if no shipped recipe leads there.

    What is returned has been parsed again, and gives `config`. A method of one's own is not imported for it.
    """
    method = config.method.name
    if method not in METHODS:
        return None
    wanted = _flat(config)
    settings = {name: _settings(wanted, base) for name in recipe_names() if (base := _base(name, method)) is not None}
    for name, sets in sorted(settings.items(), key=lambda item: len(item[1])):
        if _gives(name, method, sets, config):
            for one in list(sets):  # a default of the kind of stream need not be said
                shorter = [other for other in sets if other != one]
                sets = shorter if _gives(name, method, shorter, config) else sets
            words = ["mtn", "compare", name, "--methods", method, "--seeds", ",".join(map(str, seeds))]
            words += ["--orders", ",".join(map(str, orders))] if list(orders) != [1993] else []
            return shlex.join([*words, *(word for one in sets for word in ("--set", one))])
    return None


@functools.cache
def _base(name: str, method: str) -> dict[str, Any] | None:
    """The values of a shipped recipe for a method; None if it is not for such a method."""
    try:
        return _flat(comparison(name, [method])[0])
    except InputError:
        return None


def _settings(wanted: dict[str, Any], base: dict[str, Any]) -> list[str]:
    return [_assignment(key, value) for key, value in wanted.items() if value is not None and base.get(key) != value]


def _gives(name: str, method: str, sets: Iterable[str], config: Config) -> bool:
    try:
        (found,) = comparison(name, [method], sets)
    except InputError:
        return False
    free = {
        "tuned": config.tuned,
        "seed": config.seed,
        "device": config.device,
        "stream": {"order": config.stream.order},
    }
    return with_changes(found, **free).model_dump() == config.model_dump()


def _assignment(key: str, value: Any) -> str:
    """As --set takes it: text without quotes where it would not be read as something else."""
    bare = f"{key}={value}"
    return bare if isinstance(value, str) and assignment(bare)[1] == value else f"{key}={json.dumps(value)}"


def _flat(config: Config) -> dict[str, Any]:
    """Dotted key -> value, without those that are free."""
    found: dict[str, Any] = {}
    for key, value in config.model_dump().items():
        found |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return {key: value for key, value in found.items() if key not in FREE}

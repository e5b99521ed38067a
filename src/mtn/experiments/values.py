"""Which values of [train] and [method] the methods of a comparison had, where they differ."""

from collections.abc import Sequence
from typing import Any

from mtn.errors import InputError
from mtn.methods import find

Result = dict[str, Any]
"""The content of a result.json."""


def differing_values(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Dotted key -> method -> its value, of the keys whose value is not the same for all methods that have it.

    A method that trains nothing has no value of [train], and none has an option that it does not declare.
    """
    values: dict[str, dict[str, Any]] = {}
    for result in results:
        for key, value in _values(result).items():
            values.setdefault(key, {})[result["method"]] = value
    first = {key: next(iter(own.values())) for key, own in values.items()}
    return {key: own for key, own in sorted(values.items()) if any(value != first[key] for value in own.values())}


def with_differing_values(results: Sequence[Result]) -> list[Result]:
    """Results that say in `differing_values` what their method had otherwise than others."""
    found = differing_values(results).items()
    return [
        result | {"differing_values": {key: own[result["method"]] for key, own in found if result["method"] in own}}
        for result in results
    ]


def describe_values(results: Sequence[Result]) -> list[str]:
    """A line a key: `train.lr: 0.003 for practical; 0.1 for mtn, ssil`. The value that most methods have comes last."""
    lines = []
    for key, own in differing_values(results).items():
        groups: dict[str, list[str]] = {}
        for method, value in own.items():
            groups.setdefault("unset" if value is None else str(value), []).append(method)
        ranked = sorted(groups.items(), key=lambda group: len(group[1]))
        lines.append(f"{key}: " + "; ".join(f"{value} for {', '.join(methods)}" for value, methods in ranked))
    return lines


def _values(result: Result) -> dict[str, Any]:
    config, method = result["config"], result["method"]
    try:
        options = set(find(method).Options.model_fields)
    except InputError:  # of a method that is not here any more
        options = set(config.get("method", {}))
    own = {f"method.{key}": config["method"][key] for key in options - {"name"} if key in config.get("method", {})}
    if result.get("train_samples_per_second") is not None:
        own |= {f"train.{key}": value for key, value in config["train"].items()}
    return own

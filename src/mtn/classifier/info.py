"""What a classifier knows and keeps, as plain values, from what its model.json says: without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtn.classifier import schema
from mtn.errors import InputError
from mtn.storage.model_folder import read_index


def describe(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Method, features, classes, memory, size, calibration and history, ready for JSON."""
    summary, budget = facts["summary"], facts["configuration"]["memory"]
    counts = zip(facts["labels"]["names"], summary["exemplars"], strict=True)
    known = sorted((label, count) for label, count in counts if label is not None)
    return {
        "method": facts["configuration"]["method"]["name"],
        "features": facts["features"]["count"],
        "source": facts["source"],
        "classes": [{"label": label, "exemplars": count} for label, count in known],
        "memory": {"exemplars": sum(summary["exemplars"]), "total": budget["total"], "per_class": budget["per_class"]},
        "store": facts.get("memory"),
        "kept": summary["kept"],
        "temperature": facts["temperature"],
        "threshold": facts["threshold"],
        "weights": summary["weights"],
        "history": [dict(entry) for entry in facts["history"]],
    }


def read_info(folder: Path) -> dict[str, Any] | None:
    """What `describe` tells of a saved model that has been taught; None where model.json alone does not say it all.

    That is so of a model that has been taught nothing, and of one that an early version saved.
    """
    facts = read_index(folder)
    try:
        schema.check_facts(facts)
        return describe(facts) if facts.get("summary") else None
    except (schema.Damage, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'model.json'} is damaged: {error}") from None

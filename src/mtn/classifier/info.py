"""What a classifier knows and keeps, as plain values."""

from typing import Any

from mtn.classifier.state import ClassifierState


def describe(state: ClassifierState) -> dict[str, Any]:
    """Method, features, classes, memory, size, calibration and history, ready for JSON."""
    learner, location = state.learner, state.memory.location
    budget, weights = learner.config.memory, dict(learner.method.named_buffers()).get("weights")
    return {
        "method": learner.config.method.name,
        "features": state.feature_count,
        "source": state.source,
        "classes": [{"label": label, "exemplars": count} for label, count in state.exemplar_counts()],
        "memory": {"exemplars": len(state.memory), "total": budget.total, "per_class": budget.per_class},
        "store": None if location is None else location._asdict(),
        "kept": learner.kept(),
        "temperature": state.temperature,
        "threshold": state.threshold,
        "weights": {} if weights is None else dict(zip(("prototypes", "network"), weights.tolist(), strict=False)),
        "history": [dict(entry) for entry in state.history],
    }

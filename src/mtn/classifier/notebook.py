"""What a notebook shows of a classifier: scikit-learn's diagram of its parameters, and below it what it has learned."""

from html import escape
from typing import Any

from mtn.classifier.state import ClassifierState
from mtn.runtime.text import printable

SHOWN = 20
"""Classes that are named."""


class NotebookMixin:
    """Comes before scikit-learn's BaseEstimator, whose diagram it adds to."""

    _state: ClassifierState | None

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]  # scikit-learn has no types
        if "text/html" in shown and self._state is not None:
            shown["text/html"] += summary(self._state)
        return shown


def summary(state: ClassifierState) -> str:
    """Classes, exemplars and the estimated accuracy, in HTML."""
    labels = [escape(printable(label)) for label in state.classes().tolist()]
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    accuracy = state.history[-1].get("estimated_accuracy") if state.history else None
    estimate = "" if accuracy is None else f"; estimated accuracy {100 * accuracy:.1f} %"
    head = f"{len(labels)} classes, {len(state.memory)} exemplars, {len(state.stops)} lessons{estimate}"
    return f"<div><p>{head}</p><p><small>{', '.join(labels[:SHOWN])}{more}</small></p></div>"

"""The scikit-learn classifier that is taught class after class."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["AnsweringModel", "ClassifierState", "Exemplar", "Id", "Label", "MTNClassifier", "as_queries"]

if TYPE_CHECKING:
    from mtn.classifier.answering import AnsweringModel
    from mtn.classifier.estimator import MTNClassifier
    from mtn.classifier.labels import Id, Label
    from mtn.classifier.queries import as_queries
    from mtn.classifier.state import ClassifierState, Exemplar
else:
    _MODULES = {
        "AnsweringModel": "answering",
        "ClassifierState": "state",
        "Exemplar": "state",
        "Id": "labels",
        "Label": "labels",
        "MTNClassifier": "estimator",
        "as_queries": "queries",
    }

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: `mtn info` reads model.json without torch, `mtn predict` answers
        without scikit-learn."""
        if name not in _MODULES:
            raise AttributeError(f"module 'mtn.classifier' has no attribute {name!r}")
        return getattr(import_module(f"mtn.classifier.{_MODULES[name]}"), name)

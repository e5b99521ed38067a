"""The scikit-learn classifier that is taught class after class."""

from mtn.classifier.estimator import MTNClassifier
from mtn.classifier.labels import Id, Label
from mtn.classifier.queries import as_queries
from mtn.classifier.state import ClassifierState, Exemplar

__all__ = ["ClassifierState", "Exemplar", "Id", "Label", "MTNClassifier", "as_queries"]

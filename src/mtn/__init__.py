"""A classifier that keeps learning new classes, and shows which remembered examples each answer rests on."""

from typing import TYPE_CHECKING, Any

from mtn.config import Config, recipe
from mtn.errors import InputError
from mtn.version import __version__

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier

__all__ = ["Config", "InputError", "MTNClassifier", "__version__", "recipe"]


def __getattr__(name: str) -> Any:
    """torch and scikit-learn are loaded when the classifier is first asked for, not by `import mtn`."""
    if name == "MTNClassifier":
        from mtn.classifier import MTNClassifier

        return MTNClassifier
    raise AttributeError(f"module 'mtn' has no attribute {name!r}")

"""A classifier that keeps learning new classes, and shows which remembered examples each answer rests on."""

from importlib import import_module
from typing import TYPE_CHECKING

from mtn.errors import InputError
from mtn.version import __version__

__all__ = [
    "Config",
    "InputError",
    "MTNClassifier",
    "__version__",
    "compare",
    "encoders",
    "evaluate",
    "methods",
    "plot_evaluation",
    "plot_evidence",
    "recipe",
    "run",
]

if TYPE_CHECKING:
    from mtn import encoders, methods
    from mtn.classifier import MTNClassifier
    from mtn.config import Config
    from mtn.experiments.compare import compare
    from mtn.experiments.evaluation import evaluate
    from mtn.experiments.evaluation_figure import plot as plot_evaluation
    from mtn.experiments.evidence_figure import plot as plot_evidence
    from mtn.experiments.run import run
    from mtn.recipes import recipe
else:
    _LOCATIONS = {
        "Config": ("mtn.config", "Config"),
        "MTNClassifier": ("mtn.classifier", "MTNClassifier"),
        "compare": ("mtn.experiments.compare", "compare"),
        "evaluate": ("mtn.experiments.evaluation", "evaluate"),
        "plot_evaluation": ("mtn.experiments.evaluation_figure", "plot"),
        "plot_evidence": ("mtn.experiments.evidence_figure", "plot"),
        "recipe": ("mtn.recipes", "recipe"),
        "run": ("mtn.experiments.run", "run"),
    }

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: torch, scikit-learn and matplotlib take seconds to load."""
        if name in _LOCATIONS:
            module, attribute = _LOCATIONS[name]
            value = getattr(import_module(module), attribute)
        elif name in ("encoders", "methods"):
            value = import_module(f"mtn.{name}")
        else:
            raise AttributeError(f"module 'mtn' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

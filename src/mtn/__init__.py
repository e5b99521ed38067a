"""A classifier that keeps learning new classes, and shows which remembered examples each answer rests on."""

from mtn.config import Config, recipe
from mtn.errors import InputError
from mtn.version import __version__

__all__ = ["Config", "InputError", "__version__", "recipe"]

"""A Python function as an encoder: a list of RGB pictures -> an array N,D."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from PIL import Image

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import picture, probe, vectors
from mtn.errors import InputError


class Function(Encoder):
    """Known by its name, its source text and its attribute `version`, if it has one: weights cannot be seen here."""

    def __init__(self, call: Callable[..., Any], name: str | None = None) -> None:
        self.call = call
        self.name = name or f"{call.__module__}:{getattr(call, '__qualname__', type(call).__qualname__)}"
        self.dimension = probe(self, self.name)

    def identity(self) -> dict[str, Any]:
        version = getattr(self.call, "version", None)
        return {"name": self.name, "function": self.name, "source": _source(self.call), "version": str(version)}

    def prepare(self, item: Item) -> Image.Image:
        return picture(item)

    def encode(self, batch: Sequence[Image.Image]) -> np.ndarray:
        return vectors(self.call(list(batch)), len(batch), self.name)


def find(name: str) -> Function:
    """By `package.module:function`; modules in the working folder are found last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, attribute = name.partition(":")
    try:
        call = attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"encoder {name!r}: {error}; it must be package.module:function") from None
    if not callable(call):
        raise InputError(f"encoder {name!r} must be a function, got {type(call).__name__}")
    return Function(call, name)


def _source(call: Callable[..., Any]) -> str | None:
    """Checksum of the text of its module; None where there is no text."""
    try:
        text = inspect.getsource(inspect.getmodule(call) or type(call))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()

"""A Python function as an encoder: a list of RGB images -> an array N,D."""

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from PIL import Image

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import as_rgb, check_vectors, probe
from mtn.errors import InputError

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""The name of a function: package.module:function."""


class FunctionEncoder(Encoder):
    """Identified by the function's name, source text and attribute `version`, if it has one: not by its weights."""

    def __init__(self, call: Callable[..., Any], name: str | None = None) -> None:
        self.call = call
        self.name = name or f"{call.__module__}:{getattr(call, '__qualname__', type(call).__qualname__)}"
        self.dimension = probe(self, self.name)

    def identity(self) -> dict[str, Any]:
        version = getattr(self.call, "version", None)
        return {"name": self.name, "function": self.name, "source": source_digest(self.call), "version": str(version)}

    def prepare(self, item: Item) -> Image.Image:
        return as_rgb(item)

    def encode(self, batch: Sequence[Image.Image]) -> np.ndarray:
        return check_vectors(self.call(list(batch)), len(batch), self.name)


def find_function(name: str) -> FunctionEncoder:
    """Import the function `package.module:function`; the working folder is searched last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, attribute = name.partition(":")
    try:
        call = attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"encoder {name!r}: {error}; it must be package.module:function") from None
    if not callable(call):
        raise InputError(f"encoder {name!r} must be a function, got {type(call).__name__}")
    return FunctionEncoder(call, name)


def source_digest(call: Callable[..., Any]) -> str | None:
    """Checksum of the source text of a function's module; None where there is none."""
    try:
        text = inspect.getsource(inspect.getmodule(call) or type(call))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()

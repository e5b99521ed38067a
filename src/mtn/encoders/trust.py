"""Which encoders are used because a model's folder or a store names them.

One of the table, one of the local hub cache, or a function of the user's that is imported already and has not changed.
Nothing is imported, and no path is opened, because a file says so.
"""

import inspect
import site
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mtn.encoders.base import Encoder
from mtn.encoders.function import FUNCTION, source_digest
from mtn.errors import InputError
from mtn.storage.recorded import Recorded, find_imported
from mtn.storage.repositories import COMMIT

AUTO = "auto"
"""The name that stands for the best encoder that is here (`mtn.data.choice`)."""


def trusted_encoder(
    encoder: str | Callable[..., Any] | Encoder | None, identity: Mapping[str, Any] | None
) -> str | Callable[..., Any] | Encoder | None:
    """The encoder that the user gave; otherwise the one that a file names, as far as that may be used.

    `identity` is what was recorded of the encoder that made a model's vectors. None: nothing names one, so that it is
    to be chosen by what the items look like.
    """
    if isinstance(encoder, str) and encoder == AUTO:
        encoder = None
    if encoder is not None and not isinstance(encoder, Recorded):
        return encoder
    name = encoder or (str(identity["name"]) if identity else None)
    if name is None:
        return None
    if FUNCTION.fullmatch(name):
        return _imported_function(name, identity or {})
    commit = (identity or {}).get("revision")
    return Recorded(f"{name.partition('@')[0]}@{commit}" if COMMIT.fullmatch(str(commit)) else name)


def _imported_function(name: str, identity: Mapping[str, Any]) -> Callable[..., Any]:
    """A function that the user has imported: `sys:exit` is there whatever the user imports, and is not meant."""
    call = find_imported(name)
    if not callable(call):
        module = name.partition(":")[0]
        raise InputError(
            f"the model's encoder is a function, {name!r}: import {module} first, or give the encoder (--encoder)"
        )
    digest = source_digest(call)
    if digest is None or digest != identity.get("source") or _is_of_a_library(call):
        raise InputError(
            f"the model's encoder is a function, {name!r}, and what is imported under that name cannot be told to be "
            f"the one it was taught with: give the encoder (--encoder)"
        )
    return call  # type: ignore[no-any-return]  # whatever is callable


def _is_of_a_library(call: Callable[..., Any]) -> bool:
    """Whether it comes with Python, with an installed package, or with this one."""
    module = inspect.getmodule(call) or inspect.getmodule(type(call))
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__.partition(".")[0] == "mtn":
        return True
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders.append(site.getusersitepackages())
    return any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)

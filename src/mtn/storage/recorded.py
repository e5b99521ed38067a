"""What a file names is no wish of the user: nothing is imported, opened or connected to because a file says so."""

import importlib
import sys
from typing import Any, TypeVar

from mtn.errors import InputError

T = TypeVar("T")


class Recorded(str):
    """A string that was read from a file; whoever would import, open or connect to what it names refuses it.

    It is equal to the plain string, and stays what it is in copies, pickles and scikit-learn's clones.
    """

    __slots__ = ()


def find_imported(name: str) -> Any:
    """What `package.module:attribute` names if it is imported already, else None; imports nothing.

    Attributes are looked up in the dictionaries of modules and classes: a module's `__getattr__` may import.
    """
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for attribute in path.split("."):
        try:
            value = vars(value).get(attribute)
        except TypeError:  # it has no dictionary
            return None
    return value


def find_subclass(name: str, base: type[T], what: str, *, import_modules: bool) -> type[T]:
    """The subclass of `base` that a user names as `package.module:Class`; `what` is it in messages.

    Without `import_modules` it must have been imported already: nothing is run because a file says so.
    """
    module, _, attribute = name.partition(":")
    value = find_imported(name)
    if value is None and not import_modules:
        raise InputError(f"{what} {name!r} is not of this package: import {module} first")
    try:
        value = value or getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{what} {name!r} cannot be imported: {error}") from None
    if not (isinstance(value, type) and issubclass(value, base)):
        package = base.__module__.removesuffix(".base")
        raise InputError(f"{what} {name!r} must be a subclass of {package}.{base.__name__}")
    return value

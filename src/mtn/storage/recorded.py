"""What a file names is no wish of the user: nothing is imported, opened or connected to because a file says so."""

import sys
from typing import Any


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

"""Images or sentences -> vectors. The libraries behind an encoder are imported when it is asked for."""

from typing import TYPE_CHECKING

__all__ = ["ENCODERS", "load", "load_encoder"]

if TYPE_CHECKING:
    from mtn.encoders.loading import ENCODERS, load, load_encoder
else:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: torch takes seconds to load."""
        if name not in __all__:
            raise AttributeError(f"module 'mtn.encoders' has no attribute {name!r}")
        from mtn.encoders import loading

        return getattr(loading, name)

"""What makes vectors of pictures or sentences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from mtn import images

PLURAL = {"image": "images", "text": "sentences", "vector": "vectors"}
"""What people call the kinds of things that a model takes."""

Item = Image.Image | str
"""A picture, or a sentence."""


class Encoder(ABC):
    """Items -> vectors of length D. It is frozen: the same item gives the same vector.

    `prepare` is asked for one item at a time, by several threads at once; `encode` by one thread, for a batch of what
    `prepare` gave.
    """

    kind: ClassVar[Literal["image", "text"]] = "image"
    dimension: int

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Name, checksum or revision of the weights, preprocessing: plain values, recorded with every vector.

        Two encoders whose identities agree in all but `name` make the same vectors.
        """

    @abstractmethod
    def prepare(self, item: Item) -> Any:
        """An item as `encode` takes it: an array of one shape, or a sentence."""

    def thumbnail(self, item: Item) -> np.ndarray:
        """A small picture of a picture, for figures and pages: S,S,3 uint8."""
        assert isinstance(item, Image.Image)
        return images.thumbnail(item)

    @abstractmethod
    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        """N,D float32."""


def difference(wanted: dict[str, Any], got: dict[str, Any]) -> str:
    """What keeps two encoders from making the same vectors, empty if nothing does: names and revisions do not count."""
    for key in sorted(wanted.keys() | got.keys() - {"name", "revision"}):
        if key not in ("name", "revision") and wanted.get(key) != got.get(key):
            named = (f"{one['name']!r} with {key} {one.get(key)}" for one in (got, wanted))
            return " instead of ".join(named)
    return ""

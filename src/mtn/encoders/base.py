"""The interface of encoders, which make vectors of images or sentences."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from mtn import images
from mtn.errors import InputError

PLURAL = {"image": "images", "text": "sentences", "vector": "vectors"}
"""The kinds of samples a model takes, for messages."""

Item = Image.Image | str
"""An image, or a sentence."""


class Encoder(ABC):
    """Items -> vectors of length D. It is frozen: the same item gives the same vector.

    `prepare` is called for one item at a time, by several threads at once; `encode` by one thread, for a batch of
    prepared items.
    """

    kind: ClassVar[Literal["image", "text"]] = "image"
    dimension: int
    batch: ClassVar[int] = 64
    """Items that `encode` is best given at once."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Name, checksum or revision of the weights, preprocessing: plain values, recorded with every vector.

        Two encoders whose identities agree in all but `name` make the same vectors.
        """

    @abstractmethod
    def prepare(self, item: Item) -> Any:
        """An item as `encode` takes it: an array of one shape, or a sentence."""

    def thumbnail(self, item: Item) -> np.ndarray:
        """A small version of an image, for figures and pages: S,S,3 uint8, or S,S if grey."""
        assert isinstance(item, Image.Image)
        return images.thumbnail(item)

    def encode_names(self, names: Sequence[str]) -> np.ndarray:
        """Names of classes -> N,D float32 among the vectors of images, where those were trained together with texts."""
        raise InputError("names: this encoder knows no texts beside images; CLIP does (clip-vit-b32), and SigLIP")

    @abstractmethod
    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        """Prepared items -> N,D float32."""


def difference(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """How two identities differ, empty if the encoders make the same vectors: names and revisions do not count."""
    for key in sorted((expected.keys() | got.keys()) - {"name", "revision"}):
        if expected.get(key) != got.get(key):
            return " instead of ".join(
                f"{identity['name']!r} with {key} {identity.get(key)}" for identity in (got, expected)
            )
    return ""

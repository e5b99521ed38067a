"""Encoders by name: glyphs, functions and hashed sentences, and what is refused."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from encoder_checks import PICTURES, encode, noise, refused
from mtn import encoders, images
from mtn.encoders import glyph

# ---- glyph


def test_glyph_sees_pictures_as_they_are_stored(tmp_path: Path) -> None:
    encoder = encoders.load_encoder("glyph")
    assert isinstance(encoder, glyph.GlyphEncoder)
    grey = [one.convert("L").resize((32, 32)) for one in PICTURES]
    seen = np.stack([encoder.prepare(one) for one in grey])
    np.testing.assert_array_equal(encode(encoder, grey), glyph.load_network().encode(seen))
    for place, image in enumerate([*PICTURES, noise(9).convert("LA"), noise(9, 20, 90).convert("P")]):
        image.save(tmp_path / f"{place}.png")
        np.testing.assert_array_equal(encoder.prepare(image), encoder.prepare(images.decode(tmp_path / f"{place}.png")))
    assert encoder.identity()["weights"] == hashlib.sha256(glyph.WEIGHTS.read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [(1, 1000), (1000, 1)])
def test_a_strip_is_no_picture(size: tuple[int, int]) -> None:
    with pytest.raises(images.Unreadable, match="more than 50 times longer than wide"):
        encoders.load_encoder("glyph").prepare(Image.new("L", size))


# ---- functions


def means(pictures: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(one).mean((0, 1)) for one in pictures])


def test_a_function_is_an_encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clear = [one.convert("RGBA") for one in PICTURES]
    np.testing.assert_allclose(encode(encoders.load_encoder(means), clear), means(PICTURES), rtol=1e-6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = "def bright(pictures):\n    return [[sum(one.getpixel((0, 0)))] for one in pictures]\nthing = 3\n"
    (tmp_path / "my_own_encoder.py").write_text(text)
    encoder = encoders.load_encoder("my_own_encoder:bright")
    assert encode(encoder, PICTURES)[0, 0] == sum(PICTURES[0].getpixel((0, 0)))
    identity = encoder.identity()
    assert identity["source"] == hashlib.sha256(text.encode()).hexdigest() and identity["version"] == "None"
    encoder.call.version = 2  # type: ignore[attr-defined]
    assert encoder.identity()["version"] == "2"
    for name in ("my_own_encoder:nothing", "no_such_module:bright", "my_own_encoder:thing"):
        with refused(f"encoder '{name}'"):
            encoders.load_encoder(name)


RNG = np.random.default_rng(0)
BAD: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "one dimension": (lambda pictures: np.ones(len(pictures)), "must give numbers of shape N,D, here 1,D; got float64"),
    "rows": (lambda pictures: np.ones((2, 5)), "must give numbers of shape N,D"),
    "none": (lambda pictures: None, "must give numbers of shape N,D"),
    "text": (lambda pictures: [["a"]], "must give numbers of shape N,D"),
    "nan": (lambda pictures: np.full((1, 3), np.nan), "must give numbers, got a NaN or infinite"),
    "random": (lambda pictures: RNG.random((1, 3)), "the same vector each time"),
}


@pytest.mark.parametrize("case", BAD)
def test_functions_that_give_no_vectors_are_refused(case: str) -> None:
    with refused(BAD[case][1]):
        encoders.load_encoder(BAD[case][0])


@pytest.mark.parametrize("name", ["clip-vit-b23", "glyphs", "nonsense", "./no/folder", ""])
def test_an_unknown_name_gets_a_hint(name: str) -> None:
    near = {"clip-vit-b23": "did you mean 'clip-vit-b32'", "glyphs": "did you mean 'glyph'"}.get(
        name, "valid: clip-vit"
    )
    with refused(f"no encoder {name!r}: {near}.*package.module:function"):
        encoders.load_encoder(name)
    with refused("device = 'tpu' is not there"):
        encoders.load_encoder("glyph", "tpu")


# ---- sentences


SENTENCES = ["How do I freeze my card?", "Wie spät ist es in Zürich?", "how do i freeze my card", "", "ﬁne　print"]


def test_hashing_is_the_same_everywhere() -> None:
    encoder = encoders.load_encoder("hashing")
    found = encode(encoder, SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(encoder.encode(SENTENCES[::-1]), found[::-1])
    digest = hashlib.sha256(np.round(found.astype(np.float64) * 1000).astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "60663b9aa612e200"
    assert encoder.kind == "text" and encoder.identity() == {"name": "hashing", "version": 1, "dimension": 512}
    near, far = found[0] @ found[2], found[0] @ found[1]
    assert near > 0.9 > 0.3 > far
    np.testing.assert_array_equal(encoder.encode(["fine print"])[0], found[4])
    assert np.isfinite(encoder.encode(["\ud800", "  \n"])).all()

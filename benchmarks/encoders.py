"""The encoders that come with pip: EfficientNet-Lite0 in torch and onnxruntime, MiniLM on sentences sorted by length.

python benchmarks/encoders.py [rounds]

One thread, seconds of the processor: other work on the machine hardly changes them. The ways take turns, and the table
has the medians.
"""

import copy
import io
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from mtn import encoders
from mtn.encoders import efficientnet
from mtn.encoders.efficientnet import EfficientNetEncoder, SameConvolution

IMAGES, SENTENCES = 64, 1024
WORDS = ("where", "is", "my", "card", "please", "would", "weather", "tomorrow", "town", "going", "know", "like")


def onnx_session(encoder: EfficientNetEncoder) -> onnxruntime.InferenceSession:
    """The same network in onnxruntime."""
    file, example = io.BytesIO(), torch.zeros(1, 3, encoder.side, encoder.side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(
            encoder.network, (example,), file, input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamo=False
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def unfolded(network: nn.Module) -> nn.Module:
    """The network with a batch normalisation behind each convolution."""
    network = copy.deepcopy(network)
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, SameConvolution):
                setattr(module, name, nn.Sequential(child, nn.BatchNorm2d(child.out_channels)))
    return network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def photographs() -> dict[str, Callable[[], Any]]:
    encoder = encoders.load_encoder("photos", "cpu")
    assert isinstance(encoder, EfficientNetEncoder)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, encoder.side, encoder.side, 3), np.uint8)
    session, step = onnx_session(encoder), efficientnet.STEP

    def variant(network: nn.Module, step: int = step) -> Callable[[], np.ndarray]:
        other = copy.copy(encoder)
        other.network = network  # type: ignore[assignment]
        return lambda: np.concatenate([other.encode(pixels[i : i + step]) for i in range(0, IMAGES, step)])

    def at_once() -> None:
        with torch.inference_mode():
            encoder.network((torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128)

    def run_onnx() -> np.ndarray:
        x = np.ascontiguousarray(((pixels.astype(np.float32) - 127) / 128).transpose(0, 3, 1, 2))
        return np.concatenate([session.run(None, {"x": x[i : i + step]})[0] for i in range(0, IMAGES, step)])

    np.testing.assert_allclose(run_onnx(), encoder.encode(pixels), atol=1e-3)
    first = copy.deepcopy(encoder.network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return {
        f"photos: torch, channels last, {step} at once (the encoder)": variant(encoder.network),
        "photos: the same, one at once": variant(encoder.network, 1),
        f"photos: the same, {IMAGES} at once": at_once,
        "photos: the same, channels first": variant(first),
        "photos: the same, batch normalisation not folded": variant(unfolded(encoder.network)),
        f"photos: onnxruntime, {step} at once": run_onnx,
    }


def sentences() -> dict[str, Callable[[], Any]]:
    encoder = encoders.load_encoder("minilm", "cpu")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 30))) for _ in range(SENTENCES)]

    def in_order() -> None:
        for start in range(0, len(texts), 64):
            encoder.encode(texts[start : start + 64])

    return {"minilm: sorted by length (the encoder)": lambda: encoder.encode(texts), "minilm: as they come": in_order}


def measure(ways: dict[str, Callable[[], Any]], items: int, rounds: int) -> None:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):  # the first is a warm-up
        for way, run in ways.items():
            start = time.process_time()
            run()
            times[way].append(time.process_time() - start)
    first = next(iter(ways))
    for way, seconds in times.items():
        ratio = median(one / base for one, base in zip(seconds[1:], times[first][1:], strict=True))
        print(f"| {way} | {1000 * median(seconds[1:]) / items:.1f} | {ratio:.2f} |", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    print("| way | ms an item | against the encoder |\n|---|---:|---:|")
    measure(photographs(), IMAGES, rounds)
    measure(sentences(), SENTENCES, rounds)


if __name__ == "__main__":
    main()

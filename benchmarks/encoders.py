"""The encoders that come with pip: EfficientNet-Lite0 in torch and onnxruntime, MiniLM on sentences sorted by length.

python benchmarks/encoders.py [rounds]

The ways take turns, and the table has the median of their times and of the ratios within a round: other work on the
machine slows all of them.
"""

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

from mtn import encoders
from mtn.encoders.efficientnet import EfficientNetEncoder
from mtn.encoders.text import SentenceModel
from mtn.runtime.cores import core_count

BATCH = 64
WORDS = ("where", "is", "my", "card", "please", "would", "weather", "tomorrow", "town", "going", "know", "like")


def onnx_session(encoder: EfficientNetEncoder, threads: int) -> onnxruntime.InferenceSession:
    """The same network in onnxruntime."""
    file, example = io.BytesIO(), torch.zeros(1, 3, encoder.side, encoder.side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(
            encoder.network, (example,), file, input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamo=False
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])


def photographs(threads: int) -> dict[str, Callable[[], Any]]:
    encoder = encoders.load_encoder("photos", "cpu")
    assert isinstance(encoder, EfficientNetEncoder)
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 224, 224, 3), np.uint8)
    plain = encoders.load_encoder("photos", "cpu")
    assert isinstance(plain, EfficientNetEncoder)
    plain.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    session = onnx_session(encoder, threads)

    def run_onnx() -> np.ndarray:
        x = ((pixels.astype(np.float32) - 127) / 128).transpose(0, 3, 1, 2)
        return np.asarray(session.run(None, {"x": np.ascontiguousarray(x)})[0])

    np.testing.assert_allclose(run_onnx(), encoder.encode(pixels), atol=1e-3)
    return {
        "photos: torch, channels last": lambda: encoder.encode(pixels),
        "photos: torch, channels first": lambda: plain.encode(pixels),
        "photos: onnxruntime": run_onnx,
    }


def sentences() -> dict[str, Callable[[], Any]]:
    encoder = encoders.load_encoder("minilm", "cpu")
    assert isinstance(encoder, SentenceModel)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 30))) for _ in range(1024)]

    def in_order() -> None:
        for start in range(0, len(texts), BATCH):
            encoder.model.encode(texts[start : start + BATCH], batch_size=BATCH, show_progress_bar=False)

    return {"minilm: sorted by length": lambda: encoder.encode(texts), "minilm: as they come": in_order}


def measure(ways: dict[str, Callable[[], Any]], items: int, rounds: int) -> None:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):  # the first is a warm-up
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - start)
    first = next(iter(ways))
    for way, seconds in times.items():
        ratio = median(one / base for one, base in zip(seconds[1:], times[first][1:], strict=True))
        print(f"| {way} | {1000 * median(seconds[1:]) / items:.1f} | {ratio:.2f} |", flush=True)


def main() -> None:
    rounds, threads = int(sys.argv[1]) if len(sys.argv) > 1 else 5, core_count()
    torch.set_num_threads(threads)
    print(f"{threads} threads, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}\n")
    print("| way | ms an item | time against the first way |\n|---|---:|---:|")
    measure(photographs(threads), BATCH, rounds)
    measure(sentences(), 1024, rounds)


if __name__ == "__main__":
    main()

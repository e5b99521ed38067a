"""The network of a classifier -> an ONNX file: a pure function of queries and their neighbours."""

import copy
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.errors import InputError, install_line
from mtn.neighbours import Neighbours
from mtn.storage import files

if TYPE_CHECKING:  # scikit-learn is slow to load, and only some commands need it
    from mtn.classifier import ClassifierState

OPSET = 18
INPUTS = ("query", "neighbours", "labels", "mask")
TOLERANCE = 1e-3


class ExportedNetwork(nn.Module):
    """Scores B,C in the order of `classes_`.

    Of query B,D; neighbours B,K,D, nearest first; labels B,K, positions in `classes_`; mask B,K, False for no
    neighbour. Vectors may have any length. A method without neighbours takes the query alone.
    """

    def __init__(self, state: "ClassifierState") -> None:
        super().__init__()
        self.method = copy.deepcopy(state.learner.method).cpu()
        self.class_indices = state.columns

    def forward(
        self, query: Tensor, near: Tensor | None = None, labels: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        query = F.normalize(query, dim=1)
        if near is None or labels is None or mask is None:
            return self.method.scores(query, None)[:, self.class_indices]
        near = F.normalize(near, dim=2)
        similarity = (near @ query[:, :, None]).squeeze(2)
        neighbours = Neighbours(near, self.class_indices[labels], similarity, mask, full=False)
        # labels are added once more: an input that a method does not use would be missing from the file
        return self.method.scores(query, neighbours)[:, self.class_indices] + 0 * labels[:, :1]


def export_onnx(state: "ClassifierState", path: Path) -> float | None:
    """Write the file; the largest difference between onnxruntime's scores and torch's, None without onnxruntime."""
    try:
        import onnx
    except ImportError:
        raise InputError(f"export needs onnx: {install_line('onnx')}") from None
    network = ExportedNetwork(state).eval()
    example = _example(state, 2)
    names = INPUTS[: len(example)]
    differences: list[float | None] = []

    def fill(temporary: Path) -> None:
        with warnings.catch_warnings(), torch.no_grad():
            # The other exporter needs one more package; this one warns of it, and of shapes that do not vary.
            warnings.simplefilter("ignore")
            network(*example)  # what a method computes once and keeps becomes a constant
            torch.onnx.export(
                network,
                example,
                str(temporary),
                input_names=list(names),
                output_names=["scores"],
                dynamic_axes={name: {0: "batch"} for name in (*names, "scores")},
                opset_version=OPSET,
                dynamo=False,
            )
        model = onnx.load(str(temporary))
        onnx.helper.set_model_props(model, _metadata(state))
        onnx.checker.check_model(model)
        onnx.save(model, str(temporary))
        differences.append(_compare(network, _example(state, 5), temporary))

    try:
        files.write(path, fill)
    except (torch.onnx.errors.OnnxExporterError, NotImplementedError) as error:
        method = state.learner.config.method.name
        raise InputError(f"method {method!r} cannot be exported: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return differences[0]


def _example(state: "ClassifierState", batch: int) -> tuple[Tensor, ...]:
    """Random inputs, one neighbour of them missing."""
    generator, k = torch.Generator().manual_seed(batch), state.learner.config.method.k
    query = torch.randn(batch, state.feature_count, generator=generator)
    if not state.uses_neighbours:
        return (query,)
    labels = torch.randint(len(state.columns), (batch, k), generator=generator)
    mask = torch.arange(batch * k).view(batch, k) < batch * k - 1
    return query, torch.randn(batch, k, state.feature_count, generator=generator), labels, mask


def _metadata(state: "ClassifierState") -> dict[str, str]:
    """What a user of the file needs besides scores, as JSON."""
    facts: dict[str, Any] = {
        "classes": state.classes().tolist(),
        "temperature": state.temperature,
        "method": state.learner.config.method.name,
        "source": state.source,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


@torch.no_grad()
def _compare(network: ExportedNetwork, example: tuple[Tensor, ...], path: Path) -> float | None:
    """The largest difference of scores; an error if it is beyond TOLERANCE."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not printed
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in zip(INPUTS, example, strict=False)}
    (scores,) = session.run(None, feed)
    difference = float(np.abs(scores - network(*example).numpy()).max())
    if not difference <= TOLERANCE:
        name = type(network.method).__name__
        raise InputError(f"{name} cannot be exported: scores of onnxruntime and torch differ by {difference:.2g}")
    return difference

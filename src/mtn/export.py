"""The network of a classifier -> an ONNX file: a pure function of a query and its neighbours."""

import copy
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn import checkpoint
from mtn.errors import InputError
from mtn.neighbours import Neighbours

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier

OPSET = 18
INPUTS = ("query", "neighbours", "labels", "mask")
TOLERANCE = 1e-3


class Network(nn.Module):
    """query B,D; neighbours B,K,D, nearest first; labels B,K, places in `classes_`; mask B,K, False for no neighbour.

    Scores B,C in the order of `classes_`. Vectors of any length. Of a method without neighbours: the query alone.
    """

    def __init__(self, classifier: "MTNClassifier") -> None:
        super().__init__()
        self.method = copy.deepcopy(classifier._learner.method).cpu()
        self.places = classifier._columns()

    def forward(
        self, query: Tensor, near: Tensor | None = None, labels: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        query = F.normalize(query, dim=1)
        if near is None or labels is None or mask is None:
            return self.method.scores(query, None)[:, self.places]
        near = F.normalize(near, dim=2)
        similarity = (near @ query[:, :, None]).squeeze(2)
        found = Neighbours(near, self.places[labels], similarity, mask, full=False)
        # labels once more: an input that a method does not look at would not be in the file
        return self.method.scores(query, found)[:, self.places] + 0 * labels[:, :1]


def onnx(classifier: "MTNClassifier", path: Path) -> float | None:
    """Write the file; the largest difference between onnxruntime's scores and torch's, None without onnxruntime."""
    try:
        import onnx
    except ImportError:
        raise InputError("export needs onnx: pip install 'mtn[onnx]'") from None
    network = Network(classifier).eval()
    example = _example(classifier, 2)
    names = INPUTS[: len(example)]
    apart: list[float | None] = []

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
        onnx.helper.set_model_props(model, _facts(classifier))
        onnx.checker.check_model(model)
        onnx.save(model, str(temporary))
        apart.append(_compare(network, _example(classifier, 5), temporary))

    try:
        checkpoint.write(path, fill)
    except (torch.onnx.errors.OnnxExporterError, NotImplementedError) as error:
        raise InputError(f"method {classifier.method!r} cannot be exported: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return apart[0]


def _example(classifier: "MTNClassifier", batch: int) -> tuple[Tensor, ...]:
    """Random, one neighbour of it missing."""
    learner, width = classifier._learner, classifier.n_features_in_
    generator, k = torch.Generator().manual_seed(batch), classifier._learner.config.method.k
    query = torch.randn(batch, width, generator=generator)
    if not learner.method.uses_neighbours:
        return (query,)
    labels = torch.randint(len(classifier.classes_), (batch, k), generator=generator)
    mask = torch.arange(batch * k).view(batch, k) < batch * k - 1
    return query, torch.randn(batch, k, width, generator=generator), labels, mask


def _facts(classifier: "MTNClassifier") -> dict[str, str]:
    facts: dict[str, Any] = {
        "classes": classifier.classes_.tolist(),
        "temperature": classifier.temperature_,
        "method": classifier.method,
        "source": classifier.source_,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


@torch.no_grad()
def _compare(network: Network, example: tuple[Tensor, ...], path: Path) -> float | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in zip(INPUTS, example, strict=False)}
    (scores,) = session.run(None, feed)
    apart = float(np.abs(scores - network(*example).numpy()).max())
    if not apart <= TOLERANCE:
        name = type(network.method).__name__
        raise InputError(f"{name} cannot be exported: scores of onnxruntime and torch differ by {apart:.2g}")
    return apart

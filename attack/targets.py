"""The files that are damaged, and what reads each of them."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack import material, mutations
from mtn import MTNClassifier, encoders, recipe
from mtn.data import extraction, load_vectors
from mtn.data.reader import Reader
from mtn.data.sources import open_source
from mtn.experiments.run import run
from mtn.serve.guard import read_tokens
from mtn.serve.journal import Journal, LabelledSamples
from mtn.storage.model_folder import read_model_folder, save_model_folder
from mtn.storage.tensors import load_tensors, save_tensors

Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """Files of one kind.

    `exact`: they have checksums, so the answer is the right one or an error. `polite`: lies behind checksums that are
    right end in one line, too; otherwise it is only promised that they do no harm.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    exact: bool = False
    weight: int = 1
    rewrite: Callable[[Path, random.Random, int], object] | None = None  # lies behind checksums that are right
    polite: bool = True


# ---- models


def _model(write: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: write(folder / "model")


def _read_model(folder: Path) -> Any:
    """Everything that a command asks of a model."""
    classifier = MTNClassifier.load(folder / "model")
    if not classifier.__sklearn_is_fitted__():
        classifier.configuration()
        encoder = classifier.reader().requested_encoder() if classifier.encoder is not None else None
        return None if encoder is None else encoder.dimension
    kind = classifier.reader().kind
    queries: Any = {"text": ["play a song"], "image": [material.drawing("box", 9)], None: material.TEST}[kind]
    probabilities, novelty = classifier.assess(queries)
    classifier.info()
    classifier.explain(queries[:1])
    return classifier.classes_.tolist(), _digest(probabilities.tobytes() + novelty.tobytes())


def _write_untaught(folder: Path) -> None:
    classifier = MTNClassifier("mtn", memory=50, k=3, encoder="hashing")
    encoder = encoders.load_encoder("hashing")
    classifier.source_ = {"encoder": encoder.identity(), "kind": encoder.kind}
    classifier.save(folder / "model")


def _rewrite_model(folder: Path, rng: random.Random, port: int) -> None:
    """Somebody's own model folder: what it says is a lie, its checksums are right. Nobody may connect to the port."""
    model = folder / "model"
    facts, parts = read_model_folder(model)
    card = (model / "README.md").read_text()
    kind = rng.random()
    if kind < 0.15:
        _name_payload(facts, rng)
    elif kind < 0.2:
        _name_server(facts, parts, f"http://127.0.0.1:{port}")
    elif parts and kind < 0.5:
        part = rng.choice(sorted(parts))
        parts[part] = _lie_in_tensors(parts[part], rng)
    else:
        facts = mutations.lie_in_values({key: facts[key] for key in facts if key != "files"}, rng)
        facts = facts if isinstance(facts, dict) else {}
    for file in model.iterdir():
        file.unlink()
    save_model_folder(model, facts, parts, card)


def _name_payload(facts: dict[str, Any], rng: random.Random) -> None:
    """Name a function of the stranger's where a model names a method or an encoder."""
    sections = (
        (facts["parameters"], "encoder"),
        (facts["parameters"], "method"),
        (facts.get("configuration", {}).get("method", {}), "name"),
        (facts["source"].get("encoder", {}), "name"),
    )
    for section, key in rng.sample(sections, rng.randint(1, 4)):
        section[key] = mutations.PAYLOAD


def _name_server(facts: dict[str, Any], parts: dict[str, dict[str, torch.Tensor]], uri: str) -> None:
    """Say that the exemplars are in Milvus at this URI."""
    facts["memory"] = {"uri": uri, "name": "mtn_0123456789abcdef"}
    if parts:
        facts["configuration"]["memory"] |= {"store": "milvus", "uri": uri}
        parts["memory"] = {name: tensor for name, tensor in parts["memory"].items() if name != "x"} | {
            "hidden": torch.zeros(0, dtype=torch.int64),
            "tasks": torch.tensor(1),
        }


def _lie_in_tensors(tensors: Mapping[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
    changed = dict(tensors)
    name = rng.choice(sorted(changed))
    tensor = changed[name]
    lies: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.flatten(),
        lambda: tensor[:0],
        lambda: tensor.to(torch.float64),
        lambda: tensor.to(torch.int64),
        lambda: torch.full_like(tensor, -1),
        lambda: torch.full_like(tensor, 10**6 if tensor.dtype != torch.uint8 and tensor.dtype != torch.bool else 1),
        lambda: torch.full(tensor.shape, float("nan")),
        lambda: tensor[None],
    ]
    try:
        changed[name] = rng.choice(lies)()
    except (IndexError, RuntimeError, TypeError):  # a number has no rows
        del changed[name]
    return changed


# ---- runs and stores


class _Stop(Exception):
    """A run is to end here."""


def _write_run(folder: Path) -> None:
    """A run that broke off within its second task."""
    path = material.write_recipe(folder / "run.toml", material.write_arrays(folder / "data.npz"))

    def progress(what: str, done: int, of: int) -> None:
        if what.startswith("task 2/") and "testing" in what:
            raise _Stop

    try:
        run(recipe(str(path), [f"stream.data={json.dumps('data.npz')}"]), folder / "run", progress, save_every=0.0)
    except _Stop:
        return
    raise AssertionError("the run was to break off")


def _read_run(folder: Path) -> Any:
    config = recipe(str(folder / "run.toml"), [f"stream.data={json.dumps('data.npz')}"])
    result = run(config, folder / "run")
    return result["accuracy"], result["kept"]


def _rewrite_run(folder: Path, rng: random.Random, port: int) -> None:
    path = folder / "run" / "state.safetensors"
    tensors, facts = load_tensors(path)
    if rng.random() < 0.5:
        tensors = _lie_in_tensors(tensors, rng)
    else:
        facts = mutations.lie_in_values(facts, rng)
    save_tensors(path, tensors, facts)


def _write_store(folder: Path) -> None:
    listing = open_source(material.write_sentences(folder / "sentences.json")).list_items()
    extraction.extract(listing, encoders.load_encoder("hashing"), folder / "store")
    (folder / "sentences.json").unlink()


def _read_store(folder: Path) -> Any:
    data = load_vectors(str(folder / "store"))
    return data.names, _digest(np.asarray(data.train.x(slice(None))).tobytes())


def _resume_store(folder: Path) -> Any:
    """An extraction that goes on in a damaged folder makes it whole, or refuses."""
    listing = open_source(folder / "sentences.json").list_items()
    extraction.extract(listing, encoders.load_encoder("hashing"), folder / "store")


def _write_begun(folder: Path) -> None:
    _write_store(folder)
    material.write_sentences(folder / "sentences.json")
    (folder / "store" / "manifest.json").unlink()


# ---- data


def _read_vectors(name: str) -> Callable[[Path], Any]:
    """As samples to learn, and as questions."""

    def read(folder: Path) -> Any:
        reader = Reader()
        reader.to_ask(str(folder / name))
        return len(reader.to_learn(folder / name))

    return read


def _write_npy(folder: Path) -> None:
    np.save(folder / "x.npy", material.X)


def _write_npy_folder(folder: Path) -> None:
    (folder / "arrays").mkdir()
    for name, array in material.ARRAYS.items():
        np.save(folder / "arrays" / f"{name}.npy", array)


def _write_picture(kind: str) -> Callable[[Path], object]:
    return lambda folder: (folder / f"image.{kind}").write_bytes(material.picture(kind.upper()))


def _read_picture(kind: str) -> Callable[[Path], Any]:
    return lambda folder: len(Reader("glyph").to_ask(str(folder / f"image.{kind}")))


def _write_table_of_sentences(folder: Path) -> None:
    rows = "".join(f"{text},{label}\n" for text, label in material.SENTENCES)
    (folder / "table.csv").write_text("text,label\n" + rows)


# ---- what the service and the encoders read


def _write_journal(folder: Path) -> None:
    journal = Journal(folder / "journal.sqlite")
    for row in range(6):
        journal.learn(LabelledSamples(material.X[row : row + 1], [f"class {row}"]), f"key {row}", "digest")
    journal.forget("class 1", 100.0)
    journal.close()


def _read_journal(folder: Path) -> Any:
    journal = Journal(folder / "journal.sqlite")
    try:
        return [len(journal.samples(job)) for job in journal.take() if job.change is None]
    finally:
        journal.close()


def _write_tokens(folder: Path) -> None:
    (folder / "tokens").write_text("# who\nread 0123456789abcdef0\nteach fedcba9876543210f\n")


def _read_tokens(folder: Path) -> Any:
    (folder / "tokens").chmod(0o600)
    return len(read_tokens(folder / "tokens").rights)


def _write_onnx(folder: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 1, 1], [0.1 * number for number in range(12)])
    nodes = [helper.make_node("Conv", ["x", "w"], ["m"]), helper.make_node("GlobalAveragePool", ["m"], ["y"])]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 1, 1])
    graph = helper.make_graph(nodes, "g", [given], [made], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")


def _rewrite_onnx(folder: Path, rng: random.Random, port: int) -> None:
    """Operators nobody knows, weights in files outside of the folder, absurd shapes."""
    import onnx

    model = onnx.load(str(folder / "m.onnx"))
    weights, kind = model.graph.initializer[0], rng.randrange(4)
    if kind == 0:
        model.graph.node[0].domain, model.graph.node[0].op_type = (
            rng.choice(mutations.TEXTS)[:50].replace("\0", ""),
            "X",
        )
    elif kind == 1:
        weights.ClearField("float_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        places = ("../canary.txt", "/etc/passwd", "none.bin", "../../../../etc/hostname", "")
        for key, value in (
            ("location", rng.choice(places)),
            ("offset", "0"),
            ("length", rng.choice(("48", "-1", "9" * 18))),
        ):
            weights.external_data.add(key=key, value=value)
    elif kind == 2:
        weights.dims[0] = rng.choice((0, -1, 2**40, 2**62, 5))
    else:
        model.metadata_props.add(
            key=rng.choice(("size", "mean", "std")),
            value=rng.choice(("", "-1", "1e999", "[]", "9" * 30, "null", "[" * 5000)),
        )
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def _read_onnx(folder: Path) -> Any:
    return encoders.load_encoder(str(folder / "m.onnx")).dimension


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _practical(folder: Path) -> object:
    return material.write_model(folder, "practical")


TARGETS: dict[str, Target] = {
    "model": Target(_model(material.write_model), _read_model, True, 8, _rewrite_model),
    "model-practical": Target(_model(_practical), _read_model, True, 4, _rewrite_model),
    "model-text": Target(_model(material.write_text_model), _read_model, True, 4, _rewrite_model),
    "model-images": Target(_model(material.write_image_model), _read_model, True, 4, _rewrite_model),
    "model-untaught": Target(_write_untaught, _read_model, True, 4, _rewrite_model),
    "run": Target(_write_run, _read_run, True, 3, _rewrite_run, polite=False),
    "store": Target(_write_store, _read_store, True, 5),
    "store-begun": Target(_write_begun, _resume_store, False, 3),
    "npz": Target(lambda f: material.write_arrays(f / "data.npz"), _read_vectors("data.npz"), False, 6),
    "npy": Target(_write_npy, lambda f: len(Reader().to_ask(str(f / "x.npy"))), False, 4),
    "npy-folder": Target(_write_npy_folder, lambda f: load_vectors(str(f / "arrays")).names, False, 4),
    "csv": Target(lambda f: material.write_table(f / "t.csv"), _read_vectors("t.csv"), False, 5),
    "parquet": Target(lambda f: material.write_table(f / "t.parquet"), _read_vectors("t.parquet"), False, 8),
    "sentences": Target(
        lambda f: material.write_sentences(f / "s.json"),
        lambda f: len(Reader("hashing").to_learn(f / "s.json")),
        False,
        4,
    ),
    "sentence-table": Target(
        _write_table_of_sentences, lambda f: len(Reader("hashing").to_learn(f / "table.csv")), False, 3
    ),
    "recipe": Target(
        lambda f: material.write_recipe(f / "r.toml", f / "data.npz"),
        lambda f: recipe(str(f / "r.toml")).seed,
        False,
        5,
    ),
    "image-zip": Target(
        lambda f: material.write_image_zip(f / "i.zip"), lambda f: len(Reader("glyph").to_learn(f / "i.zip")), False, 4
    ),
    **{
        f"image-{kind}": Target(_write_picture(kind), _read_picture(kind), False, 3)
        for kind in ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm")
    },
    "journal": Target(_write_journal, _read_journal, False, 3),
    "tokens": Target(_write_tokens, _read_tokens, False, 1),
    "onnx": Target(_write_onnx, _read_onnx, False, 4, _rewrite_onnx),
}

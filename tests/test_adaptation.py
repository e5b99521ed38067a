"""A small vision transformer, adapted to the first task: only its projections change, and its classes come apart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mtn import encoders
from mtn.data import sources
from mtn.experiments import adaptation
from mtn.experiments.run import run
from mtn.recipes import recipe
from mtn.stream import class_order

Call = Callable[..., tuple[int, str, str]]
CLASSES, TRAIN, TEST = 6, 12, 8


@pytest.fixture(scope="module")
def vit(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New weights: what is adapted here was trained on nothing."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"initializer_range": 0.2}  # vectors of new weights that differ from image to image
    model = transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **sizes), add_pooling_layer=False)
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six faint hues on greys of all kinds."""
    root, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            folder = root / split / f"class {label}"
            folder.mkdir(parents=True)
            hue = 8 * np.cos(2 * np.pi * (label / CLASSES + np.arange(3) / 3))
            for number in range(count):
                grey = draw.uniform(50, 200, (4, 4, 1)).repeat(4, 0).repeat(4, 1)
                pixels = grey + hue + draw.normal(0, 5, (16, 16, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def adapted(vit: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, adaptation.Adaptation]:
    out = tmp_path_factory.mktemp("adapted") / "vit"
    listing = sources.open_source(str(pictures)).list_items()
    return out, adaptation.adapt(listing, str(vit), out, first=4, epochs=30)


def test_only_the_projections_of_queries_and_values_change(
    vit: Path, adapted: tuple[Path, adaptation.Adaptation]
) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (vit, adapted[0]))
    assert before.keys() == after.keys(), "the same architecture: any command loads it"
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(changed) == 4 and all(
        name.endswith(("query.weight", "value.weight", "q_proj.weight", "v_proj.weight")) for name in changed
    )
    for name in changed:
        assert np.linalg.matrix_rank((after[name] - before[name]).numpy(), tol=1e-5) <= adaptation.RANK
    assert adapted[1].parameters == 4 * 2 * 32 * adaptation.RANK


def test_it_is_of_the_first_task_and_brings_its_classes_apart(
    vit: Path, pictures: Path, adapted: tuple[Path, adaptation.Adaptation]
) -> None:
    folder, done = adapted
    names = [f"class {label}" for label in range(CLASSES)]
    assert done.classes == [names[label] for label in class_order(names, 1993)][:4] and done.images == 4 * TRAIN
    record = json.loads((folder / "adaptation.json").read_text())
    assert record["classes"] == done.classes and record["encoder"]["name"] == str(vit)
    before, after = (_separation(encoder, pictures, done.classes) for encoder in (vit, folder))
    assert after > 1.5 * before, (before, after)


def _separation(encoder: Path, pictures: Path, classes: list[str]) -> float:
    """Variance of the class means over variance within classes, of test images that were not trained on."""
    loaded = encoders.load_encoder(str(encoder))
    parts = []
    for name in classes:
        files = sorted((pictures / "test" / name).iterdir())
        x = loaded.encode([loaded.prepare(Image.open(file)) for file in files])
        parts.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    within = np.mean([part.var(0).sum() for part in parts])
    return float(np.stack([part.mean(0) for part in parts]).var(0).sum() / within)


def test_the_commands_adapt_extract_and_run(call: Call, vit: Path, pictures: Path, tmp_path: Path) -> None:
    made = [call("adapt", str(pictures), "--encoder", str(vit), "--out", name, "--epochs", "1") for name in ("a", "b")]
    assert made[0][0] == 0 and "4096" not in made[0][1] and "of 3 classes" in made[0][1], made[0][2]
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert call("extract", str(pictures), "--encoder", "./a", "--out", "store")[0] == 0
    config = recipe("demo", ["stream.data=store", "stream.first=3", "stream.step=1", "method.name=slda"])
    assert len(run(config, tmp_path / "run")["accuracy"]) == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--encoder", "glyph", "--out", "new"], "--encoder must be the folder of a vision transformer"),
        (["--encoder", "VIT", "--out", "used"], "--out: used is not an empty folder"),
        (["--encoder", "VIT", "--out", "new", "--first", "9"], "stream.first must be at most 6"),
    ],
)
def test_what_cannot_be_adapted_is_one_line(
    call: Call, vit: Path, pictures: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    code, _, errors = call("adapt", str(pictures), *(str(vit) if word == "VIT" else word for word in words))
    assert code == 2 and reason in errors and not (tmp_path / "new").exists()

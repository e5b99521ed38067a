"""Encoders of transformers and sentence-transformers: their vectors equal those of the library."""

import hashlib
import importlib.util
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from encoder_checks import EXTRA, PICTURES, Loud, encode, refused
from hub_server import HubServer
from mtn import MTNClassifier, encoders
from mtn.encoders import catalogue


@pytest.fixture(scope="module")
def models(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of small models; clip-whole and siglip have a part for text too."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sight = {"image_size": 32, "patch_size": 8, **small}
    words = {**small, "vocab_size": 50, "bos_token_id": 2, "eos_token_id": 1}
    residual = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    clip = transformers.CLIPVisionConfig(**sight, projection_dim=16)
    both = transformers.CLIPConfig(vision_config=sight, text_config=words, projection_dim=24)
    made = {
        "clip": transformers.CLIPVisionModelWithProjection(clip),
        "clip-whole": transformers.CLIPModel(both),
        "vit": transformers.ViTModel(transformers.ViTConfig(**sight)),
        "vit-no-pooler": transformers.ViTModel(transformers.ViTConfig(**sight), add_pooling_layer=False),
        "resnet": transformers.ResNetModel(residual),
        "mae": transformers.ViTMAEModel(transformers.ViTMAEConfig(**sight)),
        "dinov2": transformers.Dinov2Model(transformers.Dinov2Config(**sight, mlp_ratio=2)),
        "dinov3": transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sight)),
        "siglip": transformers.SiglipModel(
            transformers.SiglipConfig(vision_config=sight, text_config={**words, "projection_size": 32})
        ),
        "bert": transformers.BertModel(transformers.BertConfig(**small, vocab_size=50)),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        side = {"height": 32, "width": 32}
        if name.startswith("clip"):
            processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=side)
        else:
            processor = transformers.ViTImageProcessorPil(size=side)
        processor.save_pretrained(root / name)
    return root


def direct(transformers: Any, folder: Path, kind: str, items: list[Image.Image]) -> Any:
    """The library alone."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        model = getattr(transformers, kind).from_pretrained(folder).eval()
        return model(pixel_values=torch.tensor(np.array(processor(items)["pixel_values"])))


@pytest.mark.parametrize("name", ["clip", "clip-whole", "vit", "vit-no-pooler", "resnet", "dinov2", "dinov3", "siglip"])
def test_a_vision_model_s_vectors_are_the_library_s(transformers: Any, models: Path, name: str) -> None:
    encoder = encoders.load_encoder(str(models / name))
    found = encode(encoder, PICTURES)
    if name in ("clip-whole", "siglip"):
        processor = transformers.AutoImageProcessor.from_pretrained(models / name, backend="pil")
        with torch.no_grad():
            pixels = torch.tensor(np.array(processor(PICTURES)["pixel_values"]))
            whole = transformers.AutoModel.from_pretrained(models / name).eval()
            expected = whole.get_image_features(pixel_values=pixels).pooler_output
    elif name == "clip":
        expected = direct(transformers, models / name, "CLIPVisionModelWithProjection", PICTURES).image_embeds
    elif name == "vit-no-pooler":  # the pooler would be random
        expected = direct(transformers, models / name, "AutoModel", PICTURES).last_hidden_state.mean(1)
    else:
        expected = direct(transformers, models / name, "AutoModel", PICTURES).pooler_output.flatten(1)
    assert expected.shape[1] == {"clip": 16, "clip-whole": 24, "resnet": 16}.get(name, 32)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "vit"])
def test_a_photograph_is_prepared_by_the_model_s_own_processor(
    transformers: Any, models: Path, photograph: Image.Image, name: str
) -> None:
    processor = transformers.AutoImageProcessor.from_pretrained(models / name, backend="pil")
    expected = np.asarray(processor(photograph)["pixel_values"][0])
    np.testing.assert_array_equal(encoders.load_encoder(str(models / name)).prepare(photograph), expected)


def test_identity_is_that_of_weights_config_and_processor(models: Path, tmp_path: Path) -> None:
    first = encoders.load_encoder(str(models / "clip")).identity()
    assert first == encoders.load_encoder(str(models / "clip")).identity()
    assert first["weights"] == hashlib.sha256((models / "clip" / "model.safetensors").read_bytes()).hexdigest()
    assert first["processor"]["crop_size"] == {"height": 32, "width": 32} and first["revision"] is None

    folder = copy(models / "clip", tmp_path / "other")
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0, 0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    other = encoders.load_encoder(str(folder)).identity()
    assert [key for key in first if first[key] != other[key]] == ["name", "weights"]


def copy(source: Path, target: Path, *without: str) -> Path:
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in without:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_the_hub_s_name_is_looked_up_in_the_local_cache_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("clip-vit-b32", "some/model", "some/model@v1.0"):
        with refused(f"{name}.*`mtn encoders get {name}` fetches them.*MTN_DOWNLOAD=1; or give the path of a folder"):
            encoders.load_encoder(name)
    cache = tmp_path / "models--openai--clip-vit-base-patch32"
    folder, revision = cache / "snapshots", "0123456789abcdef0123456789abcdef01234567"
    copy(models / "clip", folder / revision, "model.safetensors")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(revision)
    with refused("mtn encoders get"):  # a config without weights
        encoders.load_encoder("clip-vit-b32")
    (folder / revision / "model.safetensors").symlink_to(models / "clip" / "model.safetensors")
    encoder = encoders.load_encoder("clip-vit-b32")
    assert encoder.identity()["revision"] == revision and encoder.identity()["name"] == "clip-vit-b32"
    expected = encoders.load_encoder(str(models / "clip"))
    np.testing.assert_array_equal(encode(encoder, PICTURES[:2]), encode(expected, PICTURES[:2]))


def test_folders_that_are_no_model_of_images_are_refused(models: Path, tmp_path: Path) -> None:
    with refused("must hold config.json"):
        encoders.load_encoder(str(tmp_path))
    with refused("holds no weights"):
        encoders.load_encoder(str(copy(models / "vit", tmp_path / "bare", "model.safetensors")))
    with refused("must be a model of images alone"):
        encoders.load_encoder(str(models / "bert"))
    with refused("must give a picture the same vector each time"):  # it hides random patches
        encoders.load_encoder(str(models / "mae"))
    strange = copy(models / "vit", tmp_path / "strange")
    (strange / "config.json").write_text('{"model_type": "nothing"}')
    with refused("strange cannot be loaded"):
        encoders.load_encoder(str(strange))

    folder = copy(models / "vit", tmp_path / "half")
    weights = {name: weight for name, weight in load_file(folder / "model.safetensors").items() if "layer" not in name}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with refused("lack "):
        encoders.load_encoder(str(folder))


def test_a_model_that_needs_a_further_library_names_it(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    if importlib.util.find_spec("timm"):
        pytest.skip("timm is installed")
    folder = copy(models / "vit", tmp_path / "timm", "config.json")
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": {"tag": "a1_in1k"}}))
    with refused("needs another library: .*pip install timm"):
        encoders.load_encoder(str(folder))


def test_a_pickle_among_the_weights_is_not_run(models: Path, tmp_path: Path) -> None:
    folder = copy(models / "vit", tmp_path / "loud", "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Loud(tmp_path / "run"), 2))
    with refused("cannot be loaded"):
        encoders.load_encoder(str(folder))
    assert not (tmp_path / "run").exists()


def test_a_missing_extra_is_named(models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("transformers", "huggingface_hub", "sentence_transformers", "onnxruntime"):
        monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "modules.json").write_text("[]")
    for name in (str(models / "clip"), "openai/clip-vit-large-patch14", str(tmp_path)):
        with refused(r"pip install '.*\[encoders\]'"):
            encoders.load_encoder(name)
    with refused(r"pip install '.*\[onnx\]'"):
        encoders.load_encoder("model.onnx")


@pytest.fixture(scope="module")
def tokenizer(transformers: Any) -> Any:
    """Words, and an end that fills what is left."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: index for index, word in enumerate(["?", "</s>", "a", "photo", "of", "red", "fox", "teapot"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")


@pytest.mark.parametrize("name", ["clip-whole", "siglip"])
def test_the_vectors_of_names_are_the_library_s_and_answer_before_anything_is_taught(
    transformers: Any, models: Path, tokenizer: Any, tmp_path: Path, name: str
) -> None:
    folder, names = copy(models / name, tmp_path / name), ["red fox", "teapot", "a thing"]
    tokenizer.save_pretrained(folder)
    encoder = encoders.load_encoder(str(folder))
    found = encoder.encode_names(names)
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    texts, length = [f"a photo of a {name}" for name in names], 77 if name == "clip-whole" else 64
    tokens = tokenizer(texts, padding="max_length", max_length=length, return_tensors="pt")
    with torch.no_grad():
        expected = whole.get_text_features(**tokens).pooler_output.numpy()
    assert found.shape == (3, encoder.dimension)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    x, t = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (encode(encoder, PICTURES), expected))
    nearest = [names[best] for best in (x @ t.T).argmax(1)]
    classifier = MTNClassifier("knn", encoder=str(folder), memory=20, k=1)
    assert classifier.nearest_names(PICTURES, names).tolist() == nearest
    classifier.partial_fit(PICTURES[:2] * 3, ["one", "two"] * 3)
    answers = classifier.predict(PICTURES, unknown=classifier.nearest_names(PICTURES, names))
    assert answers[:2].tolist() == ["one", "two"] and all(
        answer in ("one", "two", name) for answer, name in zip(answers[2:], nearest[2:], strict=True)
    )
    with refused("names must be strings, at least one"):
        classifier.nearest_names(PICTURES, [])


def test_the_command_names_what_a_new_model_has_not_been_taught(
    models: Path, tokenizer: Any, tmp_path: Path, call
) -> None:
    folder = copy(models / "clip-whole", tmp_path / "clip")
    tokenizer.save_pretrained(folder)
    (tmp_path / "pictures").mkdir()
    for number, picture in enumerate(PICTURES[:2]):
        picture.save(tmp_path / "pictures" / f"{number}.png")
    (tmp_path / "names.txt").write_text("red fox\n\nteapot\n")
    assert call("new", "model", "--encoder", str(folder))[0] == 0
    asked = ("predict", "model", "pictures", "--encoder", str(folder))
    assert call(*asked)[2] == "error: the model has been taught nothing yet: mtn learn MODEL DATA\n"
    code, out, _ = call(*asked, "--names", "names.txt", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    expected = MTNClassifier(encoder=str(folder)).nearest_names(PICTURES[:2], ["red fox", "teapot"]).tolist()
    assert code == 0 and [answer["label"] for answer in answers] == expected and answers[0]["novelty"] is None
    assert "exclude each other" in call(*asked, "--names", "names.txt", "--unknown", "?")[2]


def test_an_encoder_of_images_alone_knows_no_names(models: Path) -> None:
    for name in ("clip", "vit"):  # the first is CLIP's part for images alone
        with refused("this encoder knows no texts beside images"):
            encoders.load_encoder(str(models / name)).encode_names(["red fox"])


@pytest.fixture(scope="module")
def sentence_model(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("sentence_transformers", reason=EXTRA)
    from sentence_transformers.sentence_transformer import modules as parts

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("sentences")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "how", "do", "i", "card", "my", "##s", "?"]
    (root / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(root / "vocab.txt")).save_pretrained(root / "bert")
    transformers.BertModel(transformers.BertConfig(**small, vocab_size=len(words))).save_pretrained(root / "bert")
    word = parts.Transformer(str(root / "bert"))
    library.SentenceTransformer(modules=[word, parts.Pooling(32)]).save(str(root / "model"))
    return root / "model"


def test_a_sentence_model_s_vectors_are_the_library_s(sentence_model: Path, tmp_path: Path, hub: HubServer) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = encoders.load_encoder(str(sentence_model))
    texts = ["how do i", "my cards ?", "card", ""]
    found = encode(encoder, texts)
    np.testing.assert_allclose(found, SentenceTransformer(str(sentence_model)).encode(texts), rtol=1e-4, atol=1e-5)
    assert encoder.kind == "text" and found.shape == (4, 32)
    assert encoder.identity() == encoders.load_encoder(str(sentence_model)).identity()

    names = [str(file.relative_to(sentence_model)) for file in sentence_model.rglob("*") if file.is_file()]
    hub.add("some/sentences", {name: (sentence_model / name).read_bytes() for name in names})
    catalogue.fetch_encoder("some/sentences")
    np.testing.assert_array_equal(encode(encoders.load_encoder("some/sentences"), texts), found)

    modules = json.loads((sentence_model / "modules.json").read_text())
    modules[0]["type"] = "subprocess.Popen"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with refused("cannot be loaded: .*subprocess.Popen"):
        encoders.load_encoder(str(tmp_path))

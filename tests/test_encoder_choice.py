"""Which encoder a new model gets when nobody names one, what is said about it, and what is refused before learning."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image

from dataset_files import write_images
from encoder_checks import refused
from mtn import MTNClassifier
from mtn.data import glyphs, reader
from mtn.data.choice import LOOKED_AT, choose_encoder
from mtn.data.listing import File, Listing, LoadedImage, Sentence
from mtn.encoders import packaged
from mtn.errors import install_line

QUICK = ["--method", "knn", "--memory", "40"]
Call = Callable[..., tuple[int, str, str]]


def crops(count: int, name: str = "china.jpg", side: int = 120) -> list[Image.Image]:
    """Pieces of a photograph."""
    whole, rng = load_sample_image(name), np.random.default_rng(0)
    corners = [(rng.integers(whole.shape[0] - side), rng.integers(whole.shape[1] - side)) for _ in range(count)]
    return [Image.fromarray(whole[top : top + side, left : left + side]) for top, left in corners]


def listed(images: list[Image.Image]) -> Listing:
    empty = [""] * len(images)
    return Listing([str(row) for row in range(len(images))], empty, empty, [LoadedImage(image) for image in images])


def photographs(folder: Path, count: int = 4) -> Path:
    for name in ("china", "flower"):
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(crops(count, f"{name}.jpg")):
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No extra is there, and the hub's cache is empty."""
    for name, weights in packaged.PACKAGED.items():
        monkeypatch.setitem(packaged.PACKAGED, name, replace(weights, distribution="no-such-package"))
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    reader._load_cached.cache_clear()


@pytest.fixture
def photos_installed() -> None:
    if packaged.PACKAGED["photos"].find() is None:
        pytest.skip("the extra 'photos' is not there")


# ---- what items look like


def scan(letter: str) -> Image.Image:
    """A letter on a page, dark on white, large."""
    page = Image.new("L", (600, 800), 250)
    ImageDraw.Draw(page).text((100, 80), letter, fill=20, font_size=600)
    return page


@pytest.mark.usefixtures("nothing_installed")
def test_characters_in_grey_are_for_the_glyph_encoder() -> None:
    rendered = [Image.fromarray(glyphs.render("train", label)[0]) for label in range(6)]
    for images in (rendered, [one.convert("RGB") for one in rendered], [scan(letter) for letter in "abcdef"]):
        assert choose_encoder(listed(images)).name == "glyph"


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_photographs_are_never_for_the_glyph_encoder(mode: str) -> None:
    images = [image.convert(mode) for image in crops(8)]
    looks = "these are images in colour" if mode == "RGB" else "these are grey photographs"
    with refused(rf"{looks}, and none for them is here: pip install '.*\[photos\]'"):
        choose_encoder(listed(images))
    with refused("these are images in colour"):  # a few grey ones among them change nothing
        choose_encoder(listed([*crops(8), scan("a"), scan("b")]))


@pytest.mark.usefixtures("photos_installed")
def test_photographs_get_what_is_installed_or_what_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    choice = choose_encoder(listed(crops(3)))
    assert choice.name == "photos" and str(choice).endswith(
        "; dinov2-b14 is better: mtn encoders get dinov2-b14, 346 MB"
    )
    snapshot = tmp_path / "models--openai--clip-vit-base-patch32" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).touch()
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    assert choose_encoder(listed(crops(3))).name == "clip-vit-b32"


def test_sentences_get_minilm_or_words_that_say_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sentences = Listing(["0"], [""], [""], [Sentence("a")], "text")
    if packaged.PACKAGED["minilm"].find() is not None:
        assert choose_encoder(sentences).name == "minilm"
    request.getfixturevalue("nothing_installed")
    choice = choose_encoder(sentences)
    assert choice.name == "hashing" and install_line("text") in str(choice)


@pytest.mark.usefixtures("nothing_installed")
def test_a_bounded_number_of_images_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    scan("a").save(tmp_path / "a.png")

    def load(self: File) -> Image.Image:
        seen.append(self.path)
        return Image.open(tmp_path / "a.png")

    monkeypatch.setattr(File, "load", load)
    ids = [str(row) for row in range(10_000)]
    assert choose_encoder(Listing(ids, ids, ids, [File(id) for id in ids])).name == "glyph"
    assert len(seen) == LOOKED_AT and seen[0] == "0" and seen[-1] == "9999"
    monkeypatch.undo()
    with refused("none of 1 images can be read: 0: "):
        choose_encoder(Listing(["0"], [""], [""], [File(str(tmp_path / "nowhere.png"))]))


# ---- at the doors


@pytest.mark.usefixtures("photos_installed")
def test_mtn_learn_names_its_choice_first_and_keeps_it(call: Call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes", classes=2, count=3)
    photographs(tmp_path / "photographs")
    code, out, _ = call("learn", "marks", "shapes", *QUICK)
    assert code == 0 and out.startswith("encoder 'glyph', as these are grey characters or marks")
    code, out, _ = call("learn", "views", "photographs", *QUICK)
    assert code == 0 and out.startswith("encoder 'photos', as these are images in colour")
    assert MTNClassifier.load("views").source_["encoder"]["name"] == "photos"
    write_images(tmp_path / "more", classes=3, count=2)
    code, out, _ = call("learn", "views", "more")  # characters now: the model's encoder stays
    assert code == 0 and "encoder" not in out and MTNClassifier.load("views").source_["encoder"]["name"] == "photos"
    before = MTNClassifier.load("marks").classes_.tolist()
    code, _, err = call("learn", "marks", "photographs")
    assert code == 2 and "these are images in colour, and the model's encoder is 'glyph'" in err
    assert MTNClassifier.load("marks").classes_.tolist() == before
    assert call("learn", "marks", "photographs", "--encoder", "glyph")[0] == 0  # as the user wishes


@pytest.mark.usefixtures("nothing_installed")
def test_without_an_encoder_nothing_is_read_or_learned(call: Call, tmp_path: Path) -> None:
    photographs(tmp_path / "photographs")
    (tmp_path / "photographs" / "china" / "broken.png").write_text("no image")
    for options in ([], ["--encoder", "auto"], ["--encoder", "photos"]):
        code, _, err = call("learn", "model", "photographs", *QUICK, *options)
        assert code == 2 and install_line("photos") in err and err.count("\n") == 1
        assert not (tmp_path / "model" / "model.json").exists()
    for options in (
        ["new", "model", "--encoder", "photos"],
        ["extract", "photographs", "--encoder", "photos", "--out", "s"],
    ):
        code, _, err = call(*options)
        assert code == 2 and install_line("photos") in err and not (tmp_path / "s").exists()


def test_a_new_model_lets_its_first_lesson_decide(call: Call, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes", classes=2, count=3)
    code, out, _ = call("new", "model", *QUICK)
    assert code == 0 and "the first lesson decides what it takes" in out
    code, _, err = call("serve", "model", "--port", "0")
    assert code == 2 and "the model names no encoder: teach it (mtn learn), or name one" in err
    assert call("learn", "model", "shapes")[0] == 0
    assert "made from images by the encoder 'glyph'" in call("info", "model")[1]
    assert call("predict", "model", "shapes/class 0/0.png")[0] == 0


@pytest.mark.parametrize("encoder", [None, "auto"])
def test_python_chooses_alike(encoder: str | None) -> None:
    y = ["a", "b"] * 3
    drawn = np.stack([glyphs.render("train", row % 2)[row] for row in range(6)])
    for X in (drawn, [Image.fromarray(one) for one in drawn]):
        it = MTNClassifier("knn", encoder=encoder).fit(X, y)
        assert it.source_["encoder"]["name"] == "glyph" and it.predict(X).tolist() == y
    it.partial_fit([drawn[0]], ["c"])
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    it = MTNClassifier("knn", encoder=encoder).fit(vectors, y)
    assert it.source_ == {}
    with refused("this model was taught vectors, got sentences"):
        it.predict(["turn on the light"])
    with refused("this model was taught vectors, got images"):
        it.predict(drawn)

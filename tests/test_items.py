"""Images and sentences instead of vectors, in Python and on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import file_contents
from dataset_files import write_images
from mtn import MTNClassifier
from mtn.data import glyphs
from mtn.encoders import glyph
from mtn.errors import InputError
from mtn.storage.model_folder import checksum

SAID = [
    "turn on the light",
    "lights on please",
    "switch the lamp on",
    "play some jazz",
    "put on a song",
    "music please",
]
MEANT = ["light"] * 3 + ["music"] * 3
QUICK = {"train.min_steps": 5, "train.epochs": 1}


def quick(**options: object) -> MTNClassifier:
    return MTNClassifier(settings=QUICK, **options)


def mean_colour(pictures: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(picture).mean((0, 1)) for picture in pictures])


# ---- Python


def test_sentences_are_taught_and_asked_and_saved(tmp_path: Path) -> None:
    it = quick(encoder="hashing").partial_fit(SAID, MEANT).partial_fit(np.array(["how warm is it"]), ["weather"])
    asked = ["lamp on", "a jazz song"]
    assert it.predict(asked).tolist() == ["light", "music"]
    assert it.predict("lamp on").tolist() == ["light"]
    assert it.explain(asked)[0].neighbours[0].label == "light"
    it.save(tmp_path / "model")
    again = MTNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(asked), it.predict_proba(asked))
    assert again.partial_fit(["bye now"], ["farewell"]).predict(["bye now"]).tolist() == ["farewell"]


def test_a_column_of_a_table_is_taken() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": SAID, "label": MEANT})
    assert quick(encoder="hashing").fit(table["text"], table["label"]).score(table["text"], table["label"]) == 1


@pytest.mark.parametrize("form", ["paths", "strings", "pictures", "arrays", "colour", "folder"])
def test_images_in_any_form_give_the_same_answers(tmp_path: Path, form: str) -> None:
    folder = write_images(tmp_path / "shapes", classes=3, count=4)
    files = sorted(folder.rglob("*.png"))
    y, pixels = [file.parent.name for file in files], np.stack([np.asarray(Image.open(file)) for file in files])
    forms = {
        "paths": files,
        "strings": list(map(str, files)),
        "pictures": [Image.open(file) for file in files],
        "arrays": pixels,
        "colour": np.repeat(pixels[..., None], 3, axis=3),
        "folder": folder,
    }
    expected = quick().fit(glyph.load_network().encode(pixels), y).predict_proba(glyph.load_network().encode(pixels))
    it = quick(encoder="glyph").fit(forms[form], None if form == "folder" else y)
    np.testing.assert_allclose(it.predict_proba(forms[form]), expected, atol=1e-5)
    assert len(it.thumbnails_) == len(files) and it.source_["kind"] == "image"
    if form in ("paths", "strings"):
        assert it.memory_[0].id in list(map(str, files))


def test_vectors_of_the_encoder_are_taken_beside_items() -> None:
    it = quick(encoder="hashing").partial_fit(SAID, MEANT)
    from mtn import encoders

    hashing = encoders.load_encoder("hashing")
    x = hashing.encode([hashing.prepare(one) for one in SAID])
    np.testing.assert_array_equal(it.predict(x), it.predict(SAID))


def test_a_function_encodes_and_is_given_again_when_a_model_is_loaded(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    it = quick(encoder=mean_colour).fit([red, blue] * 3, ["red", "blue"] * 3)
    assert it.predict([blue, red]).tolist() == ["blue", "red"]
    it.save(tmp_path / "model")
    assert MTNClassifier.load(tmp_path / "model", encoder=mean_colour).predict([blue]).tolist() == ["blue"]
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    facts["source"]["encoder"]["name"] = "somebody.elses:function"  # nothing is imported because a file says so
    (tmp_path / "model" / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    with pytest.raises(InputError, match=r"the model's encoder is a function, 'somebody\.elses:function': import"):
        MTNClassifier.load(tmp_path / "model").predict([blue])
    with pytest.raises(InputError, match="not the one that the model was taught with"):
        MTNClassifier.load(tmp_path / "model", encoder="glyph").predict([blue])


def test_bad_items_are_one_clear_error(tmp_path: Path) -> None:
    it = quick(encoder="glyph").fit(write_images(tmp_path / "shapes"))
    (tmp_path / "x.png").write_text("no picture")
    with pytest.raises(InputError, match=r"x\.png: it is not an image"):
        it.predict([tmp_path / "x.png"])
    with pytest.raises(InputError, match="all images, or all vectors; number 1 is of type int"):
        it.predict([Image.new("L", (8, 8)), 3])
    with pytest.raises(InputError, match="INPUT: no file or folder"):
        it.predict("nowhere")
    with pytest.raises(InputError, match="no encoder 'glif': valid: clip-vit-b32, "):
        quick(encoder="glif").fit(["a"], ["b"])


def test_a_model_that_only_names_the_glyph_encoder_is_read(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes")
    quick(encoder="glyph").fit(folder).save(tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    facts["source"], facts["parameters"]["encoder"] = {"encoder": "glyph"}, None
    (tmp_path / "model" / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))
    again = MTNClassifier.load(tmp_path / "model")
    assert again.predict([Image.fromarray(glyphs.render("train", 1)[0])]).tolist() == ["class 1"]


# ---- command line


def test_a_new_model_of_sentences_goes_the_whole_way(call, tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in zip(SAID, MEANT, strict=True)))
    (tmp_path / "more.csv").write_text('text,label\n"how warm is it, please",weather\nwill it rain,weather\n')
    (tmp_path / "asked.txt").write_text("a jazz song\n\nwill it be warm\n")
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    code, out, _ = call("new", "model", "--encoder", "hashing", *settings)
    assert code == 0 and out == "model: takes sentences, 512 numbers each; next: mtn learn model DATA\n"
    for command in (["predict", "model", "hello"], ["info", "model"], ["explain", "model", "hello"]):
        code, _, err = call(*command)
        assert code == 2 and "taught nothing yet" in err
    code, _, err = call("new", "model", "--encoder", "hashing")
    assert code == 2 and "model exists already: teach it with mtn learn" in err
    for data in ("said.csv", "more.csv"):
        code, out, err = call("learn", "model", data)
        assert code == 0, err
    code, out, _ = call("predict", "model", "lamp on", "asked.txt", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["label"] for one in answers] == ["light", "music", "weather"]
    assert [one["input"] for one in answers] == ["lamp on", "asked.txt:1", "asked.txt:3"]
    code, out, _ = call("explain", "model", "lamp on")
    assert code == 0 and "said.csv/train/2" in out
    assert "made from sentences by the encoder 'hashing'" in call("info", "model")[1]
    before = file_contents(tmp_path / "model")
    write_images(tmp_path / "shapes")
    code, _, err = call("learn", "model", "shapes")
    assert code == 2 and "this model takes sentences, got images" in err
    assert file_contents(tmp_path / "model") == before


def test_a_model_finds_its_encoder_where_it_is_said_to_be(call, tmp_path: Path) -> None:
    (tmp_path / "colour.py").write_text(
        "import numpy as np\ndef mean(pictures):\n    return np.stack([np.asarray(p).mean((0, 1)) for p in pictures])\n"
    )
    for colour in ("red", "blue"):
        (tmp_path / "seen" / colour).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), colour).save(tmp_path / "seen" / colour / f"{number}.png")
    code, out, err = call("learn", "model", "seen", "--encoder", "colour:mean", "--method", "ncm")
    assert code == 0, err
    code, out, err = call("predict", "model", "seen/red/0.png", "--json", "--encoder", "colour:mean")
    assert code == 0 and json.loads(out)["label"] == "red"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["extract", "shapes", "--encoder", "hashing", "--out", "o"], "takes sentences, the data are images"),
        (["extract", "shapes", "--encoder", "glif", "--out", "o"], "no encoder 'glif'"),
        (["extract", "nowhere", "--encoder", "glyph", "--out", "o"], "no file or folder 'nowhere'"),
        (["extract", "imagnet-1k:shapes", "--encoder", "glyph", "--out", "o"], "no layout 'imagnet-1k'"),
        (["extract", "shapes", "--encoder", "clip-vit-b32", "--out", "o"], "mtn encoders get clip-vit-b32"),
        (["extract", "shapes", "--encoder", "glyph", "--out", "shapes"], "is not empty and not a store"),
        (["extract", "bare.csv", "--encoder", "hashing", "--out", "o"], "lacks the column 'label'"),
        (["new", "model", "--encoder", "nothing.onnx"], "nothing.onnx"),
        (["learn", "model", "bare.csv"], "lacks the column 'label'"),
    ],
)
def test_mistakes_are_one_line(call, tmp_path: Path, command: list[str], expected: str) -> None:
    write_images(tmp_path / "shapes")
    (tmp_path / "bare.csv").write_text("text\nhello\n")
    code, _, err = call(*command)
    assert code == 2 and expected in err and err.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bare.csv", "shapes"]

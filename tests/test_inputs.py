"""What a user points at: every format gives the same vectors, every mistake one clear line."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataset_files import write_folder, write_images
from mtn import encoders, images
from mtn.data import glyphs, inputs, reader
from mtn.encoders import glyph
from mtn.errors import InputError

READER = reader.Reader()
X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Y = np.array(["ant", "bee", "ant", "bee", "cat", "cat"])
IDS = [f"s{row}" for row in range(6)]


def write_csv(path: Path, *, label: bool = True, ids: bool = True) -> Path:
    header = ["a", "b", *(["label"] if label else []), "c", *(["id"] if ids else [])]
    lines = [",".join(header)]
    for x, y, one in zip(X, Y, IDS, strict=True):
        cells = [*map(repr, x[:2].tolist()), *([y] if label else []), repr(float(x[2])), *([one] if ids else [])]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")  # as spreadsheets write it
    return path


def write_parquet(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"a": X[:, 0], "b": X[:, 1], "label": Y.tolist(), "c": X[:, 2], "id": IDS}
    parquet.write_table(pyarrow.table(columns), path)
    return path


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


# ---- formats

FORMATS = {
    "npz": lambda path: write_npz(path / "d.npz", x=X, y=Y),
    "data set": lambda path: write_npz(path / "d.npz", x_train=X, y_train=Y, x_test=X[:1], y_test=Y[:1]),
    "names": lambda path: write_npz(path / "d.npz", x=X, y=np.unique(Y, return_inverse=True)[1], names=np.unique(Y)),
    "bytes": lambda path: write_npz(path / "d.npz", x=X, y=Y.astype("S")),
    "folder": lambda path: write_folder(path / "d", x=X, y=Y),
    "folder of a data set": lambda path: write_folder(path / "d", x_train=X, y_train=Y),
    "csv": lambda path: write_csv(path / "d.csv"),
    "parquet": lambda path: write_parquet(path / "d.parquet"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_samples(tmp_path: Path, name: str) -> None:
    found = READER.to_learn(FORMATS[name](tmp_path))
    np.testing.assert_array_equal(found.x, X)
    assert found.labels is not None and found.labels.tolist() == Y.tolist()
    table = name in ("csv", "parquet")
    assert found.ids == (IDS if table else None)
    assert found.source == ({"columns": ["a", "b", "c"]} if table else {})


def test_inputs_need_no_labels_and_have_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", X)
    found = READER.to_ask(tmp_path / "q.npy")
    assert found.ids == [f"{tmp_path}/q.npy:{row}" for row in range(6)] and found.labels is None
    assert READER.to_ask(write_csv(tmp_path / "q.csv", label=False)).ids == IDS
    assert READER.to_ask(write_csv(tmp_path / "p.csv")).source["columns"] == [
        "a",
        "b",
        "c",
    ]  # the label is not looked at
    whole = write_npz(tmp_path / "d.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    assert len(READER.to_ask(whole)) == 2  # of a data set, the test split
    joined = inputs.Inputs.join([found, READER.to_ask(whole)])
    assert len(joined) == 8 and joined.ids is not None and joined.ids[-1] == f"{whole}:1"


def test_half_precision_is_widened(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", X.astype(np.float16))
    assert READER.to_ask(tmp_path / "q.npy").x.dtype == np.float32


# ---- a model's own kind


def test_columns_are_put_in_the_model_s_order_or_refused(tmp_path: Path) -> None:
    found, path = READER.to_learn(write_csv(tmp_path / "d.csv")), tmp_path / "d.csv"

    def suit(width: int, source: dict) -> inputs.Inputs:
        return reader.Reader(None, source, width).adapt(found, str(path))

    turned = suit(3, {"columns": ["c", "a", "b"]})
    np.testing.assert_array_equal(turned.x, X[:, [2, 0, 1]])
    with pytest.raises(InputError, match="lacks the column 'z'"):
        suit(4, {"columns": ["a", "b", "c", "z"]})
    with pytest.raises(InputError, match="must not have the column 'c'"):
        suit(2, {"columns": ["a", "b"]})
    with pytest.raises(InputError, match="vectors must have 5 numbers, as the model's have, got 3"):
        suit(5, {})
    with pytest.raises(InputError, match="this model was taught images, got vectors"):
        suit(256, {"encoder": encoders.load_encoder("glyph").identity(), "kind": "image"})
    with pytest.raises(InputError, match="this model was taught vectors, got images"):
        reader.Reader(None, {}, 3).to_learn(write_images(tmp_path / "i"))


# ---- images


def test_images_are_encoded_as_the_data_set_is(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes")
    found = READER.to_learn(folder)
    expected = np.concatenate([glyphs.render("train", label)[:3] for label in range(2)])
    assert found.thumbnails is not None
    np.testing.assert_array_equal(found.thumbnails, expected)
    np.testing.assert_array_equal(found.x, glyph.load_network().encode(expected))
    assert found.labels is not None and found.labels.tolist() == ["class 0"] * 3 + ["class 1"] * 3
    assert found.ids is not None and found.ids[:2] == ["shapes/class 0/0.png", "shapes/class 0/1.png"]
    assert found.source == {"encoder": encoders.load_encoder("glyph").identity(), "kind": "image"}
    asked = READER.to_ask(folder)
    np.testing.assert_array_equal(asked.x, found.x)
    assert asked.ids is not None and asked.ids[0] == f"{folder}/class 0/0.png"
    single = READER.to_ask(folder / "class 1" / "0.png")
    assert single.ids == [f"{folder}/class 1/0.png"] and len(single) == 1


@pytest.mark.parametrize("how", ["inverted", "colour", "clear", "palette", "16 bits", "jpeg", "larger", "tall"])
def test_an_image_is_seen_the_same_however_it_is_stored(tmp_path: Path, how: str) -> None:
    drawn = glyphs.strokes(glyphs.draw(["B"], "Sans"))[0, 1].numpy()
    plain = np.asarray(Image.fromarray((drawn * 255).astype(np.uint8)).resize((32, 32)))
    image, path = Image.fromarray(plain), tmp_path / "i.png"
    if how == "inverted":
        image = Image.fromarray(255 - plain)
    elif how == "colour":
        image = image.convert("RGB")
    elif how == "clear":  # dark ink on nothing
        image = Image.fromarray(np.dstack([np.zeros((32, 32, 3), np.uint8), plain]))
    elif how == "palette":
        image = image.convert("P")
    elif how == "16 bits":
        image = Image.fromarray(plain.astype(np.uint16) * 257)
    elif how == "jpeg":
        path = tmp_path / "i.jpg"
    elif how == "larger":
        image = image.resize((96, 96), Image.Resampling.NEAREST)
    elif how == "tall":
        image = Image.fromarray(np.pad(plain, ((16, 16), (0, 0)))).resize((32, 64))
    image.save(path)
    seen = glyph.prepare_image(images.decode(path)).astype(int)
    if how == "tall":
        assert seen.shape == (32, 32) and not seen[:, :8].any() and seen[:, 8:24].any()
    else:
        assert np.abs(seen - plain).mean() < (8 if how in ("jpeg", "larger") else 1)


def test_unreadable_images_are_listed_and_the_others_taken(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes")
    whole = (folder / "class 0" / "0.png").read_bytes()
    (folder / "class 0" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (folder / "class 1" / "text.jpg").write_text("not an image")
    (folder / "class 1" / ".hidden.png").write_text("not looked at")
    (folder / "class 1" / "notes.txt").write_text("not looked at")
    found = READER.to_learn(folder)
    assert len(found) == 6 and [line.split(": ")[0][-10:] for line in found.skipped] == ["broken.png", "1/text.jpg"]
    assert found.ids is not None and not any("broken" in one for one in found.ids)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path / "shapes")
    monkeypatch.setattr(images, "MOST_PIXELS", 1000)
    with pytest.raises(InputError, match=r"0/0\.png: it has more than"):
        READER.to_learn(folder)


# ---- mistakes


def bad(text: str, name: str = "d.csv"):
    return lambda path: (path / name).write_text(text) and path / name


def only_broken(path: Path) -> Path:
    (path / "d" / "one").mkdir(parents=True)
    (path / "d" / "one" / "a.png").write_text("nothing")
    return path / "d"


def loose(path: Path) -> Path:
    (path / "d").mkdir()
    Image.new("L", (32, 32)).save(path / "d" / "a.png")
    return path / "d"


BAD = {
    "absent": (lambda path: path / "no.npz", "DATA: no file or folder"),
    "kind": (bad("x", "d.txt"), "DATA must be an .npz, .csv or .parquet file"),
    "an array without labels": (lambda path: np.save(path / "d.npy", X) or path / "d.npy", "DATA must be an .npz"),
    "no y": (lambda path: write_npz(path / "d.npz", x=X), "lacks y, the label of each row of x"),
    "no x": (lambda path: write_npz(path / "d.npz", z=X), "lacks x and y"),
    "no zip": (bad("x", "d.npz"), "not an .npz file"),
    "NaN": (lambda path: write_npz(path / "d.npz", x=X * np.nan, y=Y), "x has a NaN or infinite value in row 0"),
    "one dimension": (lambda path: write_npz(path / "d.npz", x=X[0], y=Y[:3]), "x must be a matrix of numbers"),
    "empty": (lambda path: write_npz(path / "d.npz", x=X[:0], y=Y[:0]), "x must be a matrix of numbers, got shape"),
    "text for numbers": (lambda path: write_npz(path / "d.npz", x=X.astype(str), y=Y), "x must be a matrix of numbers"),
    "lengths": (lambda path: write_npz(path / "d.npz", x=X, y=Y[:2]), "x and y must be equally long, got 6 and 2"),
    "objects": (lambda path: write_npz(path / "d.npz", x=X, y=Y.astype(object)), "y cannot be read: it holds Python"),
    "names": (lambda path: write_npz(path / "d.npz", x=X, y=np.arange(6), names=Y[:2]), "integers from 0 to 1"),
    "csv empty": (bad("\n"), "is empty"),
    "csv no rows": (bad("a,label\n"), "holds no rows"),
    "csv no numbers": (bad("label\nx\n"), "holds no columns of numbers"),
    "csv no header": (bad("1,2\n3,4\n"), "its columns must have names, all different, got '1, 2'"),
    "csv twice": (bad("a,a,label\n1,2,x\n"), "its columns must have names, all different, got 'a, a'"),
    "csv no label": (bad("a,b\n1,2\n"), "lacks the column 'label'; its columns are a, b"),
    "csv text": (bad("a,label\n1,x\ntwo,y\n"), "line 3: the column 'a' must hold numbers, got 'two'"),
    "csv cells": (bad("a,label\n1,x,3\n"), "line 2: must have 2 cells, got 3"),
    "csv NaN": (bad("a,label\n1,x\nnan,y\n"), "the table has a NaN or infinite value in row 1"),
    "csv empty label": (bad("a,label\n1,x\n2,\n"), "the column 'label' is empty in row 1"),
    "csv bytes": (lambda path: (path / "d.csv").write_bytes(b"a,label\n\xff,x\n") and path / "d.csv", "not a readable"),
    "parquet": (bad("x", "d.parquet"), "is not a readable Parquet file"),
    "no classes": (loose, "has no folders with images, one a class"),
    "no readable image": (only_broken, "none of 1 images can be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_clear_error(tmp_path: Path, case: str) -> None:
    make, expected = BAD[case]
    with pytest.raises(InputError) as error:
        READER.to_learn(make(tmp_path))
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "d.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"Parquet needs pyarrow: pip install '.*\[tables\]'"):
        READER.to_learn(path)


@pytest.mark.parametrize("column", ["text", "nothing", "floats"])
def test_a_parquet_column_must_hold_numbers(tmp_path: Path, column: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    a: list[object] = {"text": ["1", "2"], "nothing": [1.0, None], "floats": [1.0, 2.0]}[column]  # type: ignore[assignment]
    label = [0.5, 1.5] if column == "floats" else ["x", "y"]
    parquet.write_table(pyarrow.table({"a": a, "label": label}), tmp_path / "d.parquet")
    expected = {"text": "'a' must hold numbers, got string", "nothing": "'a' has empty cells", "floats": "'label' must"}
    with pytest.raises(InputError, match=expected[column]):
        READER.to_learn(tmp_path / "d.parquet")

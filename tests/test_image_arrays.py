"""Files of images -> bytes at one size, and what is wrong with some of them."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from mtn.config import Config
from mtn.data import glyphs, image_arrays, load_data
from mtn.errors import InputError
from mtn.recipes import parse

CLASSES, EACH = ("a", "b"), 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTN_CACHE", str(tmp_path / "cache"))
    for place, (split, name) in enumerate((split, name) for split in ("train", "test") for name in CLASSES):
        (tmp_path / "data" / split / name).mkdir(parents=True)
        for number in range(EACH):
            grey = np.full((20, 30), 40 * place + number, np.uint8)
            Image.fromarray(grey).save(tmp_path / "data" / split / name / f"{number}.png")
    return tmp_path / "data"


def config(data: str | list[str], **images: object) -> Config:
    return parse({"stream": {"data": data}, "memory": {"total": 4}, "images": {"side": 8} | images}, "test")


def test_images_are_decoded_once_to_one_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data(config(str(folder)))
    assert data.names == list(CLASSES) and data.validation is None
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1] and len(data.test) == 6
    x = data.test.x()
    assert x.shape == (6, 8, 8, 3) and x.dtype.itemsize == 1
    assert x[:, 0, 0, 0].tolist() == [80, 81, 82, 120, 121, 122]
    assert len({*data.train.id.tolist(), *data.test.id.tolist()}) == 12
    monkeypatch.setattr(image_arrays, "_write", None)  # the cache is there
    load_data(config(str(folder)))


def test_a_file_that_changed_is_decoded_anew(folder: Path) -> None:
    load_data(config(str(folder)))
    Image.fromarray(np.full((9, 9, 3), 255, np.uint8)).save(folder / "train" / "a" / "0.png")
    assert (load_data(config(str(folder))).train.x()[0] == 255).all()


def test_several_processes_decode_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = load_data(config(str(folder))).train.x()
    monkeypatch.setenv("MTN_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(image_arrays, "CHUNK", 7)
    monkeypatch.setattr(image_arrays, "IMAGES_PER_PROCESS", 6)
    assert (load_data(config(str(folder))).train.x() == alone).all()


def test_a_file_that_holds_no_image_is_named_and_skipped_or_refused(folder: Path) -> None:
    whole = (folder / "train" / "a" / "1.png").read_bytes()
    (folder / "train" / "a" / "1.png").write_bytes(whole[: len(whole) // 2])
    (folder / "test" / "b" / "2.png").write_text("not an image")
    for _ in range(2):  # decoded, and from the cache
        with pytest.warns(UserWarning, match=r"left out: .*a/1\.png: .*b/2\.png: it is not an image"):
            data = load_data(config(str(folder)))
        assert len(data.train) == 5 and len(data.test) == 5 and 1 not in data.train.id
    with pytest.raises(InputError, match=r"a/1\.png: .*images\.unreadable = 'skip'"):
        load_data(config(str(folder), unreadable="refuse"))


def test_a_picture_too_large_to_unpack_is_one_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtn.images.MOST_PIXELS", 700)
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(folder / "train" / "a" / "0.png")
    with pytest.warns(UserWarning, match=r"a/0\.png: it has more than 700 pixels"):
        load_data(config(str(folder)))


def test_data_without_a_test_split_or_without_images_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images to test with"):
        load_data(config(str(folder / "train")))
    (tmp_path / "none" / "train" / "a").mkdir(parents=True)
    (tmp_path / "none" / "train" / "a" / "0.png").write_text("no")
    with pytest.raises(InputError, match="none of 1 images can be read"):
        load_data(config(str(tmp_path / "none")))
    with pytest.raises(InputError, match=r"images need images\.side"):
        load_data(config([str(folder), "b"], side=None))


def test_glyphs_come_as_images_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTN_CACHE", str(tmp_path / "cache"))
    names = [glyphs.class_name(character) for character in glyphs.class_characters()[:2]]
    data = load_data(config("glyphs-2x1", side=32))
    assert data.validation is not None and data.names == sorted(names)
    for image, label in zip(data.train.x(), data.train.y, strict=True):
        drawn = glyphs.render("train", names.index(data.names[label]), 1)[0]
        np.testing.assert_array_equal(image, np.stack([drawn] * 3, axis=2))


def test_a_cache_that_would_not_fit_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match=r"0\.0 GB free.*lower images\.side"):
        load_data(config(str(folder)))

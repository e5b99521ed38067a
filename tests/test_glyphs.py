"""The embedded data set: the same everywhere, honestly split, and read by an encoder worth having."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mtn.data import glyphs, load_vectors
from mtn.data.sources import open_source
from mtn.encoders import glyph
from mtn.errors import InputError
from mtn.runtime.cache import cache_folder

SPLITS = tuple(glyphs.COUNTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def small(cache: Path) -> Path:
    return glyphs.prepare(20, cache=cache)


def load(folder: Path, name: str) -> np.ndarray:
    return np.load(folder / f"{name}.npy", allow_pickle=False)


def one_nearest(rows: np.ndarray, queries: np.ndarray, classes: int) -> float:
    """Share of validation queries whose most similar training row has their class."""
    rows_, queries_ = (F.normalize(torch.from_numpy(part).float().flatten(1)) for part in (rows, queries))
    found = (queries_ @ rows_.T).argmax(1) // glyphs.COUNTS["train"]
    return (found == torch.arange(classes).repeat_interleave(glyphs.COUNTS["val"])).float().mean().item()


# --- characters and fonts


def test_classes_and_pretraining_characters_are_disjoint_and_named_once() -> None:
    classes, others = glyphs.class_characters(), glyphs.other_characters("Serif")
    assert len(classes) == glyphs.CLASSES and len(others) > 500
    assert not set(classes) & set(others)
    assert len({glyphs.class_name(character) for character in classes}) == glyphs.CLASSES
    assert glyphs.class_name("Б") == "U+0411 Б"


def test_every_font_is_in_one_split_and_training_sees_every_family() -> None:
    fonts = [font for split in SPLITS for font in glyphs.FONTS[split]]
    assert len(fonts) == len(set(fonts)) == 12
    for split in SPLITS:
        assert {font.split("-")[0] for font in glyphs.FONTS[split]} <= set(glyphs.UPRIGHT)
    assert {font.split("-")[0] for font in glyphs.FONTS["train"]} == set(glyphs.UPRIGHT)


@pytest.mark.parametrize("font", glyphs.UPRIGHT)
def test_no_two_characters_look_alike(font: str) -> None:
    classes = glyphs.class_characters()
    sharp = F.normalize(torch.from_numpy(glyphs.draw(classes, font)).float().flatten(1))
    for bitmaps in (glyphs.plain_bitmaps(classes, font), sharp):
        assert (bitmaps @ bitmaps.T).fill_diagonal_(0).max() < 0.97


# --- images


@pytest.mark.parametrize("split", SPLITS)
def test_images_depend_on_seed_split_and_label_only(split: str) -> None:
    once, again = glyphs.render(split, 7), glyphs.render(split, 7)
    assert once.tobytes() == again.tobytes()
    assert once.shape == (glyphs.COUNTS[split], 32, 32) and once.dtype == np.uint8
    assert not np.array_equal(once, glyphs.render(split, 8))


def test_images_are_neither_empty_nor_all_the_same() -> None:
    images = glyphs.render("train", 0).astype(float)
    assert images.std((1, 2)).min() > 5
    assert len({image.tobytes() for image in images}) == len(images)


def test_a_smaller_set_is_the_beginning_of_a_larger_one(small: Path, cache: Path) -> None:
    larger = glyphs.prepare(30, cache=cache)
    assert load(larger, "names")[:20].tolist() == load(small, "names").tolist()
    for split, count in glyphs.COUNTS.items():
        for name in (f"images_{split}", f"y_{split}"):
            np.testing.assert_array_equal(load(larger, name)[: 20 * count], load(small, name))


def test_fewer_images_are_the_beginning_of_more() -> None:
    usual, more = glyphs.render("train", 7), glyphs.render("train", 7, 130)
    np.testing.assert_array_equal(more[:100], usual)
    np.testing.assert_array_equal(glyphs.render("train", 7, 25), usual[:25])
    assert len({image.tobytes() for image in more}) == 130


def test_a_hard_set_overlaps_more() -> None:
    encoder, found = glyph.load_network(), []
    for limits in (glyphs.EASY, glyphs.HARD):
        rows, queries = (
            np.concatenate([glyphs.render(split, label, count, limits) for label in range(12)])
            for split, count in (("train", 20), ("val", 10))
        )
        x, q = (F.normalize(torch.from_numpy(encoder.encode(part))) for part in (rows, queries))
        found.append(((q @ x.T).argmax(1) // 20 == torch.arange(12).repeat_interleave(10)).float().mean().item())
    assert found[1] < found[0] - 0.05


@pytest.mark.parametrize(
    ("name", "expected", "counts"),
    [
        ("glyphs-200", glyphs.GlyphSet(200), (100, 20, 30)),
        ("glyphs-1k", glyphs.GlyphSet(1000), (100, 20, 30)),
        ("glyphs-200x25", glyphs.GlyphSet(200, 25), (25, 20, 30)),
        ("glyphs-200x1280", glyphs.GlyphSet(200, 1280), (1280, 20, 30)),
        ("glyphs-1k-hard", glyphs.GlyphSet(1000, hard=True), (1280, 20, 50)),
        ("glyphs-200x25-hard", glyphs.GlyphSet(200, 25, True), (25, 20, 50)),
    ],
)
def test_a_name_says_classes_images_and_difficulty(
    name: str, expected: glyphs.GlyphSet, counts: tuple[int, ...]
) -> None:
    found = glyphs.find_set(name)
    assert found == expected and tuple(found.counts.values()) == counts
    assert found.name == name.replace("1k", "1000")
    assert found.keeps_images == (counts[0] <= 100)


@pytest.mark.parametrize("name", ["glyphs", "glyphs-", "glyphs-2k", "glyphs-200x", "glyphs-200-easy", "glyphs-200 "])
def test_other_names_are_of_no_set(name: str) -> None:
    assert glyphs.find_set(name) is None


def test_a_usual_number_of_images_is_the_same_folder(small: Path, cache: Path) -> None:
    assert glyphs.prepare(20, 100, cache=cache) == small


def test_contact_sheet_is_a_picture(tmp_path: Path) -> None:
    glyphs.contact_sheet(tmp_path / "sheet.png", labels=range(3))
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


# --- on disk


@pytest.mark.parametrize(("split", "count"), [("train", 100), ("val", 20), ("test", 30)])
def test_shapes_and_counts(small: Path, split: str, count: int) -> None:
    x, y, images = (load(small, f"{name}_{split}") for name in ("x", "y", "images"))
    assert x.shape == (20 * count, glyph.GlyphNetwork.dimension) and x.dtype == np.float16
    assert y.dtype == np.int64 and np.bincount(y).tolist() == [count] * 20
    assert images.shape == (20 * count, 32, 32) and images.dtype == np.uint8
    assert np.isfinite(x).all() and len(load(small, "names")) == 20


def test_second_call_reads_the_cache(small: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "write_dataset", lambda *_: pytest.fail("rendered again"))
    monkeypatch.setenv("MTN_CACHE", str(cache))
    before = (small / "x_train.npy").stat().st_mtime_ns
    assert glyphs.prepare(20) == small
    assert (small / "x_train.npy").stat().st_mtime_ns == before


@pytest.mark.parametrize("images", [100, 130])
def test_a_killed_process_is_continued_where_it_was(
    images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With images beside the features, and without."""
    monkeypatch.setattr(glyphs, "BLOCK", 64)

    def stop(what: str, done: int, total: int) -> None:
        if done > 100:
            raise KeyboardInterrupt

    whole = glyphs.prepare(2, images, True, cache=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        glyphs.prepare(2, images, True, cache=tmp_path, progress=stop)
    assert not (tmp_path / whole.name).exists()
    told: list[int] = []
    resumed = glyphs.prepare(2, images, True, cache=tmp_path, progress=lambda what, done, total: told.append(done))
    assert told[0] == 3 * 64
    assert {path.name: path.read_bytes() for path in resumed.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    assert (resumed / "images_train.npy").exists() == (images <= 100)


def test_two_at_once_both_succeed(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: glyphs.prepare(2, cache=tmp_path), range(2)))
    assert folders[0] == folders[1] and {path.name for path in tmp_path.iterdir()} == {".lock", folders[0].name}


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MTN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mtn"
    monkeypatch.setenv("MTN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    last: dict[str, tuple[int, int]] = {}
    glyphs.prepare(2, cache=tmp_path, progress=lambda stage, done, total: last.update({stage: (done, total)}))
    assert set(last) == {f"draw and encode {split}" for split in SPLITS}
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize("classes", [1, 1001])
def test_impossible_sizes_are_refused(classes: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"between 2 and 1000, got {classes}"):
        glyphs.prepare(classes, cache=tmp_path)
    with pytest.raises(ValueError, match="images a class must be between 1 and 10000, got 0"):
        load_vectors("glyphs-200x0")


def test_a_set_of_many_images_keeps_their_features_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTN_CACHE", str(tmp_path))
    assert len(load_vectors("glyphs-2x101").train) == 202
    with pytest.raises(InputError, match="glyphs-2x101 keeps vectors alone"):
        open_source("glyphs-2x101").list_items()


def test_a_disk_without_room_is_said_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match=r"0\.0 GB free, the images of glyphs-2 need .*MTN_CACHE"):
        glyphs.prepare(2, cache=tmp_path)


# --- encoder


def test_weights_are_small() -> None:
    assert glyph.WEIGHTS.stat().st_size < 1_200_000


def test_features_do_not_depend_on_the_batch() -> None:
    images, encoder = glyphs.render("val", 3), glyph.load_network()
    np.testing.assert_allclose(encoder.encode(images, batch=7), encoder.encode(images), rtol=1e-4, atol=1e-4)


def test_folding_keeps_the_function() -> None:
    torch.manual_seed(0)
    encoder, x = glyph.GlyphNetwork(norm=True), torch.rand(16, 1, 32, 32)
    for _ in range(3):
        encoder(x)
    torch.testing.assert_close(encoder.folded()(x), encoder.eval()(x), rtol=1e-4, atol=1e-4)


def test_features_are_much_better_than_pixels() -> None:
    classes = 50
    images = {s: np.concatenate([glyphs.render(s, label) for label in range(classes)]) for s in ("train", "val")}
    encoder = glyph.load_network()
    pixels = one_nearest(images["train"], images["val"], classes)
    features = one_nearest(encoder.encode(images["train"]), encoder.encode(images["val"]), classes)
    assert features > pixels + 0.15
    assert features > 0.85

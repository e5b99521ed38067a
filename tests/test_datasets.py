"""Landmarks-1K, CIFAR-100, Tiny-ImageNet, Omniglot -> a listing: small trees of the real shapes, real zips at hand."""

from collections import Counter

import numpy as np
import pytest

from dataset_files import (
    WNIDS,
    cifar,
    drawings,
    landmark_table,
    linked,
    listing,
    picture,
    pixels,
    plant,
    recognise,
    refused,
    rows,
    shared,
    tiny,
    zipped,
)
from mtn.data import landmarks
from mtn.images import Unreadable

# ---- Landmarks-1K


def test_landmarks_1k_takes_the_largest_thousand_and_of_equal_ones_the_lowest_ids(tmp_path):
    counts = {label: 53 if label >= 1005 else 52 if label >= 20 else 51 for label in range(1010)}  # 5 + 985 + 20
    images = landmark_table(tmp_path / "train.csv", counts)
    plant(tmp_path, {"train_label_to_category.csv": "landmark_id,category\n3,http://x/Category:Caf%C3%A9_de_Paris\n"})
    assert recognise(tmp_path) == "landmarks-1k"
    found = listing([tmp_path])
    chosen = [*range(10), *range(20, 1010)]
    assert list(dict.fromkeys(found.labels)) == sorted(map(str, chosen))
    assert Counter(found.splits) == {"test": 50_000, "train": sum(counts[label] for label in chosen) - 50_000}
    tests = [id for part, label, id in rows(found) if part == "test" and label == "1007"]
    assert tests == [f"{i[0]}/{i[1]}/{i[2]}/{i}.jpg" for i in images[1007][:50]]
    assert found.names == {"3": "Café de Paris"}


def test_landmark_images_lie_by_the_first_three_characters(tmp_path):
    images = landmark_table(tmp_path / "train.csv", {7: 3, 9: 3, 11: 2})
    one = images[7][0]
    plant(tmp_path, {f"train/{one[0]}/{one[1]}/{one[2]}/{one}.jpg": picture(1)})
    found = landmarks.list_landmarks(tmp_path, classes=2, test=1)
    assert [(part, label) for part, label, _ in rows(found)] == [("train", x) for x in "7799"] + [
        ("test", "7"),
        ("test", "9"),
    ]
    places = dict(zip(found.ids, found.locations, strict=True))
    assert pixels(places[f"train/{one[0]}/{one[1]}/{one[2]}/{one}.jpg"].load()) == pixels(picture(1))
    with pytest.raises(Unreadable):  # the others are missing, which is told when they are read
        found.locations[0].load()


@pytest.mark.parametrize(
    ("counts", "word"), [({1: 60}, "at least 1000 landmarks, got 1"), (dict.fromkeys(range(1000), 50), "more than 50")]
)
def test_too_few_landmarks_are_refused(tmp_path, counts, word):
    landmark_table(tmp_path / "train.csv", counts)
    assert word in refused(tmp_path)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("0123456789abcdef,http://a", "line 2: must have 3 cells"),
        ("0123456789abcdef,http://a,Rome", "'Rome'"),
        ("ab,http://a,1", "'ab'"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path, line, word):
    plant(tmp_path, {"train.csv": f"id,url,landmark_id\n{line}\n"})
    assert f"{tmp_path}/train.csv" in refused(tmp_path) and word in refused(tmp_path)


def test_a_table_of_something_else_is_no_landmarks(tmp_path):
    linked(plant(tmp_path, {"train.csv": b"id,\xff"}), ["cat/1.png"])
    assert recognise(tmp_path) == "folder"
    assert "landmark_id" in refused(plant(tmp_path, {"train.csv": "id,label\n"}), layout="landmarks-1k")


# ---- CIFAR-100


@pytest.mark.parametrize("given", ["", "cifar-100-binary"])
def test_cifar_100_binary(tmp_path, given):
    cifar(tmp_path / "cifar-100-binary")
    found = listing([tmp_path / given])
    assert rows(found) == [
        ("train", "name97", "train/00002"),
        ("train", "name98", "train/00001"),
        ("train", "name99", "train/00000"),
        ("test", "name95", "test/00001"),
        ("test", "name96", "test/00000"),
    ]
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    assert pixels(found.locations[0].load()) == images[2].transpose(1, 2, 0).tolist()


def test_a_pickled_cifar_is_refused(tmp_path):
    plant(tmp_path / "cifar-100-python", {"meta": b"\x80", "train": b"\x80", "test": b"\x80"})
    for path in (tmp_path, tmp_path / "cifar-100-python"):
        assert "cifar-100-binary.tar.gz" in refused(path)


def test_a_cut_off_cifar_is_refused(tmp_path):
    path = cifar(tmp_path) / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refused(tmp_path) and "3074" in refused(tmp_path)
    path.write_bytes(b"")
    assert str(path) in refused(tmp_path)
    path.unlink()
    assert str(path) in refused(tmp_path)


def test_packed_tars_are_refused_with_the_line_that_unpacks_them(tmp_path):
    path = plant(tmp_path, {"cifar-100-binary.tar.gz": b""}) / "cifar-100-binary.tar.gz"
    assert f"tar xf {path}" in refused(path)


# ---- Tiny-ImageNet


def test_tiny_imagenet_as_a_folder_and_as_a_zip(tmp_path):
    folder = plant(tmp_path / "tiny", tiny())
    archive = zipped(tmp_path / "tiny.zip", {f"tiny-imagenet-200/{name}": data for name, data in tiny().items()})
    found = listing([folder])
    assert rows(found) == rows(listing([archive])) and recognise(archive) == "tiny-imagenet"
    assert rows(found)[:2] == [
        ("train", WNIDS[0], f"train/{WNIDS[0]}/images/{WNIDS[0]}_0.JPEG"),
        ("train", WNIDS[0], f"train/{WNIDS[0]}/images/{WNIDS[0]}_1.JPEG"),
    ]
    assert rows(found)[6:] == [("test", WNIDS[0], "val/images/val_1.JPEG"), ("test", WNIDS[1], "val/images/val_0.JPEG")]
    assert found.names == {"n01440764": "tench, Tinca tinca"}
    assert pixels(listing([archive]).locations[-1].load()) == pixels(picture(20))


def test_a_tiny_imagenet_without_its_annotations_is_refused(tmp_path):
    files = tiny()
    files.pop("val/val_annotations.txt")
    assert "val_annotations.txt" in refused(plant(tmp_path / "a", files))
    assert "val_annotations.txt" in refused(zipped(tmp_path / "b.zip", files))


def test_an_annotated_image_must_be_in_the_zip(tmp_path):
    files = tiny()
    files.pop("val/images/val_0.JPEG")
    assert "val_0.JPEG" in refused(zipped(tmp_path / "a.zip", files))


def test_the_real_tiny_imagenet():
    found = listing(shared("tiny-imagenet-40.zip"))
    assert Counter(found.splits) == {"train": 20_000, "test": 2_000}
    assert set(Counter(zip(found.splits, found.labels, strict=True)).values()) == {500, 50}
    assert len(found.names) == 40 and set(found.labels) <= set(WNIDS)
    assert found.locations[0].load().size == (64, 64)


# ---- Omniglot


def test_omniglot_is_the_union_of_its_parts(tmp_path):
    greek, latin = drawings("Greek", 2, 100), drawings("Latin", 1, 200)
    one = zipped(tmp_path / "images_background.zip", {f"images_background/{n}": d for n, d in (greek | latin).items()})
    two = plant(tmp_path / "parent", {f"images_evaluation/{n}": d for n, d in drawings("Tibetan", 1, 300).items()})
    three = plant(tmp_path / "images_background_small1", greek)
    found = listing([one, two, three])
    assert sorted(set(found.labels)) == [
        "Greek/character01",
        "Greek/character02",
        "Latin/character01",
        "Tibetan/character01",
    ]
    assert Counter(found.splits) == {"train": 60, "test": 20}
    assert all((part == "test") == (id[-6:-4] > "15") for part, _, id in rows(found))
    assert found.ids[0] == "Greek/character01/0101_01.png"
    assert pixels(found.locations[0].load()) == pixels(picture(1, "PNG"))


def test_omniglot_needs_drawers(tmp_path):
    plant(tmp_path, {"images_background/Greek/character01/first.png": b""})
    assert "'Greek/character01/first.png'" in refused(tmp_path)


def test_the_real_omniglot():
    found = listing(shared("images_background_small1.zip", "images_background_small2.zip"))
    assert Counter(found.splits) == {"train": 242 * 15, "test": 242 * 5} and len(set(found.labels)) == 242
    assert found.locations[0].load().size == (105, 105)

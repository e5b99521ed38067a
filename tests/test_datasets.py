"""Data sets as they are downloaded -> a listing: small trees of the real shapes, real zips where at hand."""

import csv
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from mtn.config import Stream
from mtn.datasets import imagenet, landmarks
from mtn.datasets.listing import File, Listing, Slice
from mtn.datasets.sources import LAYOUTS, listing, recognise
from mtn.errors import InputError
from mtn.images import Unreadable
from mtn.samples import Data, Samples
from mtn.stream import ORDERS, class_order, split

SHARED = Path(__file__).parents[2] / "shared" / "data"
ORDER = resources.files("mtn").joinpath("datasets/orders/imagenet-1k-1993.txt").read_text().split()
WNIDS = sorted(ORDER)


def picture(seed: int, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pixels(source: bytes | Image.Image) -> list:
    return np.asarray(Image.open(io.BytesIO(source)) if isinstance(source, bytes) else source).tolist()


def plant(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def zipped(path: Path, files: dict[str, bytes | str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def rows(found: Listing) -> list[tuple[str, str, str]]:
    return list(zip(found.splits, found.labels, found.ids, strict=True))


def refused(*paths: Path, layout: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        listing(paths, layout)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def shared(*names: str) -> list[Path]:
    paths = [SHARED / name for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip(f"{', '.join(names)} not in {SHARED}")
    return paths


# ---- the order of ImageNet-1k


def test_the_shipped_order_is_the_one_recorded():
    assert list(ORDERS) == ["imagenet-1k-1993"]
    text = "".join(f"{name}\n" for name in ORDER)
    assert hashlib.sha256(text.encode()).hexdigest() == ORDERS["imagenet-1k-1993"]


def test_its_names_are_the_synsets_of_ilsvrc2012():
    assert len(set(ORDER)) == 1000 and (WNIDS[0], WNIDS[-1]) == ("n01440764", "n15075141")
    digest = hashlib.sha256("".join(f"{name}\n" for name in WNIDS).encode()).hexdigest()
    # that of tensorflow/models' imagenet_lsvrc_2015_synsets.txt and of timm's imagenet_synsets.txt
    assert digest == "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15"


def test_it_is_the_order_of_seed_1993_over_sorted_synsets():
    assert [WNIDS.index(name) for name in ORDER[:10]] == [54, 7, 894, 512, 126, 337, 988, 11, 284, 493]
    assert class_order(WNIDS, "imagenet-1k-1993") == class_order(WNIDS, 1993)


def test_its_first_half_is_the_base_task():
    samples = Samples(np.ones((1000, 2)), np.arange(1000), torch.arange(1000), torch.arange(1000))
    tasks = split(
        Data(samples, None, samples, WNIDS), Stream(data="unused", first=500, step=100, order="imagenet-1k-1993")
    )
    assert list(tasks[0].names) == ORDER[:500] and [task.new for task in tasks] == [500] + [100] * 5


def test_a_misspelt_order_gets_the_closest_one_and_a_file_comes_first(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no file 'imagenet-1k-1994'.*did you mean 'imagenet-1k-1993'\?"):
        class_order(WNIDS, "imagenet-1k-1994")
    monkeypatch.chdir(tmp_path)
    Path("imagenet-1k-1993").write_text("n15075141\n")
    assert class_order(WNIDS, "imagenet-1k-1993") == [999]


# ---- ImageNet-1k


def devkit(truth: list[str]) -> dict[str, bytes]:
    """Numbers of classes as in the real one: not in the order of the synsets, and followed by those of inner nodes."""
    numbered = [*ORDER, "n00001740"]
    synsets = np.zeros(len(numbered), [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    for place, wnid in enumerate(numbered):
        synsets[place] = (place + 1, wnid, f"{wnid}, in words")
    file = io.BytesIO()
    savemat(file, {"synsets": synsets.reshape(-1, 1)})
    numbers = "".join(f"{numbered.index(wnid) + 1}\n" for wnid in truth)
    return {"data/ILSVRC2012_validation_ground_truth.txt": numbers.encode(), "data/meta.mat": file.getvalue()}


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def validation(number: int) -> str:
    return f"ILSVRC2012_val_{number:08}.JPEG"


@pytest.fixture(scope="module")
def official(tmp_path_factory) -> Path:
    """The three official files, with an image a class, two of the first."""
    folder = tmp_path_factory.mktemp("official")
    inner = {f"{wnid}.tar": tar({f"{wnid}_7.JPEG": picture(place)}) for place, wnid in enumerate(WNIDS)}
    inner["n01440764.tar"] = tar({"n01440764_18.JPEG": picture(2001), "n01440764_10026.JPEG": picture(2000)})
    (folder / imagenet.TRAIN).write_bytes(tar(inner))
    truth = WNIDS[::-1]
    (folder / imagenet.VAL).write_bytes(tar({validation(n): picture(5000 + n) for n in range(1, 1001)}))
    kit = {f"ILSVRC2012_devkit_t12/{name}": content for name, content in devkit(truth).items()}
    (folder / imagenet.DEVKIT).write_bytes(tar(kit, "w:gz"))
    return folder


def test_imagenet_as_official_tars(official):
    found = listing([official])
    assert Counter(found.splits) == {"train": 1001, "test": 1000} and found.notes == []
    assert rows(found)[:3] == [
        ("train", "n01440764", "train/n01440764/n01440764_10026.JPEG"),
        ("train", "n01440764", "train/n01440764/n01440764_18.JPEG"),
        ("train", "n01443537", "train/n01443537/n01443537_7.JPEG"),
    ]
    assert sorted(set(found.labels)) == WNIDS
    assert found.names["n01443537"] == "n01443537, in words" and "n00001740" not in found.names


def test_validation_images_get_the_class_of_the_ground_truth(official):
    found = listing([official])
    tests = {id: label for part, label, id in rows(found) if part == "test"}
    assert tests == {f"val/{validation(n)}": WNIDS[1000 - n] for n in range(1, 1001)}


def test_an_image_is_read_out_of_a_tar_in_a_tar(official):
    found = listing([official / name for name in imagenet.TARS])
    places = dict(zip(found.ids, found.places, strict=True))
    for id, seed in (("n01440764/n01440764_10026.JPEG", 2000), ("n01440764/n01440764_18.JPEG", 2001)):
        assert isinstance(places[f"train/{id}"], Slice)
        assert pixels(places[f"train/{id}"].load()) == pixels(picture(seed))
    assert pixels(places["train/n15075141/n15075141_7.JPEG"].load()) == pixels(picture(999))
    assert pixels(places[f"val/{validation(1000)}"].load()) == pixels(picture(6000))


def test_listing_a_tar_does_not_read_the_images(tmp_path, official):
    if not Path("/proc/self/io").exists():
        pytest.skip("what is read is counted by Linux")
    shutil.copytree(official, tmp_path, dirs_exist_ok=True)
    image = tarfile.TarInfo("n01440764_1.JPEG")
    image.size = 1 << 30
    outer = tarfile.TarInfo("n01440764.tar")
    outer.size = 512 + image.size + 1024
    with (tmp_path / imagenet.TRAIN).open("wb") as file:  # a hole of a GB
        file.write(outer.tobuf() + image.tobuf())
        file.truncate(512 + outer.size + 1024)

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read()
    found = listing([tmp_path])
    assert rows(found)[0] == ("train", "n01440764", "train/n01440764/n01440764_1.JPEG")
    assert found.places[0] == Slice(str(tmp_path / imagenet.TRAIN), 1024, 1 << 30)
    assert read() - before < 5_000_000


@pytest.mark.parametrize("cut", [300, 512 * 3, -20_000])
def test_a_tar_that_was_cut_off_is_refused(tmp_path, official, cut):
    shutil.copytree(official, tmp_path, dirs_exist_ok=True)
    path = tmp_path / imagenet.TRAIN
    path.write_bytes(path.read_bytes()[:cut])
    assert f"{path} is not a whole tar file" in refused(tmp_path)


def test_a_broken_header_is_not_taken_for_the_end(tmp_path, official):
    shutil.copytree(official, tmp_path, dirs_exist_ok=True)
    path = tmp_path / imagenet.TRAIN
    content = bytearray(path.read_bytes())
    place = content.index(b"n01440764_10026.JPEG")
    content[place : place + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(content)
    assert "no header at byte" in refused(tmp_path)


def test_a_missing_official_file_is_named(tmp_path, official):
    (tmp_path / imagenet.TRAIN).symlink_to(official / imagenet.TRAIN)
    assert all(word in refused(tmp_path) for word in (str(tmp_path), imagenet.VAL, imagenet.DEVKIT))


def test_a_devkit_that_is_none_is_refused(tmp_path, official):
    shutil.copytree(official, tmp_path, dirs_exist_ok=True)
    (tmp_path / imagenet.DEVKIT).write_bytes(tar({"data/readme.txt": b""}, "w:gz"))
    assert "lacks data/ILSVRC2012_validation_ground_truth.txt" in refused(tmp_path)


def linked(root: Path, names: list[str]) -> Path:
    """One image under many names."""
    first = root / "image"
    plant(root, {"image": picture(0)})
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(first, path)
    first.unlink()
    return root


def test_imagenet_as_folders(tmp_path):
    names = [f"train/{wnid}/{wnid}_{n}.JPEG" for wnid in WNIDS for n in (10, 9)]
    linked(tmp_path, names + [f"val/{wnid}/{validation(n)}" for n, wnid in enumerate(WNIDS, 1)])
    assert recognise(tmp_path) == "imagenet-1k"
    found = listing([tmp_path])
    assert Counter(found.splits) == {"train": 2000, "test": 1000} and found.notes == [] and found.names == {}
    assert found.ids[:2] == ["train/n01440764/n01440764_10.JPEG", "train/n01440764/n01440764_9.JPEG"]
    assert list(dict.fromkeys(found.labels)) == WNIDS
    assert rows(found)[-1] == ("test", "n15075141", f"val/n15075141/{validation(1000)}")
    assert pixels(found.places[-1].load()) == pixels(picture(0))


KAGGLE = "ILSVRC/Data/CLS-LOC"


@pytest.mark.parametrize("given", ["", "ILSVRC", KAGGLE])
@pytest.mark.parametrize("truth", ["LOC_val_solution.csv", "devkit"])
def test_imagenet_with_a_flat_val_folder(tmp_path, given, truth):
    linked(tmp_path, [f"{KAGGLE}/train/{wnid}/{wnid}_1.JPEG" for wnid in WNIDS[:3]])
    linked(tmp_path, [f"{KAGGLE}/val/{validation(n)}" for n in (1, 2, 3)])
    if truth == "devkit":
        plant(tmp_path / "ILSVRC2012_devkit_t12", devkit(WNIDS[2::-1]))
    else:
        lines = [f"ILSVRC2012_val_{4 - n:08},{WNIDS[n - 1]} 1 2 3 4 {WNIDS[n - 1]} 5 6 7 8 " for n in (1, 2, 3)]
        plant(tmp_path, {truth: "\n".join(["ImageId,PredictionString", *lines])})
        plant(tmp_path, {"LOC_synset_mapping.txt": "n01440764 tench, Tinca tinca\nn00000001 thing\n"})
    found = listing([tmp_path / given])
    assert rows(found)[3:] == [("test", WNIDS[3 - n], f"val/{validation(n)}") for n in (3, 2, 1)]
    assert len(found.notes) == 1 and "3 of ImageNet's 1000 classes" in found.notes[0]
    assert found.names["n01440764"] == ("tench, Tinca tinca" if truth != "devkit" else "n01440764, in words")


def test_a_flat_val_folder_needs_the_ground_truth(tmp_path):
    linked(tmp_path, ["train/n01440764/a.JPEG", f"val/{validation(1)}"])
    assert imagenet.DEVKIT in refused(tmp_path) and str(tmp_path) in refused(tmp_path)
    plant(tmp_path / "ILSVRC2012_devkit_t12", devkit([]))
    assert repr(validation(1)) in refused(tmp_path)
    plant(tmp_path, {"LOC_val_solution.csv": ""})
    assert repr(validation(1)) in refused(tmp_path)


def test_imagenet_forced_upon_something_else(tmp_path):
    linked(tmp_path, ["cat/1.png"])
    assert "lacks the folders train and val" in refused(tmp_path, layout="imagenet-1k")


# ---- Landmarks-1K


def landmark_table(path: Path, counts: dict[int, int], seed: int = 0) -> dict[int, list[str]]:
    """A train.csv in no order; the ids of each class, sorted."""
    rng = random.Random(seed)
    images = {label: sorted(f"{rng.getrandbits(64):016x}" for _ in range(count)) for label, count in counts.items()}
    lines = [(image, 'http://a.org/"x, y".jpg', label) for label, found in images.items() for image in found]
    rng.shuffle(lines)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "url", "landmark_id"), *lines])
    return images


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
    found = landmarks.listing(tmp_path, classes=2, test=1)
    assert [(part, label) for part, label, _ in rows(found)] == [("train", x) for x in "7799"] + [
        ("test", "7"),
        ("test", "9"),
    ]
    places = dict(zip(found.ids, found.places, strict=True))
    assert pixels(places[f"train/{one[0]}/{one[1]}/{one[2]}/{one}.jpg"].load()) == pixels(picture(1))
    with pytest.raises(Unreadable):  # the others are missing, which is told when they are read
        found.places[0].load()


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


def cifar(root: Path, train: int = 3) -> Path:
    names = "".join(f"name{place:02}\n" for place in range(100))
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    records = [bytes([0, 99 - place]) + images[place].tobytes() for place in range(5)]
    files = {"train.bin": b"".join(records[:train]), "test.bin": b"".join(records[train:])}
    return plant(root, {"fine_label_names.txt": names, "coarse_label_names.txt": "x\n", **files})


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
    assert pixels(found.places[0].load()) == images[2].transpose(1, 2, 0).tolist()


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


def tiny() -> dict[str, bytes | str]:
    images = {f"train/{wnid}/images/{wnid}_{n}.JPEG": picture(n) for wnid in WNIDS[:2] for n in (0, 1, 10)}
    boxes = {f"train/{wnid}/{wnid}_boxes.txt": "" for wnid in WNIDS[:2]}
    truth = f"val_0.JPEG\t{WNIDS[1]}\t0\t32\t44\t62\nval_1.JPEG\t{WNIDS[0]}\t52\t55\t57\t59\n"
    return {
        "wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS[:2]),
        "words.txt": "n01440764\ttench, Tinca tinca\nn00001740\tentity\n",
        "val/val_annotations.txt": truth,
        "val/images/val_0.JPEG": picture(20),
        "val/images/val_1.JPEG": picture(21),
        "test/images/test_0.JPEG": picture(22),
        **images,
        **boxes,
    }


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
    assert pixels(listing([archive]).places[-1].load()) == pixels(picture(20))


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
    assert found.places[0].load().size == (64, 64)


# ---- Omniglot


def drawings(alphabet: str, characters: int, first: int) -> dict[str, bytes | str]:
    pairs = [(character, drawer) for character in range(1, characters + 1) for drawer in range(1, 21)]
    return {f"{alphabet}/character{c:02}/{first + c:04}_{d:02}.png": picture(c, "PNG") for c, d in pairs}


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
    assert pixels(found.places[0].load()) == pixels(picture(1, "PNG"))


def test_omniglot_needs_drawers(tmp_path):
    plant(tmp_path, {"images_background/Greek/character01/first.png": b""})
    assert "'Greek/character01/first.png'" in refused(tmp_path)


def test_the_real_omniglot():
    found = listing(shared("images_background_small1.zip", "images_background_small2.zip"))
    assert Counter(found.splits) == {"train": 242 * 15, "test": 242 * 5} and len(set(found.labels)) == 242
    assert found.places[0].load().size == (105, 105)


# ---- folders of images


def test_a_folder_of_splits(tmp_path):
    names = ["Train/cat/1.PNG", "Train/cat/deep/2.jpg", "Train/dog/1.png", "validation/cat/1.png", "test/dog/1.png"]
    linked(tmp_path, [*names, ".git/x/1.png", "__MACOSX/cat/1.png", "Train/cat/.1.png", "Train/cat/.DS_Store"])
    plant(tmp_path, {"README.txt": "", "Train/cat/notes.txt": ""})
    assert rows(listing([tmp_path])) == [
        ("train", "cat", "Train/cat/1.PNG"),
        ("train", "cat", "Train/cat/deep/2.jpg"),
        ("train", "dog", "Train/dog/1.png"),
        ("val", "cat", "validation/cat/1.png"),
        ("test", "dog", "test/dog/1.png"),
    ]


def test_a_folder_of_classes_is_all_to_train(tmp_path):
    linked(tmp_path, ["train/1.png", "car/1.png", "car/1 copy.png"])
    assert rows(listing([tmp_path])) == [
        ("train", "car", "car/1 copy.png"),
        ("train", "car", "car/1.png"),
        ("train", "train", "train/1.png"),
    ]


def test_a_listing_does_not_depend_on_the_order_of_the_file_system(tmp_path):
    names = [f"{part}/{label}/{n}.png" for part in ("train", "test") for label in "abc" for n in range(5)]
    one, two = linked(tmp_path / "one", names), linked(tmp_path / "two", names[::-1])
    assert rows(listing([one])) == rows(listing([two]))


def test_class_names_in_any_script(tmp_path):
    apart = unicodedata.normalize("NFD", "café")
    linked(tmp_path, [f"{apart}/1.png", "猫/1.png", "кошка/1.png"])
    found = listing([tmp_path])
    assert sorted(found.labels) == sorted(["café", "猫", "кошка"])
    assert f"{apart}/1.png" in found.ids and all(place.load() for place in found.places)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    linked(tmp_path, ["cat/1.png"])
    os.rename(tmp_path / "cat", os.fsencode(tmp_path) + b"/\xff")
    assert "is not UTF-8" in refused(tmp_path)


def test_what_is_left_out_is_noted(tmp_path):
    linked(tmp_path, ["cat/1.png", "loose.png"])
    (tmp_path / "dog" / "deep").mkdir(parents=True)
    found = listing([tmp_path])
    assert len(found) == 1 and len(found.notes) == 2
    assert "no images of 1 classes: dog" in found.notes[0] and "loose.png" in found.notes[1]


def test_a_link_to_a_folder_above_is_not_followed(tmp_path):
    linked(tmp_path, ["cat/1.png"])
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    (tmp_path / "dog").symlink_to(tmp_path / "cat")
    assert listing([tmp_path]).ids == ["cat/1.png", "dog/1.png"]


def test_several_folders_are_joined_under_their_names(tmp_path):
    one, two = (linked(tmp_path / name, ["train/cat/1.png"]) for name in ("one", "two"))
    assert listing([one, two]).ids == ["one/train/cat/1.png", "two/train/cat/1.png"]
    assert "several items" in refused(one, one)


@pytest.mark.parametrize("names", [[], ["1.png"], ["train/1.png"]])
def test_a_folder_without_classes_is_refused(tmp_path, names):
    linked(tmp_path, names)
    (tmp_path / "test").mkdir()
    assert f"{tmp_path} has no folders with images" in refused(tmp_path)


def test_a_zip_with_and_without_a_leading_folder(tmp_path):
    files = {"train/cat/1.png": picture(1, "PNG"), "test/cat/2.png": picture(2, "PNG")}
    plain = zipped(tmp_path / "plain.zip", {**files, "__MACOSX/train/cat/._1.png": b"", "train/cat/.DS_Store": b""})
    led = zipped(tmp_path / "led.zip", {"pets/": b"", **{f"pets/{name}": data for name, data in files.items()}})
    one = zipped(tmp_path / "one.zip", {"cat/1.png": b""})
    assert (
        rows(listing([plain]))
        == rows(listing([led]))
        == [
            ("train", "cat", "train/cat/1.png"),
            ("test", "cat", "test/cat/2.png"),
        ]
    )
    assert pixels(listing([led]).places[1].load()) == pixels(picture(2, "PNG"))
    assert rows(listing([one])) == [("train", "cat", "cat/1.png")]


def test_a_zip_whose_names_are_not_flagged_as_utf_8(tmp_path):
    path = zipped(tmp_path / "a.zip", {"QQQ/1.png": picture(1, "PNG"), "b\\2.png": picture(2, "PNG")})
    path.write_bytes(path.read_bytes().replace(b"QQQ", "猫".encode()))
    found = listing([path])
    assert rows(found) == [("train", "b", "b/2.png"), ("train", "猫", "猫/1.png")]
    assert [pixels(place.load()) for place in found.places] == [pixels(picture(n, "PNG")) for n in (2, 1)]


def test_names_that_lead_out_of_a_zip_are_left_out(tmp_path):
    path = zipped(tmp_path / "a.zip", {"../../cat/1.png": b"", "/dog/1.png": b"", "cat/1.png": b""})
    assert listing([path]).ids == ["cat/1.png", "dog/1.png"]


def test_an_encrypted_or_damaged_zip_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1)})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    locked = plant(tmp_path, {"locked.zip": bytes(content)}) / "locked.zip"
    cut = plant(tmp_path, {"cut.zip": path.read_bytes()[:-30]}) / "cut.zip"
    assert "encrypted" in refused(locked)
    assert f"{cut} is not a whole zip file" in refused(cut)


def test_a_damaged_member_of_a_zip_is_told_when_it_is_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.png", picture(1, "PNG"))
        archive.writestr("cat/2.png", picture(2, "PNG"))
    content = bytearray(path.read_bytes())
    content[60:70] = b"\xff" * 10
    path.write_bytes(content)
    one, two = listing([path]).places
    with pytest.raises(Unreadable):
        one.load()
    assert pixels(two.load()) == pixels(picture(2, "PNG"))


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\nexit\n"])
@pytest.mark.parametrize("large", [False, True])
def test_members_are_read_however_they_are_packed(tmp_path, large, before):
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    path = plant(tmp_path, {"a.zip": before}) / "a.zip"
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"from my camera"
        for method in methods:
            member = zipfile.ZipInfo(f"猫/é {method}.png")
            member.compress_type, member.extra = method, b"\x99\x99\x02\x00ab"
            with archive.open(member, "w", force_zip64=large) as file:
                file.write(picture(method, "PNG"))
    found = listing([path])
    assert found.ids == sorted(f"猫/é {method}.png" for method in methods) and set(found.labels) == {"猫"}
    for id, place in zip(found.ids, found.places, strict=True):
        assert pixels(place.load()) == pixels(picture(int(id.split()[1].removesuffix(".png")), "PNG"))


def test_a_zip_in_64_bits(tmp_path):
    """Numbers that 32 bits do not hold are in extra fields: here in those of a small zip, as if it were large."""
    path = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1, "PNG"), "cat/2.png": picture(2, "PNG")})
    content, size = path.read_bytes(), len(picture(2, "PNG"))
    end = content.rindex(b"PK\5\6")
    start, second = content.index(b"PK\1\2"), content.rindex(b"PK\1\2")
    (header,) = struct.unpack_from("<L", content, second + 42)
    extra = struct.pack("<2H3Q", 1, 24, size, size, header)
    full = bytearray(content[second:end])
    full[20:28], full[30:32], full[42:46] = b"\xff" * 8, struct.pack("<H", len(extra)), b"\xff" * 4
    directory = content[start:second] + full + extra
    whole = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(directory), start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(content[:start] + directory + whole + locator + last)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert [pixels(place.load()) for place in listing([path]).places] == [pixels(picture(n, "PNG")) for n in (1, 2)]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda zip: zip.replace(b"IDAT", b"IDAR"), "its checksum is another one"),
        (lambda zip: zip.replace(b"PK\3\4", b"PK\3\3"), "does not begin where the directory says"),
        (lambda zip: zip[: zip.index(b"PK\1\2") + 10] + b"\x09" + zip[zip.index(b"PK\1\2") + 11 :], "by method 9"),
        (lambda zip: zip[: zip.index(b"PK\1\2") + 23] + b"\x7f" + zip[zip.index(b"PK\1\2") + 24 :], "cut off"),
        (lambda zip: zip[20:], "cut off"),
    ],
)
def test_what_is_wrong_with_a_member_is_said_in_one_line(tmp_path, harm, why):
    content = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1, "PNG")}).read_bytes()
    (tmp_path / "a.zip").write_bytes(harm(content))
    (place,) = listing([tmp_path / "a.zip"]).places
    with pytest.raises(Unreadable, match=why) as caught:
        place.load()
    assert "\n" not in str(caught.value)


def test_a_zip_that_is_cut_off_or_gone_after_it_was_listed(tmp_path):
    path = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1, "PNG")})
    (place,) = listing([path]).places
    os.truncate(path, 100)
    with pytest.raises(Unreadable, match="cut off"):
        place.load()
    path.unlink()
    with pytest.raises(Unreadable, match="No such file"):
        place.load()


def test_a_zip_whose_directory_lost_a_member_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1), "cat/2.png": picture(2)})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 32] = 46 + len("cat/2.png")  # a comment that hides the next one
    path.write_bytes(content)
    assert "members are missing" in refused(path)


def test_odd_names_in_a_zip(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, seed in (("cat//1.png", 1), ("dog/2.png", 2), ("dog/2.png", 3), ("cow\\", 4), ("cat", 5)):
                archive.writestr(name, picture(seed, "PNG"))
    found = listing([path])
    assert found.ids == ["cat/1.png", "dog/2.png"] and "cow" in found.notes[0]
    assert pixels(found.places[1].load()) == pixels(picture(3, "PNG"))  # the last of a name, as when unzipped


def test_the_real_flowers():
    found = listing(shared("flowers102_images.zip"))
    assert Counter(found.splits) == {"train": 6552, "val": 818, "test": 819} and len(set(found.labels)) == 102
    assert found.notes == [] and found.places[0].load().mode == "RGB"


# ---- tables and sentences


def parquet(path: Path, columns: dict[str, list]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    writer.write_table(arrow.table(columns), path)
    return path


PATHS = {
    "path": ["b/2.png", "b/1.png", "a.png"],
    "extra": [1, 2, 3],
    "label": ["x", "x", "7"],
    "split": ["valid", "Test", "train"],
}


def csv_file(path: Path, columns: dict[str, list]) -> Path:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return path


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_a_table_of_paths(tmp_path, write):
    linked(tmp_path, ["a.png"])
    found = listing([write(tmp_path / f"t.{'csv' if write is csv_file else 'parquet'}", PATHS)])
    assert rows(found) == [("train", "7", "a.png"), ("val", "x", "b/2.png"), ("test", "x", "b/1.png")]
    assert pixels(found.places[0].load()) == pixels(picture(0))


@pytest.mark.parametrize("write", [csv_file, parquet])
def test_a_table_of_sentences(tmp_path, write):
    columns = {"text": ['so, "late"', "hi", "bye\nnow"], "label": ["b", "a", "b"]}
    path = tmp_path / f"t.{'csv' if write is csv_file else 'parquet'}"
    found = listing([write(path, columns)])
    assert rows(found) == [("train", "a", "train/1"), ("train", "b", "train/0"), ("train", "b", "train/2")]
    assert [place.load() for place in found.places] == ["hi", 'so, "late"', "bye\nnow"] and found.kind == "text"
    assert listing([write(path, columns | {"id": [5, 6, 7]})]).ids == ["6", "5", "7"]


def test_absolute_paths_and_several_labels_of_one_image(tmp_path):
    linked(tmp_path / "far", ["a.png"])
    columns = {"path": [str(tmp_path / "far/a.png")] * 2, "label": ["x", "y"]}
    assert "several items" in refused(csv_file(tmp_path / "t.csv", columns))
    found = listing([csv_file(tmp_path / "t.csv", columns | {"id": ["1", "2"]})])
    assert pixels(found.places[1].load()) == pixels(picture(0))


@pytest.mark.parametrize("write", [csv_file, parquet])
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"file": ["a"], "label": ["x"]}, ["lacks the column 'path'", "'text'", "file, label"]),
        ({"path": ["a"], "class": ["x"]}, ["lacks the column 'label'", "path, class"]),
        ({"path": ["a"], "text": ["b"], "label": ["x"]}, ["both", "'path'", "'text'"]),
        ({"path": ["a", "b"], "label": ["x", ""]}, ["'label' is empty in row 1"]),
        ({"text": [], "label": []}, ["holds no sentences"]),
    ],
)
def test_a_table_that_lacks_something_is_told_what(tmp_path, write, columns, words):
    path = write(tmp_path / f"t.{'csv' if write is csv_file else 'pq'}", columns)
    assert all(word in refused(path) for word in [str(path), *words])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "path,label\na\n"),
        ("t.csv", b"path,label\n\xff,1\n"),
        ("t.csv", ""),
        ("t.pq", b"PAR1"),
        ("t.csv", "path,label,label\na,b,c"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, name, content):
    assert str(tmp_path / name) in refused(plant(tmp_path, {name: content}) / name)


def test_sentences_as_json(tmp_path):
    content = {"oos_val": [["huh", "oos"]], "val": [["c", "x"]], "train": [["b", "y"], ["a", "x"], ["d", "x"]]}
    found = listing([plant(tmp_path, {"s.json": json.dumps(content)}) / "s.json"])
    assert rows(found) == [
        ("train", "x", "train/1"),
        ("train", "x", "train/2"),
        ("train", "y", "train/0"),
        ("val", "x", "val/0"),
        ("oos_val", "oos", "oos_val/0"),
    ]
    assert found.places[0].load() == "a" and found.kind == "text"


@pytest.mark.parametrize("content", ["{", "[]", '{"train": [["a"]]}', '{"train": "ab"}', '{"train": [["a", 1]]}', "{}"])
def test_json_that_is_not_of_sentences_is_refused(tmp_path, content):
    assert "s.json" in refused(plant(tmp_path, {"s.json": content}) / "s.json")


def test_the_real_clinc():
    found = listing(shared("clinc150.json"))
    expected = {"train": 15000, "val": 3000, "test": 4500, "oos_train": 100, "oos_val": 100, "oos_test": 1000}
    assert Counter(found.splits) == expected
    assert list(dict.fromkeys(found.splits)) == ["train", "val", "test", "oos_test", "oos_train", "oos_val"]
    assert len({label for part, label, _ in rows(found) if part == "train"}) == 150


# ---- memory


def many(path: Path, count: int) -> Path:
    names = [f"class {row % 100:03}/image_{row:08}.png" for row in range(count)]
    if path.suffix == ".csv":
        return csv_file(path, {"path": names, "label": [str(row % 100) for row in range(count)]})
    return zipped(path, dict.fromkeys(names, b"")) if path.suffix else linked(path, names)


GROWTH = """
import re, sys
from pathlib import Path
from mtn.datasets.sources import listing

def peak_after(path):  # getrusage would begin with the peak of whoever started this process
    found = listing([Path(path)])
    return len(found), found.ids[-1], int(re.search("VmHWM:\\s*(.*) kB", Path("/proc/self/status").read_text())[1])

few, many = map(peak_after, sys.argv[1:])
print(many[0] - few[0], many[2] - few[2], many[1])
"""


@pytest.mark.parametrize("name", ["folder", "a.zip"])
def test_a_listing_takes_no_more_memory_for_more_items(tmp_path, name):
    """In a process of its own, where SQLite's memory counts, too. Packed in memory, an item would take 125 bytes."""
    paths = [str(many(tmp_path / f"{count} {name}", count)) for count in (20_000, 40_000)]
    made = subprocess.run([sys.executable, "-c", GROWTH, *paths], capture_output=True, text=True, check=True)
    more, kilobytes, last = made.stdout.split(maxsplit=2)
    assert int(more) == 20_000 and last.strip() == "class 099/image_00039999.png"
    assert int(kilobytes) < 2_000


def test_a_full_disk_for_temporary_files_is_one_clear_error(tmp_path):
    path = many(tmp_path / "a.csv", 20_000)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); {LISTED}"
    made = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "cannot be kept in a temporary file" in made.stdout and "SQLITE_TMPDIR" in made.stdout


LISTED = """
import sys
from pathlib import Path
from mtn.datasets.sources import listing
from mtn.errors import InputError
try:
    listing([Path(sys.argv[1])])
except InputError as error:
    print(error)
"""


def test_threads_read_a_listing_at_once(tmp_path):
    found = listing([many(tmp_path / "a.csv", 2_000)])
    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(found.places.__getitem__, range(2_000)))
    assert places == found.places and [Path(place.path).name for place in places] == [Path(id).name for id in found.ids]


def test_a_listing_is_read_as_lists_are(tmp_path):
    found = listing([linked(tmp_path, ["cat/1.png", "cat/2.png", "dog/3.png"])])
    assert found.ids == ["cat/1.png", "cat/2.png", "dog/3.png"] and found.ids != ["cat/1.png"]
    assert found.labels[-1] == "dog" and found.labels[:2] == ["cat", "cat"] and "dog" in found.labels
    assert found.places[1:] == [File(f"{tmp_path}/{name}") for name in ("cat/2.png", "dog/3.png")]
    assert pickle.loads(pickle.dumps(found.places[0])) == found.places[0]
    with pytest.raises(IndexError):
        found.ids[3]


# ---- which layout


def test_an_unknown_layout_gets_the_closest_one(tmp_path):
    assert "no layout 'imagenet1k': did you mean 'imagenet-1k'?" in refused(tmp_path, layout="imagenet1k")
    assert all(name in refused(tmp_path, layout="?") for name in LAYOUTS)


def test_a_layout_may_be_forced(tmp_path):
    plant(tmp_path, tiny())
    assert {label for label in listing([tmp_path], "folder").labels if label != "images"} == set(WNIDS[:2])


@pytest.mark.parametrize("name", ["missing", "a.txt"])
def test_what_is_no_data_set_is_refused(tmp_path, name):
    plant(tmp_path, {"a.txt": ""})
    assert str(tmp_path / name) in refused(tmp_path / name)


def test_paths_that_are_no_parts_of_one_data_set_are_refused(tmp_path):
    one, two = (csv_file(tmp_path / name, PATHS) for name in ("a.csv", "b.csv"))
    assert str(two) in refused(one, two)
    folder = linked(tmp_path / "folder", ["cat/1.png"])
    assert "different layouts: folder, table" in refused(one, folder)
    assert "one folder" in refused(folder, folder, layout="imagenet-1k")
    assert "one folder" in refused(plant(tmp_path, {imagenet.TRAIN: b""}), folder, layout="imagenet-1k")

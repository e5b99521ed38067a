"""ImageNet-1k as it is downloaded -> a listing, and its class order."""

import hashlib
import io
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from dataset_files import ORDER, WNIDS, linked, listing, picture, pixels, plant, recognise, refused, rows
from mtn.config import Stream
from mtn.data import imagenet
from mtn.data.listing import Slice
from mtn.errors import InputError
from mtn.samples import Data, Samples
from mtn.stream import ORDERS, class_order, split

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
    places = dict(zip(found.ids, found.locations, strict=True))
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
    assert found.locations[0] == Slice(str(tmp_path / imagenet.TRAIN), 1024, 1 << 30)
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


def test_imagenet_as_folders(tmp_path):
    names = [f"train/{wnid}/{wnid}_{n}.JPEG" for wnid in WNIDS for n in (10, 9)]
    linked(tmp_path, names + [f"val/{wnid}/{validation(n)}" for n, wnid in enumerate(WNIDS, 1)])
    assert recognise(tmp_path) == "imagenet-1k"
    found = listing([tmp_path])
    assert Counter(found.splits) == {"train": 2000, "test": 1000} and found.notes == [] and found.names == {}
    assert found.ids[:2] == ["train/n01440764/n01440764_10.JPEG", "train/n01440764/n01440764_9.JPEG"]
    assert list(dict.fromkeys(found.labels)) == WNIDS
    assert rows(found)[-1] == ("test", "n15075141", f"val/n15075141/{validation(1000)}")
    assert pixels(found.locations[-1].load()) == pixels(picture(0))


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

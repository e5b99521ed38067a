"""Folders and zips of images -> a listing."""

import os
import struct
import unicodedata
import zipfile
from collections import Counter

import pytest

from dataset_files import linked, listing, picture, pixels, plant, refused, rows, shared, zipped
from mtn.images import Unreadable

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
    assert f"{apart}/1.png" in found.ids and all(place.load() for place in found.locations)


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
    assert pixels(listing([led]).locations[1].load()) == pixels(picture(2, "PNG"))
    assert rows(listing([one])) == [("train", "cat", "cat/1.png")]


def test_a_zip_whose_names_are_not_flagged_as_utf_8(tmp_path):
    path = zipped(tmp_path / "a.zip", {"QQQ/1.png": picture(1, "PNG"), "b\\2.png": picture(2, "PNG")})
    path.write_bytes(path.read_bytes().replace(b"QQQ", "猫".encode()))
    found = listing([path])
    assert rows(found) == [("train", "b", "b/2.png"), ("train", "猫", "猫/1.png")]
    assert [pixels(place.load()) for place in found.locations] == [pixels(picture(n, "PNG")) for n in (2, 1)]


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
    one, two = listing([path]).locations
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
    for id, place in zip(found.ids, found.locations, strict=True):
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
    assert [pixels(place.load()) for place in listing([path]).locations] == [pixels(picture(n, "PNG")) for n in (1, 2)]


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
    (place,) = listing([tmp_path / "a.zip"]).locations
    with pytest.raises(Unreadable, match=why) as caught:
        place.load()
    assert "\n" not in str(caught.value)


def test_a_zip_that_is_cut_off_or_gone_after_it_was_listed(tmp_path):
    path = zipped(tmp_path / "a.zip", {"cat/1.png": picture(1, "PNG")})
    (place,) = listing([path]).locations
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
    assert pixels(found.locations[1].load()) == pixels(picture(3, "PNG"))  # the last of a name, as when unzipped


def test_the_real_flowers():
    found = listing(shared("flowers102_images.zip"))
    assert Counter(found.splits) == {"train": 6552, "val": 818, "test": 819} and len(set(found.labels)) == 102
    assert found.notes == [] and found.locations[0].load().mode == "RGB"

"""Small files and folders in the shapes of real data sets, for tests of what lists and recognises them."""

import csv
import io
import json
import os
import random
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mtn.data import glyphs
from mtn.data.listing import Listing
from mtn.data.sources import open_source
from mtn.errors import InputError

SHARED = Path(__file__).parents[2] / "shared" / "data"
ORDER = resources.files("mtn").joinpath("data/orders/imagenet-1k-1993.txt").read_text().split()
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


def listing(paths: Sequence[Path], layout: str | None = None) -> Listing:
    return open_source([f"{layout}:{path}" for path in paths] if layout else paths).list_items()


def recognise(path: Path) -> str | None:
    return open_source(path).layout


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


def landmark_table(path: Path, counts: dict[int, int], seed: int = 0) -> dict[int, list[str]]:
    """A train.csv in no order; the ids of each class, sorted."""
    rng = random.Random(seed)
    images = {label: sorted(f"{rng.getrandbits(64):016x}" for _ in range(count)) for label, count in counts.items()}
    lines = [(image, 'http://a.org/"x, y".jpg', label) for label, found in images.items() for image in found]
    rng.shuffle(lines)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "url", "landmark_id"), *lines])
    return images


def cifar(root: Path, train: int = 3) -> Path:
    names = "".join(f"name{place:02}\n" for place in range(100))
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    records = [bytes([0, 99 - place]) + images[place].tobytes() for place in range(5)]
    files = {"train.bin": b"".join(records[:train]), "test.bin": b"".join(records[train:])}
    return plant(root, {"fine_label_names.txt": names, "coarse_label_names.txt": "x\n", **files})


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


def drawings(alphabet: str, characters: int, first: int) -> dict[str, bytes | str]:
    pairs = [(character, drawer) for character in range(1, characters + 1) for drawer in range(1, 21)]
    return {f"{alphabet}/character{c:02}/{first + c:04}_{d:02}.png": picture(c, "PNG") for c, d in pairs}


def parquet(path: Path, columns: dict[str, list]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    writer.write_table(arrow.table(columns), path)
    return path


def csv_file(path: Path, columns: dict[str, list]) -> Path:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return path


def write_folder(path: Path, **arrays: np.ndarray) -> Path:
    """A folder with one .npy file per array."""
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


def write_images(folder: Path, classes: int = 2, count: int = 3) -> Path:
    """A folder per class with drawings of one character each: `class 0/0.png`, ..."""
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number, image in enumerate(glyphs.render("train", label)[:count]):
            Image.fromarray(image).save(folder / f"class {label}" / f"{number}.png")
    return folder


def write_sentences(path: Path, count: int = 20_000) -> Path:
    """A JSON file of sentences of seven classes, four fifths of them for training."""
    pairs = [[f"number {row} of {row % 7}", f"class {row % 7}"] for row in range(count)]
    path.write_text(json.dumps({"train": pairs[: count * 4 // 5], "test": pairs[count * 4 // 5 :]}))
    return path

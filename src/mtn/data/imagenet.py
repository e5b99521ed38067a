"""ImageNet-1k (ILSVRC2012), the official tar files or folders -> a listing. Its val is the test split."""

import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from mtn.data.listing import Listing, Row, Slice, make_listing
from mtn.data.table_files import csv_rows
from mtn.data.trees import LARGEST_FILE, Folder, Tree, class_names, rows_by_class
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent
from mtn.storage.files import require_regular

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
TARS = (TRAIN, VAL, DEVKIT)
INSIDE = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
"""Where train and val may be in the folder that is given."""
WNID = re.compile(r"n\d{8}")
CLASSES = 1000
DAMAGE = (tarfile.TarError, OSError, EOFError, KeyError, ValueError, TypeError, IndexError, NotImplementedError,
          AttributeError, MemoryError, OverflowError, RecursionError, zlib.error)  # fmt: skip
"""What tarfile and SciPy raise on broken files."""

GroundTruth = dict[str, str]
"""An image of val, without its suffix -> its class."""


def is_imagenet(tree: Tree) -> bool:
    """Whether a folder has the tar files, or a train folder with nothing but synsets in it."""
    if not isinstance(tree, Folder):
        return False
    root = _root(tree.path)
    train = Folder(root / "train").entries()[0] if root else []
    return (tree.path / TRAIN).is_file() or (bool(train) and all(WNID.fullmatch(name) for name in train))


def list_imagenet(paths: Sequence[Path], progress: Progress = silent) -> Listing:
    """From a folder with train and val, a folder with the tar files, or the tar files themselves."""
    if len(paths) == 1 and (paths[0] / TRAIN).is_file():
        paths = [file for file in (paths[0] / name for name in TARS) if file.is_file()]
    if all(path.name in TARS for path in paths):
        return _from_tars({path.name: path for path in paths}, progress)
    if len(paths) > 1:
        raise InputError(f"imagenet-1k takes one folder, or {', '.join(TARS)}; got {', '.join(map(str, paths))}")
    return _from_folders(paths[0], progress)


def _listing(rows: Iterable[Row], path: Path, names: dict[str, str], notes: list[str]) -> Listing:
    """The listing, with a note if it does not have all classes."""
    listing = make_listing(rows, path, names=names, notes=notes)
    count = len(set(listing.labels))
    missing = [] if count == CLASSES else [f"{path}: {count} of ImageNet's {CLASSES} classes"]
    return replace(listing, notes=listing.notes + missing)


# ---- folders


def _from_folders(path: Path, progress: Progress) -> Listing:
    root = _root(path)
    if root is None:
        raise InputError(f"{path} lacks the folders train and val of ImageNet-1k, and {TRAIN}")
    tree, notes = Folder(root), list[str]()
    classes, images = tree.entries("val")
    train = rows_by_class(tree, "train", "train", notes, progress)
    if classes:
        test = rows_by_class(tree, "test", "val", notes, progress)
        return _listing(chain(train, test), path, _class_names(root), notes)
    truth, names = _ground_truth(root)
    test = (("test", _class_of(file, truth, root), f"val/{file}", tree.location(f"val/{file}")) for file in images)
    return _listing(chain(train, test), path, _class_names(root) or names, notes)


def _root(path: Path) -> Path | None:
    roots = (path / part for part in INSIDE)
    return next((root for root in roots if (root / "train").is_dir() and (root / "val").is_dir()), None)


def _find_above(root: Path, name: str) -> Path | None:
    """A file in the root or up to three folders above it, where Kaggle's archive has its tables."""
    return next((folder / name for folder in (root, *root.resolve().parents[:3]) if (folder / name).exists()), None)


def _class_names(root: Path) -> dict[str, str]:
    file = _find_above(root, "LOC_synset_mapping.txt") or _find_above(root, "words.txt")
    return class_names(Folder(file.parent).lines(file.name)) if file else {}


def _ground_truth(root: Path) -> tuple[GroundTruth, dict[str, str]]:
    """The classes of a val folder without folders of classes, and the names of the classes that are given there."""
    solution = _find_above(root, "LOC_val_solution.csv")
    if solution:
        return {row[0]: row[-1].partition(" ")[0] for _, row in csv_rows(solution) if row}, {}
    devkit = _find_above(root, DEVKIT.removesuffix(".tar.gz")) or _find_above(root, DEVKIT)
    if devkit is None:
        raise InputError(f"{root / 'val'} has no folders of classes: put {DEVKIT} or LOC_val_solution.csv into {root}")
    return _read_devkit(devkit)


def _class_of(image: str, truth: GroundTruth, path: Path) -> str:
    try:
        return truth[image.rpartition(".")[0]]
    except KeyError:
        raise InputError(f"{path}: the ground truth of val does not name {image!r}") from None


# ---- tar files


def _from_tars(files: dict[str, Path], progress: Progress) -> Listing:
    missing = [name for name in TARS if name not in files]
    if missing:
        raise InputError(
            f"{next(iter(files.values())).parent}: ImageNet-1k as tar files needs {', '.join(missing)}, too"
        )
    truth, names = _read_devkit(files[DEVKIT])
    rows = chain(_train_rows(files[TRAIN], progress), _val_rows(files[VAL], truth))
    return _listing(rows, files[TRAIN], names, [])


def _train_rows(path: Path, progress: Progress) -> Iterator[Row]:
    """A tar of tars, one a class. Offsets in an inner tar are those in the outer one, from the inner's start on."""
    classes = list(_members(path))
    for done, (name, start, size) in enumerate(classes, 1):
        label = name.rpartition("/")[2].removesuffix(".tar")
        for image, first, length in _members(path, start, start + size):
            yield "train", label, f"train/{label}/{image}", Slice(str(path), first, length)
        progress("listing", done, len(classes))


def _val_rows(path: Path, truth: GroundTruth) -> Iterator[Row]:
    for name, start, size in _members(path):
        image = name.rpartition("/")[2]
        yield "test", _class_of(image, truth, path), f"val/{image}", Slice(str(path), start, size)


def _members(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of the files in a tar between two offsets of a file. Their content is not read."""
    try:
        require_regular(path)
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            with tarfile.TarFile(fileobj=file, mode="r") as tar:
                while member := tar.next():
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
                    if end is not None and member.offset >= end:
                        return
                    if member.isfile():
                        yield member.name, member.offset_data, member.size
                file.seek(tar.offset)
                if file.read(512).strip(b"\0"):  # tarfile takes a broken header for the end
                    raise tarfile.ReadError(f"no header at byte {tar.offset}")
    except DAMAGE as error:
        raise InputError(f"{path} is not a whole tar file: {error}; download it again") from None


def _read_devkit(path: Path) -> tuple[GroundTruth, dict[str, str]]:
    """Classes of val and their names. The ground truth numbers classes, not in the order of the synsets."""
    from scipy.io import loadmat  # here: it is slow to import

    try:
        numbers = _read_from_devkit(path, "ILSVRC2012_validation_ground_truth.txt")
        meta = _read_from_devkit(path, "meta.mat")
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        wnids = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        truth = [wnids[int(number)] for number in numbers.split()]
        names = {str(wnid): str(name) for wnid, name in zip(synsets["WNID"], synsets["words"], strict=True)}
    except DAMAGE as error:
        raise InputError(f"{path} is not a whole ILSVRC2012 devkit: {error}; download it again") from None
    return {f"ILSVRC2012_val_{number:08}": wnid for number, wnid in enumerate(truth, 1)}, names


def _read_from_devkit(path: Path, name: str) -> bytes:
    if path.is_dir():
        return Folder(path).read(f"data/{name}")
    require_regular(path)
    with tarfile.open(path) as tar:
        file = next((member for member in tar if member.name.endswith(f"data/{name}")), None)
        content = tar.extractfile(file) if file else None
        if file is None or content is None:
            raise tarfile.ReadError(f"it lacks data/{name}")
        if file.size > LARGEST_FILE:
            raise tarfile.ReadError(f"data/{name} has {file.size} bytes")
        return content.read()

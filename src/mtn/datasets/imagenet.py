"""ImageNet-1k (ILSVRC2012): the official tar files as they are, or folders. Its val is our test, as in the paper."""

import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from mtn.datasets.listing import Listing, Row, Slice, arrange
from mtn.datasets.tables import cells
from mtn.datasets.trees import Folder, Tree, by_class, words
from mtn.errors import InputError
from mtn.progress import Progress, silent

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
TARS = (TRAIN, VAL, DEVKIT)
INSIDE = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
"""Where below what the user points at train and val may be."""
WNID = re.compile(r"n\d{8}")
CLASSES = 1000
DAMAGE = (tarfile.TarError, OSError, EOFError, KeyError, ValueError, TypeError, IndexError, NotImplementedError)
"""What tarfile and SciPy raise on broken files."""

Truth = dict[str, str]
"""An image of val, without its suffix -> its class."""


def fits(tree: Tree) -> bool:
    """Its tar files, or a train folder with nothing but synsets in it."""
    if not isinstance(tree, Folder):
        return False
    root = _root(tree.path)
    train = Folder(root / "train").entries()[0] if root else []
    return (tree.path / TRAIN).is_file() or (bool(train) and all(WNID.fullmatch(name) for name in train))


def listing(paths: Sequence[Path], say: Progress = silent) -> Listing:
    """Of one folder with train and val, or with the tar files, or of the tar files themselves."""
    if len(paths) == 1 and (paths[0] / TRAIN).is_file():
        paths = [file for file in (paths[0] / name for name in TARS) if file.is_file()]
    if all(path.name in TARS for path in paths):
        return _from_tars({path.name: path for path in paths}, say)
    if len(paths) > 1:
        raise InputError(f"imagenet-1k takes one folder, or {', '.join(TARS)}; got {', '.join(map(str, paths))}")
    return _from_folders(paths[0], say)


def _noted(rows: Iterable[Row], where: Path, names: dict[str, str], notes: list[str]) -> Listing:
    listed = arrange(rows, where, names=names, notes=notes)
    found = len(set(listed.labels))
    short = [] if found == CLASSES else [f"{where}: {found} of ImageNet's {CLASSES} classes"]
    return replace(listed, notes=listed.notes + short)


# ---- folders


def _from_folders(path: Path, say: Progress) -> Listing:
    root = _root(path)
    if root is None:
        raise InputError(f"{path} lacks the folders train and val of ImageNet-1k, and {TRAIN}")
    tree, notes = Folder(root), list[str]()
    classes, images = tree.entries("val")
    train = by_class(tree, "train", "train", notes, say)
    if classes:
        return _noted(chain(train, by_class(tree, "test", "val", notes, say)), path, _words(root), notes)
    truth, names = _truth(root)
    test = (("test", _class_of(file, truth, root), f"val/{file}", tree.place(f"val/{file}")) for file in images)
    return _noted(chain(train, test), path, _words(root) or names, notes)


def _root(path: Path) -> Path | None:
    roots = (path / part for part in INSIDE)
    return next((root for root in roots if (root / "train").is_dir() and (root / "val").is_dir()), None)


def _beside(root: Path, name: str) -> Path | None:
    """Kaggle's archive has its tables three folders up."""
    return next((folder / name for folder in (root, *root.resolve().parents[:3]) if (folder / name).exists()), None)


def _words(root: Path) -> dict[str, str]:
    file = _beside(root, "LOC_synset_mapping.txt") or _beside(root, "words.txt")
    return words(Folder(file.parent).lines(file.name)) if file else {}


def _truth(root: Path) -> tuple[Truth, dict[str, str]]:
    """The classes of val where its folder does not tell, and their names as far as they are said there."""
    solution = _beside(root, "LOC_val_solution.csv")
    if solution:
        return {row[0]: row[-1].partition(" ")[0] for row in cells(solution) if row}, {}
    devkit = _beside(root, DEVKIT.removesuffix(".tar.gz")) or _beside(root, DEVKIT)
    if devkit is None:
        raise InputError(f"{root / 'val'} has no folders of classes: put {DEVKIT} or LOC_val_solution.csv into {root}")
    return _read_devkit(devkit)


def _class_of(image: str, truth: Truth, where: Path) -> str:
    try:
        return truth[image.rpartition(".")[0]]
    except KeyError:
        raise InputError(f"{where}: the ground truth of val does not name {image!r}") from None


# ---- tar files


def _from_tars(files: dict[str, Path], say: Progress) -> Listing:
    missing = [name for name in TARS if name not in files]
    if missing:
        raise InputError(
            f"{next(iter(files.values())).parent}: ImageNet-1k as tar files needs {', '.join(missing)}, too"
        )
    truth, names = _read_devkit(files[DEVKIT])
    rows = chain(_train_rows(files[TRAIN], say), _val_rows(files[VAL], truth))
    return _noted(rows, files[TRAIN], names, [])


def _train_rows(path: Path, say: Progress) -> Iterator[Row]:
    """A tar of a tar a class: an image lies in the outer one where it lies in the inner one, further on."""
    classes, outer = list(_members(path)), str(path)
    for done, (name, start, size) in enumerate(classes, 1):
        label = name.rpartition("/")[2].removesuffix(".tar")
        for image, first, length in _members(path, start, start + size):
            yield "train", label, f"train/{label}/{image}", Slice(outer, first, length)
        say("listing", done, len(classes))


def _val_rows(path: Path, truth: Truth) -> Iterator[Row]:
    for name, start, size in _members(path):
        image = name.rpartition("/")[2]
        yield "test", _class_of(image, truth, path), f"val/{image}", Slice(str(path), start, size)


def _members(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of the files in a tar that is itself a part of a file. What is in them is not read."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            with tarfile.TarFile(fileobj=file, mode="r") as tar:
                while member := tar.next():
                    tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                    if end is not None and member.offset >= end:
                        return
                    if member.isfile():
                        yield member.name, member.offset_data, member.size
                file.seek(tar.offset)
                if file.read(512).strip(b"\0"):  # tarfile takes a broken header for the end
                    raise tarfile.ReadError(f"no header at byte {tar.offset}")
    except DAMAGE as error:
        raise InputError(f"{path} is not a whole tar file: {error}; download it again") from None


def _read_devkit(path: Path) -> tuple[Truth, dict[str, str]]:
    """Classes of val by its numbers of classes, which are not in the order of the synsets, and names."""
    from scipy.io import loadmat  # slow to import, and nobody else's

    try:
        numbers, meta = (_of_devkit(path, name) for name in ("ILSVRC2012_validation_ground_truth.txt", "meta.mat"))
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        wnids = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        truth = [wnids[int(number)] for number in numbers.split()]
        names = {str(wnid): str(name) for wnid, name in zip(synsets["WNID"], synsets["words"], strict=True)}
    except DAMAGE as error:
        raise InputError(f"{path} is not a whole ILSVRC2012 devkit: {error}; download it again") from None
    return {f"ILSVRC2012_val_{number:08}": wnid for number, wnid in enumerate(truth, 1)}, names


def _of_devkit(path: Path, name: str) -> bytes:
    if path.is_dir():
        return (path / "data" / name).read_bytes()
    with tarfile.open(path) as tar:
        file = next((member for member in tar if member.name.endswith(f"data/{name}")), None)
        content = tar.extractfile(file) if file else None
        if content is None:
            raise tarfile.ReadError(f"it lacks data/{name}")
        return content.read()

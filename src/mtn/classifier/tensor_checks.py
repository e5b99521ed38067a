"""What the tensors of a model folder must be before they are used: types and shapes that agree with model.json."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mtn.classifier.schema import Damage

MOST_SIDE = 2**16
"""Pixels of a thumbnail's side."""


def check_memory(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse exemplars, past samples, thumbnails or texts whose types and shapes do not agree with the facts."""
    width, names = facts["features"]["count"], facts["labels"]["names"]
    known = torch.tensor([name is not None for name in names])
    for prefix in ("", "past.") if "past.x" in tensors else ("",):
        rows = _check(tensors, f"{prefix}id", torch.int64, (None,))
        _check(tensors, f"{prefix}y", torch.int64, (rows,))
        y = tensors[f"{prefix}y"]
        if rows and not (int(y.min()) >= 0 and int(y.max()) < len(names) and bool(known[y].all())):
            raise Damage(f"{prefix}y must be of classes that the model knows")
        if len(torch.unique(tensors[f"{prefix}id"])) < rows:
            raise Damage(f"{prefix}id must be of different samples")
        if prefix or facts.get("memory") is None:
            _check_vectors(tensors, f"{prefix}x", rows, width)
    counted = torch.bincount(tensors["y"], minlength=len(names)).tolist()
    if (facts.get("summary") or {"exemplars": counted})["exemplars"] != counted:
        raise Damage("y must have the exemplars that the summary counts")
    _check(tensors, "priority", torch.float64, (len(tensors["id"]),))
    _check(tensors, "arrived", torch.int64, ())
    if facts.get("memory") is not None:
        if "x" in tensors:
            raise Damage("x must not be there: the exemplars are in Milvus")
        _check(tensors, "hidden", torch.int64, (None,))
        _check(tensors, "tasks", torch.int64, ())
    if "thumbnails.pixels" in tensors:
        _check_thumbnails(tensors)
    if "texts.bytes" in tensors:
        _check_texts(tensors)


def _check_vectors(tensors: Mapping[str, Tensor], name: str, rows: int, width: int) -> None:
    _check(tensors, name, torch.float32, (rows, width))
    if not bool(tensors[name].isfinite().all()):
        raise Damage(f"{name} must be finite numbers")


def _check_thumbnails(tensors: Mapping[str, Tensor]) -> None:
    _check(tensors, "thumbnails.shapes", torch.int64, (None, 4))
    pixels, shapes = _check(tensors, "thumbnails.pixels", torch.uint8, (None,)), tensors["thumbnails.shapes"][:, 1:]
    channels = torch.isin(shapes[:, 2], torch.tensor([0, 3]))
    fits = bool((shapes >= 0).all() and (shapes < MOST_SIDE).all() and channels.all())
    if not fits or int((shapes[:, 0] * shapes[:, 1] * shapes[:, 2].clamp(min=1)).sum()) != pixels:
        raise Damage("thumbnails.shapes must be those of thumbnails.pixels")


def _check_texts(tensors: Mapping[str, Tensor]) -> None:
    _check(tensors, "texts.sizes", torch.int64, (None, 2))
    size, sizes = _check(tensors, "texts.bytes", torch.uint8, (None,)), tensors["texts.sizes"][:, 1]
    if not bool(((sizes >= 0) & (sizes <= size)).all()) or int(sizes.sum()) != size:
        raise Damage("texts.sizes must be those of texts.bytes")


def check_weights(method: nn.Module, tensors: Mapping[str, Tensor], classes: int) -> None:
    """Refuse tensors that a method which knows so many classes cannot have; `method` is new, and knows none.

    What grows with the classes has no rows in it yet.
    """
    state = method.state_dict()
    others = sorted(name for name in state.keys() ^ tensors.keys() if not name.endswith("forgotten"))
    if others:
        raise Damage(f"it must have the tensors of {type(method).__name__}, as {', '.join(others[:3])}")
    for name in tensors.keys() & state.keys():
        new = state[name]
        leaf = name.rpartition(".")[2]
        grown = classes if leaf == "forgotten" or name in (getattr(method, "class_rows", None) or ()) else None
        shape = tuple(size or grown for size in new.shape) if leaf != "forgotten" else (classes,)
        _check(tensors, name, new.dtype, shape)
        if leaf == "seen" and int(tensors[name]) != classes:
            raise Damage(f"{name} must be the number of labels, {classes}")


def _check(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> int:
    """The first size of a tensor that has this shape (None: any size) and kind of numbers."""
    tensor = tensors.get(name)
    if tensor is None:
        raise Damage(f"there is no {name}")
    alike = dtype == tensor.dtype or (dtype.is_floating_point and tensor.dtype.is_floating_point)
    sizes = tensor.shape
    if not alike or len(sizes) != len(shape) or any(a not in (b, None) for a, b in zip(shape, sizes, strict=True)):
        expected = ",".join("any" if size is None else str(size) for size in shape)
        raise Damage(f"{name} must be {dtype} of shape [{expected}], got {tensor.dtype} {list(sizes)}")
    return int(sizes[0]) if len(sizes) else 1

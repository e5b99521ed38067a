"""What a model folder must say before anything of it is used: types, ranges, and shapes that agree with each other."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from mtn.classifier.labels import LabelKind

Count = Annotated[int, Field(ge=0, lt=2**63)]
Pair = Field(min_length=2, max_length=2)
MOST_FEATURES = 2**20
"""Numbers of a vector: a model of more would be made before its weights show that it is none."""
MOST_SIDE = 2**16
"""Pixels of a thumbnail's side."""


class Damage(ValueError):
    """What is wrong with a file of a model, without its name."""


class Part(BaseModel):
    """Values are of the types stated; what else there is stays."""

    model_config = ConfigDict(strict=True, extra="allow")


class Parameters(Part):
    """Of MTNClassifier, all of which JSON can express."""

    model_config = ConfigDict(strict=True, extra="forbid")

    method: str = "practical"
    memory: int | None = None
    k: int | None = None
    false_alarms: float = 0.0
    random_state: int | None = None
    device: str = "auto"
    progress: bool = False
    settings: dict[str, Any] | None = None
    encoder: str | None = None
    keep_text: bool = True


class Identity(Part):
    """Of an encoder."""

    name: str


class Source(Part):
    """How the vectors were made; early versions named no more than the one encoder there was."""

    encoder: Identity | Literal["glyph"] | None = None
    kind: Literal["image", "text"] | None = None
    columns: list[str] | None = None

    @model_validator(mode="after")
    def _kind_known(self) -> "Source":
        if isinstance(self.encoder, Identity) and self.kind is None:
            raise ValueError("must have the kind of what the encoder takes")
        return self


class Labels(Part):
    """In order of arrival, null for a forgotten class."""

    kind: LabelKind
    names: Annotated[list[str | int | float | bool | None], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_kind(self) -> "Labels":
        names = [name for name in self.names if name is not None]
        if any(type(name).__name__ != self.kind for name in names) or len(set(names)) < len(names):
            raise ValueError(f"must be different labels of type {self.kind}")
        return self


class FeatureFacts(Part):
    """Of a vector, with the names of a table's columns if they are known."""

    count: Annotated[int, Field(ge=1, le=MOST_FEATURES)]
    names: list[str]


class HistoryEntry(Part):
    """Of a call of fit or partial_fit."""

    samples: Count
    new_classes: Count
    classes: Count
    accuracy_before: float | None
    estimated_accuracy: float | None = None
    estimated_accuracy_new: float | None = None
    jobs: list[str] = []


class CollectionName(Part):
    """Where the exemplars are in Milvus. Other collections there are not for a folder to name."""

    uri: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(pattern=r"^mtn_[0-9a-f]{32}$")]


class Untaught(Part):
    """model.json of a classifier that has learned nothing."""

    parameters: Parameters
    source: Source = Source()


class Taught(Untaught):
    """model.json of a classifier that knows classes."""

    configuration: dict[str, dict[str, Any] | int | str | None]
    labels: Labels
    features: FeatureFacts
    calls: Annotated[list[Count], Field(min_length=1)]
    arrived: Count
    ids: list[Annotated[list[int | str], Pair]]
    temperature: Annotated[float, Field(gt=0)]
    threshold: float | None
    usual: Annotated[list[Annotated[list[float | None], Pair]], Pair]
    history: list[HistoryEntry]
    memory: CollectionName | None = None
    files: dict[Literal["weights", "memory"], Any]

    @model_validator(mode="after")
    def _agree(self) -> "Taught":
        if self.calls != sorted(self.calls) or self.calls[-1] != len(self.labels.names):
            raise ValueError("calls must rise to the number of labels")
        if len(self.history) != len(self.calls):
            raise ValueError("history must have an entry for each call")
        if self.features.names and len(self.features.names) != self.features.count:
            raise ValueError("features.names must be as many as features.count, or none")
        numbers, own = ([pair[position] for pair in self.ids] for position in (0, 1))
        if any(type(number) is not int for number in numbers) or len(set(numbers)) < len(numbers):
            raise ValueError("ids must be of different samples")
        if len(set(own)) < len(own):
            raise ValueError("ids must be different")
        if len(self.files) < 2:
            raise ValueError("files must be of weights and memory")
        return self


def check_facts(facts: Mapping[str, Any]) -> None:
    """Refuse a model.json that misses something, or has a value of another type; the error says which."""
    kind = Taught if {"labels", "configuration"} & facts.keys() else Untaught
    try:
        kind.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise Damage(f"{key} {first['msg'].removeprefix('Value error, ')}".strip()) from None


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
            _check(tensors, f"{prefix}x", torch.float32, (rows, width))
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

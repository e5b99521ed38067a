"""Recipe (TOML) + dotted overrides -> one frozen, complete configuration of a run.

The defaults are the values the paper states; where it is silent, those documented in docs/design.md.
"""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mtn.errors import InputError, closest

AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,  # 10 and 10.0 are one configuration
        use_attribute_docstrings=True,
    )


class Stream(Section):
    data: str | Annotated[list[str], Field(min_length=1)]
    """A data set's name, an .npz file, a folder of .npy files; of images a folder or a zip, or a list of them."""
    first: AtLeastOne | None = None
    """Classes of the first task; unset: half of them."""
    step: AtLeastOne | Annotated[list[AtLeastOne], Field(min_length=1)] | None = None
    """Classes of each later task, or a list with one number a task; unset: the rest in five nearly equal tasks."""
    tasks: list[list[str]] | None = None
    """Explicit class names, one list a task, instead of first, step and order."""
    order: int | str = 1993
    """Seed of a legacy NumPy permutation of the sorted classes, or a file with one class a line, or a shipped order."""
    evaluate: Literal["test", "validation"] = "test"
    """Which split the accuracies are measured on."""

    @property
    def paths(self) -> list[str]:
        return [self.data] if isinstance(self.data, str) else self.data

    @model_validator(mode="after")
    def _one_way_to_split(self) -> "Stream":
        if self.tasks is not None and (self.first is not None or self.step is not None):
            raise ValueError("stream.tasks stands alone: leave out stream.first and stream.step")
        return self


class Images(Section):
    side: Annotated[int, Field(ge=8)] | None = None
    """Of the square images that features are learned from; unset: stream.data has vectors, which stay as they are."""
    network: Literal["resnet18", "resnet10"] = "resnet18"
    """Two blocks a stage, or one."""
    stem: Literal["small", "large"] | None = None
    """A 3 x 3 convolution, or ImageNet's, which shrinks images four times; unset: small up to 64 pixels."""
    width: AtLeastOne = 64
    """Channels of the first stage; a vector has eight times as many numbers."""
    weights: str | None = None
    """A .safetensors or .pt file to start from, named as torchvision's ResNet-18; unset: new weights."""
    crop: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Smallest share of an image that a random crop shows; 1: all of it, always."""
    flip: bool = True
    """Mirror every other image: not for characters."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """How far brightness, contrast and saturation may be from 1; 0: colours stay."""
    unreadable: Literal["skip", "refuse"] = "skip"
    """What happens to the run when a file holds no image: it goes on without it and says so, or it stops."""


class Budget(Section):
    total: AtLeastOne | None = None
    """Exemplars over all classes (the paper's M)."""
    per_class: AtLeastOne | None = None
    """Exemplars of each class, instead of a total."""
    select: Literal["ring", "herding", "reservoir"] = "ring"
    """Which exemplars stay: the latest, those that keep the class mean, or a uniform sample of all seen."""
    search: Literal["exact", "approximate"] = "exact"
    """Look at every exemplar for the nearest, or, where there are more than 50 000, at the likeliest."""
    precision: Literal["float32", "float16"] = "float32"
    """Of the vectors kept: half the memory, the third digit."""

    store: Annotated[Literal["exact", "milvus"], Field(exclude=True)] = "exact"
    """Where vectors are: in this process, or in Milvus. As with log, a run is the same one wherever they are."""
    uri: Annotated[str | None, Field(exclude=True)] = None
    """Of Milvus: a local file that ends in .db, or http://host:19530 of a server or a cluster."""

    @model_validator(mode="after")
    def _one_budget(self) -> "Budget":
        if (self.total is None) == (self.per_class is None):
            raise ValueError("set exactly one of memory.total and memory.per_class")
        if (self.store == "milvus") != (self.uri is not None):
            raise ValueError('memory.store = "milvus" and memory.uri go together: set both or neither')
        if self.uri is not None and "://" not in self.uri and not self.uri.endswith(".db"):
            raise ValueError(f"memory.uri must be a file that ends in .db, or like http://host:19530, got {self.uri!r}")
        return self


class MethodOptions(Section):
    name: str = "mtn"
    """A name of the methods table, or your own as package.module:Class."""
    k: AtLeastOne = 10
    """Neighbours retrieved for a query."""
    size: Literal["small", "medium", "large"] = "medium"
    """Transformer: 2 layers x 1 head x 64, 4 x 4 x 128, or 12 x 12 x 768."""
    labels: bool = False
    """Add a learned class embedding to each neighbour."""
    rank: bool = True
    """Add a learned embedding of each neighbour's rank."""
    readout: Literal["cls", "nn", "mix"] = "cls"
    """Adapted query -> linear head; votes of the adapted neighbours; or both."""
    features: Literal["ssil", "podnet", "ccil"] = "ssil"
    """What trains the backbone of a method that needs features at rest (mtn, knn); with images only."""
    units: AtLeastOne = 2000
    """Columns of ranpac's random projection."""
    strength: Annotated[float, Field(gt=0)] | Literal["auto"] = 0.01
    """Of the ridge in slda, ridge and ranpac, relative to the mean diagonal; auto: chosen on a fifth of each task."""


class Train(Section):
    epochs: Annotated[float, Field(ge=0)] = 10
    """Passes over a task's new samples."""
    min_steps: Annotated[int, Field(ge=0)] = 0
    """Optimisation steps of a task at the least, however few its samples are."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    """Of the rate within a task. step is SS-IL's: divided by the task number, then x 0.1 at 40 % and at 80 %."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 leaves gradients as they are."""
    batch: AtLeastOne = 128
    """New samples in a step."""
    replay: Annotated[int, Field(ge=0)] = 32
    """Exemplars of old classes added to each step."""
    loss: Literal["ss", "ce", "balanced", "ccil"] | None = None
    """Classification loss of a method that leaves the choice; unset: the method's own."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Of the distillation; its term is multiplied by the square."""
    compile: bool = False
    """Use torch.compile where a C++ compiler is found: worth it for runs of many thousand steps."""


class Config(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of initialisation and sampling; the class order has its own."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    log: Annotated[Literal["jsonl", "tensorboard", "wandb"], Field(exclude=True)] = "jsonl"
    """Where losses and accuracies go meanwhile; not a part of what the run is, so it may change when one is resumed."""
    stream: Stream
    images: Images = Images()
    memory: Budget
    method: MethodOptions = MethodOptions()
    train: Train = Train()

    @model_validator(mode="after")
    def _vectors_only(self) -> "Config":
        if self.images.side is not None and self.memory.store == "milvus":
            raise ValueError('memory.store = "milvus" holds vectors: with images.side exemplars are images')
        return self

    def digest(self) -> str:
        """Eight hexadecimal digits that tell this configuration from any other."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:8]

    def replace(self, **sections: Any) -> "Config":
        """A copy with some keys changed: `config.replace(seed=1, method={"name": "knn"})`."""
        values = self.model_dump(exclude_none=True) | {"log": self.log}
        values["memory"] |= {"store": self.memory.store, "uri": self.memory.uri}
        return parse(_merge(values, sections), "a changed configuration")


def recipe(name: str, overrides: Iterable[str] = ()) -> Config:
    """The recipe called `name` (shipped, or a path) with `key=value` overrides applied."""
    values = _read(name)
    for key, value in map(assignment, overrides):
        _put(values, key, value)
    return parse(values, f"recipe {name!r}")


def assignment(text: str) -> tuple[str, Any]:
    """`key=value` as --set takes it."""
    key, sign, value = text.partition("=")
    if not sign:
        raise InputError(f"--set takes key=value, got {text!r}")
    return key.strip(), _value(value.strip())


PARAMETERS = {
    "method.name": "method",
    "memory.total": "memory",
    "method.k": "k",
    "seed": "random_state",
    "device": "device",
}
"""Keys of a recipe that are parameters of MTNClassifier in their own right, and their names there."""


def classifier(changes: Mapping[str, Any]) -> Config:
    """What MTNClassifier learns by: its method's own recipe, else the defaults, with dotted keys changed."""
    name = changes["method.name"]
    values = _read(name) if name in recipe_names() else {"stream": {"data": "none"}}
    for key, value in changes.items():
        _put(values, key, value)
    return parse(values, "MTNClassifier")


def recipe_names() -> list[str]:
    """Every shipped recipe, as `mtn run` takes it."""
    return sorted(_walk(_shipped(), ""))


def recipe_header(name: str) -> str:
    """The comment a shipped recipe opens with: what it is, its command, what to expect."""
    lines = _shipped().joinpath(f"{name}.toml").read_text("utf-8").splitlines()
    return "\n".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))


def parse(values: dict[str, Any], origin: str) -> Config:
    """Validate; the first mistake becomes one line that names the key, the rule and the value."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{origin}: {_explain(error)}") from None


def keys(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every dotted key of a configuration."""
    found = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            found += keys(inner, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found


def _shipped() -> Traversable:
    return resources.files("mtn").joinpath("recipes")


def _walk(folder: Traversable, prefix: str) -> Iterable[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")


def _read(name: str) -> dict[str, Any]:
    if name.endswith(".toml"):
        path: Traversable = Path(name)
        if not path.is_file():
            raise InputError(f"no recipe file {name!r}")
    else:
        known = recipe_names()
        if name not in known:
            raise InputError(f"no recipe {name!r}: {closest(name, known)} (a file of your own ends in .toml)")
        path = _shipped().joinpath(f"{name}.toml")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {name!r} is not valid TOML: {error}") from None


# Of these, setting one takes the other out: TOML has no word for "unset".
_ALTERNATIVES = {
    "memory.total": ("memory.per_class",),
    "memory.per_class": ("memory.total",),
    "stream.tasks": ("stream.first", "stream.step"),
    "stream.first": ("stream.tasks",),
    "stream.step": ("stream.tasks",),
}


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    if key not in keys():
        raise InputError(f"unknown key {key!r}: {closest(key, keys())}")
    for other in _ALTERNATIVES.get(key, ()):
        _section(values, other).pop(other.rpartition(".")[2], None)
    _section(values, key)[key.rpartition(".")[2]] = value


def _section(values: dict[str, Any], key: str) -> dict[str, Any]:
    parent = key.rpartition(".")[0]
    found = values.setdefault(parent, {}) if parent else values
    if not isinstance(found, dict):
        raise InputError(f"{parent} must be a table, got {found!r}")
    return found


def _value(text: str) -> Any:
    """A TOML value, or the bare text where it is none (`stream.data=my.npz` needs no quotes)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        merged[key] = _merge(merged.get(key, {}), change) if isinstance(change, dict) else change
    return merged


def _explain(error: ValidationError) -> str:
    found = error.errors()
    unknown = [one for one in found if one["type"] == "extra_forbidden"]  # a misspelt key is also a missing one
    deepest = max((one for one in found if one["loc"][:2] == found[0]["loc"][:2]), key=lambda one: len(one["loc"]))
    first = unknown[0] if unknown else deepest
    key = ".".join(str(part) for part in first["loc"] if str(part) in ".".join(keys()).split("."))
    if first["type"] == "extra_forbidden":
        key = ".".join(str(part) for part in first["loc"])
        return f"unknown key {key!r}: {closest(key, keys())}"
    if first["type"] == "missing":
        return f"{key} is missing"
    rule = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "value_error":
        return rule
    return f"{key} {rule}, got {first['input']!r}"

"""The configuration of a run: typed, frozen and complete. `mtn.recipes` makes one from a recipe (TOML) and overrides.

The defaults are the values the paper states; where it is silent, those documented in docs/explanation/design.md.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

LARGEST = 2**53
"""Beyond this no number of a configuration makes sense, and not every library can compute with it."""
AtLeastOne = Annotated[int, Field(ge=1, le=LARGEST)]


class Section(BaseModel):
    """A table of a recipe: frozen, and strict about keys and types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,  # 10 and 10.0 are one configuration
        defer_build=True,  # a command uses the options of one method, not of thirty
    )


class Stream(Section):
    """[stream]: the data, and how they are split into tasks."""

    kind: str = "blocks"
    """How samples arrive: blocks of classes, each once, or another kind of `mtn.protocols`, which has options too."""
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
    per_class: AtLeastOne | None = None
    """Training samples of a class at the most, the first ones of the data; unset: all."""
    evaluate: Literal["test", "validation"] = "test"
    """Which split the accuracies are measured on."""

    @property
    def paths(self) -> list[str]:
        return [self.data] if isinstance(self.data, str) else self.data

    @model_serializer(mode="wrap")
    def _without_newer_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs of blocks of whole classes are written as they were before there was anything else."""
        newer = {"kind": "blocks", "per_class": None}
        return {key: value for key, value in serialise(self).items() if newer.get(key, ...) != value}

    @model_validator(mode="after")
    def _one_way_to_split(self) -> "Stream":
        if self.tasks is not None and (self.first is not None or self.step is not None):
            raise ValueError("stream.tasks stands alone: leave out stream.first and stream.step")
        return self


class Images(Section):
    """[images]: a backbone that is trained from images, and how they are augmented."""

    side: Annotated[int, Field(ge=8, le=2**15)] | None = None
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
    """[memory]: how many exemplars are kept, which ones, and where."""

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
    """Options that every method has. A method with more of them declares a subclass of this as its `Options`."""

    model_config = ConfigDict(extra="allow")  # options of other methods in a shared recipe; mtn.recipes checks them

    name: str = "mtn"
    """Name of a method (docs/methods), or one of your own as package.module:Class."""
    k: AtLeastOne = 10
    """Neighbours retrieved for a query."""
    features: Literal["ssil", "podnet", "ccil"] = "ssil"
    """The method that trains the backbone of one that needs frozen features (mtn, knn); with images only."""


FIRST_OPTIONS: dict[str, Any] = {
    "k": 10,
    "size": "medium",
    "labels": False,
    "rank": True,
    "readout": "cls",
    "features": "ssil",
    "units": 2000,
    "strength": 0.01,
}
"""Version 0.1 wrote these options into the configuration of every run, whatever its method: what it wrote is completed
with them before it is compared, and so is what the digest is computed from."""


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """A dumped configuration with every option that version 0.1 would have written."""
    return values | {"method": FIRST_OPTIONS | values["method"]}


class Train(Section):
    """[train]: the optimisation of a task."""

    epochs: Annotated[float, Field(ge=0, le=1e9)] = 10
    """Passes over a task's new samples."""
    min_steps: Annotated[int, Field(ge=0, le=LARGEST)] = 0
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
    replay: Annotated[int, Field(ge=0, le=LARGEST)] = 32
    """Exemplars of old classes added to each step."""
    loss: Literal["ss", "ce", "balanced", "ccil"] | None = None
    """Classification loss of a method that leaves the choice; unset: the method's own."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Of the distillation; its term is multiplied by the square."""
    compile: bool = False
    """Use torch.compile where a C++ compiler is found: worth it for runs of many thousand steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products that train: bfloat16 takes half the time, where the processor has it. Weights and losses are in
    float32, and so is every answer."""

    @model_serializer(mode="wrap")
    def _without_default_precision(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs in float32 are written as they were before there was another precision."""
        return {key: value for key, value in serialise(self).items() if (key, value) != ("precision", "float32")}


class Config(Section):
    """The complete configuration of a run; frozen."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of initialisation and sampling; the class order has its own."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    log: Annotated[Literal["jsonl", "tensorboard", "wandb"], Field(exclude=True)] = "jsonl"
    """Where losses and accuracies go meanwhile; not a part of what the run is, so it may change when one is resumed."""
    tuned: bool = False
    """Whether `mtn tune` has searched for values of the method; written only where it has."""
    stream: SerializeAsAny[Stream]
    images: Images = Images()
    memory: Budget
    method: SerializeAsAny[MethodOptions] = MethodOptions()
    train: Train = Train()

    @model_serializer(mode="wrap")
    def _without_default_tuned(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs are written as they were before there was a search."""
        return {key: value for key, value in serialise(self).items() if (key, value) != ("tuned", False)}

    @model_validator(mode="after")
    def _vectors_only(self) -> "Config":
        if self.images.side is not None and self.memory.store == "milvus":
            raise ValueError('memory.store = "milvus" holds vectors: with images.side exemplars are images')
        return self

    def with_method_name(self, name: str) -> "Config":
        """The same with another name in [method], which is not looked up: for a digest that all methods share."""
        return self.model_copy(update={"method": self.method.model_copy(update={"name": name})})

    def digest(self) -> str:
        """Eight hexadecimal digits that tell this configuration from any other."""
        return hashlib.sha256(json.dumps(complete(self.model_dump()), sort_keys=True).encode()).hexdigest()[:8]

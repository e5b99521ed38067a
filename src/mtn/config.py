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
    """Kind of stream: how samples arrive (docs/how-to/streams.md). Every kind but blocks has options of its own."""
    data: str | Annotated[list[str], Field(min_length=1)]
    """Name of a data set, an .npz file, a folder of .npy files, or a store. For images: a folder, a zip, or a list of
    them."""
    first: AtLeastOne | None = None
    """Number of classes in the first task. Unset: half of all classes."""
    step: AtLeastOne | Annotated[list[AtLeastOne], Field(min_length=1)] | None = None
    """Classes of each later task, or a list with one number per task. Unset: the rest in five nearly equal tasks."""
    tasks: list[list[str]] | None = None
    """Class names, one list per task. They replace first, step and order."""
    order: int | str = 1993
    """Class order: the seed of a NumPy permutation of the sorted classes, a file with one class per line, or a shipped
    order."""
    per_class: AtLeastOne | None = None
    """At most this many training samples per class, the first ones of the data. Unset: all."""
    evaluate: Literal["test", "validation"] = "test"
    """The split that accuracies are measured on."""

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
    """Side of the square images, in pixels, from which features are learned. Unset: stream.data has vectors."""
    network: Literal["resnet18", "resnet10"] = "resnet18"
    """ResNet with two blocks per stage (resnet18) or one (resnet10)."""
    stem: Literal["small", "large"] | None = None
    """First layer: a 3 x 3 convolution (small), or ImageNet's, which shrinks images four times (large). Unset: small
    up to 64 pixels."""
    width: AtLeastOne = 64
    """Channels of the first stage. The feature vectors have eight times as many numbers."""
    weights: str | None = None
    """A .safetensors or .pt file to start from, with torchvision's names. Unset: random weights."""
    crop: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Smallest share of the area that a random crop shows. 1: no crop."""
    flip: bool = True
    """Mirror images at random. Turn it off for characters."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.4
    """Largest random change of brightness, contrast and saturation. 0: none."""
    unreadable: Literal["skip", "refuse"] = "skip"
    """If a file holds no image: skip and name it, or stop the run."""


class Budget(Section):
    """[memory]: how many exemplars are kept, which ones, and where."""

    total: AtLeastOne | None = None
    """Number of exemplars over all classes (the paper's M)."""
    per_class: AtLeastOne | None = None
    """Number of exemplars per class, instead of a total."""
    select: Literal["ring", "herding", "reservoir"] = "ring"
    """Which exemplars are kept: the latest (ring), those that preserve the class mean (herding), or a uniform sample
    (reservoir)."""
    search: Literal["exact", "approximate"] = "exact"
    """Search all exemplars, or, if there are more than 50 000, only the likeliest ones."""
    precision: Literal["float32", "float16"] = "float32"
    """Precision of the stored vectors. float16 halves the memory; cosines differ in the third digit."""

    store: Annotated[Literal["exact", "milvus"], Field(exclude=True)] = "exact"
    """Where vectors are stored: in the process (exact) or in Milvus. It may change when a run is resumed."""
    uri: Annotated[str | None, Field(exclude=True)] = None
    """Address of Milvus: a local file that ends in .db, or http://host:19530 of a server or a cluster."""

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
    """Name of a method (docs/methods), or your own as package.module:Class."""
    k: AtLeastOne = 10
    """Number of neighbours retrieved for a query."""
    features: Literal["ssil", "podnet", "ccil"] = "ssil"
    """Images only: the method that trains the backbone for mtn and knn, which need frozen features."""


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
    """A dumped configuration with every option that version 0.1 would have written, and no later one that is off."""
    method = FIRST_OPTIONS | values["method"]
    return values | {"method": {key: value for key, value in method.items() if (key, value) != ("random_features", 0)}}


class Train(Section):
    """[train]: the optimisation of a task."""

    epochs: Annotated[float, Field(ge=0, le=1e9)] = 10
    """Passes over the new samples of a task."""
    min_steps: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Least number of training steps per task, however few samples it has."""
    max_draws: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Most samples of a class that a task draws on average; in the base at least half of its epochs. 0: no limit."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    """Learning rate at the start of a task."""
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    """Schedule of the learning rate within a task. step is SS-IL's: divided by the task number, then x 0.1 at 40 % and
    at 80 %."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimiser. sgd has a momentum of 0.9."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of the optimiser."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest gradient norm. 0: no clipping."""
    batch: AtLeastOne = 128
    """New samples per step."""
    replay: Annotated[int, Field(ge=0, le=LARGEST)] = 32
    """Replayed exemplars of old classes per step."""
    loss: Literal["ss", "ce", "balanced", "ccil"] | None = None
    """Classification loss, for methods that offer a choice. Unset: the method's own."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Temperature of the distillation. Its term is multiplied by the square of it."""
    compile: bool = False
    """Use torch.compile if there is a C++ compiler. Worth it for runs of many thousand steps."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Precision of the matrix products in training. bfloat16 takes half the time on processors that have it; auto:
    bfloat16 on these, float32 on others. Weights, losses and answers stay in float32."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs are written as they were before there were these keys, if they have their defaults."""
        later = (("precision", "float32"), ("max_draws", 0))
        return {key: value for key, value in serialise(self).items() if (key, value) not in later}


class Config(Section):
    """The complete configuration of a run; frozen."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of initialisation and sampling. The class order has its own seed (stream.order)."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to compute on. auto: a GPU if there is one."""
    log: Annotated[Literal["jsonl", "tensorboard", "wandb"], Field(exclude=True)] = "jsonl"
    """Where losses and accuracies are logged during a run. It may change when a run is resumed."""
    tuned: bool = False
    """Whether `mtn tune` chose the values of the method. `mtn tune` sets it."""
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

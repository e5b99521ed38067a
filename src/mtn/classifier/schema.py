"""What a model.json must say before anything of it is used: types, and ranges that agree with each other."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

LabelKind = Literal["str", "int", "float", "bool"]
"""The type of a model's labels."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Pair = Field(min_length=2, max_length=2)
MOST_FEATURES = 2**20
"""Numbers of a vector: a model of more would be made before its weights show that it is none."""


HIGHEST_TEMPERATURE = 1e6
"""Far above what is ever fitted; beyond it, numbers overflow."""


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


class Summary(Part):
    """What `mtn info` tells that would else have to be computed from the tensors."""

    exemplars: list[Count]  # of each class in order of arrival
    kept: dict[str, int | float]
    weights: dict[str, float]


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
    temperature: Annotated[float, Field(gt=0, le=HIGHEST_TEMPERATURE)]
    threshold: float | None
    usual: Annotated[list[Annotated[list[float | None], Pair]], Pair]
    class_distance: list[float] | None = None
    history: list[HistoryEntry]
    memory: CollectionName | None = None
    summary: Summary | None = None  # early versions wrote none
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
        if self.summary is not None and len(self.summary.exemplars) != len(self.labels.names):
            raise ValueError("summary.exemplars must be one a label")
        if self.class_distance is not None and len(self.class_distance) != len(self.labels.names):
            raise ValueError("class_distance must have a number for each label")
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

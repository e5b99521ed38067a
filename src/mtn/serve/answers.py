"""The bodies of answers. Names and docstrings are part of /openapi.json."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from mtn.classifier import Label
from mtn.serve.engine import InputKind


class Problem(BaseModel):
    error: str
    request: str


class Share(BaseModel):
    label: Label
    probability: float


class Guess(BaseModel):
    """`unknown`: it is like nothing the model knows, and `label` is only the nearest. `novelty` says how much so."""

    label: Label
    probability: float
    unknown: bool
    novelty: float | None
    top: list[Share]


class Guesses(BaseModel):
    answers: list[Guess]


class Near(BaseModel):
    """A remembered example, its similarity to the query before and after the transformer, its sentence or picture."""

    id: str | int
    label: Label
    before: float
    after: float | None
    attention: float | None
    text: str | None
    picture: str | None


class Reason(BaseModel):
    """`shares` of the parts of the method sum to `score`, `margins` to its lead on `runner_up`.

    `agreement` is a sentence where the neighbours are of other classes than `label`; then `own` are the nearest
    remembered examples of `label`. `text` is the query, if it is a sentence.
    """

    label: Label
    probability: float
    unknown: bool
    novelty: float | None
    score: float
    shares: dict[str, float]
    runner_up: Label | None
    margins: dict[str, float]
    agreement: str | None
    neighbours: list[Near]
    own: list[Near]
    text: str | None


class Reasons(BaseModel):
    answers: list[Reason]


class JobStatus(BaseModel):
    """`progress` is from 0 to 1."""

    model_config = ConfigDict(title="Task")
    job: str
    state: Literal["waiting", "running", "done", "failed", "undone"]
    doing: str | None
    progress: float
    samples: int
    forgets: Label | None
    seconds_to_undo: float | None
    error: str | None


class Known(BaseModel):
    label: Label
    exemplars: int
    seconds_to_undo: float | None


class Classes(BaseModel):
    classes: list[Known]


class Room(BaseModel):
    exemplars: int
    total: int | None
    per_class: int | None


class Past(BaseModel):
    samples: int
    new_classes: int
    classes: int
    accuracy_before: float | None


class Facts(BaseModel):
    takes: InputKind
    features: int
    classes: int
    memory: Room
    waiting: int
    lessons: int
    history: list[Past]


class Example(BaseModel):
    label: str
    picture: str


class ExamplePictures(BaseModel):
    model_config = ConfigDict(title="Examples")
    examples: list[Example]


class Health(BaseModel):
    status: str

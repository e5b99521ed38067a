"""The bodies of answers. Names and docstrings are part of /openapi.json."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from mtn.classifier import Label
from mtn.serve.engine import InputKind, LabelType
from mtn.serve.journal import ChangeKind


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

    `agreement` is a sentence where more neighbours are of another class than of `label`; then `own` are the further
    remembered examples of `label`, nearest first. `text` is the query, if it is a sentence.
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
    kind: Literal["learn"] | ChangeKind
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
    """A lesson: the accuracy on its samples of known classes before it, and the estimated one after it, of all classes
    and of those that were new in it."""

    samples: int
    new_classes: int
    classes: int
    accuracy_before: float | None
    estimated_accuracy: float | None
    estimated_accuracy_new: float | None


class Facts(BaseModel):
    """`labels` is the type of the model's labels; of a model that was taught nothing yet there is none.

    `may_teach` says whether whoever asks may teach, change and download the model too.
    """

    name: str
    takes: InputKind
    encoder: str | None
    features: int
    labels: LabelType | None
    may_teach: bool
    classes: int
    memory: Room
    waiting: int
    lessons: int
    history: list[Past]


class Example(BaseModel):
    label: Label
    picture: str | None
    text: str | None


class Examples(BaseModel):
    examples: list[Example]


class Exemplar(BaseModel):
    """A remembered example. Its `number` is the service's name for it, and never given twice; `id` is the teacher's."""

    number: int
    id: str | int
    picture: str | None
    text: str | None


class Exemplars(BaseModel):
    """A page of a class, which has `total` in all."""

    total: int
    exemplars: list[Exemplar]


class Health(BaseModel):
    status: str

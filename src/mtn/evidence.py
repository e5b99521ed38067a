"""What an answer rests on, as data; mtn.experiments.evidence_figure draws it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Neighbour:
    """A remembered sample near the query."""

    id: Any
    label: Any
    before: float  # cosine of the features
    after: float | None  # cosine of the adapted tokens; None for a method without a transformer
    attention: float | None  # weight of the query's attention, mean over the heads of the last block


@dataclass(frozen=True)
class Evidence:
    """An answer with its neighbours, nearest first."""

    prediction: Any
    probability: float
    novelty: float
    neighbours: list[Neighbour]

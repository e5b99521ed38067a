"""What an answer rests on, as data; mtn.experiments.evidence_figure draws it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROTOTYPE = "prototype"
QUERY = "query itself"
WITH_NEIGHBOURS = "query with neighbours"
VOTES = "votes of neighbours"
DISCRIMINANT = "class statistics"
"""Parts of a score, as methods name them (`Method.shares`)."""

GROUNDS = {
    PROTOTYPE: "the class prototype",
    QUERY: "what the trained weights say of the query itself",
    WITH_NEIGHBOURS: "what the transformer makes of the query and its neighbours",
    VOTES: "the votes of the neighbours",
    DISCRIMINANT: "the mean of the class and the spread of all classes",
}
"""The same in a sentence; a method may have parts of its own."""


@dataclass(frozen=True)
class Neighbour:
    """A remembered sample near the query."""

    id: Any
    label: Any
    before: float  # cosine of the features
    after: float | None  # cosine of the adapted tokens; None for a method without a transformer
    attention: float | None  # weight of the query's attention, mean over the heads of the last block
    text: str | None = None  # the sentence, if it was one


@dataclass(frozen=True)
class Evidence:
    """An answer with its neighbours, nearest first, and what each part of the method adds to its score."""

    prediction: Any
    probability: float
    novelty: float
    neighbours: list[Neighbour]
    score: float | None = None  # of the predicted class
    shares: dict[str, float] = field(default_factory=dict)  # of each part of the method; their sum is `score`
    runner_up: Any = None  # the class with the second-highest score; None where there is no other class
    margins: dict[str, float] = field(default_factory=dict)  # its shares less those of the runner-up
    own: list[Neighbour] = field(default_factory=list)  # where they disagree: further exemplars of the predicted class
    agreement: str | None = None  # a sentence, where the neighbours disagree
    text: str | None = None  # the query, if it is a sentence

    def shown(self) -> list[Neighbour]:
        """All exemplars that are part of it."""
        return [*self.neighbours, *self.own]


def disagreement(
    prediction: Any, neighbours: Sequence[Any], remembered: int, margins: Mapping[str, float]
) -> str | None:
    """A sentence where more of the neighbours are of another class than of the predicted one; None where they agree.

    `neighbours` are K labels, `remembered` is the number of exemplars of the predicted class. If all of these are
    among the neighbours, they could not be more, and there is nothing to say.
    """
    counts = Counter(neighbours)
    near, (rival, most) = counts[prediction], max(counts.items(), key=lambda item: item[1], default=(None, 0))
    if not neighbours or near >= most or 0 < remembered == near:
        return None
    if not remembered:
        found = f"No example of {prediction!r} is remembered"
    elif len(neighbours) == 1:
        found = f"The nearest remembered example is not of {prediction!r} but of {rival!r}"
    elif not near:
        found = f"None of the {len(neighbours)} nearest remembered examples is of {prediction!r}"
    else:
        verb = "is" if near == 1 else "are"
        found = f"Only {near} of the {len(neighbours)} nearest remembered examples {verb} of {prediction!r}"
    if not margins:
        return f"{found}."
    part = max(margins, key=lambda name: margins[name])
    return f"{found}: the answer rests mostly on {GROUNDS.get(part, part)}."

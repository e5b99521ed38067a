"""Names and texts of what `mtn reproduce` makes. Imports nothing heavy: the help of the command lists them."""

from dataclasses import dataclass

TIME_LIMIT = 3600.0
"""Seconds a run may be expected to take; one expected to take longer is left out unless asked for by name."""


@dataclass(frozen=True)
class Target:
    """A table or a figure of the paper."""

    title: str
    series: str  # what the rows of a table, or the lines of a figure, are
    varied: str  # what varies along them
    description: str


TARGETS = {
    "table1": Target(
        "Table 1: comparison with existing works",
        "method",
        "L",
        "Average incremental accuracy (%) at L classes a task after the base.",
    ),
    "tasks": Target(
        "Accuracy after each task",
        "method",
        "L",
        "Accuracy over all classes seen so far, a panel a value of L.",
    ),
    "neighbours": Target(
        "Neighbours and transformer size",
        "transformer",
        "k",
        "Average incremental accuracy of MTN with k nearest exemplars as input.",
    ),
    "memory": Target(
        "Memory size",
        "method",
        "M",
        "Average incremental accuracy with M exemplars over all classes.",
    ),
    "size": Target(
        "Images a class and difficulty",
        "method",
        "images a class",
        "Differences of average incremental accuracy between runs of the same seed, against the number of training "
        "images of a class; of a Glyphs set, easy and hard.",
    ),
    "rank": Target(
        "Rank encoding",
        "variant",
        "L",
        "MTN with and without an embedding of a neighbour's rank.",
    ),
    "labels": Target(
        "Label embedding",
        "variant",
        "L",
        "MTN with and without an embedding of a neighbour's class: not in the paper.",
    ),
    "readout": Target(
        "Read-out",
        "variant",
        "L",
        "cls: a linear head on the adapted query; nn: votes of the adapted neighbours, mix: both, not in the paper.",
    ),
    "schedule": Target(
        "Training length",
        "method",
        "steps a task",
        "Where the separated softmax starts to work: new and old classes against optimisation steps of a task.",
    ),
    "qualitative": Target(
        "What k-NN gets wrong and MTN right",
        "method",
        "L",
        "Test queries, their five nearest exemplars, and the similarity to each before and after the transformer.",
    ),
}
"""In the order of the page."""

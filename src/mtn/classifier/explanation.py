"""Queries -> evidence: neighbours, shares of the score, and the nearest exemplars of the answer where they disagree."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mtn.classifier import queries
from mtn.classifier.state import ClassifierState
from mtn.evidence import Evidence, Neighbour, disagreement
from mtn.neighbours import Retrieval
from mtn.samples import CHUNK, Samples

MOST_OWN = 5
"""Exemplars of the predicted class that are shown where the neighbours are of others."""


@torch.no_grad()
def explain(state: ClassifierState, samples: Samples, texts: Sequence[str] | None = None) -> list[Evidence]:
    """The answer to each query with what it rests on; `texts` are the queries, if they are sentences."""
    retrieval = queries.neighbours(state, samples, wanted=True)
    z = queries.scores(state, samples, retrieval)
    best = z.sort(dim=1, descending=True, stable=True).indices[:, :2]  # N,2; N,1 where there is one class
    probability = queries.probabilities(state, z).max(1).tolist()
    novelty, classes = queries.novelty(state, samples, z, retrieval).tolist(), state.classes().tolist()
    parts = _parts(state, samples, retrieval, state.columns[best])
    near = _neighbours(state, samples, retrieval)
    answers = []
    for row, (first, *others) in enumerate(best.tolist()):
        margins = {name: part[row][0] - part[row][1] for name, part in parts.items() if others}
        remembered = int((state.memory.y == state.columns[first]).sum())
        remark = disagreement(classes[first], [neighbour.label for neighbour in near[row]], remembered, margins)
        answers.append(
            Evidence(
                classes[first],
                probability[row],
                novelty[row],
                near[row],
                score=float(z[row, first]),
                shares={name: part[row][0] for name, part in parts.items()},
                runner_up=classes[others[0]] if others else None,
                margins=margins,
                own=[] if remark is None else _further(state, samples, retrieval, row, int(state.columns[first])),
                agreement=remark,
                text=None if texts is None else texts[row],
            )
        )
    return answers


def _parts(
    state: ClassifierState, samples: Samples, retrieval: Retrieval | None, classes: Tensor
) -> dict[str, list[list[float]]]:
    """Of each part of the method, what it adds to the scores of some classes (N,R indices): N lists of R numbers."""
    method = state.learner.method
    enough, near = queries.padded(state, samples, retrieval)
    found: dict[str, list[list[float]]] = {}
    for rows in enough.chunks():
        shares = method.shares(enough.x(rows).to(state.device), None if near is None else near[rows])
        wanted = classes[rows]  # without those that were added to make up the number
        for name, part in shares.items():
            found.setdefault(name, []).extend(part.cpu()[: len(wanted)].gather(1, wanted).tolist())
    return found


def _neighbours(state: ClassifierState, samples: Samples, retrieval: Retrieval | None) -> list[list[Neighbour]]:
    """The neighbours of each query, nearest first, with similarities and attention."""
    if retrieval is None:
        return [[] for _ in range(len(samples))]
    method = state.learner.method
    near: list[list[Neighbour]] = []
    for rows in samples.chunks():
        batch = retrieval[rows]
        evidence = method.evidence(samples.x(rows).to(state.device), batch) if state.uses_neighbours else None
        after, attention = (None, None) if evidence is None else (part.tolist() for part in evidence)
        for query, positions in enumerate(retrieval.index[rows].long().cpu()):
            exemplars = state.exemplars(positions[positions >= 0])  # what is missing stands behind what there is
            near.append(
                [
                    Neighbour(
                        exemplar.id,
                        exemplar.label,
                        float(batch.similarity[query, rank]),
                        None if after is None else after[query][rank],
                        None if attention is None else attention[query][rank],
                        exemplar.text,
                    )
                    for rank, exemplar in enumerate(exemplars)
                ]
            )
    return near


def _further(
    state: ClassifierState, samples: Samples, retrieval: Retrieval | None, row: int, class_index: int
) -> list[Neighbour]:
    """The exemplars of a class nearest to a query, nearest first, without its neighbours.

    The transformer has not seen them.
    """
    wanted = state.memory.y == class_index
    if retrieval is not None:
        index = retrieval.index[row].long().cpu()
        wanted[index[index >= 0]] = False
    rows, query = wanted.nonzero().squeeze(1), samples.x(slice(row, row + 1))[0]
    if not len(rows):
        return []
    cosines = torch.cat([state.memory.vectors(chunk).cpu() @ query for chunk in rows.split(CHUNK)])
    similarity, order = cosines.topk(min(MOST_OWN, len(rows)))
    return [
        Neighbour(exemplar.id, exemplar.label, cosine, None, None, exemplar.text)
        for exemplar, cosine in zip(state.exemplars(rows[order]), similarity.tolist(), strict=True)
    ]

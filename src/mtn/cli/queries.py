"""The commands that ask a model: predict, explain."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtn.cli.arguments import AsJson, Asked, Encoder, Milvus, Model, Yes, load_classifier, provide_encoder
from mtn.cli.output import list_skipped, print_json, print_line, print_table, progress_bar, rounded
from mtn.errors import InputError

if TYPE_CHECKING:
    from mtn.classifier import Label, MTNClassifier
    from mtn.data.inputs import Inputs

FIGURES = (".png", ".svg")
DRAWN = 50
"""Queries of a figure at the most: further ones would not fit into a PNG."""


def predict(
    model: Model,
    asked: Asked,
    as_json: AsJson = False,
    unknown: Annotated[
        str | None, typer.Option(metavar="LABEL", help="What to answer where nothing known is near enough.")
    ] = None,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Answer: the label of each input, its probability, and how little the input is like anything known."""
    provide_encoder(encoder, yes)
    classifier = load_classifier(model, encoder, milvus)
    queries = _read_queries(classifier, asked)
    labels = classifier.predict(queries.x, None if unknown is None else _unknown(classifier, unknown)).tolist()
    probabilities, novelty = classifier.predict_proba(queries.x).max(1), classifier.novelty(queries.x)
    columns, ids = ("input", "label", "probability", "novelty"), queries.ids or ()
    if as_json:
        for row in zip(ids, labels, probabilities.tolist(), novelty.tolist(), strict=True):
            print_json(dict(zip(columns, row, strict=True)))
        return
    print_table(columns, list(zip(ids, labels, rounded(probabilities), rounded(novelty), strict=True)))


def explain(
    model: Model,
    asked: Asked,
    out: Annotated[
        Path | None, typer.Option(metavar="FIGURE", help="Draw the neighbours into this .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Show what answers rest on: the remembered neighbours, their similarity before and after the transformer."""
    if out is not None and out.suffix.lower() not in FIGURES:
        raise InputError(f"--out must end in {' or '.join(FIGURES)}, got {str(out)!r}")
    provide_encoder(encoder, yes)
    classifier = load_classifier(model, encoder, milvus)
    queries = _read_queries(classifier, asked)
    if out is not None and len(queries) > DRAWN:
        raise InputError(f"--out takes at most {DRAWN} inputs, got {len(queries)}")
    answers = classifier.explain(queries.x)
    if out is not None:  # before printing: a reader such as `head` may close the pipe
        from mtn import plot_evidence
        from mtn.storage import files

        try:
            figure = plot_evidence(answers, classifier.thumbnails_, queries.thumbnails)  # type: ignore[arg-type]
            files.write(out, lambda temporary: figure.savefig(temporary, format=out.suffix[1:].lower()))
        except OSError as error:
            raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    for name, answer in zip(queries.ids or (), answers, strict=True):
        if as_json:
            print_json({"input": name, **asdict(answer)})
            continue
        print_line(f"{name}: {answer.prediction}, p = {answer.probability:.3f}, novelty {answer.novelty:.3f}")
        rows = [(n.id, n.label, *rounded((n.before, n.after, n.attention))) for n in answer.neighbours]
        print_table(("  neighbour", "label", "similarity", "once adapted", "attention"), rows, indent="  ")
    if out is not None:
        print_line(f"{out}", err=as_json)


def _read_queries(classifier: "MTNClassifier", asked: Sequence[str]) -> "Inputs":
    from mtn.data.inputs import Inputs

    if not classifier.__sklearn_is_fitted__():
        raise InputError("the model has been taught nothing yet: mtn learn MODEL DATA")
    with progress_bar() as progress:
        queries = Inputs.join([classifier.reader().to_ask(text, progress) for text in asked])
    list_skipped(queries.skipped)
    return queries


def _unknown(classifier: "MTNClassifier", text: str) -> "Label":
    """`text` as a label of the model's type if it can be one, so that answers have one type."""
    try:
        return classifier.state_.parse_label(text)
    except InputError:
        return text

"""The commands that ask a model: predict, explain, evaluate."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mtn
from mtn.cli.arguments import (
    TEACHING,
    AsJson,
    Asked,
    Encoder,
    LabelColumn,
    Milvus,
    Model,
    PathColumn,
    TextColumn,
    Yes,
    provide_encoder,
)
from mtn.cli.evidence import print_evidence
from mtn.cli.output import (
    list_skipped,
    percent,
    print_json,
    print_line,
    print_table,
    progress_bar,
    write_figure,
    write_records,
)
from mtn.errors import InputError
from mtn.runtime.text import printable, shorten

if TYPE_CHECKING:
    from mtn.classifier import AnsweringModel, Label
    from mtn.data.inputs import Inputs
    from mtn.data.reader import Reader
    from mtn.data.table_files import Columns
    from mtn.experiments.evaluation import Evaluation

FIGURES, ANSWERS = (".png", ".svg"), (".csv", ".json")
"""What --out and --output may end in."""
DRAWN = 50
"""Queries of a figure at the most: further ones would not fit into a PNG."""
LONGEST_CELL, WIDEST = 48, 90
"""Characters of an input or a sentence in a table, and of the examples of a confusion."""
LISTED, CONFUSIONS = 20, 10
"""Classes and confusions that are printed; --json has all of them."""


def predict(
    model: Model,
    asked: Asked = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the answers to this .csv or .json file instead.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Answer this where an input is unlike every known class.")
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Answer the nearest name in this file instead, one per line; needs CLIP or SigLIP."
        ),
    ] = None,
    text: TextColumn = None,
    path: PathColumn = None,
    label: LabelColumn = None,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Classify inputs: the label of each, its probability, its novelty, and whether that is too high for a known class.

    Where the inputs have labels of their own, it says how many answers are right.
    """
    from mtn.data.table_files import Columns

    _check_suffix("--output", output, ANSWERS)
    if unknown is not None and names is not None:
        raise InputError("--unknown and --names exclude each other")
    classifier = _load(model, encoder, milvus, yes)
    if names is None:
        _require_taught(classifier)
    queries = _read_queries(classifier, asked, Columns(text, label, path))
    answers = _answers(classifier, queries, unknown, names)
    labels = [answer["label"] for answer in answers]
    summary = None
    if queries.labels is not None and classifier.__sklearn_is_fitted__():
        summary = _count_right(classifier, queries.labels.tolist(), labels)
    if output is not None:
        write_records(output, answers)
        print_line(f"{output}: {len(answers)} answers")
    elif as_json:
        for answer in answers:
            print_json(answer)
    else:
        _print_answers(answers)
    if summary is not None:
        print_line(summary, err=as_json and output is None)


def _answers(
    classifier: "AnsweringModel", queries: "Inputs", unknown: str | None, names: Path | None
) -> list[dict[str, Any]]:
    """A record of each answer, with the sentence and the label that the input came with, if it did.

    With names a model may have been taught nothing: it has no probability and no novelty to tell then.
    """
    from mtn.classifier.labels import convert_label
    from mtn.data.reader import number_lines, read_text

    columns: dict[str, Sequence[Any]] = {"input": queries.ids or ()}
    if queries.texts is not None:
        columns["text"] = queries.texts
    stand_in: Any = None
    if names is not None:
        lines = number_lines(read_text(names), str(names))[1]
        stand_in = classifier.nearest_names(queries.x, [line.strip() for line in lines])
    if not classifier.__sklearn_is_fitted__():
        nothing = [None] * len(queries)
        columns |= {"label": stand_in.tolist(), "probability": nothing, "novelty": nothing}
    else:
        if unknown is not None:  # of the model's type if it can be, so that answers have one type
            stand_in = convert_label(unknown, classifier.state_.label_kind)
        probabilities, novelty = classifier.assess(queries.x)
        columns["label"] = classifier.predict(queries.x, stand_in).tolist()
        columns |= {"probability": probabilities.max(1).tolist(), "novelty": novelty.tolist()}
        if classifier.threshold_ is not None:
            columns["unknown"] = (novelty > classifier.threshold_).tolist()
    if queries.labels is not None:
        columns["true_label"] = queries.labels.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _print_answers(answers: Sequence[dict[str, Any]]) -> None:
    """A table; sentences that are their own names are shown once, long ones are cut."""
    columns = [name for name in answers[0] if name != "text" or any(one["text"] != one["input"] for one in answers)]
    numbers = {"probability", "novelty"}
    rows = [
        [f"{one[name]:.3f}" if name in numbers and one[name] is not None else one[name] for name in columns]
        for one in ({**one, "unknown": "yes" if one.get("unknown") else "no"} for one in answers)
    ]
    for row in rows:
        for position in (columns.index(name) for name in ("input", "text") if name in columns):
            row[position] = shorten(printable(" ".join(str(row[position]).split())), LONGEST_CELL)
    print_table([name.replace("_", " ") for name in columns], rows)


def _count_right(classifier: "AnsweringModel", true: Sequence["Label | None"], answers: Sequence[Any]) -> str | None:
    """`58 of 60 right (96.7 %)`, of the inputs whose label the model knows; None where it knows no label."""
    from mtn.classifier.labels import convert_label

    known, kind = set(classifier.classes_.tolist()), classifier.state_.label_kind
    pairs = [(convert_label(label, kind), one) for label, one in zip(true, answers, strict=True) if label is not None]
    judged = [label == answer for label, answer in pairs if label in known]
    if not judged:
        return None
    others = len(pairs) - len(judged)
    beside = f"; {others} more have a label that the model does not know" if others else ""
    return f"{sum(judged)} of {len(judged)} right ({percent(sum(judged) / len(judged))}){beside}"


def explain(
    model: Model,
    asked: Asked = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FIGURE", help="Draw the evidence as a .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
    text: TextColumn = None,
    path: PathColumn = None,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Show what answers rest on: the parts of the score, and the remembered neighbours with their sentences."""
    from mtn.data.table_files import Columns

    classifier = _open_taught(model, out, encoder, milvus, yes)
    queries = _read_queries(classifier, asked, Columns(text, path=path))
    if out is not None and len(queries) > DRAWN:
        raise InputError(f"--out takes at most {DRAWN} inputs, got {len(queries)}")
    answers = classifier.explain(queries)
    if out is not None:  # before printing: a reader such as `head` may close the pipe
        from mtn import plot_evidence

        write_figure(out, plot_evidence(answers, classifier.thumbnails_, queries.thumbnails))  # type: ignore[arg-type]
    for name, answer in zip(queries.ids or (), answers, strict=True):
        if as_json:
            print_json({"input": name, **asdict(answer)})
            continue
        print_evidence(name, answer)
    if out is not None:
        print_line(f"{out}", err=as_json)


def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(metavar="DATA", help=f"{TEACHING} Its test split, if it has one.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FIGURE", help="Draw the most confused classes as a .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
    text: TextColumn = None,
    path: PathColumn = None,
    label: LabelColumn = None,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Measure a model on labelled data: accuracy, each class, confusions, calibration, and what it calls unknown."""
    from mtn.data.table_files import Columns

    classifier = _open_taught(model, out, encoder, milvus, yes)
    with progress_bar() as progress:
        samples = classifier.reader().to_evaluate(data, progress, Columns(text, label, path))
    list_skipped(samples.skipped)
    found = mtn.evaluate(classifier, samples)
    if out is not None:
        write_figure(out, mtn.plot_evaluation(found))
    if as_json:
        print_json(asdict(found))
    else:
        _print_evaluation(found, sentences=samples.texts is not None)
    if out is not None:
        print_line(f"{out}", err=as_json)


def _print_evaluation(found: "Evaluation", sentences: bool) -> None:
    """What is true of all samples, then the classes and the confusions that matter most."""
    print_line(f"accuracy {percent(found.accuracy) or '-'} on {found.samples} samples of {len(found.classes)} classes")
    if found.accuracy is not None:
        print_line(f"balanced accuracy {percent(found.balanced_accuracy)} (mean over classes)")
        chance = f"with {found.samples} samples, up to {percent(found.calibration_chance)} is chance"
        print_line(f"calibration error {percent(found.calibration_error)} (root mean square; {chance})")
    if found.called_unknown is not None:
        print_line(f"false alarms {percent(found.called_unknown)} (called unknown)")
    if found.unknown_samples:
        share = "" if found.unknown_found is None else f": {percent(found.unknown_found)} called unknown, correctly"
        print_line(f"{found.unknown_samples} more samples have a label that the model does not know{share}")
    if found.classes:
        shown = sorted(found.classes, key=lambda one: one.recall)[:LISTED]
        typer.echo()
        rows = [
            (one.label, one.samples, *map(percent, (one.recall, one.precision, one.called_unknown))) for one in shown
        ]
        print_table(("class", "samples", "recall", "precision", "called unknown"), rows)
        if len(found.classes) > LISTED:
            print_line(f"... and {len(found.classes) - LISTED} classes of higher recall, which --json lists")
    if found.confusions:
        typer.echo()
        pairs = found.confusions[:CONFUSIONS]
        examples = [_name_examples(pair.examples, sentences) for pair in pairs]
        rows = [(pair.label, pair.answer, pair.samples, shown) for pair, shown in zip(pairs, examples, strict=True)]
        print_table(("class", "answered", "samples", "for example"), rows)


def _name_examples(examples: Sequence[Any], sentences: bool) -> str:
    """Sentences, or ids without the folder that all of them are in."""
    names = [" ".join(str(one).split()) if sentences else str(one).rpartition("/")[2] for one in examples]
    return shorten(" | ".join(names), WIDEST)


def _load(model: Path, encoder: str | None, milvus: str | None, yes: bool) -> "AnsweringModel":
    """The model, once its encoder is there."""
    from mtn.classifier import AnsweringModel

    provide_encoder(encoder, yes)
    return AnsweringModel.load(model, encoder, milvus)


def _open_taught(
    model: Path, figure: Path | None, encoder: str | None, milvus: str | None, yes: bool
) -> "AnsweringModel":
    """A model that knows something, for a command that may draw: a wrong figure is refused before it is loaded."""
    _check_suffix("--out", figure, FIGURES)
    classifier = _load(model, encoder, milvus, yes)
    _require_taught(classifier)
    return classifier


def _require_taught(classifier: "AnsweringModel") -> None:
    if not classifier.__sklearn_is_fitted__():
        raise InputError("the model has been taught nothing yet: mtn learn MODEL DATA")


def _check_suffix(option: str, path: Path | None, suffixes: Sequence[str]) -> None:
    if path is not None and path.suffix.lower() not in suffixes:
        raise InputError(f"{option} must end in {' or '.join(suffixes)}, got {str(path)!r}")


def _read_queries(classifier: "AnsweringModel", asked: Sequence[str] | None, columns: "Columns") -> "Inputs":
    """All inputs as one; - and none at all stand for standard input."""
    from mtn.data.inputs import Inputs

    if not asked and sys.stdin.isatty():
        raise InputError("INPUT is missing: name a file or a folder, or give sentences on standard input")
    reader = classifier.reader()
    with progress_bar() as progress:
        parts = [
            _read_stdin(reader) if query == "-" else reader.to_ask(query, progress, columns) for query in asked or ["-"]
        ]
    queries = Inputs.join(parts)
    list_skipped(queries.skipped)
    return queries


def _read_stdin(reader: "Reader") -> "Inputs":
    """The lines of standard input, each a sentence."""
    from mtn.data.reader import number_lines
    from mtn.storage.files import LARGEST_TEXT

    content = sys.stdin.buffer.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise InputError(f"standard input has more than {LARGEST_TEXT / 1e9:.2g} GB")
    try:
        ids, lines = number_lines(content.decode("utf-8-sig"), "stdin")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text: {error}") from None
    if not lines:
        raise InputError("standard input holds no sentences")
    return reader.encode_sentences(ids, lines)

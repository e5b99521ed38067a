"""The commands around a model folder: each is MTNClassifier's own function, between reading and printing."""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

import mtn  # mtn.MTNClassifier: scikit-learn is slow to load, and only commands on a model need it
from mtn import config, encoders, evidence, export, inputs, ranks, store
from mtn import extract as extraction
from mtn.datasets import sources
from mtn.encoders import simclr
from mtn.encoders.base import PLURAL
from mtn.errors import InputError
from mtn.progress import bar

if TYPE_CHECKING:
    from mtn.classifier import Label

FIGURES = (".png", ".svg")
SHOWN = 20
"""Lines about things left out: a file has them all."""
DRAWN = 50
"""Queries of a figure at the most: further ones would not fit into a PNG."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder.")]
Asked = Annotated[list[str], typer.Argument(metavar="INPUT...", help=f"Each {inputs.ASKING}.")]
Encoder = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What makes vectors of images or sentences; of an old model, where it is now."),
]
Method = Annotated[str | None, typer.Option(help="Of a new model: a name of the methods table.")]
Exemplars = Annotated[int | None, typer.Option(help="Of a new model: exemplars it may remember.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Of a new model: any key of a recipe; repeatable.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if anything cannot be read.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder; made if it is not there.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help=inputs.TEACHING.capitalize() + ".")],
    method: Method = None,
    memory: Exemplars = None,
    set_: Settings = [],  # noqa: B006 (typer copies it)
    encoder: Encoder = None,
    strict: Strict = False,
) -> None:
    """Teach a model the classes in DATA: new ones, more of known ones, or both."""
    start = time.perf_counter()
    with changing(model):
        if (model / "model.json").exists():
            _refuse_options(model, {"--method": method, "--memory": memory, "--set": set_})
            classifier = mtn.MTNClassifier.load(model, encoder)
        else:
            classifier = _new(method, memory, set_, encoder)
        with bar(Console(stderr=True)) as say:
            found = classifier.reader().to_learn(data, say)
        _list_skipped(found.skipped)
        if strict and found.skipped:
            raise InputError(f"--strict: {len(found.skipped)} things in {data} cannot be used; {model} is as it was")
        classes = len(classifier.classes_) if classifier.__sklearn_is_fitted__() else 0
        classifier.progress = True
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")  # classes of one sample are welcome
            classifier.partial_fit(found)
        classifier.progress = False
        classifier.save(model)
    entry, seconds = classifier.history_[-1], time.perf_counter() - start
    typer.echo(f"{model}: {classes} -> {entry['classes']} classes, {len(found)} samples, {seconds:.1f} s")
    if not classes and encoder is None and classifier.encoder is None and found.source.get("encoder"):
        name = found.source["encoder"]["name"]
        typer.echo(f"encoder {name!r}, as none was named; --encoder names another for a new model")
    if entry["accuracy_before"] is not None:
        typer.echo(f"accuracy on samples of known classes before learning: {_percent(entry['accuracy_before'])}")


def new(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder to make.")],
    encoder: Annotated[str, typer.Option(metavar="NAME", help="What makes vectors of images or sentences.")],
    method: Method = None,
    memory: Exemplars = None,
    set_: Settings = [],  # noqa: B006 (typer copies it)
) -> None:
    """Start a model that has been taught nothing yet."""
    if (model / "model.json").exists():
        raise InputError(f"{model} exists already: teach it with mtn learn, or name another folder")
    classifier = _new(method, memory, set_, encoder)
    classifier._configuration()
    known = classifier.reader().any()
    classifier.source_ = {"encoder": known.identity(), "kind": known.kind}
    with changing(model):
        classifier.save(model)
    takes = f"{PLURAL[known.kind]}, {known.dimension} numbers each"
    typer.echo(f"{model}: takes {takes}; next: mtn learn {model} DATA")


def extract(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="Folders, zips, a table; LAYOUT:PATH names a layout.")
    ],
    encoder: Annotated[str, typer.Option(metavar="NAME", help="What makes vectors of images or sentences.")],
    out: Annotated[Path, typer.Option(metavar="STORE", help="The folder to make; an unfinished one is gone on with.")],
    strict: Strict = False,
) -> None:
    """Turn images or sentences into vectors on disk, which are taken wherever vectors are."""
    start = time.perf_counter()
    try:
        with bar(Console(stderr=True)) as say:
            listing = sources.find(data, say)
            made = extraction.extract(listing, encoders.load(encoder), out, say)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same command goes on from what is in {out}", err=True)
        raise typer.Exit(130) from None
    ranks.stop()
    if ranks.rank():
        return
    _list_skipped([*listing.notes, *made.skipped[:SHOWN]])
    if len(made.skipped) > SHOWN:
        typer.echo(f"left out: {len(made.skipped) - SHOWN} more, listed in {out / 'manifest.json'}", err=True)
    done, seconds = len(listing) - made.before, time.perf_counter() - start
    waited = made.clock.waiting / max(made.clock.waiting + made.clock.working, 1e-9)
    typer.echo(f"{out}: {made.rows} vectors of {len(set(listing.labels))} classes, {len(made.skipped)} left out")
    if done:
        pace = f"{seconds:.1f} s, {done / seconds:.0f} a second"
        typer.echo(f"{pace}; the encoder waited {100 * waited:.0f} % of its time")
    if strict and made.skipped:
        raise typer.Exit(1)


def predict(
    model: Model,
    asked: Asked,
    as_json: AsJson = False,
    unknown: Annotated[
        str | None, typer.Option(metavar="LABEL", help="What to answer where nothing known is near enough.")
    ] = None,
    encoder: Encoder = None,
) -> None:
    """Answer: the label of each input, its probability, and how little the input is like anything known."""
    classifier = mtn.MTNClassifier.load(model, encoder)
    found = _ask(classifier, asked)
    answers = classifier.predict(found.x, None if unknown is None else _unknown(classifier, unknown)).tolist()
    probability, novelty = classifier.predict_proba(found.x).max(1), classifier.novelty(found.x)
    if as_json:
        for one in zip(found.ids or (), answers, probability.tolist(), novelty.tolist(), strict=True):
            _print_json(dict(zip(("input", "label", "probability", "novelty"), one, strict=True)))
        return
    rows = zip(found.ids or (), answers, _round(probability), _round(novelty), strict=True)
    _print_table(("input", "label", "probability", "novelty"), list(rows))


def explain(
    model: Model,
    asked: Asked,
    out: Annotated[
        Path | None, typer.Option(metavar="FIGURE", help="Draw the neighbours into this .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
    encoder: Encoder = None,
) -> None:
    """Show what answers rest on: the remembered neighbours, their similarity before and after the transformer."""
    if out is not None and out.suffix.lower() not in FIGURES:
        raise InputError(f"--out must end in {' or '.join(FIGURES)}, got {str(out)!r}")
    classifier = mtn.MTNClassifier.load(model, encoder)
    found = _ask(classifier, asked)
    if out is not None and len(found) > DRAWN:
        raise InputError(f"--out takes at most {DRAWN} inputs, got {len(found)}")
    answers = classifier.explain(found.x)
    if out is not None:  # first: whoever reads the text may stop before its end
        try:
            evidence.plot(answers, classifier.thumbnails_, found.thumbnails).savefig(out)  # type: ignore[arg-type]
        except OSError as error:
            raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    for name, answer in zip(found.ids or (), answers, strict=True):
        if as_json:
            _print_json({"input": name, **asdict(answer)})
            continue
        typer.echo(f"{name}: {answer.prediction}, p = {answer.probability:.3f}, novelty {answer.novelty:.3f}")
        rows = [(n.id, n.label, *_round((n.before, n.after, n.attention))) for n in answer.neighbours]
        _print_table(("  neighbour", "label", "similarity", "once adapted", "attention"), rows, indent="  ")
    if out is not None:
        typer.echo(f"{out}", err=as_json)


def forget(model: Model, label: Annotated[str, typer.Argument(metavar="CLASS")]) -> None:
    """Drop a class for good: its exemplars, its rows in the weights, its name."""
    with changing(model, there=True):
        classifier = mtn.MTNClassifier.load(model)
        classifier.forget(classifier._typed(label)).save(model)
    typer.echo(f"{model}: {label!r} is forgotten, {len(classifier.classes_)} classes are left")


def rename(
    model: Model, old: Annotated[str, typer.Argument(metavar="OLD")], new: Annotated[str, typer.Argument(metavar="NEW")]
) -> None:
    """Give a class another name."""
    with changing(model, there=True):
        classifier = mtn.MTNClassifier.load(model)
        classifier.rename(classifier._typed(old), classifier._typed(new)).save(model)
    typer.echo(f"{model}: {old!r} is now {new!r}")


def move(
    model: Model,
    uri: Annotated[str, typer.Argument(metavar="URI", help="Of Milvus: FILE.db or http://HOST:19530; or `exact`.")],
) -> None:
    """Move what a model remembers into Milvus, from one Milvus to another, or back into the model's folder: `exact`."""
    with changing(model, there=True):
        classifier = mtn.MTNClassifier.load(model)
        classifier.move_memory(None if uri == "exact" else uri).save(model)
    there = classifier._collection()
    typer.echo(f"{model}: {len(classifier.memory_)} exemplars are now in {there or 'its folder'}")


def info(model: Model, as_json: AsJson = False) -> None:
    """Say what a model knows, what it keeps, and how well it did so far."""
    classifier = mtn.MTNClassifier.load(model)
    if not classifier.__sklearn_is_fitted__():
        raise InputError(f"{model} has been taught nothing yet{_made(classifier.source_)}: mtn learn {model} DATA")
    facts = about(classifier)
    if as_json:
        _print_json(facts)
        return
    memory, kept = facts["memory"], facts["kept"]
    typer.echo(f"method {facts['method']}, vectors of {facts['features']} numbers" + _made(facts["source"]))
    room = f"of {memory['total']} exemplars" if memory["total"] else f"exemplars, {memory['per_class']} a class"
    there = facts["store"]
    typer.echo(f"memory {memory['exemplars']} {room}" + (f", in Milvus at {there['uri']}" if there else ""))
    typer.echo(f"keeps {kept['total']} numbers, {kept['mb']} MB; temperature {facts['temperature']:.3g}")
    if facts["weights"]:
        typer.echo("weights " + ", ".join(f"{name} {value:.3g}" for name, value in facts["weights"].items()))
    typer.echo()
    _print_table(("class", "exemplars"), [(one["label"], one["exemplars"]) for one in facts["classes"]])
    typer.echo()
    rows = [
        (number, call["samples"], call["new_classes"], call["classes"], _percent(call["accuracy_before"]))
        for number, call in enumerate(facts["history"], 1)
    ]
    _print_table(("lesson", "samples", "new classes", "classes", "accuracy before"), rows)


def export_(
    model: Model, file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="The file to write.")]
) -> None:
    """Write the network as ONNX: query, neighbours, labels, mask -> scores in the order of the classes."""
    if file.suffix.lower() != ".onnx":
        raise InputError(f"FILE must end in .onnx, got {str(file)!r}")
    apart = export.onnx(mtn.MTNClassifier.load(model), file)
    checked = "not checked: onnxruntime is not there" if apart is None else f"within {apart:.0e} of torch's scores"
    typer.echo(f"{file}: {checked}")


def convert_simclr(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A TensorFlow checkpoint, its variables as .npz, or a PyTorch port."),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="The .safetensors file to write; else in the cache folder.")
    ] = None,
) -> None:
    """Make the weights of the encoder simclr-r50 of a published checkpoint."""
    if target is None:
        target = simclr.default_path()
        target.parent.mkdir(parents=True, exist_ok=True)
    simclr.convert(source, target)
    typer.echo(f"{target}: the encoder simclr-r50 of {source}")


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen at; any but loopback needs --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="Lines `read TOKEN` and `teach TOKEN`: who may ask, and who may teach.")
    ] = None,
) -> None:
    """Answer over HTTP, and show a page to ask, teach and forget."""
    from mtn.serve import serve  # here: what it needs takes a second to load

    typer.echo(f"{model}: http://{host}:{port}/ until Ctrl-C")
    serve(model, host, port, token_file)


MEMORY = typer.Typer(no_args_is_help=True, help="Where a model's exemplars are.")
MEMORY.command("move")(move)
MEMORY.callback()(lambda: None)  # or its one command would need no name

COMMANDS: dict[str, Callable[..., None]] = {
    "new": new,
    "learn": learn,
    "predict": predict,
    "explain": explain,
    "forget": forget,
    "rename": rename,
    "info": info,
    "export": export_,
    "serve": serve,
    "extract": extract,
    "convert-simclr": convert_simclr,
}


def about(classifier: "mtn.MTNClassifier") -> dict[str, Any]:
    """What `mtn info` tells, as plain values."""
    learner, there = classifier._learner, classifier._collection()
    budget, counts = learner.config.memory, torch.bincount(learner.memory.y, minlength=len(classifier._names)).tolist()
    weights = dict(learner.method.named_buffers()).get("weights")
    return {
        "method": classifier.method,
        "features": classifier.n_features_in_,
        "source": classifier.source_,
        "classes": [{"label": classifier._names[at], "exemplars": counts[at]} for at in classifier._columns().tolist()],
        "memory": {
            "exemplars": len(learner.memory),
            "total": budget.total,
            "per_class": budget.per_class,
        },
        "store": None if there is None else there.place(),
        "kept": learner.kept(),
        "temperature": classifier.temperature_,
        "threshold": classifier.threshold_,
        "weights": {} if weights is None else dict(zip(("prototypes", "network"), weights.tolist(), strict=False)),
        "history": classifier.history_,
    }


@contextmanager
def changing(model: Path, there: bool = False) -> Iterator[None]:
    """Nobody else changes the model, which may have to be `there`, meanwhile; an interrupt is said in one line."""
    if there:
        store.look(model)
    try:
        with store.hold(model):
            yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {model} is as it was", err=True)
        raise typer.Exit(130) from None


def _new(method: str | None, memory: int | None, set_: Sequence[str], encoder: str | None) -> "mtn.MTNClassifier":
    settings = dict(config.assignment(text) for text in set_)
    own = {name: settings.pop(key) for key, name in config.PARAMETERS.items() if key in settings}
    own |= {name: value for name, value in (("method", method), ("memory", memory)) if value is not None}
    return mtn.MTNClassifier(**own, settings=settings or None, encoder=encoder)


def _refuse_options(model: Path, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value not in (None, [])]
    if given:
        raise InputError(f"{given[0]} is for a new model: {model} exists, and stays as it was made")


def _ask(classifier: "mtn.MTNClassifier", asked: Sequence[str]) -> inputs.Inputs:
    if not classifier.__sklearn_is_fitted__():
        raise InputError("the model has been taught nothing yet: mtn learn MODEL DATA")
    with bar(Console(stderr=True)) as say:
        found = inputs.Inputs.join([classifier.reader().to_ask(one, say) for one in asked])
    _list_skipped(found.skipped)
    return found


def _unknown(classifier: "mtn.MTNClassifier", text: str) -> "Label":
    """Of the labels' type if it can be, so that answers have one type."""
    try:
        return classifier._typed(text)
    except InputError:
        return text


def _list_skipped(skipped: Sequence[str]) -> None:
    for line in skipped:
        typer.echo(f"left out: {line}", err=True)


def _made(source: dict[str, Any]) -> str:
    if source.get("encoder"):
        return f", made from {PLURAL[source['kind']]} by the encoder {source['encoder']['name']!r}"
    return ", from the columns of a table" if source.get("columns") else ""


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _round(values: Iterable[float | None]) -> list[str | None]:
    return [None if value is None else f"{value:.3f}" for value in values]


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, default=str))


def _print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], indent: str = "") -> None:
    lines = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    cells = [header, *([indent + line[0], *line[1:]] for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

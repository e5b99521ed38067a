"""The commands that make, teach, change and describe a model: each calls MTNClassifier, and prints what came of it."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtn.cli.arguments import (
    TEACHING,
    AsJson,
    Encoder,
    Exemplars,
    LabelColumn,
    Method,
    Milvus,
    Model,
    NewEncoder,
    NoText,
    PathColumn,
    Settings,
    Strict,
    TextColumn,
    Yes,
    load_classifier,
    provide_encoder,
)
from mtn.cli.output import list_skipped, percent, print_above_bars, print_json, print_line, print_table, progress_bar
from mtn.errors import InputError

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier


def learn(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of a model; created if it does not exist.")
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help=TEACHING)],
    method: Method = None,
    memory: Exemplars = None,
    set_: Settings = [],  # noqa: B006 (typer copies it)
    encoder: NewEncoder = None,
    text: TextColumn = None,
    path: PathColumn = None,
    label: LabelColumn = None,
    milvus: Milvus = None,
    no_keep_text: NoText = False,
    strict: Strict = False,
    yes: Yes = False,
) -> None:
    """Teach a model the classes in DATA: new ones, more samples of known ones, or both."""
    from mtn.data.table_files import Columns

    start = time.perf_counter()
    provide_encoder(encoder, yes)
    with changing(model):
        if (model / "model.json").exists():
            own = {"--method": method, "--memory": memory, "--set": set_, "--no-keep-text": no_keep_text}
            _refuse_options(model, own)
            classifier = load_classifier(model, encoder, milvus)
        else:
            if milvus is not None:
                raise InputError("--milvus is for a model that exists: --set memory.store=milvus --set memory.uri=URI")
            classifier = _new(method, memory, set_, encoder, not no_keep_text)
        with progress_bar() as progress:
            samples = classifier.reader().to_learn(data, progress, Columns(text, label, path), print_above_bars)
        list_skipped(samples.skipped)
        if strict and samples.skipped:
            raise InputError(f"--strict: {len(samples.skipped)} things in {data} cannot be used; {model} is unchanged")
        classes = len(classifier.classes_) if classifier.__sklearn_is_fitted__() else 0
        classifier.progress = True
        with warnings.catch_warnings(record=True) as notes:
            # scikit-learn takes many classes of one sample each for a regression's targets
            warnings.filterwarnings("ignore", "The number of unique classes")
            classifier.partial_fit(samples)
        classifier.progress = False
        classifier.save(model)
    for note in dict.fromkeys(str(warning.message) for warning in notes):
        print_line(f"note: {note}", err=True)
    entry, seconds = classifier.history_[-1], time.perf_counter() - start
    print_line(f"{model}: {classes} -> {entry['classes']} classes, {len(samples)} samples, {seconds:.1f} s")
    if entry["accuracy_before"] is not None:
        print_line(f"accuracy on samples of known classes before learning: {percent(entry['accuracy_before'])}")
    if entry["estimated_accuracy"] is not None:
        of_new = entry["estimated_accuracy_new"] if classes else None
        beside = "" if of_new is None else f", {percent(of_new)} on the new classes"
        print_line(f"estimated accuracy now: {percent(entry['estimated_accuracy'])}{beside}")


def new(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder to create.")],
    encoder: Annotated[
        str, typer.Option(metavar="NAME", help="Encoder of the model (mtn encoders); auto: the first lesson decides.")
    ] = "auto",
    method: Method = None,
    memory: Exemplars = None,
    set_: Settings = [],  # noqa: B006 (typer copies it)
    yes: Yes = False,
    no_keep_text: NoText = False,
) -> None:
    """Create a model that knows nothing yet."""
    from mtn.encoders.base import PLURAL

    if (model / "model.json").exists():
        raise InputError(f"{model} exists already: teach it with mtn learn, or name another folder")
    provide_encoder(encoder, yes)
    classifier = _new(method, memory, set_, encoder, not no_keep_text)
    classifier.configuration()
    takes = "the first lesson decides what it takes"
    if classifier.reader().names_encoder:
        loaded = classifier.reader().requested_encoder()
        classifier.source_ = {"encoder": loaded.identity(), "kind": loaded.kind}
        takes = f"takes {PLURAL[loaded.kind]}, {loaded.dimension} numbers each"
    with changing(model):
        classifier.save(model)
    print_line(f"{model}: {takes}; next: mtn learn {model} DATA")


def forget(
    model: Model,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The class to forget.")],
    milvus: Milvus = None,
) -> None:
    """Forget a class for good: its exemplars, its rows in the weights, its name."""
    from mtn.classifier import saving

    with changing(model, exists=True):
        classifier = load_classifier(model, milvus=milvus)
        state = classifier.state_
        if state.parse_label(label) not in state.names:  # it may be gone from the model, and not from Milvus yet
            saving.release_unsaved(state)
        classifier.forget(state.parse_label(label)).save(model)
    print_line(f"{model}: {label!r} is forgotten, {len(classifier.classes_)} classes are left")


def rename(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Its name now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    milvus: Milvus = None,
) -> None:
    """Give a class another name."""
    with changing(model, exists=True):
        classifier = load_classifier(model, milvus=milvus)
        classifier.rename(classifier.state_.parse_label(old), classifier.state_.parse_label(new)).save(model)
    print_line(f"{model}: {old!r} is now {new!r}")


def move(
    model: Model,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="FILE.db or http://HOST:19530 of Milvus; exact: the model's folder.")
    ],
    milvus: Milvus = None,
) -> None:
    """Move a model's exemplars into Milvus, from one Milvus to another, or back into the model's folder."""
    with changing(model, exists=True):
        classifier = load_classifier(model, milvus=milvus)
        classifier.move_memory(None if uri == "exact" else uri).save(model)
    location = classifier.state_.memory.location
    print_line(f"{model}: {len(classifier.memory_)} exemplars are now in {location or 'its folder'}")


def info(model: Model, as_json: AsJson = False) -> None:
    """Show what a model knows, what it keeps, and how good it is after each lesson."""
    from mtn.classifier.info import read_info

    facts = read_info(model) or _load_info(model)
    if as_json:
        print_json(facts)
        return
    memory, kept = facts["memory"], facts["kept"]
    print_line(f"method {facts['method']}, vectors of {facts['features']} numbers" + _made(facts["source"]))
    room, store = memory["total"] or f"{memory['per_class']} a class", facts["store"]
    where = f", in Milvus at {store['uri']}" if store else ""
    print_line(f"remembers {memory['exemplars']} exemplars, room for {room}{where}")
    print_line(f"keeps {kept['total']} numbers, {kept['mb']} MB; temperature {facts['temperature']:.3g}")
    if facts["weights"]:
        weights = ", ".join(f"{name} {value:.3g}" for name, value in facts["weights"].items())
        print_line(f"weights of its parts: {weights}")
    typer.echo()
    print_table(("class", "exemplars"), [(entry["label"], entry["exemplars"]) for entry in facts["classes"]])
    typer.echo()
    shares = ("accuracy_before", "estimated_accuracy", "estimated_accuracy_new")
    rows = [
        (number, call["samples"], call["new_classes"], call["classes"], *(percent(call.get(name)) for name in shares))
        for number, call in enumerate(facts["history"], 1)
    ]
    header = ("lesson", "samples", "new classes", "classes", "accuracy before", "estimated after", "of new classes")
    print_table(header, rows)


def _load_info(model: Path) -> dict[str, Any]:
    """What is told of a model by loading it: one that an early version saved."""
    classifier = load_classifier(model)
    if not classifier.__sklearn_is_fitted__():
        raise InputError(f"{model} has been taught nothing yet{_made(classifier.source_)}: mtn learn {model} DATA")
    return classifier.info()


def export(model: Model, file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="The file to write.")]) -> None:
    """Export the network as ONNX: query, neighbours, labels, mask -> scores in the order of the classes."""
    if file.suffix.lower() != ".onnx":
        raise InputError(f"FILE must end in .onnx, got {str(file)!r}")
    from mtn.export import export_onnx

    difference = export_onnx(load_classifier(model).state_, file)
    unchecked = "not checked: onnxruntime is not there"
    checked = unchecked if difference is None else f"within {difference:.0e} of torch's scores"
    print_line(f"{file}: {checked}")


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with lines `read TOKEN` and `teach TOKEN`: who may ask, who may teach.")
    ] = None,
    encoder: Encoder = None,
    milvus: Milvus = None,
    yes: Yes = False,
) -> None:
    """Serve a model over HTTP, with a page to ask, teach and forget."""
    from mtn.storage import model_folder

    model_folder.require_model(model)
    from mtn.serve import serve

    provide_encoder(encoder, yes)
    print_line(f"{model}: http://{host}:{port}/ until Ctrl-C")
    serve(model, host, port, token_file, encoder, milvus)


@contextmanager
def changing(model: Path, exists: bool = False) -> Iterator[None]:
    """Lock a model's folder, which with `exists` must hold a model; Ctrl-C becomes one line and exit code 130."""
    from mtn.storage import model_folder

    if exists:
        model_folder.require_model(model)
    try:
        with model_folder.hold_model_folder(model):
            yield
    except KeyboardInterrupt:
        print_line(f"interrupted; {model} is unchanged", err=True)
        raise typer.Exit(130) from None


def _new(
    method: str | None, memory: int | None, set_: Sequence[str], encoder: str | None, keep_text: bool
) -> "MTNClassifier":
    from mtn import MTNClassifier, recipes

    settings = dict(recipes.assignment(text) for text in set_)
    parameters = {name: settings.pop(key) for key, name in recipes.PARAMETERS.items() if key in settings}
    parameters |= {name: value for name, value in (("method", method), ("memory", memory)) if value is not None}
    return MTNClassifier(**parameters, settings=settings or None, encoder=encoder, keep_text=keep_text)


def _refuse_options(model: Path, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value not in (None, []) and value is not False]
    if given:
        raise InputError(f"{given[0]} is for a new model: {model} exists already, and keeps its own")


def _made(source: dict[str, Any]) -> str:
    """How a model's vectors were made, to go on a sentence with."""
    from mtn.encoders.base import PLURAL

    if source.get("encoder"):
        return f", made from {PLURAL[source['kind']]} by the encoder {source['encoder']['name']!r}"
    return ", from the columns of a table" if source.get("columns") else ""

"""Arguments and options that several commands take, and the model that most of them begin with."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier

TEACHING = (
    "An .npz, .csv or .parquet file, a folder of .npy files, a store written by mtn extract, "
    "a folder or zip of images with one sub-folder per class, a .json file of sentences, "
    "or the name of a data set (glyphs-200, glyphs-1k, glyphs-1k-hard)."
)
"""mtn.data.sources.LABELLED, which would load torch."""
ASKING = (
    "Each is an image, a sentence, an .npy, .npz, .csv, .parquet or .txt file, a folder of .npy files, "
    "a store written by mtn extract, or a folder of images."
)
"""mtn.data.sources.UNLABELLED, which would load torch."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a model.")]
Asked = Annotated[
    list[str] | None,
    typer.Argument(metavar="INPUT...", help=f"{ASKING} - reads sentences from standard input, one a line."),
]
NewEncoder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Encoder of a new model (mtn encoders); default: the best on this machine for DATA."
    ),
]
Encoder = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoder of the model, if it is not found automatically.")
]
Method = Annotated[str | None, typer.Option(metavar="NAME", help="Method of a new model (docs/methods/README.md).")]
Exemplars = Annotated[
    int | None, typer.Option(metavar="M", help="Exemplars that a new model may keep, over all classes.")
]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other setting of a new model (mtn recipes --keys); repeatable."
    ),
]
Milvus = Annotated[
    str | None, typer.Option(metavar="URI", help="The Milvus that stores the model's exemplars, if any.")
]
NoText = Annotated[bool, typer.Option("--no-keep-text", help="Keep no sentences in a new model, only their vectors.")]
TextColumn = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="Column of the sentences in a table; default: text.")
]
PathColumn = Annotated[
    str | None, typer.Option("--path", metavar="COLUMN", help="Column of the images' paths in a table; default: path.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Column of the labels in a table; default: label.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if any image or sentence cannot be used.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", help="Fetch the encoder's weights from the hub without asking.")]


def load_classifier(model: Path, encoder: str | None = None, milvus: str | None = None) -> "MTNClassifier":
    """The model in a folder."""
    from mtn import MTNClassifier

    return MTNClassifier.load(model, encoder, milvus)


def provide_encoder(encoder: str | None, yes: bool) -> None:
    """Before anything is read: fetch an encoder's weights if they are not here and the user allows it.

    That is by --yes, by MTN_DOWNLOAD=1, or by an answer on the terminal.
    """
    from mtn.encoders import catalogue
    from mtn.storage import repositories

    if encoder is None or not catalogue.is_missing(encoder):
        return
    yes = yes or repositories.downloads_allowed()
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise catalogue.missing_weights(encoder)
    offer = catalogue.offered(encoder)
    catalogue.check_libraries(offer)
    question = f"fetch {encoder}: {offer.size} of {offer.repository.name} from the hub?"
    if not yes and not typer.confirm(question, err=True):
        raise catalogue.missing_weights(encoder)
    repositories.fetch(offer)

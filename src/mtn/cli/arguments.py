"""Arguments and options that several commands take, and the model that most of them begin with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtn.classifier import MTNClassifier

TEACHING = (
    "An .npz, .csv or .parquet file, a folder of .npy files, a store of mtn extract, "
    "a folder or zip of images with a sub-folder a class, a .json file of sentences, "
    "or the name of a data set (glyphs-200, glyphs-1k)."
)
"""mtn.data.sources.LABELLED, which would load torch."""
ASKING = (
    "Each an image, a sentence, an .npy, .npz, .csv, .parquet or .txt file, a folder of .npy files, "
    "a store of mtn extract, or a folder of images."
)
"""mtn.data.sources.UNLABELLED, which would load torch."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder.")]
Asked = Annotated[list[str], typer.Argument(metavar="INPUT...", help=ASKING)]
Encoder = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What makes vectors of images or sentences; of an old model, where it is now."),
]
Method = Annotated[str | None, typer.Option(help="Of a new model: a name of the methods table.")]
Exemplars = Annotated[int | None, typer.Option(help="Of a new model: exemplars it may remember.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Of a new model: any key of a recipe; repeatable.")
]
Milvus = Annotated[
    str | None, typer.Option(metavar="URI", help="Of the Milvus that has the model's exemplars, if one has them.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if anything cannot be read.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def load_classifier(model: Path, encoder: str | None = None, milvus: str | None = None) -> "MTNClassifier":
    """The model in a folder."""
    from mtn import MTNClassifier

    return MTNClassifier.load(model, encoder, milvus)

"""The commands that prepare data and encoders: vectors of images or sentences, arrays on disk, weights."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mtn.cli.arguments import LabelColumn, PathColumn, Strict, TextColumn, Yes, provide_encoder
from mtn.cli.output import list_skipped, progress_bar, resumable

LISTED = 20
"""Skipped samples that are printed; manifest.json has all of them."""


def convert(
    npz: Annotated[Path, typer.Argument(help="An .npz file of x_train, y_train, x_test, y_test.")],
    folder: Annotated[Path, typer.Argument(help="The folder of .npy files to write.")],
) -> None:
    """Convert an .npz into a folder of .npy files, which are read from disk as needed instead of loaded whole."""
    from mtn.data import arrays

    arrays.unpack(npz, folder)
    typer.echo(f"{folder}/: {', '.join(sorted(file.name for file in folder.iterdir()))}")


def extract(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...", help="Folders or zips of images, a table, a .json of sentences; or LAYOUT:PATH."
        ),
    ],
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder of the images or sentences (mtn encoders).")],
    out: Annotated[Path, typer.Option(metavar="STORE", help="The folder to write; an unfinished one is resumed.")],
    text: TextColumn = None,
    path: PathColumn = None,
    label: LabelColumn = None,
    strict: Strict = False,
    yes: Yes = False,
) -> None:
    """Encode images or sentences into a store of vectors, which every command takes."""
    from mtn import encoders
    from mtn.data import extraction, sources
    from mtn.data.table_files import Columns
    from mtn.runtime import distributed

    start = time.perf_counter()
    provide_encoder(encoder, yes)
    with resumable(out), progress_bar() as progress:
        source = sources.open_source(data, columns=Columns(text, label, path))
        loaded = encoders.load_encoder(encoder)  # what it lacks is said before anything is read
        listing = source.list_items(progress)
        extracted = extraction.extract(listing, loaded, out, progress)
    distributed.barrier()
    if distributed.rank():
        return
    list_skipped([*listing.notes, *extracted.skipped[:LISTED]])
    if len(extracted.skipped) > LISTED:
        typer.echo(f"left out: {len(extracted.skipped) - LISTED} more, listed in {out / 'manifest.json'}", err=True)
    classes, skipped = len(set(listing.labels)), len(extracted.skipped)
    typer.echo(f"{out}: {extracted.rows} vectors of {classes} classes, {skipped} left out")
    done, seconds, clock = len(listing) - extracted.before, time.perf_counter() - start, extracted.clock
    if done:
        waiting = clock.waiting / max(clock.waiting + clock.working, 1e-9)
        rate = f"{seconds:.1f} s, {done / seconds:.0f} a second"
        typer.echo(f"{rate}; the encoder waited {100 * waiting:.0f} % of its time")
    if strict and extracted.skipped:
        raise typer.Exit(1)


def adapt(
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Images, as mtn extract takes them.")],
    encoder: Annotated[str, typer.Option(metavar="FOLDER", help="A vision transformer of the transformers library.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write: an encoder for mtn extract.")],
    first: Annotated[
        int | None, typer.Option(min=1, help="Classes of the first task: stream.first of the runs that follow.")
    ] = None,
    order: Annotated[int, typer.Option(help="Class order: stream.order of the runs that follow.")] = 1993,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the images.")] = 10,
) -> None:
    """Adapt a vision transformer to the classes of the first task, once."""
    from mtn.data import sources
    from mtn.experiments import adaptation

    with progress_bar() as progress:
        listing = sources.open_source(data).list_items(progress)
        done = adaptation.adapt(listing, encoder, out, first, order, epochs, progress)
    list_skipped(listing.notes)
    typer.echo(
        f"{out}: {done.parameters} parameters trained on {done.images} images of {len(done.classes)} classes, "
        f"{done.accuracy:.1f} % of them right in the last epoch"
    )


def convert_simclr(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A TensorFlow checkpoint, its variables as .npz, or a PyTorch port."),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="TARGET", help="The .safetensors file to write; default: in the cache folder."),
    ] = None,
) -> None:
    """Convert a published SimCLR checkpoint into weights of the encoder simclr-r50."""
    from mtn.encoders import catalogue, simclr

    if target is None:
        target = catalogue.default_simclr_path()
        target.parent.mkdir(parents=True, exist_ok=True)
    simclr.convert_weights(source, target)
    typer.echo(f"{target}: the encoder simclr-r50 of {source}")

"""The commands about encoders: which there are, and fetching one from the hub."""

import time
from typing import Annotated, Any

import typer

from mtn.cli.output import print_json, print_line, print_table
from mtn.errors import InputError

MEASURED = 64
"""Items that `mtn encoders --measure` encodes, after a few that warm up."""
COLUMNS = ("name", "takes", "width", "MB", "licence", "state")


def list_encoders(
    context: typer.Context,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure how many items per second each encodes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """List the named encoders: what they take, their size and licence, and whether they are on this machine."""
    if context.invoked_subcommand is not None:
        return
    from mtn.encoders import catalogue

    rows = [catalogue.describe(name) for name in catalogue.CATALOGUE]
    if measure:
        for row in rows:
            row["rate"] = _rate(row["name"]) if row["state"] in ("installed", "cached") else None
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [(row["name"], row["takes"], str(row["width"]), f"{row['megabytes']:g}", *_last(row)) for row in rows]
    print_table((*COLUMNS, "a second") if measure else COLUMNS, cells)


def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of the list, or OWNER/NAME or OWNER/NAME@REVISION.")
    ],
) -> None:
    """Fetch an encoder's weights from the hub into its cache on this machine."""
    from mtn.encoders import catalogue
    from mtn.storage import repositories

    offer = catalogue.offered(name)
    print_line(f"{name}: {offer.size} of {offer.repository.name} at {offer.commit}", err=True)
    print_line(f"{repositories.fetch(offer)}")


def _last(row: dict[str, Any]) -> tuple[str | None, ...]:
    rate = (None if row["rate"] is None else f"{row['rate']:.0f}",) if "rate" in row else ()
    return (row["licence"], row["state"], *rate)


def _rate(name: str) -> float | None:
    """Items that an encoder prepares and encodes in a second, in its batches; None where it cannot be loaded."""
    import numpy as np
    from PIL import Image

    from mtn.encoders import load_encoder

    try:
        encoder = load_encoder(name)
    except InputError as error:
        print_line(f"{error}", err=True)
        return None
    noise = np.random.default_rng(0).integers(0, 256, (MEASURED, 240, 320, 3), np.uint8)
    sentences = [f"sentence number {row} is about as long as a question" for row in range(MEASURED)]
    items: list[Any] = sentences if encoder.kind == "text" else [Image.fromarray(pixels) for pixels in noise]
    encoder.encode([encoder.prepare(item) for item in items[:4]])
    start = time.perf_counter()
    for first in range(0, MEASURED, encoder.batch):
        encoder.encode([encoder.prepare(item) for item in items[first : first + encoder.batch]])
    return MEASURED / (time.perf_counter() - start)

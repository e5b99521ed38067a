"""The commands. Each reads its arguments, calls the engine and prints; nothing is decided here."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from mtn import commands, config, datasets, grid, ranks, report
from mtn import compare as comparison
from mtn import reproduce as reproduction
from mtn import run as running
from mtn.errors import InputError, closest
from mtn.methods import METHODS
from mtn.progress import bar
from mtn.version import __version__

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=sys.modules["mtn"].__doc__
)
console = Console()
errors = Console(stderr=True, soft_wrap=True, highlight=False)

Recipe = Annotated[str, typer.Argument(help="A shipped name (see `mtn recipes`) or a .toml file.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Result folder; an unfinished one is resumed.")]


@app.command()
def run(recipe: Recipe, set_: Set = [], out: Out = None) -> None:  # noqa: B006 (typer copies it)
    """Run one method through a stream of tasks."""
    chosen = config.recipe(recipe, set_)
    folder = out or Path("runs") / f"{_stem(recipe)}-{_stem(chosen.method.name)}-seed{chosen.seed}-{chosen.digest()}"
    with resumable(folder), bar(console) as say:
        result = running.run(chosen, folder, say)
    ranks.stop()
    if ranks.rank():
        return
    report.write([result], folder, "result")
    console.print(report.rich_tasks(result), report.rich_table([result]))
    console.print(f"{folder}/: result.json, result.md, curve.png, curve.svg", highlight=False)


@app.command()
def compare(
    recipe: Recipe,
    methods: Annotated[str, typer.Option(help="Names, separated by commas, or all.")] = "mtn,ssil,knn",
    seeds: Annotated[str, typer.Option(help="Numbers, separated by commas.")] = "0",
    orders: Annotated[
        str | None, typer.Option(help="Class orders as in stream.order, separated by commas; unset: the recipe's.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at once; as many as there are cores if unset.")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Out = None,
) -> None:
    """Run several methods with several seeds and class orders and put them side by side."""
    chosen = config.recipe(recipe, set_)
    names = list(METHODS) if methods == "all" else _list(methods, "--methods")
    numbers = [_seed(seed) for seed in _list(seeds, "--seeds")]
    sequences = None if orders is None else [_order(order) for order in _list(orders, "--orders")]
    first = {"order": sequences[0]} if sequences else {}
    digest = chosen.replace(seed=0, method={"name": "any"}, stream=first).digest()
    folder = out or Path("runs") / f"{_stem(recipe)}-compare-{digest}"
    with resumable(folder), bar(console) as say:
        results = comparison.compare(chosen, names, numbers, folder, say, _print_line, jobs, sequences)
    report.write(results, folder, "results")
    console.print(report.rich_table(results))
    console.print(f"{folder}/: results.json, results.md, curve.png, curve.svg", highlight=False)


@app.command()
def reproduce(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{', '.join(grid.TARGETS)}, or all.")],
    data: Annotated[str, typer.Option(metavar="DATA", help="As stream.data, or with --encoder as `mtn extract`.")],
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Makes vectors of images or sentences first.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Numbers, separated by commas.")] = "0,1,2",
    fast: Annotated[bool, typer.Option("--fast", help="Small sizes: to see it work, not to reproduce.")] = False,
    limit: Annotated[
        float, typer.Option(metavar="MINUTES", min=0, help="A run expected to take longer is left out.")
    ] = reproduction.LIMIT / 60,
    also: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Run this one all the same: neighbours/large/10; * fits any; repeatable."),
    ] = [],  # noqa: B006
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at once; as many as there are cores if unset.")
    ] = None,
    out: Out = None,
) -> None:
    """Make the paper's tables and figures on other data: a folder of them, and a page."""
    if target != "all" and target not in grid.TARGETS:
        raise InputError(f"TARGET: no {target!r}: {closest(target, [*grid.TARGETS, 'all'])}")
    numbers = [_seed(seed) for seed in _list(seeds, "--seeds")][: 1 if fast else None]
    folder = out or Path("runs") / f"{_stem(Path(data).stem)}-reproduce{'-fast' if fast else ''}"
    named = {"--data": data, "--encoder": encoder, "--seeds": ",".join(map(str, numbers)), "--out": str(folder)}
    if limit != reproduction.LIMIT / 60:
        named["--limit"] = f"{limit:g}"
    given = [*named.items(), *(("--also", one) for one in also)]
    words = [word for option, value in given if value for word in (option, value)] + ["--fast"] * fast
    with resumable(folder), bar(console) as say:
        source = reproduction.encoded(data, encoder, folder, say)
        setting = grid.setting(source.vectors, numbers, fast, source.images, say)
        command = lambda name: shlex.join(["mtn", "reproduce", name, *words])  # noqa: E731
        called = f"{Path(data).name} ({encoder})" if encoder else None
        report_on = reproduction.Report(folder, command, source.looks, called)
        targets = list(grid.TARGETS) if target == "all" else [target]
        options: dict[str, Any] = {"limit": 60 * limit, "also": also, "jobs": jobs}
        page = reproduction.reproduce(setting, targets, report_on, say=say, tell=_print, **options)
    console.print(str(page), highlight=False)


@app.command()
def recipes() -> None:
    """List the recipes that come with the package, and the keys they are made of."""
    for name in config.recipe_names():
        console.print(f"[bold]{name}[/]  {config.recipe_header(name).splitlines()[0]}", highlight=False, soft_wrap=True)
    console.print("\nkeys: " + ", ".join(config.keys()), highlight=False)


@app.command()
def convert(
    npz: Annotated[Path, typer.Argument(help="An .npz file of x_train, y_train, x_test, y_test.")],
    folder: Annotated[Path, typer.Argument(help="The folder of .npy files to make.")],
) -> None:
    """Turn an .npz into a folder of .npy files, which is read from disk as needed instead of loaded whole."""
    datasets.arrays.unpack(npz, folder)
    console.print(f"{folder}/: {', '.join(sorted(file.name for file in folder.iterdir()))}", highlight=False)


SHARED = {"run": timedelta(minutes=30), "extract": timedelta(days=1)}
"""Commands that several processes may share, and how long one waits for another: encoding, they may be hours apart."""

for name, command in commands.COMMANDS.items():
    app.command(name)(command)
app.add_typer(commands.MEMORY, name="memory")


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"mtn {__version__}")
        raise typer.Exit
    command = context.invoked_subcommand
    if ranks.asked() > 1 and command is not None:
        if command not in SHARED:
            raise InputError(f"mtn {command} needs one process; torchrun is for mtn {' and mtn '.join(SHARED)}")
        ranks.start(SHARED[command])


def main() -> None:
    """The entry point: threads are set here and nowhere else; bad input is one line and exit code 2."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        app()
    except SystemExit as done:
        ranks.end(done.code if isinstance(done.code, int) else 0)
        raise
    except InputError as error:
        errors.print(f"error: {error}", markup=False)
        sys.exit(2)
    except RuntimeError as error:
        if ranks.is_lost(error):
            ranks.leave()
        raise


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        errors.print(f"interrupted; the same command goes on from what is in {folder}", markup=False)
        raise typer.Exit(130) from None


def _print_line(result: dict[str, Any]) -> None:
    seconds = sum(result["seconds"].values())
    average, name = result["average_incremental_accuracy"], result["method"]
    which = f"seed {result['seed']}, class order {result['config']['stream']['order']}"
    console.print(f"{name} {which}: average incremental accuracy {average:.1f} % ({seconds:.0f} s)", highlight=False)


def _print(line: str) -> None:
    console.print(line, highlight=False, markup=False)


def _stem(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.removesuffix(".toml").strip("./"))


def _list(text: str, option: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(f"{option} needs at least one value")
    if len(set(items)) < len(items):
        raise InputError(f"{option} names a value twice: {text}")
    return items


def _order(text: str) -> int | str:
    """A number, or else a file, as in stream.order."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"--seeds takes whole numbers from 0 on, got {text!r}")
    return int(text)

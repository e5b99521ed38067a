"""The commands that measure methods on a stream of tasks: run, compare, reproduce, recipes."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import mtn
from mtn.cli.output import resumable
from mtn.errors import InputError, closest
from mtn.experiments.paper.targets import TARGETS, TIME_LIMIT

LIMIT = TIME_LIMIT / 60
"""Minutes that a run of `mtn reproduce` may be expected to take."""

Recipe = Annotated[str, typer.Argument(help="A recipe of the package (mtn recipes) or a .toml file.")]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results; an unfinished one is resumed.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes at a time; default: one per core.")]


def run(recipe: Recipe, set_: Set = [], out: Out = None) -> None:  # noqa: B006 (typer copies it)
    """Run one method through a stream of tasks."""
    from rich.console import Console

    from mtn.experiments import report
    from mtn.runtime import distributed
    from mtn.runtime.progress import bar

    console, config = Console(), mtn.recipe(recipe, set_)
    folder = out or Path("runs") / f"{_stem(recipe)}-{_stem(config.method.name)}-seed{config.seed}-{config.digest()}"
    with resumable(folder), bar(console) as progress:
        result = mtn.run(config, folder, progress)
    distributed.barrier()
    if distributed.rank():
        return
    report.write([result], folder, "result")
    console.print(report.rich_tasks(result), report.rich_table([result]))
    typer.echo(f"{folder}/: result.json, result.md, curve.png, curve.svg")


def compare(
    recipe: Recipe,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas, or all.")] = "mtn,ssil,knn",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    orders: Annotated[
        str | None, typer.Option(help="Class orders as in stream.order, separated by commas; default: the recipe's.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(help="Kinds of streams, separated by commas, or all: the rank of each method on each.")
    ] = None,
    jobs: Jobs = None,
    set_: Set = [],  # noqa: B006
    out: Out = None,
) -> None:
    """Compare methods over seeds and class orders: a table and a figure."""
    from rich.console import Console

    from mtn.experiments import report, stream_ranks
    from mtn.methods import METHODS
    from mtn.protocols import STREAMS
    from mtn.recipes import comparison, comparison_on, with_changes
    from mtn.runtime.progress import bar

    console = Console()
    names = list(METHODS) if methods == "all" else _list(methods, "--methods")
    numbers = [_seed(text) for text in _list(seeds, "--seeds")]
    class_orders = None if orders is None else [_order(text) for text in _list(orders, "--orders")]
    kinds = [] if streams is None else list(STREAMS) if streams == "all" else _list(streams, "--streams")
    by_kind = {kind: comparison_on(kind, recipe, names, set_) for kind in kinds}
    plain = [] if kinds else comparison(recipe, names, set_)
    config = mtn.recipe(recipe, set_) if plain else by_kind[kinds[0]][0]
    first = {"order": class_orders[0]} if class_orders else {}
    digest = with_changes(config, seed=0, stream=first).with_method_name("any").digest()
    folder = out or Path("runs") / f"{_stem(recipe)}-{'streams' if kinds else 'compare'}-{digest}"

    def print_result(result: dict[str, Any]) -> None:
        stream = result["config"]["stream"]
        cell = f"{result['method']} seed {result['seed']}, class order {stream['order']}"
        cell += f", {stream['kind']}" if "kind" in stream else ""
        average, seconds = result["average_incremental_accuracy"], sum(result["seconds"].values())
        console.print(f"{cell}: average incremental accuracy {average:.1f} % ({seconds:.0f} s)", highlight=False)

    def run_all(configs: list[mtn.Config], out: Path) -> list[dict[str, Any]]:
        results = mtn.compare(configs, numbers, out, progress, print_result, jobs, class_orders)
        report.write(results, out, "results")
        return results

    with resumable(folder), bar(console) as progress:
        results = run_all(plain, folder) if plain else []
        ranked = {kind: run_all(configs, folder / kind) for kind, configs in by_kind.items()}
    if ranked:
        console.print(stream_ranks.write(ranked, folder), markup=False, highlight=False)
        typer.echo(f"{folder}/: streams.md, streams.png, streams.svg, and a folder for each kind of stream")
        return
    console.print(report.rich_table(results))
    typer.echo(f"{folder}/: results.json, results.md, curve.png, curve.svg")


def reproduce(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{', '.join(TARGETS)}, or all.")],
    data: Annotated[
        str, typer.Option(metavar="DATA", help="As stream.data takes it; with --encoder, as mtn extract does.")
    ],
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Encode images or sentences with this encoder first.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    fast: Annotated[bool, typer.Option("--fast", help="Small sizes: to see that it works, not to reproduce.")] = False,
    limit: Annotated[
        float, typer.Option(metavar="MINUTES", min=0, help="Leave out runs that are expected to take longer.")
    ] = LIMIT,
    also: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Run this one all the same, as neighbours/large/10; * matches any; repeatable."
        ),
    ] = [],  # noqa: B006
    jobs: Jobs = None,
    out: Out = None,
) -> None:
    """Make the paper's tables and figures on your data: a folder of them, and a page."""
    from rich.console import Console

    from mtn.experiments.paper import grid
    from mtn.experiments.paper import reproduce as reproduction
    from mtn.runtime.progress import bar

    if target != "all" and target not in TARGETS:
        raise InputError(f"TARGET: no {target!r}: {closest(target, [*TARGETS, 'all'])}")
    numbers = [_seed(text) for text in _list(seeds, "--seeds")][: 1 if fast else None]
    folder = out or Path("runs") / f"{_stem(Path(data).stem)}-reproduce{'-fast' if fast else ''}"
    options = {"--data": data, "--encoder": encoder, "--seeds": ",".join(map(str, numbers)), "--out": str(folder)}
    if limit != LIMIT:
        options["--limit"] = f"{limit:g}"
    given = [*options.items(), *(("--also", name) for name in also)]
    words = [word for option, value in given if value for word in (option, value)] + ["--fast"] * fast
    console = Console()
    with resumable(folder), bar(console) as progress:
        source = reproduction.prepare_data(data, encoder, folder, progress)
        setup = grid.grid_setup(source.vectors, numbers, fast, source.images, progress)
        command: Callable[[str], str] = lambda name: shlex.join(["mtn", "reproduce", name, *words])  # noqa: E731
        title = f"{Path(data).name} ({encoder})" if encoder else None
        page = reproduction.reproduce(
            setup,
            list(TARGETS) if target == "all" else [target],
            reproduction.ReportOptions(folder, command, source.preview, title),
            progress=progress,
            on_line=lambda line: console.print(line, highlight=False, markup=False),
            limit=60 * limit,
            also=also,
            jobs=jobs,
        )
    typer.echo(str(page))


def recipes(
    keys: Annotated[
        bool, typer.Option("--keys", help="List every key of a recipe, too, with the methods' own.")
    ] = False,
) -> None:
    """List the recipes that come with the package."""
    from mtn.storage.shipped import recipe_header, recipe_names

    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        typer.echo(f"{name.ljust(width)}  {recipe_header(name).splitlines()[0]}")
    if keys:
        from mtn import recipes

        typer.echo(f"\nkeys: {', '.join(recipes.keys())}")
        for option, methods in recipes.option_owners().items():
            typer.echo(f"method.{option}: an option of {', '.join(methods)}")


def _stem(name: str) -> str:
    """A recipe's or method's name as part of a folder's name."""
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

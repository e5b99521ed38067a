"""The commands that measure methods on a stream of tasks: run, compare, tune, reproduce, leaderboard, recipes."""

import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import mtn
from mtn.cli.output import print_line, resumable
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
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; all: every method that the data allow.")
    ] = "mtn,ssil,knn",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    orders: Annotated[
        str | None, typer.Option(help="Class orders as in stream.order, separated by commas; default: the recipe's.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(help="Kinds of streams, separated by commas, or all; ranks the methods on each.")
    ] = None,
    jobs: Jobs = None,
    set_: Set = [],  # noqa: B006
    out: Out = None,
) -> None:
    """Compare methods over seeds and class orders: a table and a figure."""
    from rich.console import Console

    from mtn.experiments import report, stream_ranks
    from mtn.methods import METHODS, runnable
    from mtn.protocols import STREAMS
    from mtn.recipes import comparison, comparison_on, with_changes
    from mtn.runtime.progress import bar

    console = Console()
    names = _list(methods, "--methods", METHODS)
    numbers = [_seed(text) for text in _list(seeds, "--seeds")]
    class_orders = None if orders is None else [_order(text) for text in _list(orders, "--orders")]
    kinds = [] if streams is None else _list(streams, "--streams", STREAMS)
    by_kind = {kind: comparison_on(kind, recipe, names, set_) for kind in kinds}
    plain = [] if kinds else comparison(recipe, names, set_)
    if methods == "all":
        by_kind, plain = {kind: runnable(configs) for kind, configs in by_kind.items()}, runnable(plain)
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
        ranked, failed = {}, []
        for kind, configs in by_kind.items():  # a method that cannot run on one stream does not stop the others
            try:
                ranked[kind] = run_all(configs, folder / kind)
            except InputError as error:
                failed.append(f"{kind}: {error}")
    if failed:
        raise InputError("; ".join(failed))
    if ranked:
        console.print(stream_ranks.write(ranked, folder), markup=False, highlight=False)
        typer.echo(f"{folder}/: streams.md, streams.png, streams.svg, and a folder for each kind of stream")
        return
    console.print(report.rich_table(results))
    typer.echo(f"{folder}/: results.json, results.md, curve.png, curve.svg")


def reproduce(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"{', '.join(TARGETS)}, or all.")],
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Data, as for stream.data; with --encoder, as for mtn extract.")
    ],
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="Encode images or sentences with this encoder first.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    fast: Annotated[bool, typer.Option("--fast", help="Small sizes: to see that it works, not to reproduce.")] = False,
    precision: Annotated[
        str, typer.Option(help="Precision of training; bfloat16 is faster on processors that have it.")
    ] = "float32",
    limit: Annotated[
        float, typer.Option(metavar="MINUTES", min=0, help="Leave out runs that are expected to take longer.")
    ] = LIMIT,
    also: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Run this one anyway, such as neighbours/large/10; * matches any; repeatable."
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
    if precision != "float32":
        options["--precision"] = precision
    if limit != LIMIT:
        options["--limit"] = f"{limit:g}"
    given = [*options.items(), *(("--also", name) for name in also)]
    words = [word for option, value in given if value for word in (option, value)] + ["--fast"] * fast
    console = Console()
    with resumable(folder), bar(console) as progress:
        source = reproduction.prepare_data(data, encoder, folder, progress)
        setup = grid.grid_setup(source.vectors, numbers, fast, source.images, progress, precision)
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


def tune(
    recipe: Recipe,
    method: Annotated[str, typer.Option(metavar="NAME", help="The method to tune.")],
    set_: Set = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The recipe with what was found; may be RECIPE itself.")
    ] = None,
) -> None:
    """Tune a method on the classes of the first task, and write the best values into a recipe."""
    from rich.console import Console

    from mtn.experiments import tuning
    from mtn.recipes import comparison
    from mtn.runtime.progress import bar

    path = out or Path(f"{_stem(recipe)}-tuned.toml")
    if path.suffix != ".toml" or (path.exists() and str(path) != recipe):
        raise InputError(f"--out must be a new .toml file, or RECIPE itself to add to it, got {path}")
    (config,) = comparison(recipe, [method], set_)
    if config.tuned:
        raise InputError(f"RECIPE: {recipe} has a section [tuned.{method}] already: take it out to search again")
    console = Console()

    def print_trial(trial: tuning.Trial) -> None:
        console.print(f"{trial.accuracy:.1f} %  {_settings(trial.values)}", highlight=False, markup=False)

    with bar(console) as progress:
        best = tuning.tune(config, progress, print_trial)[0]
    tuning.write_recipe(recipe, method, best.values, path)
    typer.echo(f"{path}: [tuned.{method}] {_settings(best.values)}")


def leaderboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders with finished runs in or below them.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("leaderboard.html"),
) -> None:
    """Make a page of all methods, streams and data from finished runs."""
    from mtn.experiments import leaderboard as page

    if out.suffix != ".html":
        raise InputError(f"--out must end in .html, got {out}")
    findings = page.find_runs(runs)
    page.write(findings, out)
    for reason in findings.left_out:
        print_line(f"left out: {reason}", err=True)
    typer.echo(f"{out}: {len(findings.runs)} runs")


def recipes(
    keys: Annotated[
        bool, typer.Option("--keys", help="Also list every recipe key, including those of each method.")
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


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _stem(name: str) -> str:
    """A recipe's or method's name as part of a folder's name."""
    return re.sub(r"[^\w.-]+", "-", name.removesuffix(".toml").strip("./"))


def _list(text: str, option: str, every: Iterable[str] = ()) -> list[str]:
    """The values between commas; the word all stands for `every` one, where there is such a list."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(f"{option} needs at least one value")
    if every and "all" in items:
        if len(items) > 1:
            raise InputError(f"{option}: all stands alone, got {text}")
        return list(every)
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

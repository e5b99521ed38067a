"""Finished run folders -> one page of all methods, streams and data. A number without its run folder is not on it.

Run folders may be a stranger's: what they say is measured, checked and escaped, and nothing that they name is imported.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtn.config import Config, Stream
from mtn.errors import InputError
from mtn.experiments.provenance import compare_command
from mtn.experiments.report import MeanStd, describe_protocol, mean_std
from mtn.experiments.stream_ranks import metric_of
from mtn.experiments.templates import TEMPLATES
from mtn.methods import METHODS
from mtn.recipes import parse
from mtn.storage import files
from mtn.stream import order_name
from mtn.version import __version__

MOST_FOLDERS = 100_000
"""Folders that are looked into."""
MOST_RUNS = 20_000
"""Finished runs of a page."""
LARGEST_RESULT = 32 * 2**20
"""Bytes of a result.json."""
LONGEST = 200
"""Characters of a text that comes from a run folder."""

Percent = Annotated[float, Field(ge=0, le=100)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
Text = Annotated[str, Field(max_length=LONGEST)]


class Kept(BaseModel):
    """Of a result: what the method keeps between tasks."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True)

    total: Amount


class Result(BaseModel):
    """What the page takes from a result.json, checked."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True)

    method: Text
    seed: int
    classes_per_task: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    average_incremental_accuracy: Percent
    average_balanced_accuracy: Percent | None = None
    harmonic_accuracy: Percent | None = None
    last_accuracy: Percent
    forgetting: Annotated[float, Field(ge=-100, le=100)] | None
    processor_seconds: Amount | None = None  # runs of earlier versions have none
    kept: Kept
    config: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: str  # below the folder that was given
    config: Config  # of a method of one's own, without its options
    values: dict[str, Any]  # dotted keys of [method] and [train], as far as the method has them
    result: Result


@dataclass(frozen=True)
class Findings:
    """The finished runs below some folders, and why others are left out."""

    runs: list[Run]
    left_out: list[str]


def find_runs(roots: Sequence[Path]) -> Findings:
    """Every finished run in or below the folders."""
    runs: dict[str, Run] = {}
    left_out: list[str] = []
    for root in roots:
        if not root.is_dir():
            raise InputError(f"RUNS: {root} is not a folder")
        for folder in _folders_with_results(root):
            if len(runs) == MOST_RUNS:
                raise InputError(f"RUNS: more than {MOST_RUNS:,} finished runs: give fewer folders")
            name = str(Path(root.resolve().name, folder.relative_to(root)))[-LONGEST:]
            try:
                run = _read_run(folder, name)
            except InputError as error:
                left_out.append(str(error))
                continue
            key = json.dumps([_without_folders(run.config).model_dump(), run.values], sort_keys=True)
            same = runs.setdefault(key, run)
            if same is not run:
                left_out.append(f"{folder} is the same run as {same.folder}")
    if not runs:
        reason = f" ({left_out[0]})" if left_out else ""
        raise InputError(f"RUNS: no finished run of mtn in {', '.join(map(str, roots))}{reason}")
    return Findings(list(runs.values()), left_out)


def write(findings: Findings, path: Path) -> None:
    """Write the page."""
    template = TEMPLATES.get_template("leaderboard.html")
    files.make_folder(path.parent)
    text = template.render(boards=boards(findings.runs), runs=len(findings.runs), version=__version__)
    files.write_text(path, text)


def boards(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A board each data set, stream and memory; a row each method, or each configuration of it, over its runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_board_key(run), []).append(run)
    found = [_board(group) for group in groups.values()]
    names = [(board["data"], board["stream"]) for board in found]
    for board, name in zip(found, names, strict=True):
        if names.count(name) > 1:
            board["stream"] += f", {board['about']}"
    return sorted(found, key=lambda board: (board["data"], not board["stream"].startswith("blocks"), board["stream"]))


def _folders_with_results(root: Path) -> Iterator[Path]:
    """Links are not followed."""
    for count, (folder, inner, names) in enumerate(os.walk(root)):
        if count >= MOST_FOLDERS:
            raise InputError(f"RUNS: {root} has more than {MOST_FOLDERS:,} folders")
        inner.sort()
        if "result.json" in names:
            yield Path(folder)


def _read_run(folder: Path, name: str) -> Run:
    """What a folder says, if its result is that of its configuration."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has a result.json and no config.json: it is not the folder of a run")
    for file in ("config.json", "result.json"):
        files.require_regular(folder / file, LARGEST_RESULT)
    values, written = files.read_json(folder / "config.json"), files.read_json(folder / "result.json")
    if not isinstance(written, dict) or written.get("config") != values:
        raise InputError(f"{folder / 'result.json'} is damaged: it is not the result of the run in {folder}")
    try:
        result = Result.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))[:LONGEST]
        raise InputError(f"{folder / 'result.json'} is damaged: {key}: {first['msg'][:LONGEST]}") from None
    config, own = _read_config(folder, values, result)
    if getattr(result, metric_of(config.stream.kind)) is None:
        raise InputError(f"{folder / 'result.json'} is damaged: {metric_of(config.stream.kind)} is missing")
    return Run(name, config, own, result)


def _read_config(folder: Path, values: dict[str, Any], result: Result) -> tuple[Config, dict[str, Any]]:
    """The configuration and its values; of a method of one's own it is checked without importing that."""
    section = values.get("method")
    if not isinstance(section, dict) or section.get("name") != result.method or values.get("seed") != result.seed:
        raise InputError(f"{folder / 'config.json'} is damaged: it is of another method or seed than result.json")
    if result.method in METHODS:
        config = parse(values, str(folder), import_methods=False)
        section = config.method.model_dump(include=set(METHODS[result.method].Options.model_fields))
    else:
        config = parse(values | {"method": {}}, str(folder), import_methods=False).with_method_name(result.method)
    sections = {"method": section, "train": config.train.model_dump()}
    return config, {f"{name}.{key}": value for name, part in sections.items() for key, value in part.items()}


def _data_name(stream: Stream) -> str:
    return " + ".join(Path(path).stem for path in stream.paths)[:LONGEST]


def _board_key(run: Run) -> str:
    """Runs of the same key can be compared: the data's name, the stream, the budget and the images."""
    stream, config = run.config.stream.model_dump(exclude={"data", "order"}), run.config.model_dump()
    parts = [_data_name(run.config.stream), stream, config["memory"], config["images"], run.result.classes_per_task]
    return json.dumps(parts, sort_keys=True)


def _board(runs: Sequence[Run]) -> dict[str, Any]:
    first = runs[0]
    stream = first.config.stream
    options = {key: getattr(stream, key) for key in type(stream).model_fields if key not in Stream.model_fields}
    rows: dict[str, list[Run]] = {}
    for run in runs:
        rows.setdefault(json.dumps([run.config.tuned, run.values], sort_keys=True), []).append(run)
    metric = metric_of(stream.kind)
    return {
        "data": _data_name(stream),
        "stream": stream.kind + "".join(f", {key} {value}" for key, value in options.items()),
        "about": describe_protocol(first.result.classes_per_task, first.config.model_dump()),
        "metric": metric.replace("_", " "),
        "rows": sorted(
            (_row(same, metric, list(rows.values())) for same in rows.values()), key=lambda row: -row["accuracy"][0]
        ),
    }


def _row(runs: Sequence[Run], metric: str, others: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """The numbers of one configuration over its seeds and class orders."""
    first, results = runs[0], [run.result for run in runs]
    method = first.result.method
    seeds = sorted({run.config.seed for run in runs})
    orders = list(dict.fromkeys(run.config.stream.order for run in runs))
    known = [result.processor_seconds for result in results]
    return {
        "method": method,
        "values": _own_values(first, [other[0] for other in others if other[0].result.method == method]),
        "tuned": first.config.tuned,
        "bound": method in METHODS and METHODS[method].needs.memory == "everything",
        "accuracy": _spread(mean_std([getattr(result, metric) for result in results], with_std=True)),
        "last": _spread(mean_std([result.last_accuracy for result in results], with_std=True)),
        "forgetting": _spread(mean_std([result.forgetting for result in results], with_std=True)),
        "floats": max(result.kept.total for result in results),
        "seconds": None if None in known else _spread(mean_std(known, with_std=True)),
        "seeds": seeds,
        "orders": [order_name(order) for order in orders],
        "runs": [run.folder for run in runs],
        "command": compare_command(_without_folders(first.config), seeds, orders),
    }


def _without_folders(config: Config) -> Config:
    """The same with the name of the data alone: where it lies is nobody's business who reads the page."""
    names = [Path(path).name for path in config.stream.paths]
    stream = config.stream.model_copy(update={"data": names[0] if isinstance(config.stream.data, str) else names})
    return config.model_copy(update={"stream": stream})


def _own_values(run: Run, same: Sequence[Run]) -> str:
    """What tells this configuration from others of the same method; empty if there is one alone."""
    own = run.values
    differing = [key for key in own if any(other.values.get(key) != own[key] for other in same)]
    return ", ".join(f"{key} = {own[key]}" for key in differing)[:LONGEST]


def _spread(value: MeanStd) -> tuple[float | None, float | None, str]:
    """Mean, deviation, and both as tables print them: the page rounds nothing itself."""
    return value.mean, value.std, value.text()

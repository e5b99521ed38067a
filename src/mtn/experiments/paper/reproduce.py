"""Run the grid of the paper's tables and figures on any data, and report them: `mtn reproduce`."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import torch

from mtn import encoders
from mtn.data import glyphs
from mtn.data.extraction import extract
from mtn.data.sources import open_source
from mtn.errors import InputError, closest
from mtn.experiments.compare import default_jobs
from mtn.experiments.paper import page, qualitative
from mtn.experiments.paper.grid import ALIASES, GridPoint, GridSetup, grid_points
from mtn.experiments.paper.runner import GridRunner
from mtn.experiments.paper.targets import TIME_LIMIT
from mtn.runtime.progress import Progress, silent
from mtn.storage import files

MARK = "reproduce.json"
"""The file that makes a folder a report."""


@dataclass(frozen=True)
class ReportOptions:
    """Where a report goes and what it shows."""

    out: Path
    command: Callable[[str], str]  # target -> the command that makes it
    preview: qualitative.PreviewById | None = None  # of the samples; unset: images that are beside the vectors
    data: str | None = None  # the name of the data on the page; unset: that of the vectors


def reproduce(
    setup: GridSetup,
    targets: Sequence[str],
    report: ReportOptions,
    *,
    limit: float = TIME_LIMIT,
    also: Sequence[str] = (),
    jobs: int | None = None,
    progress: Progress = silent,
    on_line: Callable[[str], None] = lambda line: None,
) -> Path:
    """Do the runs that the targets need and that are not finished, report each target once it can be; return the page.

    A run expected to take more than `limit` seconds is left out, unless a pattern of `also` matches its name, as
    neighbours/large/10 or, with a seed, neighbours/large/10/0. `on_line` is called with a line about each run.
    """
    points = {target: grid_points(target, setup) for target in targets}
    runs = [
        (f"{target}/{point.series}/{point.value}/{config.seed}", config)
        for target in targets
        for point in points[target]
        for config in point.runs
    ]
    asked = _matching([name for name, _ in runs], also)
    _claim_folder(report.out, setup)
    jobs = jobs or default_jobs(setup.config)
    runner = GridRunner(report.out, setup, max(1, torch.get_num_threads() // jobs), progress)
    for name, config in runs:
        runner.add(config, math.inf if name in asked else limit)
    _report_finished(points, runner, report)
    for line in runner.run(jobs):
        on_line(line)
        _report_finished(points, runner, report)
    return page.write_page(report.out, setup, {}, report.data)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """The names that a pattern matches; one without a seed matches all seeds."""
    matching: set[str] = set()
    for pattern in patterns:
        own = {name for name in names if fnmatch(name, pattern) or fnmatch(name.rpartition("/")[0], pattern)}
        if not own:
            without_seed = {name.rpartition("/")[0] for name in names}
            raise InputError(f"--also: no run is called {pattern!r}: {closest(pattern, without_seed)}")
        matching |= own
    return matching


def _claim_folder(out: Path, setup: GridSetup) -> None:
    """Make the folder of a report, or refuse one of something else: a page is about one data set."""
    identity = {"data": setup.config.stream.data, "fast": setup.fast}
    if setup.config.train.precision != "float32":
        identity["precision"] = setup.config.train.precision
    if (out / MARK).exists():
        begun = files.read_json(out / MARK)
        if begun != identity:
            raise InputError(f"{out} is a report on {begun}, not on {identity}; give another --out")
    elif not files.is_unused(out, "features"):
        raise InputError(f"{out} is not an empty folder and not a report of mtn; give another --out")
    files.make_folder(out)
    files.write_json(out / MARK, identity)


def _report_finished(waiting: dict[str, list[GridPoint]], runner: GridRunner, report: ReportOptions) -> None:
    """Write the targets whose runs are all finished or left out, and the page with them."""
    for target in list(waiting):
        if not any(runner.is_waiting(config) for point in waiting[target] for config in point.runs):
            section = _section(target, waiting.pop(target), runner, report)
            sections = {target: page.write_section(section, report.out)} if section else {}
            page.write_page(report.out, runner.setup, sections, report.data)


def _section(
    target: str, points: list[GridPoint], runner: GridRunner, report: ReportOptions
) -> page.ReportSection | None:
    """What is reported of a target; None: what the page has of it stays, as there is no model to draw it anew."""
    results = [runner.point_results(point) for point in points]
    command = report.command(target)
    if target != "qualitative" or not results[0].results:
        return page.measured_section(target, results, command)
    (config,) = points[0].runs
    folder = runner.folder(config)
    if (folder / "state.safetensors").exists():
        return page.examples_section(qualitative.find_examples(config, folder, report.preview), results, command)
    if target in page.read_sections(report.out):
        return None
    note = "this run is finished, but its model is not in this folder: another --out runs it again"
    return page.measured_section(target, [dataclasses.replace(results[0], results=[], note=note)], command)


class PreparedData(NamedTuple):
    """What a grid is run on."""

    vectors: str  # as stream.data takes them
    images: str | None = None  # what they were made of, if features can be learned from it
    preview: qualitative.PreviewById | None = None  # of the samples, where the file of vectors has none


def prepare_data(data: str, encoder: str | None, out: Path, progress: Progress = silent) -> PreparedData:
    """`data` itself, or vectors that the encoder makes of it in `out`."""
    if encoder is None:
        drawn = glyphs.find_set(ALIASES.get(data, data))
        return PreparedData(data, data if drawn is not None and drawn.keeps_images else None)
    listing, store = open_source(data, "--data").list_items(progress), out / "features"
    extract(listing, encoders.load_encoder(encoder), store, progress)
    images = data if listing.kind == "image" else None
    return PreparedData(str(store), images, qualitative.listing_previews(listing, store))

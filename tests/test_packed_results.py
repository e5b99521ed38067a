"""A report that is published without the folders of its runs: its results are packed into one file."""

import dataclasses
import json
import lzma
import shutil
from pathlib import Path

import pytest

from grids import QUICK, SIZE_METHODS, brief, make
from mtn import config
from mtn.data import glyphs
from mtn.errors import InputError
from mtn.experiments.paper import grid, packing, page
from mtn.experiments.paper import reproduce as reproduction
from mtn.experiments.paper.targets import TARGETS


def test_a_report_with_packed_results_runs_nothing_and_has_the_same_page(
    grid_report: Path, grid_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(grid_report, out)
    shutil.rmtree(out / "first-tasks")
    packed = packing.pack_results(out)
    results = {path.parent.name: json.loads(path.read_text()) for path in out.glob("cells/*/result.json")}
    assert packing.read_packed(out) == results and len(results) > 20
    assert packing.pack_results(out).read_bytes() == packed.read_bytes()  # once more, with what is packed
    before = {path.relative_to(out): path.read_bytes() for path in out.glob("*/*") if "cells" not in path.parts}
    page_before = (out / "index.html").read_bytes()
    shutil.rmtree(out / "cells")
    monkeypatch.setattr(grid, "QUICK", QUICK)
    monkeypatch.setattr(grid, "SIZE_METHODS", SIZE_METHODS)
    assert make(dataclasses.replace(brief(grid_data), steps=(2, 5)), list(TARGETS), out, limit=0.0) == []
    assert (out / "index.html").read_bytes() == page_before
    assert {path.relative_to(out): path.read_bytes() for path in out.glob("*/*")} == before
    assert packing.pack_results(out).read_bytes() and packing.read_packed(out) == results  # nothing is lost


def test_without_its_model_the_qualitative_figure_is_not_drawn_from_another(
    grid_report: Path, grid_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(grid_report, out)
    packing.pack_results(out)
    for name in ("cells", "qualitative"):
        shutil.rmtree(out / name)
    (out / "index.html").unlink()
    assert make(dataclasses.replace(brief(grid_data), steps=(2, 5)), ["qualitative"], out, limit=0.0) == []
    assert "its model is not in this folder" in (out / "qualitative/table.md").read_text()


def test_a_published_report_goes_on_as_it_is(grid_report: Path, grid_data: Path, tmp_path: Path) -> None:
    """Another target is added, and one target anew; the other sections stay."""
    out, setting = tmp_path / "out", brief(grid_data)
    make(setting, ["rank", "labels"], out)
    sections = page.read_sections(out)
    packing.pack_results(out)
    shutil.rmtree(out / "cells")
    assert len(make(setting, ["readout"], out)) == 2  # cls is the same run as rank
    assert page.read_sections(out).keys() == {"rank", "labels", "readout"}
    assert {name: page.read_sections(out)[name] for name in sections} == sections
    assert (out / "index.html").read_text().index('href="#labels"') < (out / "index.html").read_text().index("#readout")
    packing.pack_results(out)  # two runs in their folders, three packed
    assert len(packing.read_packed(out)) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no xz", "is damaged"),
        (lzma.compress(b"{}")[:-8], "is damaged"),
        (lzma.compress(b"[1]"), "must hold a result"),
        (lzma.compress(b"{" + b" " * 2000), "more than 1,000 bytes"),
    ],
)
def test_a_bad_file_of_packed_results_is_one_line(
    content: bytes, message: str, grid_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LARGEST", 1000)
    (tmp_path / reproduction.MARK).write_text(json.dumps({"data": str(grid_data), "fast": True}))
    (tmp_path / packing.PACKED).write_bytes(content)
    with pytest.raises(InputError, match=message):
        make(brief(grid_data), ["rank"], tmp_path)


def test_packed_results_of_another_configuration_are_refused(grid_data: Path, tmp_path: Path) -> None:
    setting = brief(grid_data)
    make(setting, ["rank"], tmp_path / "out")
    results = packing.read_packed(packing.pack_results(tmp_path / "out").parent)
    for result in results.values():
        result["config"]["seed"] = 7
    (tmp_path / "out" / packing.PACKED).write_bytes(lzma.compress(json.dumps(results).encode()))
    shutil.rmtree(tmp_path / "out/cells")
    with pytest.raises(InputError, match="is of another configuration"):
        make(setting, ["rank"], tmp_path / "out")


def test_there_is_nothing_to_pack_without_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to pack"):
        packing.pack_results(tmp_path)


REPORTS = sorted((Path(__file__).parents[1] / "docs/results").glob("reproduce-*"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_published_reports_can_be_resumed(report: Path) -> None:
    """Each result is under the name that its configuration has now, and the page has the sections of its folders."""
    data = json.loads((report / reproduction.MARK).read_text())["data"]
    own = glyphs.find_set(data)
    sources = {data} if own is None else {data, own.twin.name}  # images a class: easy and hard
    for name, result in packing.read_packed(report).items():
        settings = config.Config.model_validate(result["config"])
        assert name == f"{settings.method.name}-seed{settings.seed}-{settings.digest()}"
        assert settings.stream.data in sources and settings.model_dump() == result["config"]
    assert page.read_sections(report).keys() == {path.name for path in report.iterdir() if path.is_dir()}

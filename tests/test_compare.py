"""Several methods and seeds: in one process or two, with a cell that fails, with cells already done."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtn.compare import MARK, compare
from mtn.config import Config
from mtn.errors import InputError
from mtn.methods import METHODS
from test_cli import TINY, call  # noqa: F401 (a fixture)

MEASURED = ("seconds", "train_samples_per_second", "peak_memory_mb")


@pytest.fixture
def config(configure: Callable[..., Config]) -> Config:
    return configure(stream={"first": 6, "step": 3}, train={"epochs": 1}, device="cpu")


def test_two_processes_give_the_same_results_in_the_same_order_as_one(config: Config, tmp_path: Path) -> None:
    found, said = {}, []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        found[jobs] = compare(config, ["er", "ncm"], [0], out, lambda what, done, of: said.append(what), jobs=jobs)
        assert json.loads((out / "results.json").read_text()) == found[jobs]
        for result in found[jobs]:
            for key in MEASURED:
                result.pop(key)
    assert [result["method"] for result in found[1]] == ["er", "ncm"]
    assert found[1] == found[2]
    assert {what.split(" · ")[0] for what in said} == {"er-seed0", "ncm-seed0"}


def test_a_cell_that_cannot_run_is_named_and_does_not_stop_the_others(config: Config, tmp_path: Path) -> None:
    one_each = config.replace(memory={"total": 12})
    told: list[str] = []
    with pytest.raises(InputError, match=r"bic-seed0: .*memory\.total.*the others are in"):
        compare(one_each, ["bic", "knn", "ncm"], [0], tmp_path, on_result=lambda r: told.append(r["method"]), jobs=1)
    written = json.loads((tmp_path / "results.json").read_text())
    assert [result["method"] for result in written] == told == ["knn", "ncm"]


def test_finished_cells_are_not_repeated(config: Config, tmp_path: Path) -> None:
    (first,) = compare(config, ["er"], [0], tmp_path, jobs=1)
    state = tmp_path / "er-seed0" / "state.safetensors"
    written = state.stat().st_mtime_ns
    again = compare(config, ["er", "ncm"], [0], tmp_path, jobs=1)
    assert again[0] == first and again[1]["method"] == "ncm"
    assert state.stat().st_mtime_ns == written


def test_all_methods_are_the_whole_table(call, clusters: Path, tmp_path: Path) -> None:  # noqa: F811
    """No cell runs: the device is not there. What was to be compared is written down before."""
    absent = "cuda" if not torch.cuda.is_available() else "mps"
    common = ("--set", f"stream.data={clusters}", *TINY, "--set", f"device={absent}", "--jobs", "1", "--out", "all")
    code, _, error = call("compare", "clinc150", "--methods", "all", *common)
    assert code == 2
    assert json.loads((tmp_path / "all" / MARK).read_text())["methods"] == list(METHODS)
    assert all(f"{name}-seed0: device" in error.replace("\n", " ") for name in METHODS)

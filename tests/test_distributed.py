"""Two real processes do what one does: the same vectors, gradients, neighbours and answers; one that dies is missed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from commands import file_contents
from dataset_files import write_sentences
from mtn.experiments.run import run
from mtn.recipes import recipe
from mtn.runtime import distributed
from mtn.storage import files
from mtn.storage.tensors import load_tensors
from two_processes import RUNS, SGD, VARIANTS

RECIPE = """
[stream]
data = "{data}"
first = 6
step = 2
[memory]
total = 60
[method]
size = "small"
k = 5
[train]
epochs = 3
batch = 33
replay = 8
min_steps = 30
"""


def torchrun(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *launch, *map(str, arguments)], cwd=cwd, env=environment, **pipes)


def kill_second(parent: subprocess.Popen[str], when: Path) -> str:
    """SIGKILL to rank 1 as soon as a file is there; what is printed then."""
    deadline = time.monotonic() + 300
    while not when.exists():
        assert time.monotonic() < deadline and parent.poll() is None, parent.communicate()
        time.sleep(0.002)
    (child,) = [
        int(child)
        for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        if b"RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    ]
    os.kill(child, signal.SIGKILL)
    _, err = parent.communicate(timeout=300)
    assert parent.returncode != 0
    return err


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, clusters: Path) -> Path:
    path = tmp_path_factory.mktemp("distributed") / "small.toml"
    path.write_text(RECIPE.format(data=clusters))
    return path


@pytest.fixture(scope="module")
def shared(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have done all of two_processes.py: once, for all of pytest's processes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "two-processes"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "report-1.json").exists():
            process = torchrun(Path(__file__).parent / "two_processes.py", path, folder, cwd=folder)
            out, err = process.communicate()
            assert process.returncode == 0, out + err
    return folder


@pytest.fixture(scope="module")
def report(shared: Path) -> dict[str, Any]:
    first, second = (json.loads((shared / f"report-{rank}.json").read_text()) for rank in range(2))
    assert first == second  # to the bit: processes that differ would drift apart
    return first


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gradient_is_that_of_the_whole_batch(report: dict[str, Any], name: str) -> None:
    """And so are neighbours and what the model before answers. A method that trains nothing has none."""
    for step, difference in report["gradients"][name].items():
        assert difference < 2e-6, step


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_row_is_somebodys(monkeypatch, count: int) -> None:
    monkeypatch.setattr(distributed, "_world_size", count)
    for rows in (slice(0, 0), slice(5, 6), slice(3, 13), slice(1024, 2048)):
        found = []
        for rank in range(count):
            monkeypatch.setattr(distributed, "_rank", rank)
            own = distributed.own_rows(rows)
            assert own.stop - own.start <= -(-(rows.stop - rows.start) // count)
            found += range(own.start, own.stop)
        assert found == list(range(rows.start, rows.stop))


def test_the_search_shared_out_is_exact(report: dict[str, Any]) -> None:
    assert report["search"] < 1e-6


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_as_with_one_process(shared: Path, path: Path, tmp_path: Path, name: str) -> None:
    alone = run(recipe(str(path), [f"method.name={name}", *SGD]), tmp_path / "alone")
    result = files.read_json(shared / name / "result.json")
    for key in ("accuracy", "average_incremental_accuracy"):
        assert result[key] == pytest.approx(alone[key], abs=0.2)
    weights = [load_tensors(folder / "state.safetensors")[0] for folder in (shared / name, tmp_path / "alone")]
    assert weights[0].keys() == weights[1].keys()
    for key, tensor in weights[0].items():
        assert (tensor.double() - weights[1][key].double()).abs().max() < 2e-3, key


def test_a_killed_process_ends_the_others_and_the_run_goes_on(shared: Path, path: Path, tmp_path: Path) -> None:
    command = ("-m", "mtn", "run", path, "--out", "killed", *(word for change in SGD for word in ("--set", change)))
    err = kill_second(torchrun(*command, cwd=tmp_path), tmp_path / "killed" / "state.safetensors")
    assert err.count(distributed.LOST_PEER) == 1 and "gloo" not in err
    assert not (tmp_path / "killed" / "result.json").exists()
    again = torchrun(*command, cwd=tmp_path)
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert out.count("result.json") == 1  # one process speaks
    results = [files.read_json(folder / "result.json") for folder in (tmp_path / "killed", shared / "mtn")]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    states = [load_tensors(folder / "state.safetensors")[0] for folder in (tmp_path / "killed", shared / "mtn")]
    for key, tensor in states[0].items():
        assert (tensor.double() - states[1][key].double()).abs().max() < 1e-6, key


def test_extraction_gives_the_same_bytes_even_when_killed(call, tmp_path: Path) -> None:
    write_sentences(tmp_path / "said.json")
    command = ("extract", "said.json", "--encoder", "hashing", "--out")
    assert call(*command, "one")[0] == 0
    err = kill_second(torchrun("-m", "mtn", *command, "two", cwd=tmp_path), tmp_path / "two" / "x-00001.json")
    assert err.count(distributed.LOST_PEER) == 1
    assert not (tmp_path / "two" / "manifest.json").exists()
    again = torchrun("-m", "mtn", *command, "two", cwd=tmp_path)
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert out.count("two: 20000 vectors of 7 classes") == 1
    assert file_contents(tmp_path / "two") == file_contents(tmp_path / "one")


def test_what_needs_one_process_or_another_environment_says_so(report: dict[str, Any], call, monkeypatch) -> None:
    assert "features that are learned (images.side) need one process" in report["images"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv(distributed.AGENT_STORE, "True")
    code, _, err = call("run", "demo")
    assert code == 2 and "--max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in err
    code, _, err = call("compare", "demo")
    assert code == 2 and "mtn compare needs one process; torchrun is for mtn run and mtn extract" in err

"""Disks that are full, read-only or somebody else's: one line, exit code 2, nothing half-written; and folders of runs
that were killed before they had written anything."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster_data import cluster_arrays
from commands import DISK, TINY
from mtn.cli.main import describe_system_error
from mtn.errors import InputError
from mtn.experiments import compare, run
from mtn.experiments.paper import grid, reproduce
from mtn.storage import files
from mtn.storage.tensors import save_tensors


def fill(folder: Path) -> None:
    """Leave no byte free."""
    handle = os.open(folder / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(handle, b"x" * 4096):
            pass
    except OSError:
        os.close(handle)


@pytest.fixture
def files_of_a_user(call, tmp_path: Path) -> Path:
    """What the commands below are given: vectors, sentences, and a model of 1 class a number."""
    arrays = cluster_arrays(train=6, test=3)
    np.savez(tmp_path / "data.npz", **arrays)
    np.savez(tmp_path / "few.npz", x=arrays["x_train"][:3], y=arrays["y_train"][:3])
    (tmp_path / "sentences.json").write_text('{"train": [["a b", "x"], ["c d", "y"]]}')
    assert call("learn", "model", "data.npz", "--method", "ncm")[0] == 0
    return tmp_path


COMMANDS = {
    "forget": ("forget", "{disk}/model", "1"),
    "rename": ("rename", "{disk}/model", "1", "77"),
    "learn": ("learn", "{disk}/model", "data.npz"),
    "learn anew": ("learn", "{disk}/new", "data.npz"),
    "new": ("new", "{disk}/new", "--encoder", "hashing"),
    "run": ("run", "clinc150", "--set", "stream.data=data.npz", *TINY, "--out", "{disk}/run"),
    "compare": ("compare", "clinc150", "--methods", "ncm", "--set", "stream.data=data.npz", *TINY, "--out", "{disk}/c"),
    "reproduce": ("reproduce", "rank", "--data", "data.npz", "--fast", "--out", "{disk}/page"),
    "extract": ("extract", "sentences.json", "--encoder", "hashing", "--out", "{disk}/store"),
    "convert": ("convert", "data.npz", "{disk}/arrays"),
    "export": ("export", "{disk}/model", "{disk}/model.onnx"),
    "explain": ("explain", "{disk}/model", "few.npz", "--out", "{disk}/figure.png"),
    "serve": ("serve", "{disk}/model", "--port", "0"),
}


@pytest.mark.parametrize("state", ["full", "read-only"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_cannot_be_written_is_one_line(
    call,
    files_of_a_user: Path,
    disk: Path,
    command: str,
    state: str,
) -> None:
    shutil.copytree(files_of_a_user / "model", disk / "model")
    if state == "full":
        fill(disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = contents(disk)
    code, _, error = call(*(part.format(disk=disk) for part in COMMANDS[command]))
    assert code == 2 and error.startswith("error: ") and len(error.splitlines()) == 1, error
    assert str(disk) in error
    assert "Read-only file system" in error or "No space left on device" in error or "disk" in error
    after = contents(disk)
    assert {name: content for name, content in after.items() if name in before} == before
    assert all(files.PARTIAL.fullmatch(Path(name).name) is None for name in after)
    left = {name: content for name, content in after.items() if name not in before and Path(name).name != ".lock"}
    assert all(name.startswith("model/journal/") for name in left), left


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_disk_that_has_room_again_is_gone_on_with(call, files_of_a_user: Path, disk: Path) -> None:
    fill(disk)
    command = [part.format(disk=disk) for part in COMMANDS["run"]]
    assert call(*command)[0] == 2
    assert (disk / "run" / ".lock").exists()
    (disk / "filler").unlink()
    assert call(*command)[0] == 0 and (disk / "run" / "result.json").exists()


def test_a_folder_where_a_file_is_wanted_is_one_line(call, files_of_a_user: Path) -> None:
    (files_of_a_user / "file").write_text("")
    for command in COMMANDS.values():
        code, _, error = call(*(part.format(disk="file") for part in command))
        assert code == 2 and len(error.splitlines()) == 1 and "file" in error, error


def test_tensors_that_do_not_fit_on_the_disk_are_an_error_of_the_system(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        save_tensors(disk / "state.safetensors", {"x": torch.zeros(DISK)}, {})
    assert error.value.filename == str(disk / "state.safetensors")
    assert not list(disk.iterdir())


def test_an_error_of_the_system_names_paths_and_reason() -> None:
    assert describe_system_error(OSError(28, "No space left on device", "a/b")) == "a/b: No space left on device"
    assert describe_system_error(OSError(18, "Invalid link", "a", None, b"b")) == "a -> b: Invalid link"
    assert describe_system_error(OSError("16 requested and 0 written")) == "16 requested and 0 written"


# ---- killed at the very start


def leave_a_kill(folder: Path) -> None:
    """What a process leaves that is killed while it writes its first file."""
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / ".config.json.partial").write_text("{")


def test_a_run_killed_at_its_very_start_is_resumed(configure, tmp_path: Path) -> None:
    leave_a_kill(tmp_path / "run")
    assert run.run(configure(method={"name": "ncm"}), tmp_path / "run")["accuracy"]
    leave_a_kill(tmp_path / "compare")
    for _ in range(2):
        assert compare.compare([configure(method={"name": "ncm"})], [0], tmp_path / "compare")
        shutil.rmtree(tmp_path / "compare" / "ncm-seed0")
        leave_a_kill(tmp_path / "compare" / "ncm-seed0")


def test_a_page_and_a_store_killed_at_their_very_start_are_resumed(
    call,
    files_of_a_user: Path,
) -> None:
    leave_a_kill(Path("store"))
    (Path("store") / ".config.json.partial").rename(Path("store") / ".plan.json.partial")
    assert call("extract", "sentences.json", "--encoder", "hashing", "--out", "store")[0] == 0
    leave_a_kill(Path("page"))
    (Path("page") / ".config.json.partial").rename(Path("page") / f".{reproduce.MARK}.partial")
    (Path("page") / "features").mkdir()
    setting = grid.grid_setup("data.npz", [0], True, None)
    for _ in range(2):  # claimed, and claimed again
        reproduce._claim_folder(Path("page"), setting)
    with pytest.raises(InputError, match="not a report of mtn"):
        reproduce._claim_folder(Path("store"), setting)


def test_a_folder_of_something_else_is_still_refused(configure, tmp_path: Path) -> None:
    leave_a_kill(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        run.run(configure(), tmp_path / "run")
    with pytest.raises(InputError, match="not an empty folder"):
        compare.compare([configure(method={"name": "ncm"})], [0], tmp_path / "run")

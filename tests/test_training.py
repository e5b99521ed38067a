"""Runs that are interrupted, repeated or started in the wrong place."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster_data import cluster_arrays
from mtn import training
from mtn.config import Config
from mtn.errors import InputError
from mtn.experiments.run import run
from mtn.storage import files
from mtn.storage.tensors import load_tensors
from processes import RunProcess
from runs import without_timings


@pytest.mark.parametrize(
    ("options", "kills"), [({}, 5), ({"labels": True, "readout": "mix"}, 2)], ids=["cls", "labels and mix"]
)
def test_killed_at_random_moments_a_run_ends_with_the_same_result_bit_for_bit(
    configure: Callable[..., Config], tmp_path: Path, options: dict[str, Any], kills: int
) -> None:
    config = configure(method=options, train={"min_steps": 120})
    whole = run(config, tmp_path / "whole")
    moments, chance = set(), random.Random(0)
    out = tmp_path / "killed"
    for _ in range(kills):
        process = RunProcess(config, out)
        process.wait(chance.randrange(20, 80))  # so many steps, of 480 in all
        time.sleep(chance.uniform(0.0, 0.02))
        process.kill()
        if (out / "state.safetensors").exists():
            facts = load_tensors(out / "state.safetensors")[1]  # whole, at any moment
            moments.add((facts["task"], facts["step"]))
    assert RunProcess(config, out).end() == 0
    assert any(step for _, step in moments), f"no kill within a task: {moments}"
    assert without_timings(files.read_json(out / "result.json")) == without_timings(whole)
    ends = [load_tensors(folder / "state.safetensors")[0] for folder in (tmp_path / "whole", out)]
    assert ends[0].keys() == ends[1].keys()
    for name in ends[0]:
        assert torch.equal(ends[0][name], ends[1][name]), name


def test_a_finished_run_is_not_done_again(configure: Callable[..., Config], tmp_path: Path) -> None:
    first = run(configure(method={"name": "knn"}), tmp_path / "run")
    said: list[str] = []
    again = run(configure(method={"name": "knn"}), tmp_path / "run", lambda what, done, of: said.append(what))
    assert again == first and not said


def test_another_configuration_is_refused_with_what_differs(configure: Callable[..., Config], tmp_path: Path) -> None:
    run(configure(method={"name": "knn"}), tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with pytest.raises(InputError, match=r"method\.k was 5, is now 6"):
        run(configure(method={"name": "knn", "k": 6}), tmp_path / "run")
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("name", ["config.json", "result.json", "state.safetensors"])
def test_a_damaged_file_is_named(configure: Callable[..., Config], tmp_path: Path, name: str) -> None:
    config = configure(method={"name": "ssil"})
    run(config, tmp_path / "run")
    file = tmp_path / "run" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    if name == "state.safetensors":
        (tmp_path / "run" / "result.json").unlink()  # otherwise there is no need to read it
    with pytest.raises(InputError, match=name):
        run(config, tmp_path / "run")


def test_a_foreign_folder_is_left_alone(configure: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(InputError, match="not a run of mtn"):
        run(configure(), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["precious.txt"]


def test_result_has_every_field(configure: Callable[..., Config], tmp_path: Path) -> None:
    run(configure(), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(result) == [
        "method", "data", "seed", "classes_per_task", "accuracy", "average_incremental_accuracy",
        "average_without_base", "last_accuracy", "matrix", "forgetting", "backward_transfer", "newest_accuracy",
        "old_accuracy", "balanced_accuracy", "seconds", "processor_seconds", "kept", "train_samples_per_second",
        "peak_memory_mb", "config", "versions",
    ]  # fmt: skip
    assert result["classes_per_task"] == [6, 2, 2, 2]
    assert result["old_accuracy"][0] is None and all(value is not None for value in result["old_accuracy"][1:])
    assert set(result["seconds"]) == {"retrieval", "training", "evaluation", "per_1000_queries"}
    learning = result["seconds"]["retrieval"] + result["seconds"]["training"]
    assert 0 < result["processor_seconds"] < 1.1 * learning + 0.1, "one thread: no more than wall time"


def test_divergence_is_an_error_that_names_the_rate(configure: Callable[..., Config], tmp_path: Path) -> None:
    wild = configure(train={"lr": 1e30, "clip": 0.0, "schedule": "constant", "epochs": 50}, method={"name": "finetune"})
    with pytest.raises(InputError, match=r"diverged .* lower train\.lr, now 1e\+30"):
        run(wild, tmp_path / "run")


def test_rates() -> None:
    assert [training.rate("cosine", p, 0) for p in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [training.rate("step", p, 1) for p in (0, 0.5, 0.9)] == pytest.approx([0.5, 0.05, 0.005])  # second task
    assert training.rate("constant", 0.9, 3) == 1


def test_the_global_random_state_is_left_as_it_was(configure: Callable[..., Config], tmp_path: Path) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    run(configure(), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)


def test_an_absent_device_is_named(configure: Callable[..., Config], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(InputError, match="device = 'cuda' is not there; present: cpu"):
        run(configure(device="cuda"), tmp_path / "run")


def test_two_processes_do_not_work_in_one_folder(configure: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with files.lock(tmp_path / "run"), pytest.raises(InputError, match="another process is at work"):
        run(configure(), tmp_path / "other" / ".." / "run")


def test_without_a_compiler_training_goes_on_in_eager_mode(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = run(configure(), tmp_path / "eager")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "none")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        result = run(configure(train={"compile": True}), tmp_path / "compiled")
    assert result["accuracy"] == eager["accuracy"]


@pytest.mark.slow
def test_compiled_training_comes_to_the_same_accuracy(configure: Callable[..., Config], tmp_path: Path) -> None:
    eager, compiled = (run(configure(train={"compile": c}), tmp_path / str(c)) for c in (False, True))
    assert compiled["accuracy"] == pytest.approx(eager["accuracy"], abs=3)


def has_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@pytest.mark.skipif(not has_bfloat16(), reason="this processor does not multiply in bfloat16")
def test_training_in_bfloat16_comes_to_the_same_accuracy_and_is_recorded(
    configure: Callable[..., Config], tmp_path: Path
) -> None:
    single, half = (run(configure(train={"precision": p}), tmp_path / p) for p in ("float32", "bfloat16"))
    assert half["accuracy"] == pytest.approx(single["accuracy"], abs=3)
    written = [json.loads((tmp_path / p / "config.json").read_text()) for p in ("float32", "bfloat16")]
    assert "precision" not in written[0]["train"] and written[1]["train"]["precision"] == "bfloat16"
    heads = [load_tensors(tmp_path / p / "state.safetensors")[0]["method.head.weight"] for p in ("float32", "bfloat16")]
    assert heads[0].dtype == heads[1].dtype == torch.float32 and not torch.equal(*heads)


def test_a_processor_without_bfloat16_is_told(
    configure: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, has, lambda: False)
    with pytest.raises(InputError, match=r"train\.precision = 'bfloat16': this machine's cpu does not multiply in it"):
        run(configure(train={"precision": "bfloat16"}, device="cpu"), tmp_path / "run")


def test_a_run_does_not_go_on_with_other_data(configure: Callable[..., Config], tmp_path: Path) -> None:
    """One number of one vector is enough, and so is a label."""
    arrays = cluster_arrays()
    np.savez(tmp_path / "data.npz", **arrays)
    config = configure(stream={"data": str(tmp_path / "data.npz")}, method={"name": "er"})

    def stop(what: str, done: int, of: int) -> None:
        if what.startswith("task 2/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", stop)
    changed = dict(arrays, x_train=arrays["x_train"].copy())
    changed["x_train"][-1, -1] += 1
    np.savez(tmp_path / "data.npz", **changed)
    with pytest.raises(InputError, match=r"data\.npz has changed since this run was begun; give another --out"):
        run(config, tmp_path / "run")
    np.savez(tmp_path / "data.npz", **arrays)
    assert without_timings(run(config, tmp_path / "run")) == without_timings(run(config, tmp_path / "whole"))

"""What a run logs, and where to."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtn import config
from mtn.errors import InputError
from mtn.experiments import log
from mtn.experiments.run import run
from mtn.recipes import with_changes


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_logs_its_losses_and_accuracies(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    result = run(configure(train={"min_steps": 45}), tmp_path)
    written = lines(tmp_path)
    after = [line for line in written if "accuracy" in line]
    assert [line["accuracy"] for line in after] == result["accuracy"]
    assert [line["newest_accuracy"] for line in after] == result["newest_accuracy"]
    assert [line["task"] for line in after] == [1, 2, 3, 4] and after[0]["old_accuracy"] is None
    steps = [line for line in written if "lr" in line]
    assert [line["step"] for line in steps] == [20, 40, 60, 80, 100, 120, 140, 160][: len(steps)]
    assert len(steps) >= 6 and 0 < steps[0]["lr"] <= 0.1 and steps[0]["loss/classification"] > 0
    assert any("loss/distillation" in line for line in steps[2:])


def test_a_resumed_run_logs_no_step_twice(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    setting = configure(train={"min_steps": 60})
    run(setting, tmp_path / "whole")

    def stop(what: str, done: int, of: int) -> None:
        if what == "task 3/4: training" and done == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(setting, tmp_path / "cut", stop)
    with (tmp_path / "cut/log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n7\n{}\n{"task": "x", "step": null}\n')  # damaged
        file.write(b'{"task": 3, "st')  # killed in the middle of a line
    run(setting, tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_where_it_logs_is_not_what_the_run_is(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    one, other = configure(), configure(log="tensorboard")
    assert one.digest() == other.digest() and one.model_dump() == other.model_dump()
    assert with_changes(other, seed=3).log == "tensorboard"
    assert run(one, tmp_path) == run(other, tmp_path)


def test_tensorboard_has_the_same_numbers(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(configure(log="tensorboard"), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    np.testing.assert_allclose([event.value for event in events.Scalars("accuracy")], result["accuracy"], rtol=1e-6)
    assert {"lr", "loss/classification", "newest_accuracy", "old_accuracy"} <= set(events.Tags()["scalars"])


def test_weights_and_biases_without_a_network(
    configure: Callable[..., config.Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(configure(log="wandb"), tmp_path / "run")
    assert list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize(("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_log_that_is_not_installed_is_one_line(
    kind: str, module: str, configure: Callable[..., config.Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install '.*\[log\]'"):
        log.open_log(tmp_path, configure(log=kind), 0, 0)


def test_logging_is_seldom_enough_not_to_be_felt(configure: Callable[..., config.Config], tmp_path: Path) -> None:
    """A line takes far less than a hundredth of the steps between two lines, at a millisecond a step."""
    it = log.open_log(tmp_path, configure(), 0, 0)
    numbers = {"lr": 0.1, "loss/classification": 1.234567, "loss/distillation": 0.5}
    start = time.thread_time()
    for step in range(200):
        it.write(1, step, numbers)
    spent = (time.thread_time() - start) / 200
    it.close()
    assert spent < 0.1 * log.LOG_EVERY * 1e-3

"""Log losses and accuracies of a run as JSON lines, to TensorBoard or to Weights & Biases.

An entry has a task (from 1 on), the number of steps taken so far in all tasks, and named numbers. A resumed run removes
what was logged after the checkpoint it starts from, so that no step is logged twice.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from mtn.config import Config
from mtn.errors import InputError, install_line
from mtn.runtime import distributed
from mtn.storage import files

LOG_EVERY = 20
"""Steps between two entries: often enough for a curve, too seldom to cost time."""

Numbers = Mapping[str, float | None]


class MetricLog(Protocol):
    """Where the numbers of a run are written to."""

    def write(self, task: int, step: int, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


class JsonLinesLog:
    """Writes log.jsonl, one object a line."""

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        path = folder / "log.jsonl"
        before = path.read_text("utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
        files.write_text(path, "".join(line for line in before if _is_before(line, task, step)))
        self.file = path.open("a", encoding="utf-8")

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        self.file.write(json.dumps({"task": task, "step": step, **numbers}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _is_before(line: str, task: int, step: int) -> bool:
    """Whether a line was logged before a checkpoint: any of the tasks done, or a step taken so far of the next one.

    A line that was cut off when the run was killed, or is damaged, is not.
    """
    try:
        entry = json.loads(line)
        return bool(entry["task"] <= task or (entry["step"] <= step and "accuracy" not in entry))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class TensorBoardLog:
    """Writes event files; `tensorboard --logdir FOLDER` shows them."""

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(f"log = 'tensorboard' needs TensorBoard: {install_line('log')}") from None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbLog:
    """Writes to a run of the W&B project mtn, named as its folder.

    Without a network: WANDB_MODE=offline, later `wandb sync`.
    """

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        try:
            import wandb
        except ImportError:
            raise InputError(f"log = 'wandb' needs Weights & Biases: {install_line('log')}") from None
        identity = f"{folder.name}-{config.digest()}"
        self.run = wandb.init(
            project="mtn", name=folder.name, id=identity, resume="allow", dir=str(folder), config=config.model_dump()
        )

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        known = {name: value for name, value in numbers.items() if value is not None}
        self.run.log({"task": task, **known}, step=step)

    def close(self) -> None:
        self.run.finish()


class NullLog:
    """Writes nothing: of several processes, which all have the same numbers, only the first logs."""

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        pass

    def close(self) -> None:
        pass


LOGS: dict[str, Callable[[Path, Config, int, int], MetricLog]] = {
    "jsonl": JsonLinesLog,
    "tensorboard": TensorBoardLog,
    "wandb": WandbLog,
}


def open_log(folder: Path, config: Config, task: int, step: int) -> MetricLog:
    """The log that the configuration names, continued after so many tasks and steps."""
    if distributed.rank():
        return NullLog()
    return LOGS[config.log](folder, config, task, step)

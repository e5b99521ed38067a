"""Where a run's numbers go while it learns: lines of JSON, TensorBoard or Weights & Biases, behind one function.

Whoever logs gives a task (from 1 on), the steps taken so far in all tasks, and named numbers. A run that is resumed
takes back what was logged after the state it goes on from, so that no step is there twice.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mtn import checkpoint, ranks
from mtn.config import Config
from mtn.errors import InputError

EVERY = 20
"""Steps between two lines: often enough for a curve, too seldom to be felt."""

Numbers = Mapping[str, float | None]


class Log(Protocol):
    def write(self, task: int, step: int, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """log.jsonl, one object a line."""

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        path = folder / "log.jsonl"
        before = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        checkpoint.write_text(path, "".join(line for line in before if _stays(line, task, step)))
        self.file = path.open("a", encoding="utf-8")

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        self.file.write(json.dumps({"task": task, "step": step, **numbers}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _stays(line: str, task: int, step: int) -> bool:
    """Whether the state has it: of tasks done every line, of the next one its steps so far. Half a line has nothing."""
    try:
        one = json.loads(line)
    except json.JSONDecodeError:
        return False
    return bool(one["task"] <= task or (one["step"] <= step and "accuracy" not in one))


class TensorBoard:
    """tensorboard --logdir FOLDER"""

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("log = 'tensorboard' needs TensorBoard: pip install 'mtn[log]'") from None
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project mtn, named as its folder; without a network: WANDB_MODE=offline, then `wandb sync`."""

    def __init__(self, folder: Path, config: Config, task: int, step: int) -> None:
        try:
            import wandb
        except ImportError:
            raise InputError("log = 'wandb' needs Weights & Biases: pip install 'mtn[log]'") from None
        identity = f"{folder.name}-{config.digest()}"
        self.run = wandb.init(
            project="mtn", name=folder.name, id=identity, resume="allow", dir=str(folder), config=config.model_dump()
        )

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        known = {name: value for name, value in numbers.items() if value is not None}
        self.run.log({"task": task, **known}, step=step)

    def close(self) -> None:
        self.run.finish()


class Nowhere:
    """Of the processes that run beside the first: they have the same numbers."""

    def write(self, task: int, step: int, numbers: Numbers) -> None:
        pass

    def close(self) -> None:
        pass


LOGS: dict[str, type[Log]] = {"jsonl": JsonLines, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def start(folder: Path, config: Config, task: int, step: int) -> Log:
    """The log that the configuration names, going on after so many tasks and steps."""
    if ranks.rank():
        return Nowhere()
    return LOGS[config.log](folder, config, task, step)  # type: ignore[call-arg]

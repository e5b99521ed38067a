"""One recipe, several methods and seeds -> a list of results. A cell that is finished is never done again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mtn import checkpoint, datasets
from mtn.config import Config
from mtn.errors import InputError
from mtn.learn import look, make_folder, run
from mtn.methods import find
from mtn.progress import Progress, silent
from mtn.stream import split

MARK = "compare.json"


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    say: Progress = silent,
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
) -> list[dict[str, Any]]:
    """Every method with every seed, each in a folder of its own below `out`; all of them in results.json."""
    cells = [cell(config, method, seed) for method in methods for seed in seeds]
    if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder and not a comparison of mtn; give another --out")
    folders = [out / f"{one.method.name.replace(':', '.')}-seed{one.seed}" for one in cells]
    tasks = split(datasets.load(config.stream.data, say), config.stream)
    for one, folder in zip(cells, folders, strict=True):
        look(folder, one)  # a folder that belongs to another run should not cost the time of all runs before it
    make_folder(out)
    checkpoint.write_json(out / MARK, {"methods": list(methods), "seeds": list(seeds)})
    results = []
    for one, folder in zip(cells, folders, strict=True):
        results.append(run(one, folder, _named(say, folder.name), tasks=tasks))
        on_result(results[-1])
    checkpoint.write_json(out / "results.json", results)
    return results


def cell(config: Config, method: str, seed: int) -> Config:
    """The configuration of one method and seed; a recipe's loss goes only to methods that leave the choice."""
    takes = config.train.loss in find(method).losses
    values = config.model_dump(exclude_none=True)
    if not takes:
        values["train"].pop("loss", None)
    return Config.model_validate(values).replace(seed=seed, method={"name": method})


def _named(say: Progress, name: str) -> Progress:
    return lambda what, done, of: say(f"{name} · {what}", done, of)

"""One recipe, several methods, seeds and class orders -> a list of results. A finished cell is never done again."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from mtn import checkpoint, datasets
from mtn.config import Config, recipe, recipe_names
from mtn.errors import InputError
from mtn.machine import find_device
from mtn.methods import find
from mtn.progress import Progress, silent
from mtn.run import look, run
from mtn.stream import order_name, split

MARK = "compare.json"

_queue: Any = None  # in a worker: where its progress goes


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    say: Progress = silent,
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
    jobs: int | None = None,
    orders: Sequence[int | str] | None = None,
) -> list[dict[str, Any]]:
    """Every method with every class order and seed, each in a folder of its own below `out`; all in results.json.

    `orders` are values of stream.order, the recipe's if unset. Cells run in `jobs` processes, as many as there are
    cores if unset. One that cannot run does not stop the others.
    """
    if orders and config.stream.tasks is not None:
        raise InputError("--orders has nothing to order: stream.tasks names the classes of each task")
    orders = orders or [config.stream.order]
    cells = [cell(config, method, seed, order) for method in methods for order in orders for seed in seeds]
    if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder and not a comparison of mtn; give another --out")
    _check_streams(config, orders, say)
    work = [(one, out / _name(one, len(orders) > 1)) for one in cells]
    for one, folder in work:
        look(folder, one)  # a folder that belongs to another run should not cost the time of all runs before it
    checkpoint.make_folder(out)
    checkpoint.write_json(out / MARK, {"methods": list(methods), "seeds": list(seeds), "orders": list(orders)})
    done: dict[Path, dict[str, Any]] = {}
    failed: list[str] = []
    for folder, answer in run_all(work, jobs or cores(config), say):
        if isinstance(answer, InputError):
            failed.append(f"{folder.name}: {answer}")
        else:
            done[folder] = answer
            on_result(answer)
    results = [done[folder] for _, folder in work if folder in done]
    checkpoint.write_json(out / "results.json", results)
    if failed:
        raise InputError("; ".join(failed) + (f" (the others are in {out})" if done else ""))
    return results


Answer = tuple[Path, dict[str, Any] | InputError]


def run_all(work: list[tuple[Config, Path]], jobs: int, say: Progress) -> Iterator[Answer]:
    """Each cell's result or error, as they are finished.

    Threads a process depend on the command alone, not on what is left to do: rounding depends on them.
    """
    jobs = min(jobs, len(work))
    if jobs == 1 or all((folder / "result.json").exists() for _, folder in work):
        for one, folder in work:
            yield _cell_of(one, folder, _named(say, folder.name))
        return
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(queue, say), daemon=True)
    listener.start()
    start = (queue, max(1, torch.get_num_threads() // jobs))
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=start)
    try:
        for future in as_completed([pool.submit(_work, one, folder) for one, folder in work]):
            yield future.result()
    except BaseException:  # interrupted: what workers have saved is whole at any moment
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        queue.put(None)
        listener.join()


def _cell_of(config: Config, folder: Path, say: Progress) -> Answer:
    try:
        return folder, run(config, folder, say)
    except InputError as error:
        return folder, error


def _start_worker(queue: Any, threads: int) -> None:
    global _queue
    _queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(threads)
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    """A command that was killed leaves nobody at work in its folders: started again, it needs them."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(config: Config, folder: Path) -> Answer:
    told = 0.0

    def say(what: str, done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > 0.2 or done == of:
            _queue.put((f"{folder.name} · {what}", done, of))
            told = time.monotonic()

    return _cell_of(config, folder, say)


def _listen(queue: Any, say: Progress) -> None:
    while (said := queue.get()) is not None:
        say(*said)


def cores(config: Config) -> int:
    """Processes that do not get in each other's way: one a core, one in all on an accelerator."""
    if find_device(config.device).type != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_streams(config: Config, orders: Sequence[int | str], say: Progress) -> None:
    """Prepare and check the data once, and every order with it; a table's runs need tasks of the same sizes."""
    if len({order_name(order) for order in orders}) < len(orders):
        raise InputError("--orders: two files of the same name cannot be told apart; rename one of them")
    data, sizes = datasets.of(config, say), set()
    for order in orders:
        tasks = split(data, config.stream.model_copy(update={"order": order}))
        sizes.add(tuple(len(task.names) for task in tasks))
    if len(sizes) > 1:
        raise InputError(f"--orders must give tasks of the same sizes, got {' and '.join(map(str, sorted(sizes)))}")


def _name(config: Config, several: bool) -> str:
    """A cell's folder; the class order is part of its name where there are several."""
    order = f"-order{order_name(config.stream.order)}" if several else ""
    return f"{config.method.name.replace(':', '.')}{order}-seed{config.seed}"


def cell(config: Config, method: str, seed: int, order: int | str) -> Config:
    """The configuration of one run. A method with a recipe of its own brings its values; a recipe's loss goes only to
    methods that leave the choice."""
    values = config.model_dump(exclude_none=True)
    if method in recipe_names() and config.method.name != method:
        own = recipe(method).model_dump(exclude_none=True)
        values |= {"method": own["method"], "train": own["train"]}
    elif config.train.loss not in find(method).losses:
        values["train"].pop("loss", None)
    changes = {"seed": seed, "log": config.log, "method": {"name": method}, "stream": {"order": order}}
    return Config.model_validate(values).replace(**changes)


def _named(say: Progress, name: str) -> Progress:
    return lambda what, done, of: say(f"{name} · {what}", done, of)

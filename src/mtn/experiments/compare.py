"""Run several methods with several seeds and class orders. A run that is finished is never repeated."""

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

from mtn.config import Config
from mtn.data import load_data
from mtn.errors import InputError
from mtn.experiments.run import read_result, run
from mtn.experiments.values import with_differing_values
from mtn.methods import check
from mtn.recipes import with_changes
from mtn.runtime.cores import core_count
from mtn.runtime.device import find_device
from mtn.runtime.progress import Progress, silent
from mtn.storage import files
from mtn.stream import order_name, split

MARK = "compare.json"
"""The file that makes a folder a comparison."""

RunOutcome = tuple[Path, dict[str, Any] | InputError]
"""The folder of a run, and its result or why it has none."""

_progress_queue: Any = None  # in a worker process: where its progress goes


def compare(
    configs: Sequence[Config],
    seeds: Sequence[int],
    out: Path,
    progress: Progress = silent,
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
    jobs: int | None = None,
    orders: Sequence[int | str] | None = None,
) -> list[dict[str, Any]]:
    """Run every method with every class order and seed, each in a folder of its own below `out`; all in results.json.

    `configs` are one a method on the same stream, as `mtn.recipes.comparison` makes them of a recipe; each result says
    in `differing_values` what its method had otherwise than others. `orders` are values of stream.order, the recipe's
    if unset. Runs are spread over `jobs` processes, as many as there are cores if unset. One that cannot run does not
    stop the others.
    """
    first = _check_comparable(configs)
    for config in configs:
        check(config)
    if orders and first.stream.tasks is not None:
        raise InputError("--orders has nothing to order: stream.tasks names the classes of each task")
    if jobs is not None and jobs > 1 and _has_local_milvus(first):
        raise InputError(f"--jobs must be 1: memory.uri is a file, which one process at a time can open, got {jobs}")
    orders = orders or [first.stream.order]
    if not (out / MARK).exists() and not files.is_unused(out):
        raise InputError(f"{out} is not an empty folder and not a comparison of mtn; give another --out")
    _check_streams(first, orders, progress)
    cells = [
        with_changes(one, seed=seed, stream={"order": order}) for one in configs for order in orders for seed in seeds
    ]
    work = [(cell, out / _folder_name(cell, len(orders) > 1)) for cell in cells]
    for cell, folder in work:
        read_result(folder, cell)  # a folder of another run is refused before anything is trained
    files.make_folder(out)
    names = [config.method.name for config in configs]
    files.write_json(out / MARK, {"methods": names, "seeds": list(seeds), "orders": list(orders)})
    finished: dict[Path, dict[str, Any]] = {}
    failed: list[str] = []
    for folder, outcome in run_all(work, jobs or default_jobs(first), progress):
        if isinstance(outcome, InputError):
            failed.append(f"{folder.name}: {outcome}")
        else:
            finished[folder] = outcome
            on_result(outcome)
    results = with_differing_values([finished[folder] for _, folder in work if folder in finished])
    files.write_json(out / "results.json", results)
    if failed:
        raise InputError("; ".join(failed) + (f" (the others are in {out})" if finished else ""))
    return results


def _check_comparable(configs: Sequence[Config]) -> Config:
    """Refuse a method twice, and methods on different streams; return the first configuration."""
    names = [config.method.name for config in configs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"configs: a comparison has each method once, got {min(twice)!r} twice")
    first = configs[0]
    for config in configs:
        if (config.stream, config.images, config.memory) != (first.stream, first.images, first.memory):
            raise InputError(f"configs: {config.method.name!r} has another stream or memory than {first.method.name!r}")
    return first


def default_jobs(config: Config) -> int:
    """How many processes to use: one a core; one in all on an accelerator or with a local file of Milvus."""
    if find_device(config.device).type != "cpu" or _has_local_milvus(config):
        return 1
    return core_count()


def run_all(
    work: list[tuple[Config, Path]], jobs: int, progress: Progress, first_tasks: Path | None = None
) -> Iterator[RunOutcome]:
    """Yield each run's result or error as soon as it is finished. In `first_tasks` runs share their first task.

    The number of threads of a process depends on the command alone, not on what is left to do: rounding depends on it.
    """
    jobs = min(jobs, len(work))
    if jobs == 1 or all((folder / "result.json").exists() for _, folder in work):
        for config, folder in work:
            yield _run_or_error(config, folder, _prefixed(progress, folder.name), first_tasks)
        return
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    listener = threading.Thread(target=_forward_progress, args=(queue, progress), daemon=True)
    listener.start()
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(queue, threads))
    try:
        for future in as_completed(
            [pool.submit(_run_in_worker, config, folder, first_tasks) for config, folder in work]
        ):
            yield future.result()
    except BaseException:  # interrupted: what workers have saved is whole at any moment
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        queue.put(None)
        listener.join()


def _run_or_error(config: Config, folder: Path, progress: Progress, first_tasks: Path | None) -> RunOutcome:
    try:
        return folder, run(config, folder, progress, first_tasks=first_tasks)
    except InputError as error:
        return folder, error


def _start_worker(queue: Any, threads: int) -> None:
    global _progress_queue
    _progress_queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(threads)
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    """End this worker when its parent is killed: the same command, started again, needs the folders."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_in_worker(config: Config, folder: Path, first_tasks: Path | None) -> RunOutcome:
    last_report = 0.0

    def progress(what: str, done: int, of: int) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > 0.2 or done == of:
            _progress_queue.put((f"{folder.name} · {what}", done, of))
            last_report = time.monotonic()

    return _run_or_error(config, folder, progress, first_tasks)


def _forward_progress(queue: Any, progress: Progress) -> None:
    while (message := queue.get()) is not None:
        progress(*message)


def _prefixed(progress: Progress, name: str) -> Progress:
    return lambda what, done, of: progress(f"{name} · {what}", done, of)


def _has_local_milvus(config: Config) -> bool:
    return config.memory.uri is not None and "://" not in config.memory.uri


def _check_streams(config: Config, orders: Sequence[int | str], progress: Progress) -> None:
    """Load and check the data once, with every class order; runs in one table need tasks of the same sizes."""
    if len({order_name(order) for order in orders}) < len(orders):
        raise InputError("--orders: two files of the same name cannot be told apart; rename one of them")
    data, sizes = load_data(config, progress), set()
    for order in orders:
        tasks = split(data, config.stream.model_copy(update={"order": order}))
        sizes.add(tuple(len(task.names) for task in tasks))
    if len(sizes) > 1:
        raise InputError(f"--orders must give tasks of the same sizes, got {' and '.join(map(str, sorted(sizes)))}")


def _folder_name(config: Config, several_orders: bool) -> str:
    """The folder of a run; the class order is part of its name where there are several."""
    order = f"-order{order_name(config.stream.order)}" if several_orders else ""
    return f"{config.method.name.replace(':', '.')}{order}-seed{config.seed}"

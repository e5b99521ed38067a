"""Data parallelism over the processes that torchrun starts: rows are shared out, everything else is replicated.

Each process (a rank) holds the whole model and memory, draws the same random numbers and minimises the same loss of
the whole batch. What is a function of one row alone it computes for its own rows, and gathers the other rows from the
other processes. So no other module needs to know the world size, and in one process every function here is a no-op.
"""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mtn.errors import InputError

LOST_PEER = "another process of this run has ended, or all were told to: the same command goes on from what is saved"

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set where torchrun's agent keeps the processes' addresses over a restart: restarted ones would wait for dead ones."""

Value = TypeVar("Value")
_rank, _world_size = 0, 1
_aborting = threading.Lock()


def init_process_group(timeout: timedelta) -> None:
    """Connect to the other processes: gloo for CPU tensors, nccl for CUDA tensors, where each process has its own GPU.

    `timeout` is how long a process waits for a silent one; one that has ended is noticed at once.
    """
    global _rank, _world_size
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ.get(AGENT_STORE) == "True":
        raise InputError("torchrun --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment")
    if torch.cuda.is_available():
        local_rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local_rank >= gpus:
            raise InputError(f"--nproc-per-node: process {local_rank + 1} of this host finds {gpus} GPUs: one each")
        torch.cuda.set_device(local_rank)
    _abort_on_sigterm()
    dist.init_process_group(timeout=timeout)
    _rank, _world_size = dist.get_rank(), dist.get_world_size()


def barrier() -> None:
    """Wait until every process is here."""
    if _world_size > 1:
        dist.barrier()


def exit_process(code: int) -> None:
    """Of several processes, exit without Python's shutdown, during which gloo's threads can abort a finished one."""
    if _world_size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rank() -> int:
    """Index of this process; rank 0 writes files and prints."""
    return _rank


def world_size() -> int:
    """Number of processes."""
    return _world_size


def own_rows(rows: slice) -> slice:
    """The part of `rows` that this process works on: equally many for each, fewer for the last ones."""
    size = _rows_per_process(rows)
    start = min(rows.start + _rank * size, rows.stop)
    return slice(start, min(start + size, rows.stop))


def gather_rows(part: Tensor, rows: slice) -> Tensor:
    """All `rows`, N,..., of which each process has computed its `own_rows` as `part`; gradients flow through."""
    if _world_size == 1:
        return part
    gathered: Tensor = _GatherRows.apply(part, rows)  # type: ignore[no-untyped-call]  # torch has no types for it
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, rows: slice) -> Tensor:
        ctx.rows = rows
        padded = part.new_zeros(_rows_per_process(rows), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(_world_size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[: rows.stop - rows.start]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of this process's rows, times the world size: `data_parallel` averages gradients over the
        processes, and those of different rows have to be summed."""
        own = own_rows(ctx.rows)
        return _world_size * gradient[own.start - ctx.rows.start : own.stop - ctx.rows.start], None


def _rows_per_process(rows: slice) -> int:
    count: int = rows.stop - rows.start
    return -(-count // _world_size)


def data_parallel(module: nn.Module) -> nn.Module:
    """`module` with gradients averaged over all processes after each backward(), and rank 0's weights to start with.

    The average is right both for what is computed from own rows and gathered, and for what every process computes.
    """
    if _world_size == 1:
        return module
    # static: which parameters a loss reaches is the same in each step of a stage; it need not be all of them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 has broadcast_buffers alone, 2.13 warns of it
        return DistributedDataParallel(module, broadcast_buffers=False, static_graph=True)


def broadcast_from_first(compute: Callable[[], Value]) -> Value:
    """The result of `compute`, which rank 0 alone calls."""
    if _world_size == 1:
        return compute()
    values: list[Any] = [compute() if _rank == 0 else None]
    dist.broadcast_object_list(values)
    value: Value = values[0]
    return value


def all_gather_objects(value: Value) -> list[Value]:
    """The `value` of every process, by rank."""
    values = [value] * _world_size
    if _world_size > 1:
        dist.all_gather_object(values, value)
    return values


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether the error means that another process cannot be reached; gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def abort() -> None:
    """Print one line and exit at once: a collective operation that waits for a dead process cannot be interrupted."""
    _aborting.acquire()  # never released: a second thread must not print the line again
    os.write(2, f"error: {LOST_PEER}\n".encode())
    os._exit(1)


def _abort_on_sigterm() -> None:
    """torchrun sends SIGTERM to the other processes when one has died; a thread handles it even while the main thread
    waits in a collective operation."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(write_end)

    def listen() -> None:
        while os.read(read_end, 1)[0] != signal.SIGTERM:
            pass
        abort()

    threading.Thread(target=listen, daemon=True).start()

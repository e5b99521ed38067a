"""Several processes, one program: each does the same in the same order, and only work on rows is shared out.

A process (a rank of torchrun) holds the whole model and memory, draws the same numbers and minimises the same loss of
the whole batch. What is a function of one row alone it computes for its own rows, and gets the other rows from the
others. So nothing else in the package knows how many there are, and in one process all of this is nothing.
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

LOST = "another process of this run has ended, or all were told to: the same command goes on from what is saved"

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set where torchrun keeps addresses from one start to the next: those who start again would wait for the dead."""

Found = TypeVar("Found")
_rank, _count = 0, 1
_leaving = threading.Lock()


def asked() -> int:
    """How many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", 1))


def start(patience: timedelta) -> None:
    """Meet the others: over gloo what lies on CPU, over nccl what lies on CUDA, where each process has its own GPU.

    `patience` is how long one waits for another that gives no sign; one that has ended is noticed at once.
    """
    global _rank, _count
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ.get(AGENT_STORE) == "True":
        raise InputError("torchrun --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment")
    if torch.cuda.is_available():
        place, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if place >= there:
            raise InputError(f"--nproc-per-node: process {place + 1} of this host finds {there} GPUs: one each")
        torch.cuda.set_device(place)
    _listen()
    dist.init_process_group(timeout=patience)
    _rank, _count = dist.get_rank(), dist.get_world_size()


def stop() -> None:
    """Nothing is left to share: the first waits for the last."""
    if _count > 1:
        dist.barrier()


def end(code: int) -> None:
    """Leave at once: taken down in order, threads of gloo now and then abort a process that has done all its work."""
    if _count > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rank() -> int:
    """The first, 0, is the one that writes and speaks."""
    return _rank


def count() -> int:
    return _count


def own(rows: slice) -> slice:
    """The rows that this process is to work on: as many as the others', but for the last of them."""
    size = _size(rows)
    start = min(rows.start + _rank * size, rows.stop)
    return slice(start, min(start + size, rows.stop))


def gather(part: Tensor, rows: slice) -> Tensor:
    """All `rows`, of which each process brings its `own`; gradients flow through it."""
    if _count == 1:
        return part
    gathered: Tensor = _Gather.apply(part, rows)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, rows: slice) -> Tensor:
        ctx.rows = rows
        padded = part.new_zeros(_size(rows), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(_count)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[: rows.stop - rows.start]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        """Every process has the slope of the same loss, and needs it of its own rows. Times their number, because
        `data_parallel` takes the mean of all gradients, and those of rows are to be summed."""
        mine = own(ctx.rows)
        return _count * slope[mine.start - ctx.rows.start : mine.stop - ctx.rows.start], None


def _size(rows: slice) -> int:
    return -(-(rows.stop - rows.start) // _count)


def data_parallel(module: nn.Module) -> nn.Module:
    """`module` with the mean of all processes' gradients after each backward(). They start with the first's weights.

    What is computed from rows of one's own and gathered, and what all compute alike, both come out right in the mean.
    """
    if _count == 1:
        return module
    # static: which parameters a loss reaches is the same in each step of a stage; it need not be all of them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 has broadcast_buffers alone, 2.13 warns of it
        return DistributedDataParallel(module, broadcast_buffers=False, static_graph=True)


def first(find: Callable[[], Found]) -> Found:
    """What the first process finds: it alone looks, and all have the answer."""
    found = [find() if _rank == 0 else None]
    if _count > 1:
        dist.broadcast_object_list(found)
    return found[0]  # type: ignore[return-value]


def collect(mine: Found) -> list[Found]:
    """What every process has: the first waits for the last."""
    found = [mine] * _count
    if _count > 1:
        dist.all_gather_object(found, mine)
    return found


def is_lost(error: RuntimeError) -> bool:
    """Whether it says that another process cannot be reached. Of gloo's errors only the text tells."""
    return asked() > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error))


def leave() -> None:
    """End with one clear line, at once: what waits for a process that has died cannot be ended in another way."""
    _leaving.acquire()  # for good: whoever comes second says nothing
    os.write(2, f"error: {LOST}\n".encode())
    os._exit(1)


def _listen() -> None:
    """torchrun ends the others with SIGTERM when one has died. A thread hears it even while this one waits for rows."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(told)

    def listen() -> None:
        while os.read(heard, 1)[0] != signal.SIGTERM:
            pass
        leave()

    threading.Thread(target=listen, daemon=True).start()

"""A listing of items and an encoder -> vectors: in memory, or in a feature store.

A shard depends on nothing but its items and the encoder, so a store that was killed and resumed is the same, byte for
byte, as one that was not.
"""

import csv
import hashlib
import io
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from mtn.data import feature_store
from mtn.data.listing import Listing
from mtn.encoders.base import PLURAL, Encoder, difference
from mtn.errors import InputError
from mtn.images import Unreadable
from mtn.runtime import distributed
from mtn.runtime.cores import core_count
from mtn.runtime.device import versions
from mtn.runtime.progress import Progress, silent
from mtn.storage import files

SHARD = 4096
"""Items of a shard: what has to be repeated after a kill. A batch never crosses shards: matrix products of other shapes
round differently."""
AHEAD = 3
"""Batches that are prepared before the encoder needs them: bounds the memory, however large the data set."""


# ---- items -> vectors


@dataclass(frozen=True)
class Encoded:
    """The vectors of some items."""

    x: np.ndarray  # N,D float32, of the items that could be read
    rows: list[int]  # N: their numbers in the listing
    skipped: list[tuple[int, str]]  # the numbers of the others, and why
    thumbnails: list[np.ndarray]  # N, or none


@dataclass
class Clock:
    """Seconds in which the encoder waited for items, and in which it worked."""

    waiting: float = 0.0
    working: float = 0.0

    @contextmanager
    def count(self, state: str) -> Iterator[None]:
        """Add the time of the block to `waiting` or `working`."""
        start = time.perf_counter()
        yield
        setattr(self, state, getattr(self, state) + time.perf_counter() - start)


def encode(
    listing: Listing,
    encoder: Encoder,
    blocks: Iterable[range],
    thumbnails: bool = False,
    on_batch: Callable[[int], None] = lambda items: None,
    clock: Clock | None = None,
) -> Iterator[Encoded]:
    """The vectors of each block of items in turn, while threads read and prepare the items that come next."""
    clock, parts = clock or Clock(), []
    with ThreadPoolExecutor(core_count()) as pool:
        prepare = partial(_prepare, listing, encoder, thumbnails)
        try:
            for block, items, futures in _ahead(blocks, encoder.batch, lambda item: pool.submit(prepare, item)):
                with clock.count("waiting"):
                    prepared = [future.result() for future in futures]
                with clock.count("working"):
                    parts.append(_encode_batch(encoder, items, prepared))
                on_batch(len(items))
                if items.stop == block.stop:
                    yield _join(parts)
                    parts = []
        finally:
            pool.shutdown(cancel_futures=True)


def _ahead(
    blocks: Iterable[range], batch: int, start: Callable[[int], Future[Any]]
) -> Iterator[tuple[range, range, list[Any]]]:
    """Each batch with its block and its futures, which were started `AHEAD` batches before."""
    started: deque[tuple[range, range, list[Any]]] = deque()
    for block in blocks:
        for at in range(0, len(block), batch):
            items = block[at : at + batch]
            started.append((block, items, [start(item) for item in items]))
            if len(started) == AHEAD:
                yield started.popleft()
    yield from started


def _prepare(listing: Listing, encoder: Encoder, thumbnails: bool, item: int) -> tuple[Any, np.ndarray | None] | str:
    """An item as the encoder takes it and its thumbnail, or the reason why it cannot be read."""
    try:
        loaded = listing.locations[item].load()
        return encoder.prepare(loaded), encoder.thumbnail(loaded) if thumbnails else None
    except Unreadable as error:
        return str(error)


def _encode_batch(encoder: Encoder, items: range, prepared: Sequence[Any]) -> Encoded:
    readable = [index for index, result in enumerate(prepared) if not isinstance(result, str)]
    skipped = [(item, result) for item, result in zip(items, prepared, strict=True) if isinstance(result, str)]
    batch = [prepared[index][0] for index in readable]
    x = encoder.encode(batch) if batch else np.zeros((0, encoder.dimension), np.float32)
    with np.errstate(over="ignore"):
        fits = np.isfinite(x.astype(np.float16)).all(axis=1)
    too_large = [items[readable[row]] for row in np.flatnonzero(~fits)]
    skipped += [(item, "its vector has a NaN, or a number beyond float16") for item in too_large]
    kept = [readable[row] for row in np.flatnonzero(fits)]
    thumbnails = [prepared[index][1] for index in kept if prepared[index][1] is not None]
    return Encoded(x[fits], [items[index] for index in kept], sorted(skipped), thumbnails)


def _join(parts: Sequence[Encoded]) -> Encoded:
    return Encoded(
        np.concatenate([part.x for part in parts]),
        [row for part in parts for row in part.rows],
        [entry for part in parts for entry in part.skipped],
        [image for part in parts for image in part.thumbnails],
    )


# ---- vectors -> a feature store


@dataclass(frozen=True)
class Extraction:
    """The outcome of an extraction."""

    rows: int  # vectors in the store
    skipped: list[str]  # id: why
    before: int  # items that an earlier run had done
    clock: Clock


def extract(listing: Listing, encoder: Encoder, folder: Path, progress: Progress = silent) -> Extraction:
    """Make a feature store, or resume an unfinished one. Of several processes each makes its share of the shards."""
    if listing.kind != encoder.kind:
        name, takes, got = encoder.identity()["name"], PLURAL[encoder.kind], PLURAL[listing.kind]
        raise InputError(f"the encoder {name!r} takes {takes}, the data are {got}")
    with _write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with nullcontext() if distributed.rank() else files.lock(folder):
            plan = _plan(listing, encoder)
            distributed.broadcast_from_first(lambda: _check_plan(folder, plan))
            _check_plan(folder, plan)  # every process: they may have started on other machines
            return _extract(listing, encoder, folder, progress)


def _extract(listing: Listing, encoder: Encoder, folder: Path, progress: Progress) -> Extraction:
    blocks = [range(start, min(start + SHARD, len(listing))) for start in range(0, len(listing), SHARD)]
    left = distributed.broadcast_from_first(
        lambda: [number for number in range(len(blocks)) if not _is_done(folder, number, blocks[number])]
    )
    mine = left[distributed.rank() :: distributed.world_size()]
    before = done = len(listing) - sum(len(blocks[number]) for number in left)
    total = before + sum(len(blocks[number]) for number in mine)
    clock = Clock()

    def count(items: int) -> None:
        nonlocal done
        done += items
        progress(f"encoding {PLURAL[listing.kind]}", done, total)

    encoded = encode(listing, encoder, (blocks[number] for number in mine), on_batch=count, clock=clock)
    written = {number: _write_shard(folder, number, part) for number, part in zip(mine, encoded, strict=True)}
    new = {
        number: note for of_process in distributed.all_gather_objects(written) for number, note in of_process.items()
    }
    notes = [new.get(number) or files.read_json(_note_path(folder, number)) for number in range(len(blocks))]
    skipped = {item: why for note in notes for item, why in note["skipped"]}
    if len(skipped) == len(listing):
        raise InputError(f"none of {len(listing)} {PLURAL[listing.kind]} can be read; {listing.ids[0]}: {skipped[0]}")
    if distributed.rank() == 0:
        _write_manifest(folder, listing, notes, skipped)
    lines = [f"{listing.ids[item]}: {why}" for item, why in skipped.items()]
    return Extraction(len(listing) - len(skipped), lines, before, clock)


def _plan(listing: Listing, encoder: Encoder) -> dict[str, Any]:
    digest = hashlib.sha256()
    for columns in zip(listing.ids, listing.labels, listing.splits, strict=True):
        digest.update(json.dumps(columns).encode())
    return {
        "format": feature_store.FORMAT,
        "kind": listing.kind,
        "encoder": encoder.identity(),
        "dimension": encoder.dimension,
        "items": len(listing),
        "listing": digest.hexdigest(),
        "shard": SHARD,
        "batch": encoder.batch,
        "versions": versions() | {"pillow": PIL.__version__},
    }


def _check_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan of a new store, or see that the store which is there was begun with the same one."""
    path = folder / "plan.json"
    if not path.exists():
        foreign = [file.name for file in folder.iterdir() if file.name not in (".lock", ".plan.json.partial")]
        if foreign:
            raise InputError(f"{folder} is not empty and not a store: it holds {foreign[0]!r}; name another folder")
        files.write_json(path, plan)
    begun = files.read_json(path)
    if not isinstance(begun, dict):
        raise InputError(f"{path} is damaged: it is not the plan of a store")
    for key, now in plan.items():
        before: Any = begun.get(key)
        change = difference(before, now) if key == "encoder" else before != now and f"{now} instead of {before}"
        if change:
            raise InputError(f"{folder} was begun with another {key}, now {change}: name another folder")


def _note_path(folder: Path, number: int) -> Path:
    return feature_store.shard_path(folder, number).with_suffix(".json")


def _is_done(folder: Path, number: int, block: range) -> bool:
    """Whether a shard is there with a note that is whole and has its checksum; otherwise it is made again."""
    shard, note = feature_store.shard_path(folder, number), _note_path(folder, number)
    if not (shard.is_file() and note.is_file()):
        return False
    try:
        rows, sha256, skipped = (files.read_json(note)[key] for key in ("rows", "sha256", "skipped"))
        whole = all(item in block and isinstance(why, str) for item, why in skipped)
        whole = whole and rows == len(block) - len(skipped)
    except (InputError, KeyError, TypeError, ValueError):
        return False
    return bool(whole and feature_store.file_digest(shard) == sha256)


def _write_shard(folder: Path, number: int, part: Encoded) -> dict[str, Any]:
    """Write the vectors of a shard, then its note, which is returned."""
    file, path = io.BytesIO(), feature_store.shard_path(folder, number)
    np.save(file, part.x.astype(np.float16))
    files.write(path, lambda temporary: temporary.write_bytes(file.getbuffer()))
    digest = hashlib.sha256(file.getbuffer()).hexdigest()
    note = {"rows": len(part.x), "sha256": digest, "skipped": part.skipped}
    files.write_json(_note_path(folder, number), note)
    return note


def _write_manifest(folder: Path, listing: Listing, notes: Sequence[dict[str, Any]], skipped: dict[int, str]) -> None:
    def fill(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "label", "split"))
            columns = zip(listing.ids, listing.labels, listing.splits, strict=True)
            writer.writerows(row for item, row in enumerate(columns) if item not in skipped)

    files.write(folder / "samples.csv", fill)
    facts = {
        **files.read_json(folder / "plan.json"),
        "rows": len(listing) - len(skipped),
        "samples": feature_store.file_digest(folder / "samples.csv"),
        "shards": [{"rows": note["rows"], "sha256": note["sha256"]} for note in notes],
        "names": listing.names,
        "skipped": [[listing.ids[item], why] for item, why in skipped.items()],
    }
    files.write_json(folder / "manifest.json", facts)


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """What the system refuses to write becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror}; "
            f"what is done is kept: make room, then run the same command again"
        ) from None

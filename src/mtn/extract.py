"""A listing of items and an encoder -> vectors: in memory, or in a store (mtn.datasets.shards).

A shard depends on nothing but its items and the encoder, so a store that was killed and resumed is the same, byte for
byte, as one that was not.
"""

import csv
import hashlib
import io
import json
import os
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

from mtn import checkpoint, ranks
from mtn.datasets import shards
from mtn.datasets.listing import Listing
from mtn.encoders.base import PLURAL, Encoder, difference
from mtn.errors import InputError
from mtn.images import Unreadable
from mtn.machine import versions
from mtn.progress import Progress, silent

SHARD = 4096
"""Items of a shard: what a kill may cost."""
BATCH = 64
"""Items encoded at once. It never reaches into the next shard: products of other shapes round differently."""
AHEAD = 3
"""Batches that may be prepared before the encoder asks for them: this, not the data set, bounds memory."""


# ---- items -> vectors


@dataclass(frozen=True)
class Encoded:
    """What became of some items."""

    x: np.ndarray  # N,D float32 of those that could be read
    rows: list[int]  # which those are
    skipped: list[tuple[int, str]]  # the others, and why
    thumbnails: list[np.ndarray]


@dataclass
class Clock:
    """Seconds in which the encoder had nothing to do, and in which it worked."""

    waiting: float = 0.0
    working: float = 0.0

    @contextmanager
    def count(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setattr(self, what, getattr(self, what) + time.perf_counter() - start)


def encode(
    listing: Listing,
    encoder: Encoder,
    blocks: Iterable[range],
    thumbnails: bool = False,
    on_batch: Callable[[int], None] = lambda items: None,
    clock: Clock | None = None,
) -> Iterator[Encoded]:
    """Each block of items, one after the other, while threads read and prepare what comes next."""
    clock, parts = clock or Clock(), []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        prepare = partial(_prepare, listing, encoder, thumbnails)
        try:
            for block, items, futures in _ahead(blocks, lambda item: pool.submit(prepare, item)):
                with clock.count("waiting"):
                    ready = [future.result() for future in futures]
                with clock.count("working"):
                    parts.append(_encode_batch(encoder, items, ready))
                on_batch(len(items))
                if items.stop == block.stop:
                    yield _join(parts)
                    parts = []
        finally:
            pool.shutdown(cancel_futures=True)


def _ahead(blocks: Iterable[range], start: Callable[[int], Future[Any]]) -> Iterator[tuple[range, range, list[Any]]]:
    """Batch after batch with its block and its work, which was started `AHEAD` batches before."""
    started: deque[tuple[range, range, list[Any]]] = deque()
    for block in blocks:
        for at in range(0, len(block), BATCH):
            items = block[at : at + BATCH]
            started.append((block, items, [start(item) for item in items]))
            if len(started) == AHEAD:
                yield started.popleft()
    yield from started


def _prepare(listing: Listing, encoder: Encoder, thumbnails: bool, item: int) -> tuple[Any, np.ndarray | None] | str:
    try:
        loaded = listing.places[item].load()
        return encoder.prepare(loaded), encoder.thumbnail(loaded) if thumbnails else None
    except Unreadable as error:
        return str(error)


def _encode_batch(encoder: Encoder, items: range, ready: Sequence[Any]) -> Encoded:
    good = [place for place, one in enumerate(ready) if not isinstance(one, str)]
    skipped = [(item, one) for item, one in zip(items, ready, strict=True) if isinstance(one, str)]
    x = encoder.encode([ready[place][0] for place in good]) if good else np.zeros((0, encoder.dimension), np.float32)
    with np.errstate(over="ignore"):
        fits = np.isfinite(x.astype(np.float16)).all(axis=1)
    skipped += [(items[good[row]], "its vector has a NaN, or a number beyond float16") for row in np.flatnonzero(~fits)]
    kept = [good[row] for row in np.flatnonzero(fits)]
    pictures = [ready[place][1] for place in kept if ready[place][1] is not None]
    return Encoded(x[fits], [items[place] for place in kept], sorted(skipped), pictures)


def _join(parts: Sequence[Encoded]) -> Encoded:
    return Encoded(
        np.concatenate([part.x for part in parts]),
        [row for part in parts for row in part.rows],
        [one for part in parts for one in part.skipped],
        [image for part in parts for image in part.thumbnails],
    )


# ---- vectors -> a store


@dataclass(frozen=True)
class Extraction:
    """How it went."""

    rows: int
    skipped: list[str]  # id: why
    before: int  # items that an earlier run had done
    clock: Clock


def extract(listing: Listing, encoder: Encoder, folder: Path, say: Progress = silent) -> Extraction:
    """Make a store, or go on with the one that is there. Of several processes each makes its share of the shards."""
    if listing.kind != encoder.kind:
        name, takes, got = encoder.identity()["name"], PLURAL[encoder.kind], PLURAL[listing.kind]
        raise InputError(f"the encoder {name!r} takes {takes}, the data are {got}")
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with nullcontext() if ranks.rank() else checkpoint.lock(folder):
            plan = _plan(listing, encoder)
            ranks.first(lambda: _agree(folder, plan))
            _agree(folder, plan)  # all of them: they may have started on other machines
            return _extract(listing, encoder, folder, say)


def _extract(listing: Listing, encoder: Encoder, folder: Path, say: Progress) -> Extraction:
    blocks = [range(start, min(start + SHARD, len(listing))) for start in range(0, len(listing), SHARD)]
    left = ranks.first(lambda: [number for number in range(len(blocks)) if not _is_done(folder, number)])
    mine = left[ranks.rank() :: ranks.count()]
    before = done = len(listing) - sum(len(blocks[number]) for number in left)
    total = before + sum(len(blocks[number]) for number in mine)
    clock = Clock()

    def count(items: int) -> None:
        nonlocal done
        done += items
        say(f"encoding {PLURAL[listing.kind]}", done, total)

    encoded = encode(listing, encoder, (blocks[number] for number in mine), on_batch=count, clock=clock)
    made = {number: _write_shard(folder, number, part) for number, part in zip(mine, encoded, strict=True)}
    fresh = {number: note for theirs in ranks.collect(made) for number, note in theirs.items()}
    notes = [fresh.get(number) or checkpoint.read_json(_note(folder, number)) for number in range(len(blocks))]
    skipped = {item: why for note in notes for item, why in note["skipped"]}
    if len(skipped) == len(listing):
        raise InputError(f"none of {len(listing)} {PLURAL[listing.kind]} can be read; {listing.ids[0]}: {skipped[0]}")
    if ranks.rank() == 0:
        _finish(folder, listing, notes, skipped)
    lines = [f"{listing.ids[item]}: {why}" for item, why in skipped.items()]
    return Extraction(len(listing) - len(skipped), lines, before, clock)


def _plan(listing: Listing, encoder: Encoder) -> dict[str, Any]:
    digest = hashlib.sha256()
    for columns in zip(listing.ids, listing.labels, listing.splits, strict=True):
        digest.update(json.dumps(columns).encode())
    return {
        "format": shards.FORMAT,
        "kind": listing.kind,
        "encoder": encoder.identity(),
        "dimension": encoder.dimension,
        "items": len(listing),
        "listing": digest.hexdigest(),
        "shard": SHARD,
        "batch": BATCH,
        "versions": versions() | {"pillow": PIL.__version__},
    }


def _agree(folder: Path, plan: dict[str, Any]) -> None:
    path = folder / "plan.json"
    if not path.exists():
        strange = [file.name for file in folder.iterdir() if file.name not in (".lock", ".plan.json.partial")]
        if strange:
            raise InputError(f"{folder} is not empty and not a store: it holds {strange[0]!r}; name another folder")
        checkpoint.write_json(path, plan)
    found = checkpoint.read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged: it is not the plan of a store")
    for key, now in plan.items():
        was: Any = found.get(key)
        apart = difference(was, now) if key == "encoder" else was != now and f"{now} instead of {was}"
        if apart:
            raise InputError(f"{folder} was begun with another {key}, now {apart}: name another folder")


def _note(folder: Path, number: int) -> Path:
    return shards.path(folder, number).with_suffix(".json")


def _is_done(folder: Path, number: int) -> bool:
    """Whole, to the bit: one that is not is made again."""
    shard, note = shards.path(folder, number), _note(folder, number)
    return shard.is_file() and note.is_file() and shards.digest(shard) == checkpoint.read_json(note)["sha256"]


def _write_shard(folder: Path, number: int, part: Encoded) -> dict[str, Any]:
    """Its note, too."""
    file, path = io.BytesIO(), shards.path(folder, number)
    np.save(file, part.x.astype(np.float16))
    checkpoint.write(path, lambda temporary: temporary.write_bytes(file.getbuffer()))
    digest = hashlib.sha256(file.getbuffer()).hexdigest()
    note = {"rows": len(part.x), "sha256": digest, "skipped": part.skipped}
    checkpoint.write_json(_note(folder, number), note)
    return note


def _finish(folder: Path, listing: Listing, notes: Sequence[dict[str, Any]], skipped: dict[int, str]) -> None:
    def fill(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "label", "split"))
            columns = zip(listing.ids, listing.labels, listing.splits, strict=True)
            writer.writerows(row for item, row in enumerate(columns) if item not in skipped)

    checkpoint.write(folder / "samples.csv", fill)
    facts = {
        **checkpoint.read_json(folder / "plan.json"),
        "rows": len(listing) - len(skipped),
        "samples": shards.digest(folder / "samples.csv"),
        "shards": [{"rows": note["rows"], "sha256": note["sha256"]} for note in notes],
        "names": listing.names,
        "skipped": [[listing.ids[item], why] for item, why in skipped.items()],
    }
    checkpoint.write_json(folder / "manifest.json", facts)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written: {error.strerror}; "
            f"what is done is kept: make room, then run the same command again"
        ) from None

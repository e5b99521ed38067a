"""What was accepted <-> SQLite: a job is synced to disk before its answer leaves, its samples until they are learned.

Jobs are done in the order in which they fall due: those that teach at once, those that forget when the time to undo
them is over. The file knows nothing of models; whether a job was learned before a kill is told by the model itself.
"""

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import numpy as np

from mtn.classifier import Label
from mtn.errors import InputError

State = Literal["waiting", "running", "done", "failed", "undone"]

MOST_WAITING = 256
"""Jobs: beyond this nothing more is accepted."""
MOST_AT_ONCE = 4096
"""Samples of the jobs that are learned in one go."""
TRIES = 3
"""A job that ends the worker so often is not tried again."""
KEPT = 7 * 24 * 3600
"""Seconds for which a finished job can be asked for, and its key is known."""

NOTHING = "vectors = NULL, thumbnails = NULL, labels = (SELECT json_group_array(NULL) FROM json_each(labels))"
"""What is left of samples: how many they were."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT UNIQUE,
    digest TEXT,
    state TEXT NOT NULL,
    due REAL NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    forgets TEXT,
    labels TEXT NOT NULL,
    vectors BLOB,
    thumbnails BLOB,
    shape TEXT
);
CREATE INDEX IF NOT EXISTS open_jobs ON jobs (due, number) WHERE state IN ('waiting', 'running');
"""


class Full(Exception):
    """Too much waits already."""


class Reused(Exception):
    """The key came with something else before."""


@dataclass(frozen=True)
class Material:
    """N samples to learn, and their pictures where there are any."""

    vectors: np.ndarray  # N,D float32
    labels: list[Label]
    thumbnails: np.ndarray | None = None  # N,H,W or N,H,W,3 uint8

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Job:
    """One thing to do: learn some samples, or forget a class."""

    id: str
    state: State
    due: float
    tries: int
    error: str | None
    labels: list[Label]
    forgets: Label | None


class Journal:
    """One connection, used by one thread at a time; its folder belongs to one server."""

    def __init__(self, file: Path) -> None:
        self._lock = RLock()
        try:
            self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
            # What is deleted is overwritten: a class that is forgotten is in no file.
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                self._db.execute(f"PRAGMA {pragma}").fetchall()
            self._db.executescript(SCHEMA)
            self.reopen()
        except sqlite3.DatabaseError as error:
            raise InputError(f"{file} is not a journal of mtn: {error}") from None
        self._db.row_factory = sqlite3.Row

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- accepted

    def learn(self, material: Material, key: str | None = None, digest: str | None = None) -> Job:
        """On disk when this returns. The same key with the same digest is the same job."""
        with self._lock:
            if known := self._keyed(key, digest):
                return known
            self._check_room()
            images = material.thumbnails
            number = self._write(
                "INSERT INTO jobs (id, key, digest, state, due, labels, vectors, thumbnails, shape)"
                " VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?, ?)",
                *(secrets.token_hex(8), key, digest, time.time(), json.dumps(material.labels)),
                *(material.vectors.astype("<f4").tobytes(), None if images is None else images.tobytes()),
                None if images is None else json.dumps(images.shape[1:]),
            )
            return _job(self._rows("WHERE number = ?", number)[0])

    def forget(self, label: Label, delay: float) -> Job:
        """Asked for again while it can be undone, it is the same job."""
        with self._lock:
            if waiting := self._forgetting(label):
                return waiting
            self._check_room()
            number = self._write(
                "INSERT INTO jobs (id, state, due, labels, forgets) VALUES (?, 'waiting', ?, '[]', ?)",
                *(secrets.token_hex(8), time.time() + delay, json.dumps(label)),
            )
            return _job(self._rows("WHERE number = ?", number)[0])

    def undo(self, label: Label) -> Job | None:
        """The job that forgets a class, if it had not begun."""
        with self._lock:
            waiting = self._forgetting(label)
            if waiting is None:
                return None
            self._write("UPDATE jobs SET state = 'undone' WHERE id = ?", waiting.id)
            return self.find(waiting.id)

    # ---- done

    def take(self) -> list[Job]:
        """What is to be done now: all that teaches, or one that forgets; a job that went wrong before is alone."""
        with self._lock:
            open_ = self._rows("WHERE state = 'waiting' AND due <= ? ORDER BY due, number", time.time())
            taken = open_[:1]
            alone = not taken or taken[0]["forgets"] is not None or taken[0]["tries"]
            total = sum(map(_count, taken))
            for row in [] if alone else open_[1:]:
                total += _count(row)
                if row["forgets"] or row["tries"] or row["shape"] != taken[0]["shape"] or total > MOST_AT_ONCE:
                    break
                taken.append(row)
            jobs = [_job(row) for row in taken]
            self._change(jobs, "state = 'running'")
            return jobs

    def material(self, job: Job) -> Material:
        with self._lock:
            (row,) = self._db.execute("SELECT labels, vectors, thumbnails, shape FROM jobs WHERE id = ?", (job.id,))
        vectors = np.frombuffer(row["vectors"], "<f4").reshape(len(job.labels), -1)
        if row["shape"] is None:
            return Material(vectors, job.labels)
        shape = json.loads(row["shape"])
        return Material(vectors, job.labels, np.frombuffer(row["thumbnails"], np.uint8).reshape(-1, *shape))

    def finish(self, jobs: Sequence[Job]) -> None:
        """Their samples are the model's now; of a class that is forgotten, nothing stays here either."""
        with self._lock:
            self._change(jobs, f"state = 'done', {NOTHING}")
            for job in jobs:
                if job.forgets is not None:
                    labelled = "EXISTS (SELECT 1 FROM json_each(jobs.labels) WHERE value = ?)"
                    self._write(f"UPDATE jobs SET {NOTHING} WHERE state = 'failed' AND {labelled}", job.forgets)
                    self._write("UPDATE jobs SET forgets = 'null' WHERE forgets = ?", json.dumps(job.forgets))
            self._write("DELETE FROM jobs WHERE state IN ('done', 'failed', 'undone') AND due < ?", time.time() - KEPT)
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def retry(self, jobs: Sequence[Job]) -> None:
        """Each alone, later."""
        self._change(jobs, "state = 'waiting', tries = tries + 1")

    def fail(self, job: Job, error: str) -> None:
        """Its samples stay here."""
        self._write("UPDATE jobs SET state = 'failed', error = ? WHERE id = ?", error, job.id)

    def reopen(self) -> None:
        """What was begun and not finished waits again."""
        self._write("UPDATE jobs SET state = 'waiting' WHERE state = 'running'")

    # ---- looked at

    def find(self, id: str) -> Job | None:
        return next(map(_job, self._rows("WHERE id = ?", id)), None)

    def forgetting(self) -> dict[Label, float]:
        """Classes that will be forgotten, and when."""
        rows = self._rows("WHERE state IN ('waiting', 'running') AND forgets IS NOT NULL")
        return {json.loads(row["forgets"]): row["due"] for row in rows}

    def waiting(self) -> int:
        with self._lock:
            found = self._db.execute("SELECT count(*) FROM jobs WHERE state IN ('waiting', 'running')").fetchone()
            return int(found[0])

    def next_due(self) -> float | None:
        with self._lock:
            due = self._db.execute("SELECT min(due) FROM jobs WHERE state = 'waiting'").fetchone()[0]
            return None if due is None else float(due)

    def _forgetting(self, label: Label) -> Job | None:
        return next(map(_job, self._rows("WHERE state = 'waiting' AND forgets = ?", json.dumps(label))), None)

    def _keyed(self, key: str | None, digest: str | None) -> Job | None:
        found = self._rows("WHERE key = ?", key) if key is not None else []
        if found and found[0]["digest"] != digest:
            raise Reused
        return _job(found[0]) if found else None

    def _check_room(self) -> None:
        if self.waiting() >= MOST_WAITING:
            raise Full

    def _change(self, jobs: Sequence[Job], change: str) -> None:
        ids = json.dumps([job.id for job in jobs])
        self._write(f"UPDATE jobs SET {change} WHERE id IN (SELECT value FROM json_each(?))", ids)

    def _rows(self, rest: str, *values: Any) -> list[sqlite3.Row]:
        what = "number, id, state, due, tries, error, forgets, labels, shape, digest"
        with self._lock:
            return self._db.execute(f"SELECT {what} FROM jobs {rest}", values).fetchall()

    def _write(self, statement: str, *values: Any) -> int:
        """One statement, one transaction: synced when it returns."""
        with self._lock:
            return int(self._db.execute(statement, values).lastrowid or 0)


def digest(*parts: str | bytes) -> str:
    """Tells one request from another."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()


def _count(row: sqlite3.Row) -> int:
    return len(json.loads(row["labels"]))


def _job(row: sqlite3.Row) -> Job:
    forgets = None if row["forgets"] is None else json.loads(row["forgets"])
    labels = json.loads(row["labels"])
    return Job(row["id"], row["state"], row["due"], row["tries"], row["error"], labels, forgets)

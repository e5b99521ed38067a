"""Accepted jobs <-> SQLite: a job is synced to disk before its answer is sent, its samples stay until they are learned.

Jobs are done in the order in which they fall due: those that teach or correct at once, those that forget when the time
to undo them is over. Nothing here depends on models; whether a job was done before a kill is recorded in the model.
"""

import hashlib
import json
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import numpy as np

from mtn.classifier import Id, Label
from mtn.errors import InputError

JobState = Literal["waiting", "running", "done", "failed", "undone"]
ChangeKind = Literal["forget", "rename", "relabel", "remove"]

MAX_WAITING = 256
"""Jobs: beyond this nothing more is accepted."""
MAX_BATCH = 4096
"""Samples of the jobs that are learned in one call."""
MAX_TRIES = 3
"""A job that has ended the worker process so often is not tried again."""
KEPT_SECONDS = 7 * 24 * 3600
"""For which a finished job can be looked up, and its key is known."""

ERASED = (
    "vectors = NULL, thumbnails = NULL, texts = NULL, labels = (SELECT json_group_array(NULL) FROM json_each(labels))"
)
"""Of samples, only their number is kept."""
WITHOUT_NAMES = "change = iif(change IS NULL, NULL, json_array(json_extract(change, '$[0]'), NULL, NULL))"
"""Of a change, only its kind is kept."""
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
    change TEXT,
    labels TEXT NOT NULL,
    vectors BLOB,
    thumbnails BLOB,
    shape TEXT,
    texts TEXT
);
CREATE INDEX IF NOT EXISTS open_jobs ON jobs (due, number) WHERE state IN ('waiting', 'running');
"""

UPGRADES = {
    "texts": "ALTER TABLE jobs ADD COLUMN texts TEXT",
    "change": """
BEGIN IMMEDIATE;
ALTER TABLE jobs ADD COLUMN change TEXT;
UPDATE jobs SET change = json_array('forget', json(forgets), NULL), forgets = NULL WHERE forgets IS NOT NULL;
COMMIT;
""",
}
"""By a column that the journal of an earlier version lacks: what makes it one of this version."""

DISK_ERRORS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite reports of a disk that is full or cannot be written."""
PROBE_BYTES = 2**20
"""Written to find out whether the disk has room."""


class NoStorage(Exception):
    """The disk is full or cannot be written."""


class JournalFull(Exception):
    """Too many jobs are waiting."""


class KeyReused(Exception):
    """The idempotency key came with another request before."""


class ClassChanging(Exception):
    """A class is about to be forgotten or renamed: what is asked for must wait until that is done."""


@dataclass(frozen=True)
class LabelledSamples:
    """N samples to learn, with the pictures or sentences that they were made from."""

    vectors: np.ndarray  # N,D float32
    labels: list[Label]
    thumbnails: np.ndarray | None = None  # N,H,W or N,H,W,3 uint8
    texts: list[str] | None = None  # N

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Change:
    """A correction of what is known: forget the class `target`, rename it to `label`, say that the exemplar with the id
    `target` is of the class `label`, or remove it. Of one that is done, the kind alone is kept."""

    kind: ChangeKind
    target: Id | Label | None
    label: Label | None = None

    def classes(self) -> list[Label]:
        """Classes that are about to lose their name."""
        return [self.target] if self.kind in ("forget", "rename") and self.target is not None else []


@dataclass(frozen=True)
class Job:
    """A request to learn samples, or to change what is known."""

    id: str
    state: JobState
    due: float
    tries: int
    error: str | None
    labels: list[Label]
    change: Change | None = None

    @property
    def forgets(self) -> Label | None:
        """The class that is forgotten."""
        return self.change.target if self.change is not None and self.change.kind == "forget" else None


class Journal:
    """The jobs of a server. One connection, used by one thread at a time; its folder belongs to one server."""

    def __init__(self, file: Path) -> None:
        self._lock, self._folder = RLock(), file.parent
        try:
            self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
            # What is deleted is overwritten: a class that is forgotten is in no file.
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                self._db.execute(f"PRAGMA {pragma}").fetchall()
            self._db.executescript(SCHEMA)
            columns = {row[1] for row in self._db.execute("PRAGMA table_info(jobs)")}
            for name, upgrade in UPGRADES.items():
                if name not in columns:
                    self._db.executescript(upgrade)
            if (verdict := self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise InputError(f"{file} is damaged, or not a journal of mtn: {verdict}")
            self.reopen()
        except NoStorage as error:
            raise InputError(f"{file} cannot be written: {error}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            problem = "cannot be written" if _is_of_disk(error) else "is damaged, or not a journal of mtn"
            raise InputError(f"{file} {problem}: {error}") from None
        self._db.row_factory = sqlite3.Row

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # ---- accept jobs

    def learn(self, samples: LabelledSamples, key: str | None = None, digest: str | None = None) -> Job:
        """A job that is on disk when this returns. The same key with the same digest is the same job."""
        with self._lock:
            if known := self._keyed(key, digest):
                return known
            self._check_room()
            self._check_classes(set(samples.labels))
            images, texts = samples.thumbnails, samples.texts
            number = self._write(
                "INSERT INTO jobs (id, key, digest, state, due, labels, vectors, thumbnails, shape, texts)"
                " VALUES (?, ?, ?, 'waiting', ?, ?, ?, ?, ?, ?)",
                *(secrets.token_hex(8), key, digest, time.time(), json.dumps(samples.labels)),
                *(samples.vectors.astype("<f4").tobytes(), None if images is None else images.tobytes()),
                None if images is None else json.dumps(images.shape[1:]),
                None if texts is None else json.dumps(texts, ensure_ascii=False),
            )
            return _job(self._rows("WHERE number = ?", number)[0])

    def forget(self, label: Label, delay: float) -> Job:
        """A job that forgets a class after a delay in seconds; while one is waiting, it is the same job."""
        with self._lock:
            return self._forgetting(label) or self._accept(Change("forget", label), time.time() + delay)

    def correct(self, change: Change, key: str | None = None, digest: str | None = None) -> Job:
        """A job that renames a class, or relabels or removes an exemplar; keys are as in `learn`."""
        with self._lock:
            return self._keyed(key, digest) or self._accept(change, time.time(), key, digest)

    def _accept(self, change: Change, due: float, key: str | None = None, digest: str | None = None) -> Job:
        self._check_room()
        self._check_classes({change.label, *change.classes()})
        number = self._write(
            "INSERT INTO jobs (id, key, digest, state, due, labels, change) VALUES (?, ?, ?, 'waiting', ?, '[]', ?)",
            *(secrets.token_hex(8), key, digest, due, json.dumps([change.kind, change.target, change.label])),
        )
        return _job(self._rows("WHERE number = ?", number)[0])

    def undo(self, label: Label) -> Job | None:
        """Undo the job that forgets a class; None if it has begun, or there is none."""
        with self._lock:
            waiting = self._forgetting(label)
            if waiting is None:
                return None
            self._write("UPDATE jobs SET state = 'undone' WHERE id = ?", waiting.id)
            return self.find(waiting.id)

    # ---- do jobs

    def take(self, most: int = MAX_WAITING) -> list[Job]:
        """The jobs to do now: at most `most` that teach, or one that changes; one that failed alone is tried alone."""
        with self._lock:
            open_ = self._rows("WHERE state = 'waiting' AND due <= ? ORDER BY due, number", time.time())
            taken = open_[:1]
            alone = not taken or taken[0]["change"] is not None or taken[0]["tries"]
            total = sum(map(_count, taken))
            for row in [] if alone else open_[1:most]:
                total += _count(row)
                if row["change"] or row["tries"] or row["shape"] != taken[0]["shape"] or total > MAX_BATCH:
                    break
                taken.append(row)
            jobs = [_job(row) for row in taken]
            self._change(jobs, "state = 'running'")
            return jobs

    def samples(self, job: Job) -> LabelledSamples:
        """What a job teaches."""
        with self._lock:
            (row,) = self._db.execute("SELECT vectors, thumbnails, shape, texts FROM jobs WHERE id = ?", (job.id,))
        vectors, images = np.frombuffer(row["vectors"], "<f4").reshape(len(job.labels), -1), None
        if row["shape"] is not None:
            images = np.frombuffer(row["thumbnails"], np.uint8).reshape(-1, *json.loads(row["shape"]))
        texts = None if row["texts"] is None else json.loads(row["texts"])
        return LabelledSamples(vectors, job.labels, images, texts)

    def finish(self, jobs: Sequence[Job]) -> None:
        """The jobs are done: their samples are erased, and with a forgotten class everything that is recorded of it."""
        with self._lock:
            for job in jobs:
                if job.change is not None:
                    self._follow(job.change)
            self._change(jobs, f"state = 'done', {ERASED}, {WITHOUT_NAMES}")
            self._write(
                "DELETE FROM jobs WHERE state IN ('done', 'failed', 'undone') AND due < ?", time.time() - KEPT_SECONDS
            )
            self._write("PRAGMA wal_checkpoint(TRUNCATE)")

    def _follow(self, change: Change) -> None:
        """Let what is recorded of a class that was forgotten go, and be of the new name if it was renamed."""
        labelled = "EXISTS (SELECT 1 FROM json_each(jobs.labels) WHERE value = ?)"
        if change.kind == "forget":
            self._write(f"UPDATE jobs SET {ERASED} WHERE state = 'failed' AND {labelled}", change.target)
            undone = map(_job, self._rows("WHERE state = 'undone'"))
            self._change([job for job in undone if job.change == change], WITHOUT_NAMES)
        elif change.kind == "rename":
            renamed = "(SELECT json_group_array(CASE value WHEN ? THEN ? ELSE value END) FROM json_each(labels))"
            values = change.target, change.label, change.target
            self._write(f"UPDATE jobs SET labels = {renamed} WHERE state = 'failed' AND {labelled}", *values)

    def retry(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait again, each to be tried alone from now on."""
        self._change(jobs, "state = 'waiting', tries = tries + 1")

    def fail(self, job: Job, error: str) -> None:
        """A job will not be tried again; its samples are kept, but not what it was to change."""
        self._write(f"UPDATE jobs SET state = 'failed', error = ?, {WITHOUT_NAMES} WHERE id = ?", error, job.id)

    def reopen(self) -> None:
        """Let jobs that were begun and not finished wait again."""
        self._write("UPDATE jobs SET state = 'waiting' WHERE state = 'running'")

    # ---- look up

    def find(self, id: str) -> Job | None:
        """The job of this id."""
        return next(map(_job, self._rows("WHERE id = ?", id)), None)

    def forgetting(self) -> dict[Label, float]:
        """Labels of classes that will be forgotten, and when (seconds since 1970)."""
        return {job.forgets: job.due for job in self._open_changes() if job.forgets is not None}

    def check_disk(self) -> None:
        """An error unless something can be written beside the journal."""
        try:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                file.write(bytes(PROBE_BYTES))
                if file.tell() < PROBE_BYTES:
                    raise NoStorage("No space left on device")
        except OSError as error:
            raise NoStorage(error.strerror or str(error)) from None

    def waiting(self) -> int:
        """The number of jobs that are not finished."""
        with self._lock:
            row = self._db.execute("SELECT count(*) FROM jobs WHERE state IN ('waiting', 'running')").fetchone()
            return int(row[0])

    def next_due(self) -> float | None:
        """When the next job falls due (seconds since 1970); None without one."""
        with self._lock:
            due = self._db.execute("SELECT min(due) FROM jobs WHERE state = 'waiting'").fetchone()[0]
            return None if due is None else float(due)

    def _forgetting(self, label: Label) -> Job | None:
        waiting = (job for job in self._open_changes() if job.state == "waiting")
        return next((job for job in waiting if job.change == Change("forget", label)), None)

    def _open_changes(self) -> list[Job]:
        return [_job(row) for row in self._rows("WHERE state IN ('waiting', 'running') AND change IS NOT NULL")]

    def _check_classes(self, labels: set[Label | None]) -> None:
        """An error if one of the classes is about to lose its name: what is asked of it would be done to another."""
        for job in self._open_changes():
            assert job.change is not None
            for label in labels.intersection(job.change.classes()):
                what = "forgotten: undo that first, or wait" if job.change.kind == "forget" else "renamed: wait"
                raise ClassChanging(f"{label!r} is being {what} until it is done")

    def _keyed(self, key: str | None, digest: str | None) -> Job | None:
        rows = self._rows("WHERE key = ?", key) if key is not None else []
        if rows and rows[0]["digest"] != digest:
            raise KeyReused
        return _job(rows[0]) if rows else None

    def _check_room(self) -> None:
        if self.waiting() >= MAX_WAITING:
            raise JournalFull

    def _change(self, jobs: Sequence[Job], change: str) -> None:
        ids = json.dumps([job.id for job in jobs])
        self._write(f"UPDATE jobs SET {change} WHERE id IN (SELECT value FROM json_each(?))", ids)

    def _rows(self, condition: str, *values: Any) -> list[sqlite3.Row]:
        """Jobs without their samples."""
        columns = "number, id, state, due, tries, error, change, labels, shape, digest"
        with self._lock:
            return self._db.execute(f"SELECT {columns} FROM jobs {condition}", values).fetchall()

    def _write(self, statement: str, *values: Any) -> int:
        """One statement, one transaction: synced when it returns."""
        with self._lock:
            try:
                cursor = self._db.execute(statement, values)
                cursor.fetchall()
                return int(cursor.lastrowid or 0)
            except sqlite3.OperationalError as error:
                if not _is_of_disk(error):
                    raise
                raise NoStorage(str(error)) from None


def _is_of_disk(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_ERRORS  # the other bits say more about it


def request_digest(*parts: str | bytes) -> str:
    """The SHA-256 of a request's parts: the same for the same request."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()


def _count(row: sqlite3.Row) -> int:
    """Samples of a job."""
    return len(json.loads(row["labels"]))


def _job(row: sqlite3.Row) -> Job:
    change = None if row["change"] is None else Change(*json.loads(row["change"]))
    return Job(row["id"], row["state"], row["due"], row["tries"], row["error"], json.loads(row["labels"]), change)

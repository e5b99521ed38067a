"""Exemplars past one machine: the vectors of a memory as a collection in Milvus.

A URI names a local file (Milvus Lite, within this process), a server or a cluster; the calls are the same.

Nothing is lost or doubled, whenever a process or the server stops: new exemplars are upserted by id under the number of
their task; then the state that names them is saved; only then those that lost their place are deleted. A state does not
see rows of tasks it has not learned: they are of an attempt that broke off, and go when the task is tried again, or of
somebody who is learning it right now.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mtn.config import Budget
from mtn.errors import InputError, Passing

BATCH = 1000
"""Rows of a call."""
PATIENCE = 120.0
"""Seconds in which a server that does not answer is asked again: one that is started anew needs up to a minute."""
CALL = 60.0
"""Seconds a call may take."""
CACHE = 2**28
"""Bytes of vectors kept in this process: within a task the same exemplars are asked for at every step."""
FINAL = {100, 102, *range(800, 900), *range(1100, 2000)}
"""Codes of Milvus that waiting does not mend: no such collection or database, a bad parameter, no right to it."""

LOST = 2
"""The code of a connection that is not there."""

T = TypeVar("T")


def fresh_name() -> str:
    """Of a collection that nobody else has."""
    return f"mtn_{uuid.uuid4().hex}"


def collection(budget: Budget, dimension: int, name: str | None = None) -> "Collection | None":
    """Where the configuration wants the vectors: in the collection of this name, a new one, or in no collection."""
    return None if budget.uri is None else Collection(budget.uri, name or fresh_name(), dimension)


class Collection:
    """A collection at a URI: its rows are an id, a label, the number of a task, and a vector of unit length.

    Connected to when first used; a token for the server is in the environment, never on disk.
    """

    def __init__(self, uri: str, name: str, dimension: int) -> None:
        self.local = "://" not in uri
        self.uri = str(Path(uri).expanduser().absolute()) if self.local else uri
        self.name, self.dimension = name, dimension
        self._client: tuple[int, Any] | None = None  # of this process
        self._cache: dict[int, Tensor] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Collection, (self.uri, self.name, self.dimension)

    def place(self) -> dict[str, str]:
        return {"uri": self.uri, "name": self.name}

    def __str__(self) -> str:
        return f"collection {self.name!r} at {self.uri}"

    def create(self) -> None:
        """Empty, whatever was called so before."""

        def make(client: Any) -> None:
            from pymilvus import DataType

            client.drop_collection(self.name, timeout=CALL)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("label", DataType.INT64)
            schema.add_field("task", DataType.INT64)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dimension)
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="IP")  # exact, as the search in this process
            client.create_collection(
                self.name, schema=schema, index_params=index, consistency_level="Strong", timeout=CALL
            )

        self._cache.clear()
        self._call(make)

    def drop(self) -> None:
        self._ask("drop_collection")

    def upsert(self, ids: Tensor, labels: Tensor, task: int, read: Callable[[slice], Tensor]) -> None:
        for rows in _batches(len(ids)):
            numbers = ids[rows].tolist()
            entries = [
                {"id": number, "label": label, "task": task, "vector": vector}
                for number, label, vector in zip(numbers, labels[rows].tolist(), read(rows).numpy(), strict=True)
            ]
            self._ask("upsert", data=entries)
            self._forget(numbers)
        self._flush()

    def relabel(self, number: int, label: int) -> None:
        row = self._get([number], ["id", "task", "vector"])[0]
        self._ask("upsert", data=[{**row, "label": label}])
        self._flush()

    def delete(self, ids: Tensor) -> None:
        for rows in _batches(len(ids)):
            numbers = ids[rows].tolist()
            self._ask("delete", ids=numbers)
            self._forget(numbers)
        if len(ids):
            self._flush()

    def delete_from(self, task: int) -> None:
        """What tasks from this one on have brought."""
        self._ask("delete", filter=f"task >= {task}")

    def count(self, tasks: int) -> int:
        """Rows of the first tasks."""
        self._ask("load_collection")  # a server may have let it go
        return int(self._ask("query", filter=f"task < {tasks}", output_fields=["count(*)"])[0]["count(*)"])

    def search(self, query: Tensor, k: int, rule: str) -> tuple[Tensor, Tensor]:
        """Ids and inner products of the nearest rows within a rule (B,K), nearest first; -1 where there is none."""
        hits = self._ask("search", data=list(query.cpu().numpy()), limit=k, filter=rule)
        ids, similarity = torch.full((len(query), k), -1), torch.zeros(len(query), k)
        for row, near in enumerate(hits):
            ids[row, : len(near)] = torch.tensor([hit["id"] for hit in near], dtype=torch.long)
            similarity[row, : len(near)] = torch.tensor([hit["distance"] for hit in near])
        return ids, similarity

    def vectors(self, ids: Tensor) -> Tensor:
        """Of any ids, in any shape: ...,D."""
        if not ids.numel():
            return torch.zeros(*ids.shape, self.dimension)
        unique, place = ids.unique(return_inverse=True)
        numbers = unique.tolist()
        with self._lock:
            found = {number: self._cache[number] for number in numbers if number in self._cache}
            missing = [number for number in numbers if number not in found]
            for rows in _batches(len(missing)):
                found |= self._fetch(missing[rows])
            self._keep(found, missing)
        return torch.stack([found[number] for number in numbers])[place]

    def _fetch(self, numbers: list[int]) -> dict[int, Tensor]:
        entries = self._get(numbers, ["id", "vector"])
        table = torch.from_numpy(np.array([entry["vector"] for entry in entries], np.float32))
        return {entry["id"]: vector for entry, vector in zip(entries, table, strict=True)}

    def _get(self, numbers: list[int], fields: list[str]) -> list[dict[str, Any]]:
        entries = list(self._ask("get", ids=numbers, output_fields=fields))
        if len(entries) < len(numbers):
            lost = len(numbers) - len(entries)
            raise Passing(f"{self} misses {lost} exemplars: if the model has learned meanwhile, load it anew")
        return entries

    def _keep(self, found: dict[int, Tensor], missing: list[int]) -> None:
        """In the cache, in place of what came there first."""
        room = CACHE // (4 * self.dimension)
        self._cache |= {number: found[number].clone() for number in missing[:room]}
        for number in list(islice(self._cache, max(len(self._cache) - room, 0))):
            del self._cache[number]

    def _forget(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                self._cache.pop(number, None)

    def _flush(self) -> None:
        """Milvus Lite looks at what is not flushed row by row; a server flushes when it thinks best."""
        if self.local:
            self._ask("flush")

    def _connect(self) -> Any:
        """A process that was forked makes a connection of its own."""
        if self._client is None or self._client[0] != os.getpid():
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong comes as one error, from here
            try:
                import pymilvus

                if self.local:
                    import milvus_lite  # noqa: F401 (pymilvus starts it)
            except ImportError as error:
                raise InputError(f"memory.store = 'milvus' needs {error.name}: pip install 'mtn[milvus]'") from None
            for loud in ("pymilvus", "milvus_lite"):
                logging.getLogger(loud).setLevel(logging.CRITICAL)
            token = os.environ.get("MTN_MILVUS_TOKEN", "")
            self._client = os.getpid(), pymilvus.MilvusClient(self.uri, token=token, timeout=CALL)
        return self._client[1]

    def _ask(self, what: str, **arguments: Any) -> Any:
        return self._call(lambda client: getattr(client, what)(self.name, timeout=CALL, **arguments))

    def _call(self, ask: Callable[[Any], T]) -> T:
        """Again and again, ever more slowly, if the server does not answer; all that is asked may be asked twice."""
        deadline, pause = time.monotonic() + PATIENCE, 0.25
        while True:
            try:
                return ask(self._connect())
            except InputError:
                raise
            except Exception as error:
                if not _milvus(error):
                    raise
                code = getattr(error, "code", None)
                if code in FINAL or (self.local and isinstance(code, int) and code != LOST):
                    raise InputError(f"Milvus, {self}: {_words(error)}") from None
                if time.monotonic() + pause > deadline:
                    waited = f"no answer in {PATIENCE:.0f} s"
                    raise Passing(f"Milvus, {self}: {waited} ({_words(error)}); nothing is lost: try again") from None
                if pause == 0.25:
                    logging.getLogger(__name__).warning("Milvus, %s: no answer, trying again", self)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


@dataclass(frozen=True, eq=False)
class Remote:
    """Rows of a memory whose vectors are in a collection: fetched when they are asked for, as those of any matrix."""

    collection: Collection
    id: Tensor  # N, in the order of the memory
    hidden: Tensor  # ids that are in the collection and are no rows: lost their places, or not to be looked at
    tasks: int  # that have brought rows; those of later ones are not ours

    @staticmethod
    def empty(collection: Collection) -> "Remote":
        return Remote(collection, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), 0)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.id), self.collection.dimension))

    def __getitem__(self, rows: Any) -> Tensor:
        if isinstance(rows, Tensor):
            return self.collection.vectors(self.id[rows.cpu()]).to(rows.device)
        return self.collection.vectors(self.id[rows])

    def take(self, rows: Tensor) -> "Remote":
        """These rows (a mask or positions) alone: the others are hidden."""
        kept = self.id[rows]
        return replace(self, id=kept, hidden=torch.cat([self.hidden, self.id[~torch.isin(self.id, kept)]]))

    def add(self, ids: Tensor, labels: Tensor, read: Callable[[slice], Tensor]) -> "Remote":
        """One more task's exemplars behind those there are, whatever an earlier attempt has left."""
        if self.tasks:
            self.collection.delete_from(self.tasks)
        else:
            self.collection.create()
        self.collection.upsert(ids, labels, self.tasks, read)
        hidden = self.hidden[~torch.isin(self.hidden, ids)]
        return replace(self, id=torch.cat([self.id, ids]), hidden=hidden, tasks=self.tasks + 1)

    def settled(self) -> "Remote":
        """With nothing hidden: called once a state without the hidden ones is on disk."""
        if len(self.hidden):
            self.collection.delete(self.hidden)
        return replace(self, hidden=self.hidden[:0])

    def checked(self) -> "Remote":
        """An error if exemplars are missing; what is hidden may be gone already."""
        there = self.collection.count(self.tasks) if self.tasks else 0
        if there < len(self.id):
            raise InputError(f"Milvus, {self.collection}: it has {there} of this memory's {len(self.id)} exemplars")
        return replace(self, hidden=self.hidden[:0]) if there == len(self.id) else self

    def nearest(self, query: Tensor, k: int, below: int | None = None) -> tuple[Tensor, Tensor]:
        """Rows (-1: none) and cosines of the nearest (B,K), or of those with a label below a number."""
        if not len(self.id):
            return torch.full((len(query), 0), -1), torch.zeros(len(query), 0)
        rules = [f"task < {self.tasks}"]
        rules += [] if below is None else [f"label < {below}"]
        rules += [f"id not in {self.hidden.tolist()}"] if len(self.hidden) else []
        ids, similarity = self.collection.search(query, k, " and ".join(rules))
        place = torch.searchsorted(self._sorted[0], ids).clamp(max=len(self.id) - 1)
        known = self._sorted[0][place] == ids
        return self._sorted[1][place].where(known, -1), similarity

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """Ids rising, and their rows."""
        found = self.id.sort()
        return found.values, found.indices


def _batches(count: int) -> Iterator[slice]:
    for start in range(0, count, BATCH):
        yield slice(start, min(start + BATCH, count))


def _milvus(error: Exception) -> bool:
    import grpc
    from pymilvus.exceptions import MilvusException

    return isinstance(error, MilvusException | grpc.RpcError)


def _words(error: Any) -> str:
    """What it says, in one line."""
    said = getattr(error, "message", None) or (error.details() if hasattr(error, "details") else error)
    return " ".join(str(said).split())[:300]

"""A collection in Milvus: the client, its retries, and a cache of vectors.

A URI names a local file (Milvus Lite, within this process), a server or a cluster; the calls are the same.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mtn.errors import InputError, UnavailableError, install_line
from mtn.search.permission import check_permission, normalise_uri, token_for
from mtn.search.store import Location

if TYPE_CHECKING:
    from tenacity import RetryCallState

BATCH = 1000
"""Rows of a call."""
PATIENCE = 120.0
"""Seconds in which a server that does not answer is asked again: one that is restarted needs up to a minute."""
TIMEOUT = 60.0
"""Seconds a call may take."""
CACHE_BYTES = 2**28
"""Of vectors kept in this process: within a task the same exemplars are read at every step."""
FINAL_CODES = {100, 102, *range(800, 900), *range(1100, 2000)}
"""Error codes of Milvus that a retry does not help: no such collection or database, a bad parameter, no permission."""
CONNECTION_LOST = 2
"""The error code of a connection that is not there."""

T = TypeVar("T")


def new_location(uri: str) -> Location:
    """A collection at a URI with a name that nobody else has."""
    return Location(uri, f"mtn_{uuid.uuid4().hex}")


class Collection:
    """Rows of an id, a label, the number of a task, and a vector of unit length.

    The connection is made at the first call, and only to a URI that the user named (mtn.search.permission). The token
    of the server is read from the environment, and is never on disk.
    """

    def __init__(self, location: Location, dimension: int) -> None:
        uri, name = location
        self.is_local = "://" not in uri
        self.location = Location(normalise_uri(uri), name)
        self.dimension = dimension
        self._client: tuple[int, Any] | None = None  # the process that connected, and its connection
        self._cache: dict[int, Tensor] = {}  # id -> vector, in the order in which they came
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Collection, (self.location, self.dimension)

    def __str__(self) -> str:
        return str(self.location)

    def create(self) -> None:
        """Make it, empty; one of the same name is dropped."""

        def make(client: Any) -> None:
            from pymilvus import DataType

            name = self.location.name
            client.drop_collection(name, timeout=TIMEOUT)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("label", DataType.INT64)
            schema.add_field("task", DataType.INT64)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dimension)
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="IP")  # exact, as the search in this process
            client.create_collection(
                name, schema=schema, index_params=index, consistency_level="Strong", timeout=TIMEOUT
            )

        self._cache.clear()
        self._call(make)

    def drop(self) -> None:
        """Delete it with all its rows."""
        self._request("drop_collection")

    def upsert(self, ids: Tensor, labels: Tensor, task: int, read: Callable[[slice], Tensor]) -> None:
        """Add rows of a task, or replace those that have the same ids; `read` returns the vectors of a range."""
        for rows in _batches(len(ids)):
            batch_ids = ids[rows].tolist()
            entries = [
                {"id": row_id, "label": label, "task": task, "vector": vector}
                for row_id, label, vector in zip(batch_ids, labels[rows].tolist(), read(rows).numpy(), strict=True)
            ]
            self._request("upsert", data=entries)
            self._uncache(batch_ids)
        self._flush()

    def relabel(self, row_id: int, label: int) -> None:
        """Give a row another label."""
        entry = self._get([row_id], ["id", "task", "vector"])[0]
        self._request("upsert", data=[{**entry, "label": label}])
        self._flush()

    def delete(self, ids: Tensor) -> None:
        """Delete the rows with these ids, those of them that there are."""
        for rows in _batches(len(ids)):
            batch_ids = ids[rows].tolist()
            self._request("delete", ids=batch_ids)
            self._uncache(batch_ids)
        if len(ids):
            self._flush()

    def delete_from(self, task: int) -> None:
        """Delete the rows of this task and of later ones."""
        self._request("delete", filter=f"task >= {task}")

    def count(self, tasks: int) -> int:
        """The number of rows of the first tasks."""
        self._request("load_collection")  # a server may have unloaded it
        return int(self._request("query", filter=f"task < {tasks}", output_fields=["count(*)"])[0]["count(*)"])

    def search(self, query: Tensor, k: int, condition: str) -> tuple[Tensor, Tensor]:
        """Ids and inner products (B,K) of the nearest rows that meet a condition, nearest first; id -1: no further."""
        hits = self._request("search", data=list(query.cpu().numpy()), limit=k, filter=condition)
        ids, similarity = torch.full((len(query), k), -1), torch.zeros(len(query), k)
        for row, near in enumerate(hits):
            ids[row, : len(near)] = torch.tensor([hit["id"] for hit in near], dtype=torch.long)
            similarity[row, : len(near)] = torch.tensor([hit["distance"] for hit in near])
        return ids, similarity

    def vectors(self, ids: Tensor) -> Tensor:
        """The vectors of ids of any shape: that shape, then D."""
        if not ids.numel():
            return torch.zeros(*ids.shape, self.dimension)
        unique, inverse = torch.unique(ids, return_inverse=True)
        wanted = unique.tolist()
        with self._lock:
            vectors = {row_id: self._cache[row_id] for row_id in wanted if row_id in self._cache}
            missing = [row_id for row_id in wanted if row_id not in vectors]
            for rows in _batches(len(missing)):
                vectors |= self._fetch(missing[rows])
            self._put_into_cache(vectors, missing)
        return torch.stack([vectors[row_id] for row_id in wanted])[inverse]

    def _fetch(self, ids: list[int]) -> dict[int, Tensor]:
        entries = self._get(ids, ["id", "vector"])
        vectors = torch.from_numpy(np.array([entry["vector"] for entry in entries], np.float32))
        return {entry["id"]: vector for entry, vector in zip(entries, vectors, strict=True)}

    def _get(self, ids: list[int], fields: list[str]) -> list[dict[str, Any]]:
        entries = list(self._request("get", ids=ids, output_fields=fields))
        if len(entries) < len(ids):
            lost = len(ids) - len(entries)
            raise UnavailableError(f"{self} misses {lost} exemplars: if the model has learned meanwhile, load it anew")
        return entries

    def _put_into_cache(self, vectors: dict[int, Tensor], missing: list[int]) -> None:
        """The oldest entries make room."""
        room = CACHE_BYTES // (4 * self.dimension)
        self._cache |= {row_id: vectors[row_id].clone() for row_id in missing[:room]}
        for row_id in list(islice(self._cache, max(len(self._cache) - room, 0))):
            del self._cache[row_id]

    def _uncache(self, ids: list[int]) -> None:
        with self._lock:
            for row_id in ids:
                self._cache.pop(row_id, None)

    def _flush(self) -> None:
        """Milvus Lite searches rows that are not flushed one by one; a server flushes by itself."""
        if self.is_local:
            self._request("flush")

    def _connect(self) -> Any:
        """The client of this process: a forked process makes a connection of its own."""
        if self._client is None or self._client[0] != os.getpid():
            check_permission(self.location.uri)
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # `_call` reports failures as one error
            try:
                import pymilvus

                if self.is_local:
                    import milvus_lite  # noqa: F401 (pymilvus starts it)
            except ImportError as error:
                raise InputError(f"memory.store = 'milvus' needs {error.name}: {install_line('milvus')}") from None
            for package in ("pymilvus", "milvus_lite"):
                logging.getLogger(package).setLevel(logging.CRITICAL)
            uri = self.location.uri
            self._client = os.getpid(), pymilvus.MilvusClient(str(uri), token=token_for(uri), timeout=TIMEOUT)
        return self._client[1]

    def _request(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client on this collection."""
        name = self.location.name
        return self._call(lambda client: getattr(client, method)(name, timeout=TIMEOUT, **arguments))

    def _call(self, request: Callable[[Any], T]) -> T:
        """Retry with growing pauses while the server does not answer; every request may be repeated."""
        # here: few models are in Milvus, and it brings asyncio and tornado along
        from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_exponential

        attempts = Retrying(
            retry=retry_if_exception(self._may_pass),
            wait=wait_exponential(multiplier=0.25, max=5.0),
            stop=stop_before_delay(PATIENCE),
            before_sleep=self._warn_once,
            reraise=True,
        )
        try:
            return attempts(lambda: request(self._connect()))
        except Exception as error:
            if self._may_pass(error):
                waited = f"no answer in {PATIENCE:.0f} s"
                raise UnavailableError(
                    f"Milvus, {self}: {waited} ({_message(error)}); nothing is lost: try again"
                ) from None
            if _is_from_milvus(error):
                raise InputError(f"Milvus, {self}: {_message(error)}") from None
            raise

    def _may_pass(self, error: BaseException) -> bool:
        """Whether a retry may help. In a local file only a lost connection passes."""
        if not _is_from_milvus(error):
            return False
        code = getattr(error, "code", None)
        return code not in FINAL_CODES and not (self.is_local and isinstance(code, int) and code != CONNECTION_LOST)

    def _warn_once(self, attempt: "RetryCallState") -> None:
        if attempt.attempt_number == 1:
            logging.getLogger(__name__).warning("Milvus, %s: no answer, trying again", self)


def _batches(count: int) -> Iterator[slice]:
    for start in range(0, count, BATCH):
        yield slice(start, min(start + BATCH, count))


def _is_from_milvus(error: BaseException) -> bool:
    if isinstance(error, InputError):  # perhaps because pymilvus is not installed
        return False
    import grpc
    from pymilvus.exceptions import MilvusException

    return isinstance(error, MilvusException | grpc.RpcError)


def _message(error: Any) -> str:
    """What the error says, in one line."""
    text = getattr(error, "message", None) or (error.details() if hasattr(error, "details") else error)
    return " ".join(str(text).split())[:300]

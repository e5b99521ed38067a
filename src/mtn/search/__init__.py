"""Where vectors are, and which of them are near a query."""

import torch
from torch import Tensor

from mtn.config import Budget
from mtn.search.bit_codes import BitCodeStore
from mtn.search.collection import new_location
from mtn.search.in_process import InProcessStore
from mtn.search.milvus import MilvusStore, drop_collection
from mtn.search.neighbour_lists import NeighbourLists
from mtn.search.permission import normalise_uri, permitted_uri
from mtn.search.store import Location, VectorStore

__all__ = [
    "BitCodeStore",
    "InProcessStore",
    "Location",
    "MilvusStore",
    "NeighbourLists",
    "VectorStore",
    "drop_collection",
    "in_process_store",
    "make_store",
    "new_location",
    "normalise_uri",
    "permitted_uri",
]


def make_store(budget: Budget, shape: tuple[int, ...], location: Location | None = None) -> VectorStore:
    """An empty store for samples of a shape (D, or H,W,3), as the configuration wants it; connects to nothing.

    `location` is a collection to use; by default a new one, where the configuration names a URI.
    """
    if location is None and budget.uri is not None:
        location = new_location(budget.uri)
    if location is not None:
        return MilvusStore.empty(location, shape[0])
    dtype = torch.uint8 if len(shape) == 3 else getattr(torch, budget.precision)
    nothing = torch.zeros(0, dtype=torch.long)
    return in_process_store(budget, nothing, nothing, torch.zeros(0, *shape, dtype=dtype))


def in_process_store(budget: Budget, ids: Tensor, y: Tensor, x: Tensor) -> InProcessStore:
    """A store of these vectors, searched as the configuration wants it."""
    return (BitCodeStore if budget.search == "approximate" else InProcessStore)(ids, y, x)

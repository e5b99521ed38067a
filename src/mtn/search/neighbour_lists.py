"""Of exemplars the nearest other exemplars, kept from lesson to lesson: what has not changed is not searched for again.

A list is the beginning of the ranking of all other exemplars by cosine: none that is not on it is nearer than its last.
Whoever goes is struck off, and what is left is the beginning of a ranking still. Whoever comes is compared with all
that have a list, and enters those where it is nearer than the last.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtn.samples import CHUNK, unit
from mtn.search.in_process import InProcessStore
from mtn.search.store import Nearest, VectorStore

SPARE = 6
"""Entries beyond the k that are asked for: some neighbours are not to be retrieved, and some go."""
MOST_NEW = 0.1
"""Share of new exemplars up to which lists are mended; beyond that they are made anew when they are asked for."""
PAIRS = 65_536
"""Pairs of vectors that are compared at once."""


@dataclass(frozen=True, eq=False)
class NeighbourLists:
    """Lists of ids, which stay what they are where rows of a store move."""

    among: Tensor  # M: ids of the exemplars that were ranked, rising
    id: Tensor  # N: ids of those that have a list, rising
    near: Tensor  # N,L: ids, the nearest first, -1 behind the end
    cosine: Tensor  # N,L, -inf behind the end

    @staticmethod
    def none(store: VectorStore, k: int) -> "NeighbourLists":
        """No list yet, of a store from which k neighbours are asked for."""
        near = store.id.new_zeros(0, k + SPARE)
        return NeighbourLists(store.id.sort().values, store.id[:0], near, near.float())

    @staticmethod
    def can_be_kept(store: VectorStore) -> bool:
        """Whether all vectors are compared, and each by itself, so that a cosine is the same in every search.

        And whether they are those of the samples: in float16 an exemplar is not quite the sample that it was.
        """
        return type(store) is InProcessStore and store.query_multiple == 1 and store.x.dtype == torch.float32

    def without(self, ids: Tensor) -> "NeighbourLists":
        """Nothing of these ids."""
        kept = ~torch.isin(self.id, ids)
        near, cosine = self.near[kept], self.cosine[kept]
        cosine = cosine.masked_fill(torch.isin(near, ids), -torch.inf)
        near = near.masked_fill(cosine == -torch.inf, -1)
        order = (near < 0).int().argsort(dim=1, stable=True)
        among = self.among[~torch.isin(self.among, ids)]
        return NeighbourLists(among, self.id[kept], near.gather(1, order), cosine.gather(1, order))

    def of(self, store: VectorStore, k: int) -> "NeighbourLists":
        """Those of a store that has changed, from which k neighbours are asked for."""
        among = store.id.sort().values
        if torch.equal(among, self.among) and self.near.shape[1] == k + SPARE:
            return self
        came = store.id[~torch.isin(store.id, self.among)]
        if self.near.shape[1] != k + SPARE or len(came) > MOST_NEW * len(store):
            return NeighbourLists.none(store, k)
        lists = self.without(self.among[~torch.isin(self.among, store.id)])
        lists = replace(lists, among=among)
        return lists._mended(store, came) if len(came) and len(lists.id) else lists

    def _mended(self, store: VectorStore, came: Tensor) -> "NeighbourLists":
        rows, new = rows_of(store, self.id), store.read(rows_of(store, came))
        near, cosine = self.near.clone(), self.cosine.clone()
        ends = cosine.masked_fill(near < 0, torch.inf).amin(1)  # of an empty list inf: nobody enters
        rounding = 2.0**-21 * new.shape[1] * new.norm(dim=1).amax()  # of a product of matrices
        for part in torch.arange(len(rows)).split(CHUNK):
            x = store.read(rows[part])
            close = x @ new.T > (ends[part, None] - rounding) * x.norm(dim=1, keepdim=True)
            pairs = close.nonzero()
            exact = torch.cat([_cosines(x, new, some) for some in pairs.split(PAIRS)])
            nearer = exact > ends[part][pairs[:, 0]]
            entering = torch.full(close.shape, -torch.inf)
            entering[tuple(pairs[nearer].T)] = exact[nearer]
            ids = torch.cat([near[part], came.expand(len(part), -1)], dim=1)
            cosine[part], order = torch.cat([cosine[part], entering], dim=1).topk(near.shape[1], dim=1)
            near[part] = ids.gather(1, order).masked_fill(cosine[part] == -torch.inf, -1)
        return replace(self, near=near, cosine=cosine)

    def filled(self, store: VectorStore, ids: Tensor) -> "NeighbourLists":
        """And lists of these exemplars of the store, searched for; those that they have are replaced."""
        shape, depth = (len(ids), self.near.shape[1]), min(self.near.shape[1], len(store) - 1)
        near, cosine = ids.new_full(shape, -1), torch.full(shape, -torch.inf)
        for part in torch.arange(len(ids)).split(CHUNK):
            query = unit(store.read(rows_of(store, ids[part])).numpy())
            ((scores, rows),) = store.search(query, depth + 1, [len(store)])
            others = store.id[rows] != ids[part, None]
            others[others.all(1), -1] = False  # of many copies: the last one of the list goes
            near[part, :depth] = store.id[rows][others].unflatten(0, (-1, depth))
            cosine[part, :depth] = scores[others].unflatten(0, (-1, depth))
        kept = ~torch.isin(self.id, ids)
        every, order = torch.cat([self.id[kept], ids]).sort()
        near, cosine = torch.cat([self.near[kept], near]), torch.cat([self.cosine[kept], cosine])
        return NeighbourLists(self.among, every, near[order], cosine[order])

    def nearest(self, ids: Tensor, store: VectorStore, k: int, first: int) -> tuple[Nearest, Tensor]:
        """The k nearest of the first n rows of a store that has some of the exemplars, for exemplars that have a list.

        And whether (B) the list was long enough for that.
        """
        places = torch.searchsorted(self.id, ids)
        rows = rows_of(store, self.near[places])
        order = ((rows < 0) | (rows >= first)).int().argsort(dim=1, stable=True)[:, :k]
        rows = rows.gather(1, order)
        return (self.cosine[places].gather(1, order), rows), ((rows >= 0) & (rows < first)).all(1)


def _cosines(x: Tensor, others: Tensor, pairs: Tensor) -> Tensor:
    """P: of pairs (P,2) of an exemplar and another, as the search computes them for the exemplar as a query."""
    return (others[pairs[:, 1]] * unit(x[pairs[:, 0]].numpy()))[:, None].sum(2).squeeze(1)


def rows_of(store: VectorStore, ids: Tensor) -> Tensor:
    """Rows of ids of any shape, -1 where the store has none of that id."""
    rising, order = store.id.sort()
    places = torch.searchsorted(rising, ids).clamp(max=len(rising) - 1)
    return order[places].where(rising[places] == ids, -1)

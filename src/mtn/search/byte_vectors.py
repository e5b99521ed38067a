"""Exact search through a copy of the vectors in bytes: a quarter of the reading, a third of the work.

A vector is x = s c + e: bytes c, a scale s, and the rest e, whose length is measured. By Cauchy and Schwarz

    |q.x - s_q s_x c_q.c_x| <= |e_q| |x| + (|q| + |e_q|) |e_x|

The candidates are the vectors with the largest products of bytes; they are compared in float32. If the k-th nearest of
them is nearer than the bound lets any other vector be, the k nearest are among them. Else there are more candidates,
and in the end all vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mtn.search.store import Nearest

FEWEST = 4096
"""Vectors from which on the search in bytes is faster."""
QUERIES, MOST_PRODUCTS = 128, 2**26
"""Queries that are compared at once, and products of theirs: they stay in the cache, or in 512 MB."""
CANDIDATES, MORE_CANDIDATES, SINGLE = 3, 48, 16
"""Times k candidates; and if that is too few, for fewer than 16 queries, which are compared with all vectors slowly."""
CHUNK, CACHED = 65_536, 1024
"""Vectors that are compared, and that are written in bytes, at once."""
LARGEST = 127


@cache
def has_byte_products() -> bool:
    """Whether the processor adds products of bytes without overflow (VNNI), and torch has them: tried, not assumed."""
    if not torch.cpu._is_vnni_supported():
        return False
    a = torch.full((3, 64), -LARGEST, dtype=torch.int8)
    try:
        return bool((torch._int_mm(a, -a.T) == -64 * LARGEST**2).all())
    except RuntimeError:
        return False


@dataclass(frozen=True, eq=False)
class ByteVectors:
    """N vectors and their copy in bytes."""

    x: Tensor  # N,D float32 or float16
    code: Tensor  # N,D int8
    scale: Tensor  # N
    length: float  # the largest |x|
    rest: float  # the largest |e|

    @staticmethod
    def of(x: Tensor) -> "ByteVectors":
        """Of N,D finite numbers."""
        code, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(len(x))
        length = rest = 0.0
        for start in range(0, len(x), CACHED):
            rows = slice(start, start + CACHED)
            code[rows], scale[rows], lengths, rests = in_bytes(x[rows].float())
            length, rest = max(length, float(lengths.max())), max(rest, float(rests.max()))
        return ByteVectors(x, code, scale, length, rest)

    def take(self, x: Tensor, rows: Tensor) -> "ByteVectors":
        """Those at `rows`, whose vectors are x: what was written in bytes is not written again."""
        return ByteVectors(x, self.code[rows], self.scale[rows], self.length, self.rest)

    def join(self, x: Tensor) -> "ByteVectors":
        """These and more, x being the vectors of all."""
        more = ByteVectors.of(x[len(self.code) :])
        code, scale = torch.cat([self.code, more.code]), torch.cat([self.scale, more.scale])
        return ByteVectors(x, code, scale, max(self.length, more.length), max(self.rest, more.rest))

    def search(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        """For each n of `firsts` the k nearest of the first n vectors, for queries B,D. An answer is the same whatever
        else is asked."""
        size = max(1, min(QUERIES, MOST_PRODUCTS // max(*firsts, 1)))
        parts: list[list[Nearest]] = [[] for _ in firsts]
        bytes_do = True
        for chunk in query.split(size):
            if bytes_do:
                found, hard = self._search_bytes(chunk, k, firsts)
                bytes_do = hard <= len(chunk) // 2  # where most queries are hard, bytes are for nothing
            else:
                found = self._search_all(chunk, k, firsts)
            for part, near in zip(parts, found, strict=True):
                part.append(near)
        return [(torch.cat([s for s, _ in part]), torch.cat([r for _, r in part])) for part in parts]

    def _search_bytes(self, query: Tensor, k: int, firsts: Sequence[int]) -> tuple[list[Nearest], int]:
        """What is nearest, and how many queries had to be compared with all vectors."""
        code, scale, length, rest = in_bytes(query)
        most, hard = max(firsts), 0
        products = torch._int_mm(code, self.code[:most].T).float().mul_(self.scale[:most])  # B,N over the scale of q
        # two sums of D products in float32 are off by at most 2 D 2^-24 |q| |x| each
        rounding = 2.0**-22 * query.shape[1] * (length * self.length)
        bound = (rest * self.length + (length + rest) * self.rest + rounding) / scale  # B
        found: dict[int, Nearest] = {}
        near: Nearest | None = None
        for first in sorted(set(firsts), reverse=True):
            near, left = self._candidates(query, products[:, :first], bound, scale, min(k, first), near)
            if len(left):  # many vectors are about as near
                near[0][left], near[1][left] = self._search_all(query[left], k, [first])[0]
            found[first], hard = near, max(hard, len(left))
        return [found[first] for first in firsts], hard

    def _candidates(
        self, query: Tensor, products: Tensor, bound: Tensor, scale: Tensor, k: int, larger: Nearest | None
    ) -> tuple[Nearest, Tensor]:
        """The k nearest of the first n vectors, given the products B,n, and the queries of which they are not known.

        `larger` are the nearest of more vectors than these.
        """
        scores, rows = query.new_empty(len(query), k), torch.empty(len(query), k, dtype=torch.long)
        left = torch.arange(len(query) if k else 0)
        if k and larger is not None and larger[1].shape[1] == k:  # the nearest of more, if all are among the first
            same = (larger[1] < products.shape[1]).all(1)
            scores[same], rows[same] = larger[0][same], larger[1][same]
            left = left[~same]
        for times in (CANDIDATES, MORE_CANDIDATES) if len(query) < SINGLE else (CANDIDATES,):
            if not len(left) or times * k > products.shape[1]:
                break
            some = products if len(left) == len(products) else products[left]
            highest, candidates = some.topk(times * k, dim=1)
            best, nearest = self._nearest(query[left], candidates, k)
            certain = best[:, -1] > (highest[:, -1] + bound[left]) * scale[left]
            scores[left[certain]], rows[left[certain]] = best[certain], nearest[certain]
            left = left[~certain]
        return (scores, rows), left

    def _nearest(self, query: Tensor, candidates: Tensor, k: int) -> Nearest:
        """The k nearest of the candidates B,K, each compared by itself: matrix products round by their size."""
        near = self.x.index_select(0, candidates.flatten()).float().unflatten(0, candidates.shape)
        cosines = near.mul_(query[:, None]).sum(2)
        scores, order = cosines.topk(k, dim=1)
        return scores, candidates.gather(1, order)

    def _search_all(self, query: Tensor, k: int, firsts: Sequence[int]) -> list[Nearest]:
        """Candidates are the nearest of all by float32."""
        enough = query[torch.arange(-(-len(query) // 4) * 4) % len(query)]  # products of fewer rows round differently
        cosines = query.new_empty(len(enough), max(firsts))
        for start in range(0, max(firsts), CHUNK):
            columns = slice(start, min(start + CHUNK, max(firsts)))
            torch.mm(enough, self.x[columns].float().T, out=cosines[:, columns])
        cosines = cosines[: len(query)]
        candidates = [cosines[:, :n].topk(min(CANDIDATES * k, n), dim=1).indices for n in firsts]
        return [self._nearest(query, rows, min(k, n)) for rows, n in zip(candidates, firsts, strict=True)]


def in_bytes(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x B,D -> bytes B,D, scales B, lengths |x| and lengths |e| of what bytes cannot say, B each, none too small."""
    smallest = torch.finfo(x.dtype).tiny * 2**24  # scales of vectors of nothing are numbers too
    scale = torch.linalg.vector_norm(x, torch.inf, dim=1).clamp(min=smallest) / LARGEST
    code = (x / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
    length = (1 + 2.0**-10) * torch.linalg.vector_norm(x, dim=1)
    rest = (1 + 2.0**-10) * torch.linalg.vector_norm(code * scale[:, None] - x, dim=1) + 2.0**-22 * length
    return code.to(torch.int8), scale, length, rest

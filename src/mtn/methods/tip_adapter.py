"""Tip-Adapter: exemplars as a cache beside a classifier that needs no training (Zhang et al., ECCV 2022).

Faithful: keys are exemplars, values their one-hot labels, exp(-beta (1 - cos)) the weight of a key, added alpha times
to the logits of a classifier that was there before. Departs: that classifier is the nearest class mean over all
samples, 100 times its cosine, where the paper has CLIP's text embeddings; the k nearest keys count, not all of them;
the variant whose keys are trained (-F) is left out.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from mtn.config import MethodOptions
from mtn.evidence import PROTOTYPE, VOTES
from mtn.methods.analytic import NCM
from mtn.methods.base import Needs
from mtn.model import vote
from mtn.neighbours import Neighbours

SCALE = 100.0
"""Of the cosines of the classifier, as CLIP's."""


class TipAdapterOptions(MethodOptions):
    """Options of `tip-adapter`."""

    alpha: Annotated[float, Field(ge=0)] = 10.0
    """Weight of the cache beside the classifier."""
    beta: Annotated[float, Field(gt=0)] = 20.0
    """Sharpness of the cache: a key at cosine s has the weight exp(-beta (1 - s))."""


class TipAdapter(NCM):
    """100 cos(q, mu_c) + alpha sum over the keys of class c of exp(-beta (1 - cos(q, key))). Nothing is trained."""

    Options = TipAdapterOptions
    defaults = {"method.k": 50}  # noqa: RUF012 (of the class, and never changed)
    knobs = {"method.alpha": (1.0, 10.0, 100.0), "method.beta": (5.0, 20.0)}  # noqa: RUF012
    needs = Needs(neighbours=True, backbone="none")

    def scores(self, x: Tensor, neighbours: Neighbours | None) -> Tensor:
        means, cache = self.shares(x, neighbours).values()
        return means + cache

    def shares(self, x: Tensor, neighbours: Neighbours | None) -> dict[str, Tensor]:
        """Of the class means and of the cache."""
        assert neighbours is not None
        weights = (self.options.beta * (neighbours.similarity - 1)).exp() * neighbours.mask
        cache = self.options.alpha * vote(weights, neighbours.y, int(self.seen))
        return {PROTOTYPE: SCALE * super().scores(x, None), VOTES: cache}

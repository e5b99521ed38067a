"""Query + neighbours -> adapted query -> logits: the network of the paper, a pure function of tensors.

It knows nothing of memories, tasks or losses. Shapes: B batch, K neighbours, T = 1 + K tokens, D feature, E adapted
feature, H heads, C seen classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtn.neighbours import Neighbours

SIZES = {"small": (2, 1, 64), "medium": (4, 4, 128), "large": (12, 12, 768)}
"""Layers, heads, width (paper, "Transformer size")."""

VOTE_FLOOR = 1e-3
"""Share of the vote a class without neighbours is given, so that its logarithm is finite."""


def rescale(x: Tensor) -> Tensor:
    """Unit vectors at the scale layers and learning rates are made for: mean square 1 of each component, not 1/D."""
    scale: float = x.shape[-1] ** 0.5
    return x * scale


class MemoryTransformer(nn.Module):
    """h(q, V) of the paper: a pre-norm transformer encoder over [query; k nearest exemplars].

    The rank embedding tells a neighbour's place; the query has an embedding of its own; `labels` adds a learned
    embedding of each neighbour's class.
    """

    def __init__(self, dimension: int, k: int, size: str, *, rank: bool = True, labels: bool = False) -> None:
        super().__init__()
        layers, heads, self.width = SIZES[size]
        self.input = nn.Linear(dimension, self.width)
        self.query = nn.Parameter(torch.randn(self.width) * 0.02)
        self.rank = nn.Parameter(torch.randn(k, self.width) * 0.02) if rank else None
        self.labels = ClassEmbedding(self.width, scale=0.02) if labels else None
        self.blocks = nn.ModuleList(TransformerBlock(self.width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(self.width)

    def forward(
        self, query: Tensor, near: Tensor, labels: Tensor, real: Tensor | None, *, query_only: bool = False
    ) -> Tensor:
        """query B,D; near B,K,D; labels B,K; real B,K where some neighbours are padding.

        Adapted tokens (B,T,E), the query first; with `query_only` just that one (B,1,E), for less work.
        """
        tokens, mask = self.before_last(query, near, labels, real)
        adapted: Tensor = self.norm(self.blocks[-1](tokens, mask, query_only=query_only))
        return adapted

    def attention(self, query: Tensor, near: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
        """B,T: the weights with which the query reads each token in the last block, mean over heads."""
        tokens, mask = self.before_last(query, near, labels, real)
        last = self.blocks[-1]
        assert isinstance(last, TransformerBlock)
        return last.weights(tokens, mask)[:, :, 0].mean(1)

    def before_last(
        self, query: Tensor, near: Tensor, labels: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """B,T,E tokens as they enter the last block, and the mask B,1,1,T of those that are not padding."""
        tokens = self.tokens(query, near, labels)
        mask = None if real is None else F.pad(real, (1, 0), value=True)[:, None, None]  # B,1,1,T
        for block in self.blocks[:-1]:
            tokens = block(tokens, mask)
        return tokens, mask

    def tokens(self, query: Tensor, near: Tensor, labels: Tensor) -> Tensor:
        """B,T,E: the query and its neighbours, projected, with their embeddings added."""
        scale: float = query.shape[1] ** 0.5
        tokens: Tensor = self.input(torch.cat([query[:, None], near], dim=1).mul_(scale))  # B,T,E, as by `rescale`
        added = [self.query.expand(query.shape[0], 1, -1), torch.zeros_like(tokens[:, 1:])]
        if self.rank is not None:
            added[1] = added[1] + self.rank[: near.shape[1]]
        if self.labels is not None:
            added[1] = added[1] + self.labels.weight[labels]
        return tokens + torch.cat(added, dim=1)


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, mask: Tensor | None, *, query_only: bool = False) -> Tensor:
        """tokens B,T,E; mask B,1,1,T of those that are not padding -> B,T,E, or B,1,E of the query alone."""
        normed = self.norm_attention(tokens)
        queries = slice(0, 1) if query_only else slice(None)
        tokens = tokens[:, queries] + self.out(self.attend(normed[:, queries], normed, mask))
        output: Tensor = tokens + self.mlp(self.norm_mlp(tokens))
        return output

    def attend(self, queries: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(Q K^T / sqrt(E/H)) V with Q of `queries`, all tokens or the first alone, and K, V of all tokens."""
        width = tokens.shape[2]
        weight, bias = self.qkv.weight, self.qkv.bias
        if queries.shape[1] == tokens.shape[1]:
            query, key, value = F.linear(tokens, weight, bias).split(width, dim=2)
        else:
            query = F.linear(queries, weight[:width], bias[:width])
            key, value = F.linear(tokens, weight[width:], bias[width:]).split(width, dim=2)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        if query.is_cpu and query.dtype == torch.bfloat16:  # torch's own takes 2.7 times as long for so few tokens
            attended: Tensor = attention_weights(query, key, mask) @ value
        else:
            attended = F.scaled_dot_product_attention(query, key, value, mask)
        return attended.transpose(1, 2).flatten(2)  # B,T,E

    def weights(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """B,H,T,T: the weights with which every token reads every other."""
        query, key, _ = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_attention(tokens)).split(tokens.shape[2], dim=2)
        )
        return attention_weights(query, key, mask)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(E/H)): query B,H,S,E/H, key B,H,T,E/H -> B,H,S,T."""
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    weights: Tensor = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(3)
    return weights


class ClassEmbedding(nn.Module):
    """An embedding of classes, one row each, that grows as classes come; rows keep their index."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.zeros(0, width))

    def grow(self, classes: int) -> None:
        """Add rows up to this number of classes."""
        fresh = torch.randn(classes - len(self.weight), self.weight.shape[1]) * self.scale
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight.device)]))


class Head(nn.Module):
    """The linear classifier g, which grows as classes come; new rows start as those of nn.Linear."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))

    def grow(self, classes: int) -> None:
        """Add rows up to this number of classes."""
        if classes == len(self.weight):
            return
        fresh = nn.Linear(self.weight.shape[1], classes - len(self.weight), device=self.weight.device)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh.weight.detach()]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), fresh.bias.detach()]))

    def forward(self, features: Tensor) -> Tensor:
        """B,E -> B,C logits."""
        return F.linear(features, self.weight, self.bias)


def vote(weights: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sum of the neighbours' weights (B,K) by label (B,K) -> B,C."""
    return torch.zeros(weights.shape[0], classes, device=weights.device, dtype=weights.dtype).scatter_add(
        1, labels, weights
    )


class NeighbourVote(nn.Module):
    """The `nn` read-out: log of the share of the vote that each class gets from the adapted neighbours.

    Weights are a softmax over the cosines of adapted query and adapted neighbours, with a learned scale.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(10.0).log())

    def forward(self, adapted: Tensor, neighbours: Neighbours, classes: int) -> Tensor:
        """adapted tokens B,T,E, the query first -> B,C."""
        unit = F.normalize(adapted, dim=2)  # B,T,E
        cosine = (unit[:, 1:] @ unit[:, 0, :, None]).squeeze(2)  # B,K
        logits = (self.log_scale.exp() * cosine).masked_fill(~neighbours.mask, -1e9)
        # the mask once more: a query without any neighbour votes for nothing
        shares = vote(logits.softmax(1) * neighbours.mask, neighbours.y, classes)
        return (shares + VOTE_FLOOR).log()

"""all-MiniLM-L6-v2, a BERT of six layers, from its weights alone.

sentence-transformers gives the same vectors; but importing it takes three times as long as importing torch, and then an
answer takes a few milliseconds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import files_digest
from mtn.encoders.packaged import PACKAGED, model_files
from mtn.storage.repositories import require

LAYERS, HEADS, EPSILON = 6, 12, 1e-12
LONGEST = 256
"""Tokens of a sentence; further ones are not read."""
STEP = 64
"""Sentences that are computed at once."""


class MiniLM(Encoder):
    """The mean of a sentence's tokens after the last layer, of unit length."""

    kind = "text"
    batch = 1024  # sorted by length, so that little is padded
    dimension = 384

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.folder: Path = PACKAGED[name].require(name)
        self.tokenizer = require("tokenizers").Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding()
        self.weights = load_file(self.folder / "model.safetensors", device=str(device))

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "files": files_digest(model_files(self.folder)), "revision": None}

    def prepare(self, item: Item) -> str:
        assert isinstance(item, str)
        return item

    @torch.inference_mode()
    def encode(self, batch: Sequence[str]) -> np.ndarray:
        x = np.empty((len(batch), self.dimension), np.float32)
        order = np.argsort([-len(text) for text in batch])
        for rows in np.split(order, range(STEP, len(batch), STEP)):
            tokens = self.tokenizer.encode_batch([batch[row].strip() for row in rows])
            ids, mask = (
                torch.tensor([getattr(one, field) for one in tokens], device=self.device)
                for field in ("ids", "attention_mask")
            )
            x[rows] = self._vectors(ids, mask.bool()).cpu().numpy()
        return x

    def _vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Tokens B,T, of which those count that the mask B,T has -> B,D."""
        words, types, places = (
            self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "token_type", "position")
        )
        h = self._norm(words[ids] + types[0] + places[: ids.shape[1]], "embeddings.LayerNorm")  # B,T,D
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            mixed = self._linear(self._attend(h, mask, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
            h = self._norm(mixed + h, f"{layer}.attention.output.LayerNorm")
            wide = F.gelu(self._linear(h, f"{layer}.intermediate.dense"))
            h = self._norm(self._linear(wide, f"{layer}.output.dense") + h, f"{layer}.output.LayerNorm")
        counted = mask[:, :, None].float()
        return F.normalize((h * counted).sum(1) / counted.sum(1))

    def _attend(self, h: Tensor, mask: Tensor, name: str) -> Tensor:
        """What each of B,T tokens takes from those of its sentence, B,T,D."""
        q, k, v = (
            self._linear(h, f"{name}.{part}").unflatten(2, (HEADS, -1)).transpose(1, 2)  # B,H,T,D/H
            for part in ("query", "key", "value")
        )
        seen = None if bool(mask.all()) else mask[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], EPSILON)

"""Vision models of the transformers library, from a folder. No code that comes with a model is run."""

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from mtn.encoders.base import Encoder, Item
from mtn.encoders.common import as_rgb, files_digest, one_line, probe
from mtn.errors import InputError
from mtn.storage.repositories import require

TOWERS = {
    "clip": "CLIPVisionModelWithProjection",
    "clip_vision_model": "CLIPVisionModelWithProjection",
    "siglip": "SiglipVisionModel",
}
"""Type of a model in its config.json -> the class of its part for images, where `AutoModel` has one for text too."""
TEXT_TOWERS = {"clip": "CLIPTextModelWithProjection", "siglip": "SiglipTextModel"}
"""Type of a model -> the class of its part for texts, whose vectors are compared with those of images."""
PROMPT, NAMES = "a photo of a {}", 64
"""The text of a class's name, as in the paper of CLIP; so many are encoded at once."""
DAMAGE = (OSError, ValueError, RuntimeError, KeyError, AttributeError, SafetensorError, pickle.UnpicklingError)
"""What the library raises on a folder that is not a model's."""
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class VisionModel(Encoder):
    """CLIP: the projected embedding of the image. SigLIP, DINO and others: the pooled output, flattened.

    Where a model has no pooled output, or its weights were saved without the pooler, it is the mean of the last hidden
    state over the tokens or positions.
    """

    def __init__(self, folder: Path, name: str, device: torch.device, revision: str | None = None) -> None:
        self.folder, self.name, self.device, self.revision = folder, name, device, revision
        self.processor, self.model, self.has_pooler, self.type = _load_model(folder, name)
        self.model.to(device)
        try:
            self.dimension = probe(self, name)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(f"encoder {name!r} must be a model of images alone: {one_line(error)}") from None

    def identity(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "weights": files_digest(weight_files(self.folder)),
            "config": files_digest([self.folder / "config.json"]),
            "revision": self.revision,
            "processor": json.loads(self.processor.to_json_string()),
        }

    def prepare(self, item: Item) -> np.ndarray:
        pixels = self.processor(images=as_rgb(item), return_tensors="np")["pixel_values"][0]
        return np.asarray(pixels, np.float32)

    @torch.inference_mode()
    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        if len({pixels.shape for pixels in batch}) > 1:
            raise InputError(f"encoder {self.name!r}: its processor must make all pictures of one size")
        return self.vectors(torch.from_numpy(np.stack(batch)).to(self.device)).cpu().numpy()

    def vectors(self, pixels: Tensor) -> Tensor:
        """Pixels of prepared images, B,3,H,W -> B,D, with a gradient where one is asked for."""
        return self._pool(self.model(pixel_values=pixels)).flatten(1)

    def save(self, folder: Path) -> None:
        """Write the model as the library does; a pooler that its weights never had is left out."""
        weights = self.model.state_dict()
        if not self.has_pooler:
            weights = {name: weight for name, weight in weights.items() if "pooler" not in name}
        with quiet(self.name, folder):
            self.model.save_pretrained(folder, state_dict=weights)
            self.processor.save_pretrained(folder)

    @torch.inference_mode()
    def encode_names(self, names: Sequence[str]) -> np.ndarray:
        if self.type not in TEXT_TOWERS:
            return super().encode_names(names)
        library = require("transformers")
        with quiet(self.name, self.folder):
            tokenizer = library.AutoTokenizer.from_pretrained(self.folder, **LOCAL)
            kind = getattr(library, TEXT_TOWERS[self.type])
            options = {"projection_dim": self.dimension} if self.type == "clip" else {}
            model = kind.from_pretrained(self.folder, dtype=torch.float32, **options, **LOCAL).eval().to(self.device)
            # SigLIP was trained with every text filled up to the full length; CLIP ignores what follows the text
            length = {"padding": "max_length", "max_length": model.config.max_position_embeddings, "truncation": True}
            parts = []
            for first in range(0, len(names), NAMES):
                texts = [PROMPT.format(name) for name in names[first : first + NAMES]]
                out = model(**tokenizer(texts, return_tensors="pt", **length).to(self.device))
                parts.append(out["text_embeds"] if "text_embeds" in out else out["pooler_output"])
        return torch.cat(parts).cpu().numpy()

    def _pool(self, out: Any) -> Tensor:
        pooled: Tensor | None = out.get("image_embeds", out.get("pooler_output") if self.has_pooler else None)
        if pooled is not None:
            return pooled
        last: Tensor = out.last_hidden_state
        return last.mean(1) if last.ndim == 3 else last.mean((2, 3))


def weight_files(folder: Path) -> list[Path]:
    """The files that the library loads: safetensors if there are any."""
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


@contextmanager
def quiet(name: str, folder: Path) -> Iterator[None]:
    """Silence the library's log and progress bars; its errors become an InputError of one line."""
    logging = require("transformers").utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except ImportError as error:  # timm, or torchvision
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"encoder {name!r}: {folder} needs another library: {reason}") from None
    except DAMAGE as error:
        raise InputError(f"encoder {name!r}: {folder} cannot be loaded: {one_line(error)}") from None
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _load_model(folder: Path, name: str) -> tuple[Any, Any, bool, str]:
    """The processor, the model, whether the weights have a pooler, and the type of the model.

    Other missing weights are an error.
    """
    library = require("transformers")
    if not weight_files(folder):
        raise InputError(f"encoder {name!r}: {folder} holds no weights (model.safetensors or pytorch_model.bin)")
    with quiet(name, folder):
        config = library.AutoConfig.from_pretrained(folder, **LOCAL)
        processor = library.AutoImageProcessor.from_pretrained(folder, backend="pil", **LOCAL)
        options = {"dtype": torch.float32, "output_loading_info": True, **LOCAL}
        if config.model_type.startswith("clip"):
            options["projection_dim"] = config.projection_dim
        kind = getattr(library, TOWERS.get(config.model_type, "AutoModel"))
        model, report = kind.from_pretrained(folder, **options)
    missing = sorted(report["missing_keys"])
    if any("pooler" not in key for key in missing):
        raise InputError(f"encoder {name!r}: the weights in {folder} lack {', '.join(missing[:3])}")
    return processor, model.eval(), not missing, config.model_type

"""What is known of a named encoder before it is loaded: what it takes, its size and licence, whether it is here."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtn.encoders.packaged import PACKAGED
from mtn.errors import InputError
from mtn.runtime.cache import cache_folder
from mtn.storage import repositories
from mtn.storage.repositories import Offer, Repository

State = Literal["installed", "cached", "to be fetched", "to be installed", "to be converted"]


@dataclass(frozen=True)
class Entry:
    """An encoder of the table."""

    kind: Literal["image", "text"]
    width: int  # D
    megabytes: float  # of its weights
    licence: str  # of its weights
    repository: str | None = None  # of the hub
    revision: str | None = None  # the commit to fetch, where `main` has no safetensors


def _packaged(name: str, kind: Literal["image", "text"], width: int) -> Entry:
    return Entry(kind, width, PACKAGED[name].megabytes, PACKAGED[name].licence)


CATALOGUE: dict[str, Entry] = {
    "glyph": Entry("image", 256, 0.9, "Apache-2.0"),
    "photos": _packaged("photos", "image", 1280),
    "photos-lite2": _packaged("photos-lite2", "image", 1280),
    "hashing": Entry("text", 512, 0, "Apache-2.0"),
    "minilm": _packaged("minilm", "text", 384),
    "simclr-r50": Entry("image", 2048, 94, "Apache-2.0"),
    "clip-vit-b32": Entry(
        "image", 512, 605, "MIT", "openai/clip-vit-base-patch32", "b527df4b30e5cc18bde1cc712833a741d2d8c362"
    ),
    "clip-vit-l14": Entry("image", 768, 1710, "MIT", "openai/clip-vit-large-patch14"),
    "dinov2-s14": Entry("image", 384, 88, "Apache-2.0", "facebook/dinov2-small"),
    "dinov2-b14": Entry("image", 768, 346, "Apache-2.0", "facebook/dinov2-base"),
    "dinov3-s16": Entry("image", 384, 86, "DINOv3 License", "facebook/dinov3-vits16-pretrain-lvd1689m"),
    "dinov3-b16": Entry("image", 768, 343, "DINOv3 License", "facebook/dinov3-vitb16-pretrain-lvd1689m"),
    "siglip2-b16": Entry("image", 768, 1500, "Apache-2.0", "google/siglip2-base-patch16-224"),
}
"""Every encoder that has a short name, in the order in which they are listed."""


def find_repository(name: str) -> Repository | None:
    """The repository that a short name or a name of the hub stands for, with or without @revision; else None."""
    short, _, revision = name.partition("@")
    entry = CATALOGUE.get(short)
    if entry is None:
        return Repository.parse(name)
    if entry.repository is None:
        return None
    return Repository.parse(f"{entry.repository}@{revision or entry.revision or 'main'}")


def cached_folder(name: str) -> Path | None:
    """The weights of an encoder of the hub in the local cache; of a short name, those of `main` will do too."""
    repository = find_repository(name)
    if repository is None:
        return None
    folder = repository.cached()
    return Repository(repository.name).cached() if folder is None and name in CATALOGUE else folder


def is_missing(name: str) -> bool:
    """Whether a name that the user gives is one of the hub, and its weights are not in the local cache."""
    if name not in CATALOGUE and (name.lower().endswith(".onnx") or Path(name).is_dir()):
        return False
    return find_repository(name) is not None and cached_folder(name) is None


def fetch_encoder(name: str, token: str | bool | None = None) -> Path:
    """Fetch the weights of an encoder of the hub, unless they are there; the folder that they are in."""
    offer = offered(name, token)
    check_libraries(offer)
    return repositories.fetch(offer, token)


def check_libraries(offer: Offer) -> None:
    """Raise, before anything is fetched, if the library that opens the model is not installed."""
    library = "sentence_transformers" if "modules.json" in offer.sizes else "transformers"
    if importlib.util.find_spec(library) is None:
        repositories.require(library)


def offered(name: str, token: str | bool | None = None) -> Offer:
    """What would be fetched of an encoder, and how much that is."""
    repository = find_repository(name)
    if repository is None:
        raise InputError(f"encoder {name!r} is not one of the hub: there is nothing to fetch")
    offer = repository.look_up(token=token)
    if not any(file.endswith(".safetensors") for file in offer.sizes):
        raise InputError(
            f"encoder {name!r}: {repository} has no weights in safetensors, and no other format is fetched; if you "
            f"trust it, `hf download {repository.name}` and give the folder"
        )
    return offer


def missing_weights(name: str) -> InputError:
    """The error for weights that are not on this machine, which says how they get there."""
    entry = CATALOGUE.get(name)
    size = "" if entry is None else f" ({entry.megabytes:.0f} MB, {entry.licence})"
    return InputError(
        f"encoder {name!r}: its weights are not on this machine; `mtn encoders get {name}` fetches them{size}, and so "
        f"do --yes and MTN_DOWNLOAD=1; or give the path of a folder that holds them"
    )


def state(name: str) -> State:
    """Whether an encoder of the catalogue can be used now."""
    entry = CATALOGUE[name]
    if entry.repository is not None:
        try:
            return "to be fetched" if cached_folder(name) is None else "cached"
        except InputError:  # huggingface_hub is not installed
            return "to be fetched"
    if name in PACKAGED:
        return "to be installed" if PACKAGED[name].find() is None else "installed"
    if name == "simclr-r50":
        return "installed" if simclr_path().is_file() else "to be converted"
    return "installed"


def simclr_path() -> Path:
    """The weights of SimCLR: at $MTN_SIMCLR, or where `mtn convert-simclr` writes them."""
    given = os.environ.get("MTN_SIMCLR")
    return Path(given) if given else default_simclr_path()


def default_simclr_path() -> Path:
    """Where `mtn convert-simclr` writes the weights."""
    return cache_folder() / "simclr-r50.safetensors"


def describe(name: str) -> dict[str, Any]:
    """A row of `mtn encoders`, as plain values."""
    entry = CATALOGUE[name]
    return {
        "name": name,
        "takes": {"image": "images", "text": "sentences"}[entry.kind],
        "width": entry.width,
        "megabytes": entry.megabytes,
        "licence": entry.licence,
        "state": state(name),
        "repository": entry.repository,
    }

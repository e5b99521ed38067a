"""Repositories of the Hugging Face hub: what of them is in the local cache, and what is fetched.

All of it is the work of huggingface_hub, so its tokens, mirrors (HF_ENDPOINT), cache folder and offline switch hold.
Decided here is which files are fetched (safetensors, JSON, text: no pickle, no code), and that they are what the hub
lists.
"""

import fnmatch
import glob
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtn.errors import InputError, UnavailableError, install_line
from mtn.storage import files

NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w.-]+)(?:@(?P<revision>\w[\w-]*(?:[./]\w[\w-]*)*))?")
"""A name of the hub, with or without a revision: a branch, a tag, a commit."""
COMMIT = re.compile(r"[0-9a-f]{40}")
ENCODER_FILES = ("*.json", "*.txt", "model.safetensors", "model-*.safetensors", "[0-9]_*/model.safetensors")
"""Patterns of what is fetched of an encoder: configuration, tokens, weights; `2_Dense/` is of a sentence model."""
YES = ("1", "on", "true", "yes")
REFUSALS = {
    "HFValidationError": "{name} is not the name of a repository: {reason}",
    "GatedRepoError": "{name} is open to those who accept its terms: do so at {endpoint}/{name}, then `hf auth login`",
    "RepositoryNotFoundError": "no repository {name} at {endpoint}, or a private one: `hf auth login`, or HF_TOKEN",
    "RevisionNotFoundError": "the repository {name} has no revision {revision!r}",
    "HfHubHTTPError": "{endpoint} refuses {name}: {reason}",
}
"""Errors of huggingface_hub, special ones first -> what is said of them."""


def downloads_allowed() -> bool:
    """Whether the user allows fetching without a question, by MTN_DOWNLOAD=1."""
    return os.environ.get("MTN_DOWNLOAD", "").lower() in YES


def require(library: str, extra: str = "encoders", what: str = "this encoder") -> Any:
    """The module of an optional library, or an error that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InputError(f"{what} needs {library}: {install_line(extra)}") from None


@dataclass(frozen=True)
class Offer:
    """What the hub has of a repository at one commit, as far as it may be fetched."""

    repository: "Repository"
    commit: str
    sizes: Mapping[str, int]  # bytes, by file
    checksums: Mapping[str, str]  # by file: SHA-256, of a small file git's SHA-1

    @property
    def size(self) -> str:
        """Of all files, to be read."""
        total = sum(self.sizes.values())
        return f"{total / 1e6:.0f} MB" if total >= 1e6 else f"{total / 1e3:.0f} kB"


@dataclass(frozen=True)
class Repository:
    """A repository of models, at a revision: a branch, a tag or a commit; None is the branch `main`."""

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> "Repository | None":
        """Of `owner/name` or `owner/name@revision`; None for anything else."""
        match = NAME.fullmatch(name)
        return None if match is None else cls(match["repository"], match["revision"])

    def cached(self) -> Path | None:
        """The snapshot in the local cache, if weights are in it; its folder is named after the commit."""
        hub = require("huggingface_hub")
        try:
            found = [
                hub.try_to_load_from_cache(self.name, file, revision=self.revision)
                for file in ("config.json", "modules.json")
            ]
        except ValueError:  # it is not a valid name of a repository
            return None
        folders = (Path(file).parent for file in found if isinstance(file, str))
        return next((folder for folder in folders if _has_weights(folder)), None)

    def look_up(self, patterns: Sequence[str] = ENCODER_FILES, token: str | bool | None = None) -> Offer:
        """Ask the hub which files match the patterns; nothing is fetched yet."""
        hub = require("huggingface_hub", "hub", "the hub")
        with reported_errors(self):
            info = hub.HfApi(token=token).model_info(self.name, revision=self.revision, files_metadata=True)
        chosen = [file for file in info.siblings or [] if _matches(file.rfilename, patterns)]
        sizes = {file.rfilename: file.size or 0 for file in chosen}
        checksums = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in chosen}
        return Offer(self, info.sha, sizes, checksums)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def fetch(offer: Offer, token: str | bool | None = None) -> Path:
    """The folder of the offered files in the local cache, each with the checksum that the hub lists.

    Weights come last, and the name is bound to the commit after that: a fetch that was cut is not found by its name,
    and where the weights are, all else is.
    """
    hub = require("huggingface_hub", "hub", "the hub")
    repository, weights = offer.repository, [name for name in offer.sizes if name.endswith(".safetensors")]
    folder = Path()
    for group in ([name for name in offer.sizes if name not in weights], weights):
        patterns, options = [glob.escape(name) for name in group], {"revision": offer.commit, "token": token}
        with reported_errors(repository), shown_progress():
            folder = Path(hub.snapshot_download(repository.name, allow_patterns=patterns, **options))
        for name in group:
            _verify(folder / name, offer.checksums[name])
    if not COMMIT.fullmatch(repository.revision or ""):
        with reported_errors(repository):
            hub.HfApi(token=token).resolve_revision(repository.name, revision=repository.revision)
    return folder


@contextmanager
def shown_progress() -> Iterator[None]:
    """The library's progress bars, on a terminal alone."""
    hub = require("huggingface_hub", "hub", "the hub")
    hidden = not sys.stderr.isatty() and not hub.utils.are_progress_bars_disabled()
    if hidden:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if hidden:
            hub.utils.enable_progress_bars()


def _verify(path: Path, expected: str) -> None:
    """Delete a file, and raise, if it has another checksum than the hub lists."""
    digest = hashlib.sha256() if len(expected) == 64 else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != expected:
        path.resolve().unlink()
        path.unlink(missing_ok=True)  # the link to it
        raise InputError(
            f"{path.name} must have the checksum {expected[:12]}..., got {digest.hexdigest()[:12]}...: it is deleted; "
            f"fetch it again"
        )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _has_weights(folder: Path) -> bool:
    """Whether the files of weights are there; all of them where an index lists several."""
    for index in folder.glob("*.index.json"):
        listed = files.read_json(index)
        shards = listed.get("weight_map") if isinstance(listed, dict) else None
        if isinstance(shards, dict) and not all((folder / str(name)).is_file() for name in set(shards.values())):
            return False
    return any(file.is_file() for file in folder.rglob("*model*.[sb]*"))


@contextmanager
def reported_errors(repository: Repository) -> Iterator[None]:
    """Whatever the hub answers that is no success is one line; errors of the disk stay, and name the cache."""
    require("huggingface_hub", "hub", "the hub")
    errors, constants = (importlib.import_module(f"huggingface_hub.{part}") for part in ("errors", "constants"))
    missing = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, errors.RevisionResolutionError)
    try:
        yield
    except (errors.HFValidationError, errors.HfHubHTTPError) as error:
        template = next(text for kind, text in REFUSALS.items() if isinstance(error, getattr(errors, kind)))
        facts = {"name": repository.name, "revision": repository.revision, "endpoint": constants.ENDPOINT}
        raise InputError(template.format(**facts, reason=_one_line(error))) from None
    except (*missing, errors.HTTPError, RuntimeError) as error:  # of the library that connects; of an upload
        if constants.is_offline_mode():
            raise InputError(f"{repository} cannot be fetched: HF_HUB_OFFLINE is set") from None
        reason = _one_line(error.__cause__ or error)
        raise UnavailableError(f"{constants.ENDPOINT} cannot be reached: {reason}") from None
    except OSError as error:
        if not error.errno:
            raise UnavailableError(f"{repository} did not arrive whole: {_one_line(error)}") from None
        with files.named_errors(Path(constants.HF_HUB_CACHE)):
            raise


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

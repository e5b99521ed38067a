"""What the world gives us -> `Data`. A name of the table below, an .npz file, a folder of .npy files, or a store.

Where a run learns from images: such a name, or whatever mtn.datasets.sources lists.
"""

from collections.abc import Callable
from pathlib import Path

from mtn.config import Config
from mtn.datasets import arrays, glyphs, pictures, shards, sources
from mtn.errors import InputError, closest
from mtn.progress import Progress, silent
from mtn.samples import Data

DATASETS: dict[str, Callable[[Progress], Path]] = {
    "glyphs-200": lambda say: glyphs.prepare(200, on_progress=say),
    "glyphs-1k": lambda say: glyphs.prepare(1000, on_progress=say),
}
"""Name -> what prepares its folder of arrays on first use."""


def of(config: Config, say: Progress = silent) -> Data:
    """What a run learns from."""
    images, paths = config.images, config.stream.paths
    if images.side is None:
        if len(paths) > 1:
            raise InputError(f"stream.data: vectors come from one place, got {len(paths)}; images need images.side")
        return load(paths[0], say)
    if paths[0] in DATASETS:
        listing = pictures.drawn(DATASETS[paths[0]](say))
    else:
        listing = sources.listing([Path(path).expanduser() for path in paths], say=say)
    return pictures.load(listing, images.side, images.unreadable == "skip", say)


def load(data: str, say: Progress = silent) -> Data:
    if data in DATASETS:
        return arrays.load(DATASETS[data](say))
    path = Path(data).expanduser()
    if shards.is_store(path):
        return shards.load(path, say).data()
    if path.exists():
        return arrays.load(path)
    hint = "" if "/" in data or path.suffix else f", nor is it a data set: {closest(data, DATASETS)}"
    raise InputError(f"stream.data: no file or folder {data!r}{hint}")

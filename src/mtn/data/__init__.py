"""Data sets: recognised (`sources`), read as vectors or as listings of items, encoded, given to runs and models."""

from mtn.config import Config
from mtn.data.image_arrays import load_images
from mtn.data.sources import DATASETS, Format, open_source
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent
from mtn.samples import LENGTHS_COMPARED, Data, warn_of_lengths

__all__ = ["DATASETS", "load_data", "load_vectors"]


def load_data(config: Config, progress: Progress = silent) -> Data:
    """The samples of a run: vectors, or images where `images.side` is set."""
    images, paths = config.images, config.stream.paths
    if images.side is None:
        if len(paths) > 1:
            raise InputError(f"stream.data: vectors come from one path, got {len(paths)}; images need images.side")
        return load_vectors(paths[0], progress)
    source = open_source(paths, "stream.data")
    if source.holds_vectors and source.format is not Format.DATASET:
        raise InputError(f"stream.data: {source.path} is {source.format.value}: vectors need no images.side")
    return load_images(source.list_items(progress), images.side, images.unreadable == "skip", progress)


def load_vectors(data: str, progress: Progress = silent) -> Data:
    """The vectors of all splits of a data set."""
    loaded = open_source(data, "stream.data").load_vectors(progress)
    warn_of_lengths(loaded.train.source[loaded.train.rows[:LENGTHS_COMPARED]], loaded.train.y.numpy())
    return loaded

"""The folder for files that can be made again."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """`$MTN_CACHE`, else `mtn` in the user's cache folder, which on Linux is `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("MTN_CACHE"):
        return Path(chosen)
    return Path(platformdirs.user_cache_dir("mtn", appauthor=False))

"""Sentences in a JSON file, as CLINC150 has them -> a listing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtn.data.listing import Listing, Row, Sentence, make_listing
from mtn.data.splits import split_name
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent
from mtn.storage import files


def list_sentences(path: Path, progress: Progress = silent, queries: bool = False) -> Listing:
    """`{split: [[text, label], ...]}`; of `queries` in the order of the file."""
    try:
        splits = json.loads(files.read_text(path))
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{path} is not readable JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(splits, dict):
        raise InputError(
            f"{path} must be an object of splits, each a list of [text, label], got a {type(splits).__name__}"
        )
    return make_listing(_rows(splits, path), path, "text", queries=queries)


def _rows(splits: dict[str, Any], path: Path) -> Iterator[Row]:
    for split, pairs in splits.items():
        for number, pair in enumerate(pairs if isinstance(pairs, list) else [pairs]):
            is_pair = isinstance(pair, list) and len(pair) == 2
            if not (is_pair and all(isinstance(text, str) and text for text in pair)):
                raise InputError(f"{path}: {split}, number {number} must be [text, label], got {str(pair)[:80]}")
            yield split_name(split), pair[1], f"{split}/{number}", Sentence(pair[0])

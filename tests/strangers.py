"""What a stranger changes or sends, and what must come of it."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtn.cli import main
from mtn.errors import InputError
from mtn.storage.model_folder import checksum


def edit(folder: Path, **changes: Any) -> None:
    """Change model.json as a stranger would: keys are dotted with `__`."""
    facts = json.loads((folder / "model.json").read_text())
    for key, value in changes.items():
        *sections, name = key.split("__")
        section = facts
        for part in sections:
            section = section[part]
        section[name] = value
    (folder / "model.json").write_text(json.dumps(facts | {"checksum": checksum(facts)}))


def call(*words: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    ended = CliRunner().invoke(main.app, list(words), catch_exceptions=True)
    if isinstance(ended.exception, InputError):
        assert "\n" not in str(ended.exception)
        return 2, str(ended.exception)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.output


@contextmanager
def refused(why: str = "", seconds: float = 5, megabytes: float = 64) -> Iterator[None]:
    """One line, in a few seconds of this thread, and without much memory."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(InputError, match=why or None) as error:
            yield
        assert time.thread_time() - start < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 1000

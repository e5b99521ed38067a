"""The results of a report's runs in one file: a report is published, and resumed, without the folders of its runs."""

import json
import lzma
from pathlib import Path
from typing import Any

from mtn.errors import InputError
from mtn.storage import files

RUNS = "cells"
"""The folder of a report in which each run has a folder of its own."""
FIRST_TASKS = "first-tasks"
"""The folder in which runs that differ in nothing before the second task find the first one."""
PACKED = "cells.json.xz"
"""JSON: the name of a run's folder -> its result, which has its configuration in it."""
LARGEST = 2**28
"""Bytes of that JSON at the most; no more is ever unpacked."""


def pack_results(report: Path) -> Path:
    """Write the results of the finished runs of a report, and those packed before, into one file; the folders stay.

    The same results give the same bytes.
    """
    results = read_packed(report)
    for path in (report / RUNS).glob("*/result.json"):
        results[path.parent.name] = files.read_json(path)
    if not results:
        raise InputError(f"{report} has no finished run in {RUNS}/: nothing to pack")
    text = json.dumps(dict(sorted(results.items())), ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > LARGEST:
        raise InputError(f"the results in {report} have {len(text):,} bytes, more than the {LARGEST:,} of {PACKED}")
    files.write(report / PACKED, lambda temporary: temporary.write_bytes(lzma.compress(text)))
    return report / PACKED


def read_packed(report: Path) -> dict[str, dict[str, Any]]:
    """Folder name -> result of every run that was packed; none if there is no such file."""
    path = report / PACKED
    if not path.exists():
        return {}
    try:
        with lzma.open(path) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise InputError(f"{path} has more than {LARGEST:,} bytes once unpacked: it is not of mtn")
        results = json.loads(text)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise error if isinstance(error, InputError) else InputError(f"{path} is damaged: {error}") from None
    if not isinstance(results, dict) or not all(isinstance(result, dict) for result in results.values()):
        raise InputError(f"{path} is damaged: it must hold a result for each run")
    return results

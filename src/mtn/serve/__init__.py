"""The HTTP service over a saved classifier, and its page."""

import gc
import sys
from pathlib import Path

import torch

from mtn import checkpoint, store
from mtn.errors import InputError

DRAIN = 10
"""Seconds that requests under way have when the service is told to stop."""
MOST_CONNECTIONS = 256


def serve(model: Path, host: str, port: int, token_file: Path | None) -> None:
    """Answer until told to stop. The worker is forked first, before there are threads."""
    try:
        import python_multipart  # noqa: F401 (forms need it)
        import uvicorn

        from mtn.serve import app, engine, guard, journal, observe, worker
    except ImportError as error:
        raise InputError(f"serve needs {error.name}: pip install 'mtn[serve]'") from None
    loopback = guard.is_loopback(host)
    if token_file is None and not loopback:
        raise InputError(f"--host {host} can be reached from elsewhere: name a --token-file")
    tokens = guard.Tokens() if token_file is None else guard.read_tokens(token_file)
    store.look(model)
    folder = model / "journal"
    folder.mkdir(mode=0o700, exist_ok=True)
    with worker.Worker(model) as helper, checkpoint.lock(folder):
        _answer_first()
        observe.set_up()
        whole = engine.Engine(model, journal.Journal(folder / "journal.sqlite"), helper)
        uvicorn.run(
            guard.Guard(app.make(whole, tokens), loopback),
            host=host,
            port=port,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=DRAIN,
        )


def _answer_first() -> None:
    """Nobody who asks is to wait for what goes on beside: a lesson, the loading of what was learned."""
    # threads of a pass wait for each other, so for whatever else holds a core
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    # a pass gives the interpreter away at every product, and gets it back so many seconds after it asks for it
    sys.setswitchinterval(1e-4)
    # modules stay: to look through them for garbage, while a model is loaded, holds all up for a quarter of a second
    gc.freeze()

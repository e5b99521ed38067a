"""The HTTP service over a saved classifier, and its page."""

import gc
import sys
from pathlib import Path

import torch

from mtn.errors import InputError, install_line
from mtn.storage import files
from mtn.storage.model_folder import require_model

SHUTDOWN_SECONDS = 10
"""That requests under way have when the service is told to stop."""


def serve(
    model: Path, host: str, port: int, token_file: Path | None, encoder: str | None = None, milvus: str | None = None
) -> None:
    """Answer until told to stop. The supervisor process is forked first, before there are threads.

    `encoder` and `milvus` are as in `MTNClassifier.load`.
    """
    try:
        import python_multipart  # noqa: F401 (forms need it)
        import uvicorn

        from mtn.serve import app, connection, engine, guard, journal, observe, worker
    except ImportError as error:
        raise InputError(f"serve needs {error.name}: {install_line('serve')}") from None
    loopback = guard.is_loopback(host)
    if token_file is None and not loopback:
        raise InputError(f"--host {host} can be reached from elsewhere: name a --token-file")
    tokens = guard.Tokens() if token_file is None else guard.read_tokens(token_file)
    require_model(model)
    folder = model / "journal"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    observe.set_up()  # before the supervisor process, which logs in the same way
    with worker.Supervisor(model, milvus) as supervisor, files.lock(folder):
        _favour_requests()
        service = engine.Engine(model, journal.Journal(folder / "journal.sqlite"), supervisor, encoder, milvus)
        uvicorn.run(
            guard.Guard(app.make_app(service, tokens), loopback),
            host=host,
            port=port,
            http=connection.Connection,
            ws="none",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )


def _favour_requests() -> None:
    """Keep requests from waiting for what runs beside them: the worker process, the loading of a new model."""
    # the threads of a pass wait for each other, so one that waits for a core holds up all: leave cores free
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    # a pass releases the interpreter's lock at every product, and waits up to this many seconds to get it back
    sys.setswitchinterval(1e-4)
    # modules are never garbage: searching them while a model is loaded would stop all threads for a quarter of a second
    gc.freeze()

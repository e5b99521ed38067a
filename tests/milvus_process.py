"""A real Milvus server, of the package `milvus`, in a process of its own."""

import socket
import subprocess
from contextlib import suppress
from pathlib import Path


class MilvusProcess:
    """The real one, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        from milvus import MilvusServer

        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self.process = MilvusServer()
        self.process.set_base_dir(str(folder))
        self.process.listen_port = port
        self.uri = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        self.process.start()
        self.process.config.resolve = lambda: None  # or it might be another port after a stop

    def stop(self) -> None:
        """As `stop` of the package, which gives up on a busy machine: a second to end, then it is killed."""
        running = self.process.server_proc
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(1)
        running.kill()
        running.wait()
        self.process.stop()

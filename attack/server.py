"""The real service in a process of its own, at a free port of 127.0.0.1."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from attack.processes import Process, children, command, resident_mb, until

START_SECONDS = 60.0
STOP_SECONDS = 30.0
ASK_SECONDS = 30.0


class Server:
    """`mtn serve` on a model; `with Server(folder) as server` waits until it is ready, and stops it."""

    def __init__(self, folder: Path, *options: str, token: str | None = None) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.port = _free_port()
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.process = Process(command, ["serve", str(folder), "--port", str(self.port), *options], log=self.log)

    def __enter__(self) -> "Server":
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stop():
            raise RuntimeError(f"the service does not stop: {self.process.output()[-2000:]}")

    def stop(self) -> bool:
        """Tell the service to stop; whether it did so in time."""
        self.process.terminate()
        stopped = self.process.wait(STOP_SECONDS) is not None
        self.process.kill()
        return stopped

    def wait_until_ready(self) -> None:
        """An error if the service does not start."""
        if not until(lambda: self.ready() or self.process.wait(0) is not None, START_SECONDS) or not self.alive():
            raise RuntimeError(f"the service does not start: {self.process.output()[-2000:]}")

    def alive(self) -> bool:
        """Whether the process lives."""
        return self.process.wait(0) is None

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, verb: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_SECONDS)
        body = None if content is None else json.dumps(content)
        kind = {} if content is None else {"content-type": "application/json"}
        try:
            connection.request(verb, path, body, self.headers | kind | headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def memory_mb(self) -> float:
        """Resident memory of the process that answers."""
        return resident_mb(self.process.pid)

    def peak_memory_mb(self) -> float:
        """The most that it had so far."""
        return resident_mb(self.process.pid, peak=True)

    def worker(self) -> int | None:
        """The process that teaches at the moment."""
        return next((pid for supervisor in children(self.process.pid) for pid in children(supervisor)), None)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

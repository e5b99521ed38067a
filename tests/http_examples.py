"""The requests of docs/reference/http.md, sent to a real service."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from service import PATIENCE, Service

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "http.md"


def section(title: str) -> tuple[list[str], str]:
    """The curl commands of a section, and its Python."""
    text = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    assert text is not None, title
    return re.findall(r"^\$ (curl .*)$", text[1], re.M), "".join(re.findall(r"```python\n(.*?)```", text[1], re.S))


def send(service: Service, command: str, folder: Path) -> Any:
    """What a curl command answers; a job that it began is finished then, but for one that can be undone."""
    line = command.replace("localhost:8000", service.url).replace("curl ", "curl -s --fail-with-body ", 1)
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    answer = json.loads(done.stdout) if done.stdout.startswith(b"{") else None
    if answer is not None and "job" in answer and "DELETE" not in command:
        assert service.finish(answer["job"])["state"] in ("done", "undone"), command
    return answer


def run_python(service: Service, title: str, **given: Any) -> dict[str, Any]:
    """The names that the Python of a section leaves; that of the first section makes the client."""
    opening = section("Vectors")[1].partition("answers = ")[0]
    code = section(title)[1]
    code = (code if code.startswith(opening) else opening + code).replace("http://localhost:8000", service.url)
    exec(code, given)
    given["service"].close()
    return given

"""The wheel in an environment of its own, and the promises of README and Makefile."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mtn.version import __version__

ROOT = Path(__file__).parent.parent


def test_the_wheel_installs_and_runs_in_a_new_environment(tmp_path: Path, clusters: Path) -> None:
    """Built, installed with its own dependencies from nothing, run away from the sources."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("mtn-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    install = [binaries / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--constraint"]
    done = subprocess.run([*install, ROOT / "constraints.txt", wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def mtn(*arguments: str) -> str:
        ended = subprocess.run([binaries / "mtn", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert mtn("--version") == f"mtn {__version__}\n"
    assert "glyphs-1k" in mtn("recipes")
    sets = [f"stream.data={clusters}", "stream.first=6", "stream.step=3", "memory.total=40", "method.size=small"]
    out = mtn(
        "run",
        "demo",
        *(word for change in [*sets, "train.epochs=1", "train.min_steps=1"] for word in ("--set", change)),
    )
    assert "average" in out
    where = subprocess.run(
        [binaries / "python", "-c", "import mtn; print(mtn.__file__)"], cwd=tmp_path, capture_output=True
    )
    assert str(tmp_path / "env") in where.stdout.decode()


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_demo_is_the_command_the_readme_shows() -> None:
    shown = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = [line for line in readme_commands() if line.startswith("mtn compare demo")]
    assert command.split("#")[0].strip() in shown.replace(".venv/bin/", "")


@pytest.mark.parametrize("command", [c for c in readme_commands() if c.startswith("mtn ") and "compare demo" not in c])
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path, clusters: Path) -> None:
    """With small data in place of the user's."""
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    binary = Path(sys.executable).parent / "mtn"
    words = command.split("#")[0].split()[1:]
    done = subprocess.run([binary, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

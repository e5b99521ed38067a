"""The wheel in an environment of its own, and the promises of README and Makefile."""

import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mtn import commands
from mtn.datasets import arrays
from mtn.version import __version__
from test_cli import mtn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_installs_and_runs_in_a_new_environment(tmp_path: Path, clusters: Path) -> None:
    """Built, installed with its own dependencies from nothing, run away from the sources."""
    output(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("mtn-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python, mtn = (tmp_path / "env" / "bin" / name for name in ("python", "mtn"))
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    output(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert output(mtn, "--version", cwd=tmp_path) == f"mtn {__version__}\n"
    sets = ["stream.first=6", "stream.step=3", "memory.total=40", "train.epochs=1", "train.min_steps=1"]
    changes = [word for change in (f"stream.data={clusters}", *sets) for word in ("--set", change)]
    assert "average" in output(mtn, "run", "demo", *changes, cwd=tmp_path)
    assert str(tmp_path / "env") in output(python, "-c", "import mtn; print(mtn.__file__)", cwd=tmp_path)
    # the embedded data set needs fonts, weights and nothing else
    made = "from mtn.datasets import glyphs; print(glyphs.prepare(3, cache=__import__('pathlib').Path('cache')))"
    assert "cache" in output(python, "-c", made, cwd=tmp_path)


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.S)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.split("#")[0].strip() for line in lines]


def test_the_demo_is_the_command_the_readme_shows() -> None:
    (command,) = [line for line in readme_commands() if line.endswith("--out runs/demo")]
    assert command in output("make", "--dry-run", "demo", cwd=ROOT).replace(".venv/bin/", "")


def on_a_model(command: str) -> bool:
    return "examples/" in command or "digit-features" in command or command.split()[1] in commands.COMMANDS


def test_the_commands_on_a_model_run_one_after_the_other(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    short, told = ["--set", "train.epochs=1", "--set", "method.size=small"], ""
    for line in filter(on_a_model, readme_commands()):
        program, *words = shlex.split(line)
        if program == "python":
            output(sys.executable, *words, cwd=tmp_path)
            continue
        new = words[0] in ("new", "compare") or (words[0] == "learn" and not Path(words[1]).exists())
        code, said, errors = mtn(*words, *(short if new else []), capsys=capsys, monkeypatch=monkeypatch)
        assert code == 0 and not errors and said
        told += said
    assert "lesson" in told and Path("why.png").is_file() and "10 classes, 0 left out" in told


OTHERS = [line for line in readme_commands() if not (line.endswith("--out runs/demo") or on_a_model(line))]


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path, clusters: Path) -> None:
    """With small data in place of the reader's."""
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    if "convert" not in command:
        arrays.unpack(clusters, tmp_path / "my")
    program, *words = command.split()
    short = ["--set", "train.min_steps=5"] if words[0] in ("run", "compare") else []
    output(Path(sys.executable).parent / program, *words, *short, cwd=tmp_path)


def test_the_python_of_the_readme_runs(tmp_path: Path, clusters: Path) -> None:
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    use, code = re.findall(r"```python\n(.*?)```", README, re.S)
    given = "import numpy as np; d = np.load('my.npz'); X, y = X_new, y_new = d['x_train'], d['y_train']\n"
    assert "Neighbour(id=" in output(sys.executable, "-c", given + use, cwd=tmp_path)
    assert (tmp_path / "my-vectors" / "model.json").is_file()
    code = code.replace('"memory.total=60"', '"memory.total=60", "train.min_steps=50"')
    assert 50 < float(output(sys.executable, "-c", code, cwd=tmp_path).split()[0]) <= 100

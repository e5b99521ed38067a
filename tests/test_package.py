"""The wheel in an environment of its own, and the promises of README and Makefile."""

import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import mtn as package
from mtn.cli import main
from mtn.data import arrays
from mtn.version import __version__

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def output(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_installs_and_runs_in_a_new_environment(tmp_path: Path, clusters: Path) -> None:
    """Built, installed with its own dependencies from nothing, run away from the sources."""
    output(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # away from the sources
    (wheel,) = tmp_path.glob("mtn-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python, mtn = (tmp_path / "env" / "bin" / name for name in ("python", "mtn"))
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    output(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path, env=alone)
    assert output(mtn, "--version", cwd=tmp_path, env=alone) == f"mtn {__version__}\n"
    sets = ["stream.first=6", "stream.step=3", "memory.total=40", "train.epochs=1", "train.min_steps=1"]
    changes = [word for change in (f"stream.data={clusters}", *sets) for word in ("--set", change)]
    assert "average" in output(mtn, "run", "demo", *changes, cwd=tmp_path, env=alone)
    assert str(tmp_path / "env") in output(python, "-c", "import mtn; print(mtn.__file__)", cwd=tmp_path, env=alone)
    # the embedded data set needs fonts, weights and nothing else
    made = "from mtn.data import glyphs; print(glyphs.prepare(3, cache=__import__('pathlib').Path('cache')))"
    assert "cache" in output(python, "-c", made, cwd=tmp_path, env=alone)


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.S)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.split("#")[0].strip() for line in lines]


def test_the_demo_is_the_command_the_readme_shows() -> None:
    (command,) = [line for line in readme_commands() if line.endswith("--out runs/demo")]
    assert command in output("make", "--dry-run", "demo", cwd=ROOT).replace(".venv/bin/", "")


def on_a_model(command: str) -> bool:
    return "examples/" in command or "digit-features" in command or command.split()[1] in main.MODEL_COMMANDS


def test_the_commands_on_a_model_run_one_after_the_other(call, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    short, told = ["--set", "train.epochs=1", "--set", "method.size=small"], ""
    for line in filter(on_a_model, readme_commands()):
        program, *words = shlex.split(line)
        if program == "python":
            output(sys.executable, *words, cwd=tmp_path)
            continue
        new = words[0] in ("new", "compare") or (words[0] == "learn" and not Path(words[1]).exists())
        code, said, errors = call(*words, *(short if new else []))
        assert code == 0 and not errors and said, (words, errors)
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


WITHOUT_UNIX = """
import filelock, fastapi, importlib, multiprocessing, os, pkgutil, platformdirs.unix, signal, sklearn.base, sys, torch
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "sysconf", "fork", "getuid", "geteuid"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGCHLD", "SIGPIPE"):
    delattr(signal, name)
import mtn
for module in pkgutil.walk_packages(mtn.__path__, "mtn."):
    importlib.import_module(module.name)
"""


def test_every_module_can_be_imported_without_what_windows_lacks() -> None:
    """Of the package itself: libraries are loaded before, as on Linux."""
    output(sys.executable, "-c", WITHOUT_UNIX, cwd=ROOT)


def imports() -> list[str]:
    """Every line of the README, the docs and the examples that imports from the package."""
    fences = [block for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
              for block in re.findall(r"```python\n(.*?)```", file.read_text("utf-8"), re.S)]  # fmt: skip
    sources = fences + [file.read_text("utf-8") for file in sorted((ROOT / "examples").glob("*.py"))]
    return sorted({line for text in sources for line in re.findall(r"^(?:from mtn|import mtn).*", text, re.M)})


def test_what_the_docs_import_is_public() -> None:
    output(sys.executable, "-c", "\n".join(imports()), cwd=ROOT)
    named = {name for line in imports() if line.startswith("from mtn import") for name in re.findall(r"\w+", line)[3:]}
    assert {"MTNClassifier", "plot_evidence", "recipe", "run"} <= named <= set(package.__all__)


def test_public_names_are_listed_and_documented() -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert name == "__version__" or getattr(package, name).__doc__, name
    with pytest.raises(AttributeError, match="module 'mtn' has no attribute 'nothing'"):
        _ = package.nothing


def test_public_names_are_on_the_page_of_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    shown = set(re.findall(r"^::: ([\w.]+)$", page, re.M))
    for name in set(package.__all__) - {"__version__", "encoders", "methods"}:
        value = getattr(package, name)
        assert f"{value.__module__}.{value.__qualname__}" in shown


def test_the_python_of_the_readme_runs(tmp_path: Path, clusters: Path) -> None:
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    use, code = re.findall(r"```python\n(.*?)```", README, re.S)
    given = "import numpy as np; d = np.load('my.npz'); X, y = X_new, y_new = d['x_train'], d['y_train']\n"
    assert "Neighbour(id=" in output(sys.executable, "-c", given + use, cwd=tmp_path)
    assert (tmp_path / "my-vectors" / "model.json").is_file()
    code = code.replace('"memory.total=60"', '"memory.total=60", "train.min_steps=50"')
    assert 50 < float(output(sys.executable, "-c", code, cwd=tmp_path).split()[0]) <= 100

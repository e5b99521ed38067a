"""The wheel in an environment of its own, and the promises of README and Makefile."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mtn as package
from mtn import errors
from mtn.cli import main
from mtn.version import __version__

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment of a process that does not see the sources."""


def output(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def dependencies(requirements: list[str], extras: frozenset[str] = frozenset({""})) -> Iterator[metadata.Distribution]:
    """The installed distributions that requirements ask for, and those that these ask for."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            found = metadata.distribution(requirement.name)
            yield found
            yield from dependencies(found.requires or [], frozenset(requirement.extras) | {""})


def make_environment(folder: Path) -> Path:
    """An environment that has the declared dependencies of the package, by links, and nothing else; its Python."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in dependencies(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]):
        for name in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(found.locate_file(name)))
    return folder / "bin" / "python"


def build_wheel(folder: Path) -> Path:
    output(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("memory_transformer-*.whl")
    return wheel


def check_installed(env: Path, cwd: Path, clusters: Path) -> None:
    """The command, a run and the embedded data set work, away from the sources."""
    python, mtn = (env / "bin" / name for name in ("python", "mtn"))
    assert output(mtn, "--version", cwd=cwd, env=ALONE) == f"mtn {__version__}\n"
    sets = ["stream.first=6", "stream.step=3", "memory.total=40", "train.epochs=1", "train.min_steps=1"]
    changes = [word for change in (f"stream.data={clusters}", *sets) for word in ("--set", change)]
    assert "average" in output(mtn, "run", "demo", *changes, cwd=cwd, env=ALONE)
    # the embedded data set needs fonts, weights and nothing else
    made = "from mtn.data import glyphs; print(glyphs.prepare(3, cache=__import__('pathlib').Path('cache')))"
    where, cache = output(python, "-c", f"import mtn; print(mtn.__file__); {made}", cwd=cwd, env=ALONE).splitlines()
    assert where.startswith(str(env)) and "cache" in cache


def test_the_wheel_runs_with_its_declared_dependencies_alone(tmp_path: Path, clusters: Path) -> None:
    python = make_environment(tmp_path / "env")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    output(*pip, build_wheel(tmp_path), cwd=tmp_path, env=ALONE)
    check_installed(tmp_path / "env", tmp_path, clusters)


@pytest.mark.slow
def test_the_wheel_installs_from_the_registry_into_a_new_environment(tmp_path: Path, clusters: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    pip = (tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile")
    output(*pip, "--constraint", ROOT / "constraints.txt", build_wheel(tmp_path), cwd=tmp_path, env=ALONE)
    check_installed(tmp_path / "env", tmp_path, clusters)


def test_the_version_is_one_everywhere() -> None:
    """`mtn.version` is where it is written; what is dated by hand must agree with it."""
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)[1] == __version__
    assert f"## {__version__} - " in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"version = {{{__version__}}}" in README


def test_an_install_line_names_the_clone_or_the_published_package(tmp_path: Path) -> None:
    assert errors.install_line("text") == f"pip install '{ROOT}[text]'"
    (tmp_path / "mtn").mkdir()
    (tmp_path / "mtn" / "errors.py").write_text((ROOT / "src" / "mtn" / "errors.py").read_text("utf-8"))
    code = "from errors import install_line; print(install_line('text'))"
    assert output(sys.executable, "-c", code, cwd=tmp_path / "mtn") == "pip install 'memory-transformer[text]'\n"


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.S)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.split("#")[0].strip() for line in lines if not line.startswith("pip ")]


def test_the_demo_is_the_command_the_readme_shows() -> None:
    (command,) = [line for line in readme_commands() if line.endswith("--out runs/demo")]
    assert command in output("make", "--dry-run", "demo", cwd=ROOT).replace(".venv/bin/", "")


def on_a_model(command: str) -> bool:
    return "examples/" in command or command.split()[1] in main.MODEL_COMMANDS


def test_the_commands_on_a_model_run_one_after_the_other(call, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    short, told = ["--set", "train.epochs=1", "--set", "method.size=small"], ""
    for line in filter(on_a_model, readme_commands()):
        program, *words = shlex.split(line)
        if program == "python":
            output(sys.executable, *words, cwd=tmp_path)
            continue
        new = words[0] == "learn" and not Path(words[1]).exists()
        code, said, errors = call(*words, *(short if new else []))
        assert code == 0 and not errors and said, (words, errors)
        told += said
    assert "lesson" in told and Path("why.png").is_file() and "10 classes" in told


OTHERS = [line for line in readme_commands() if not (line.endswith("--out runs/demo") or on_a_model(line))]


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_of_the_readme_runs(command: str, call, tmp_path: Path, clusters: Path) -> None:
    """With small data in place of the reader's."""
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    program, *words = command.split()
    short = ["--set", "train.min_steps=5"] if words[0] in ("run", "compare") else []
    short += ["--jobs", "1"] if words[0] == "compare" else []  # in this process: another one would load torch again
    code, said, errors = call(*words, *short)
    assert program == "mtn" and code == 0 and said, errors


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


def test_the_ten_lines_of_the_readme_run(tmp_path: Path) -> None:
    """With the encoder of the package itself, as where no extra is installed."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(code.splitlines()) <= 12
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code.replace("MTNClassifier()", "MTNClassifier(encoder='hashing')"), {})
    assert printed.getvalue().startswith("['light' 'music']\n") and "turn on the light" in printed.getvalue()
    assert package.MTNClassifier.load(tmp_path / "router").classes_.tolist() == ["light"]


def test_the_python_of_the_page_on_comparing_runs(tmp_path: Path, clusters: Path) -> None:
    (tmp_path / "my.npz").write_bytes(clusters.read_bytes())
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "compare.md").read_text("utf-8"), re.S)
    code = code.replace('"memory.total=60"', '"memory.total=60", "train.min_steps=20"')
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert 50 < float(printed.getvalue().split()[0]) <= 100

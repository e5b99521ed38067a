"""Install the wheel into new environments and try it there: python scripts/matrix.py [--python 3.12 ...] [--quick]

One environment for each Python on this machine with the newest accepted core dependencies, and one with the lowest.
What is tried in each: the command line, the lines of the README, a run, an old model folder. `make matrix` does it all.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
README_LINES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[0]
OLD_MODEL = ROOT / "tests" / "fixtures" / "formats" / "3" / "practical"
TRIALS = {
    "README": README_LINES.replace("MTNClassifier()", "MTNClassifier(encoder='hashing')"),
    "run": "from pathlib import Path\nfrom mtn import recipe, run\n"
    "changes = ['stream.data=glyphs-5x20', 'stream.first=3', 'stream.step=1', 'method.name=slda']\n"
    "print(run(recipe('demo', changes), Path('run'))['last_accuracy'])",
    "nothing remembered": "from mtn import MTNClassifier\n"
    "MTNClassifier('slda').fit([[0.0, 1.0], [1.0, 0.0]] * 4, ['a', 'b'] * 4).save('slda')\n"
    "print(MTNClassifier.load('slda').classes_)",
    "old model": "from mtn import MTNClassifier\nprint(MTNClassifier.load('old').classes_)",
}


def find(version: str) -> str | None:
    """A Python of that version: on the path, or of pyenv."""
    named = shutil.which(f"python{version}")
    if named and subprocess.run([named, "-c", ""], capture_output=True).returncode == 0:
        return named
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else None


def lowest() -> list[str]:
    """The core dependencies at the lowest version that pyproject.toml accepts."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    return [re.sub(r">=([\w.]+).*", r"==\1", name) for name in names]


def try_out(python: str, wheel: Path, pins: list[str]) -> str:
    """The verdict of one environment in a word or a line."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        subprocess.run([python, "-m", "venv", here / "env"], check=True)
        own = here / "env" / "bin" / "python"
        installed = subprocess.run(
            [own, "-m", "pip", "install", "--quiet", wheel, *pins], capture_output=True, text=True
        )
        if installed.returncode:
            return "cannot be installed: " + installed.stderr.strip().splitlines()[-1]
        shutil.copytree(OLD_MODEL, here / "old")
        commands = {"mtn --version": [here / "env" / "bin" / "mtn", "--version"]}
        commands |= {name: [own, "-W", "error::UserWarning:mtn", "-c", code] for name, code in TRIALS.items()}
        for name, command in commands.items():
            done = subprocess.run(command, cwd=here, capture_output=True, text=True)
            if done.returncode:
                return f"{name} fails: {done.stderr.strip().splitlines()[-1]}"
    return "passes"


def main() -> int:
    """Exit code 1 if anything fails; a Python that is not here is only named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="only this version")
    parser.add_argument("--quick", action="store_true", help="the newest dependencies alone")
    parser.add_argument("wheel", type=Path, nargs="?", help="one that is built already")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        wheel = given.wheel
        if wheel is None:
            subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], check=True)
            (wheel,) = Path(folder).glob("*.whl")
        for version in given.python or PYTHONS:
            python = find(version)
            if python is None:
                print(f"Python {version}: not on this machine")
                continue
            # The lowest dependencies are older than the newest Python: they are tried with the lowest one.
            kinds = {"newest": []} | ({"lowest": lowest()} if version == PYTHONS[0] and not given.quick else {})
            for kind, pins in kinds.items():
                verdict = try_out(python, wheel.resolve(), pins)
                print(f"Python {version}, {kind} dependencies: {verdict}", flush=True)
                failed |= verdict != "passes"
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

"""The commands as a user types them: what they print, write and refuse."""

import json
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import numpy as np
import pytest

from cluster_data import cluster_arrays
from commands import TINY
from mtn import recipes
from mtn.cli import arguments, main
from mtn.data import sources
from mtn.experiments import run
from mtn.version import __version__


def test_run_compare_and_what_they_leave(call, clusters: Path, tmp_path: Path) -> None:
    code, out, _ = call("run", "clinc150", "--set", f"stream.data={clusters}", *TINY)
    assert code == 0 and "average" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"clinc150-mtn-seed0-[0-9a-f]{8}", folder.name)
    assert {"config.json", "result.json", "result.md", "curve.png", "curve.svg"} <= {f.name for f in folder.iterdir()}
    common = ("--set", f"stream.data={clusters}", *TINY, "--out", "cmp")
    code, out, _ = call("compare", "clinc150", "--methods", "knn,ssil,mtn", "--seeds", "0,1", *common)
    assert code == 0 and "±" in out
    results = json.loads((tmp_path / "cmp" / "results.json").read_text())
    assert [(r["method"], r["seed"]) for r in results] == [(m, s) for m in ("knn", "ssil", "mtn") for s in (0, 1)]
    table = (tmp_path / "cmp" / "results.md").read_text()
    assert "| mtn | " in table and "clusters: 6 + 2 x 3 classes, M = 40, seeds 0, 1" in table
    written = (tmp_path / "cmp" / "mtn-seed1" / "state.safetensors").stat().st_mtime_ns
    code, out, _ = call("compare", "clinc150", "--methods", "mtn", "--seeds", "1", *common)
    assert code == 0
    assert (tmp_path / "cmp" / "mtn-seed1" / "state.safetensors").stat().st_mtime_ns == written  # not done again


def test_compare_gives_a_loss_only_to_methods_that_take_it(call, clusters: Path, tmp_path: Path) -> None:
    common = ("--set", f"stream.data={clusters}", *TINY, "--set", "train.loss=balanced", "--out", "cmp")
    assert call("compare", "clinc150", "--methods", "ssil,mtn", *common)[0] == 0
    results = json.loads((tmp_path / "cmp" / "results.json").read_text())
    assert [result["config"]["train"]["loss"] for result in results] == [None, "balanced"]


def test_compare_with_several_class_orders(call, clusters: Path, tmp_path: Path) -> None:
    common = ("--set", f"stream.data={clusters}", *TINY, "--jobs", "1", "--orders", "1993,1,2")
    code, out, _ = call("compare", "clinc150", "--methods", "knn,ncm", *common)
    assert code == 0 and "knn seed 0, class order 2: " in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert {f"ncm-order{order}-seed0" for order in (1993, 1, 2)} < {file.name for file in folder.iterdir()}
    assert "seed 0, class orders 1993, 1, 2**" in (folder / "results.md").read_text()
    results = json.loads((folder / "results.json").read_text())
    assert [result["config"]["stream"]["order"] for result in results] == [1993, 1, 2] * 2


def test_version_recipes_and_help(call) -> None:
    assert call("--version")[:2] == (0, f"mtn {__version__}\n")
    code, out, _ = call("recipes")
    assert code == 0 and all(name in out for name in ("demo", "glyphs-1k", "paper/imagenet1k-l100", "paper/literal"))
    assert "train.min_steps" not in out
    code, out, _ = call("recipes", "--keys")
    assert code == 0 and "train.min_steps" in out and "method.readout: an option of " in out


def test_convert_makes_a_folder_that_runs(call, clusters: Path, tmp_path: Path) -> None:
    assert call("convert", str(clusters), "folder")[0] == 0
    code, _, _ = call("run", "clinc150", "--set", "stream.data=folder", "--set", "method.name=knn", *TINY)
    assert code == 0


BAD = {
    "unknown recipe": (["run", "dmo"], "did you mean 'demo'"),
    "unknown key": (["run", "demo", "--set", "stream.dta=x"], "did you mean 'stream.data'"),
    "no value": (["run", "demo", "--set", "seed"], "--set takes key=value, got 'seed'"),
    "wrong type": (["run", "demo", "--set", "train.epochs=many"], "train.epochs should be a valid number, got 'many'"),
    "unknown data": (["run", "demo", "--set", "stream.data=glyph-200"], "did you mean 'glyphs-200'"),
    "absent file": (["run", "demo", "--set", "stream.data=no/such.npz"], "no file or folder 'no/such.npz'"),
    "k below 1": (["run", "demo", "--set", "method.k=0"], "method.k should be greater than or equal to 1, got 0"),
    "M below 1": (["run", "demo", "--set", "memory.total=0"], "memory.total should be greater than or equal to 1"),
    "first too large": (["run", "clinc150", "--set", "stream.data=good.npz"], "stream.first must be at most 12"),
    "step does not fit": (
        ["run", "clinc150", "--set", "stream.data=good.npz", "--set", "stream.first=6", "--set", "stream.step=4"],
        "stream.step must divide 6 (12 classes less the first 6), got 4; nearest: 3",
    ),
    "NaN": (["run", "clinc150", "--set", "stream.data=nan.npz"], "x_train has a NaN or infinite value in row 3"),
    "lengths": (["run", "clinc150", "--set", "stream.data=short.npz"], "equally long, got 360 and 359"),
    "no arrays": (["run", "clinc150", "--set", "stream.data=other.npz"], "other.npz lacks x_train, y_train"),
    "no npz": (["run", "clinc150", "--set", "stream.data=text.npz"], "text.npz is not an .npz file"),
    "foreign folder": (["run", "demo", "--out", "."], "not a run of mtn"),
    "foreign comparison": (["compare", "demo", "--out", "."], "not a comparison of mtn"),
    "unknown method": (["compare", "demo", "--methods", "mtm"], "did you mean 'mtn'"),
    "bad seeds": (["compare", "demo", "--seeds", "0,x"], "--seeds takes whole numbers from 0 on, got 'x'"),
    "no order": (["compare", "demo", "--orders", ","], "--orders needs at least one value"),
    "orders twice": (["compare", "demo", "--orders", "1,1"], "--orders names a value twice: 1,1"),
    "orders and tasks": (
        ["compare", "demo", "--set", "stream.data=good.npz", "--set", 'stream.tasks=[["0"], ["1"]]', "--orders", "1,2"],
        "--orders has nothing to order: stream.tasks names the classes of each task",
    ),
    "loss of another": (
        ["run", "demo", "--set", "method.name=ssil", "--set", "train.loss=ce", "--set", "stream.data=good.npz",
         "--set", "stream.first=6", "--set", "stream.step=3"],
        "method 'ssil' takes ss",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(call, tmp_path: Path, case: str) -> None:
    good = cluster_arrays()
    np.savez(tmp_path / "good.npz", **good)
    np.savez(tmp_path / "short.npz", **(good | {"y_train": good["y_train"][:-1]}))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    spoilt = good["x_train"].copy()
    spoilt[3, 2] = np.nan
    np.savez(tmp_path / "nan.npz", **(good | {"x_train": spoilt}))
    (tmp_path / "text.npz").write_text("not a zip")
    before = sorted(tmp_path.rglob("*"))
    arguments, expected = BAD[case]
    code, out, err = call(*arguments)
    assert code == 2 and not out
    assert err.startswith("error: ") and err.count("\n") == 1
    assert expected in err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_run_says_how_to_go_on(call, clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run", "clinc150", "--set", f"stream.data={clusters}", *TINY, "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr(run.StreamTrainer, "evaluate", lambda self, task: (_ for _ in ()).throw(KeyboardInterrupt))
        code, _, err = call(*arguments)
    assert code == 130 and "run the same command again to go on" in err
    assert call(*arguments)[0] == 0


def test_the_module_is_the_command(clusters: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mtn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"mtn {__version__}\n"


SLOW = {"torch", "numpy", "sklearn", "matplotlib", "pandas", "pydantic", "rich"}
"""Packages that take long to import."""


def loaded(program: str, slow: Set[str] = SLOW) -> set[str]:
    """Which of the slow packages a program has imported when it ends."""
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split()) & slow


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([name, "--help"] for name in main.COMMANDS)], ids=" ".join
)
def test_help_and_version_load_nothing_slow(words: list[str]) -> None:
    command = f"sys.argv = {['mtn', *words]}\nfrom mtn.__main__ import main\nmain()"
    assert loaded(command) <= {"pydantic"}  # which typer uses to parse values


def test_describing_a_model_and_listing_recipes_load_no_torch(model_folder: Path) -> None:
    command = "from mtn.__main__ import main\nmain()"
    assert "torch" not in loaded(f"sys.argv = ['mtn', 'info', {str(model_folder)!r}]\n{command}")
    assert loaded(f"sys.argv = ['mtn', 'recipes']\n{command}") <= {"pydantic"}


def test_an_answer_loads_neither_scikit_learn_nor_what_it_brings(
    model_folder: Path, clusters: Path, tmp_path: Path
) -> None:
    """It takes as long to import as torch does; sentence-transformers, of which the encoder of sentences does without,
    takes three times as long."""
    slow = {"sklearn", "scipy", "pandas", "matplotlib", "sentence_transformers", "transformers", "tenacity"}
    asked = tmp_path / "asked.npy"
    np.save(asked, np.load(clusters)["x_test"][:2])
    for command in ("predict", "explain"):
        words = ["mtn", command, str(model_folder), str(asked)]
        assert not loaded(f"sys.argv = {words}\nfrom mtn.__main__ import main\nmain()", slow)
    assert not loaded("import mtn.encoders.minilm", slow)


def test_importing_loads_what_is_used_and_no_more() -> None:
    assert not loaded("import mtn")
    assert not loaded("from mtn import InputError")
    assert loaded("from mtn import Config") == {"pydantic"}
    assert "torch" in loaded("from mtn import run") and "sklearn" not in loaded("from mtn import run")
    assert "matplotlib" not in loaded("from mtn import MTNClassifier")


def test_a_command_sets_one_thread_a_core(clusters: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    command = f"import sys; sys.argv = ['mtn', 'convert', {str(clusters)!r}, {str(tmp_path / 'folder')!r}]\n"
    code = f"{command}from mtn.cli.main import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "import torch; from mtn.runtime.cores import core_count; assert torch.get_num_threads() == core_count()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_help_texts_are_those_of_what_they_tell_about() -> None:
    """Written down twice, because help must not import torch."""
    assert sources.LABELLED.capitalize() + "." == arguments.TEACHING
    assert f"Each is {sources.UNLABELLED}." == arguments.ASKING


def test_every_key_of_the_interface_exists() -> None:
    promised = """seed stream.data stream.first stream.step stream.order memory.total memory.per_class memory.select
        method.name method.k method.size method.labels method.rank method.readout device stream.evaluate train.epochs
        train.min_steps train.lr train.schedule train.optimizer train.batch train.replay train.loss train.temperature"""
    assert set(promised.split()) <= set(recipes.keys())

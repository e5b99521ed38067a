"""Several methods, seeds and class orders: in one process or two, with a cell that fails, with cells already done."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from commands import TINY
from mtn.config import Config
from mtn.errors import InputError
from mtn.experiments.compare import MARK, compare
from mtn.methods import METHODS, runnable
from mtn.methods.baselines import ER
from mtn.recipes import comparison, for_method, recipe, with_changes
from mtn.search import Location
from mtn.search.collection import Collection
from mtn.storage import files

MEASURED = ("seconds", "processor_seconds", "train_samples_per_second", "peak_memory_mb")


@pytest.fixture
def config(configure: Callable[..., Config]) -> Config:
    return configure(stream={"first": 6, "step": 3}, train={"epochs": 1}, device="cpu")


def each(config: Config, *methods: str) -> list[Config]:
    """The configuration for each of several methods."""
    return [for_method(config, method) for method in methods]


def test_two_processes_give_the_same_results_in_the_same_order_as_one(config: Config, tmp_path: Path) -> None:
    found, said = {}, []
    for jobs in (1, 2):
        out = tmp_path / str(jobs)
        found[jobs] = compare(each(config, "er", "ncm"), [0], out, lambda what, done, of: said.append(what), jobs=jobs)
        assert json.loads((out / "results.json").read_text()) == found[jobs]
        for result in found[jobs]:
            for key in MEASURED:
                result.pop(key)
    assert [result["method"] for result in found[1]] == ["er", "ncm"]
    assert found[1] == found[2]
    assert {what.split(" · ")[0] for what in said} == {"er-seed0", "ncm-seed0"}


def test_a_cell_that_cannot_run_is_named_and_does_not_stop_the_others(config: Config, tmp_path: Path) -> None:
    one_each = with_changes(config, memory={"total": 12})
    told: list[str] = []
    with pytest.raises(InputError, match=r"bic-seed0: .*memory\.total.*the others are in"):
        configs = each(one_each, "bic", "knn", "ncm")
        compare(configs, [0], tmp_path, on_result=lambda r: told.append(r["method"]), jobs=1)
    written = json.loads((tmp_path / "results.json").read_text())
    assert [result["method"] for result in written] == told == ["knn", "ncm"]


def test_finished_cells_are_not_repeated(config: Config, tmp_path: Path) -> None:
    (first,) = compare(each(config, "er"), [0], tmp_path, jobs=1)
    state = tmp_path / "er-seed0" / "state.safetensors"
    written = state.stat().st_mtime_ns
    again = compare(each(config, "er", "ncm"), [0], tmp_path, jobs=1)
    assert again[0] == first and again[1]["method"] == "ncm"
    assert state.stat().st_mtime_ns == written


COMPARE = """
import sys
from pathlib import Path
from mtn.experiments.compare import compare
from mtn.config import Config
from mtn.recipes import for_method
config = Config.model_validate_json(Path(sys.argv[1]).read_text())
compare([for_method(config, name) for name in ("er", "lwf")], [0], Path(sys.argv[2]), jobs=2)
"""


def is_at_work(folder: Path) -> bool:
    if not (folder / ".lock").exists():
        return False
    try:
        with files.lock(folder):
            return False
    except InputError:
        return True


def test_a_killed_comparison_leaves_nobody_at_work_in_its_folders(config: Config, tmp_path: Path) -> None:
    endless = with_changes(config, train={"min_steps": 10**7})
    (tmp_path / "config.json").write_text(endless.model_dump_json())
    command = [sys.executable, "-c", COMPARE, str(tmp_path / "config.json"), str(tmp_path / "out")]
    process = subprocess.Popen(command)
    folders = [tmp_path / "out" / name for name in ("er-seed0", "lwf-seed0")]

    def wait(until: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not until():
            assert time.monotonic() < end
            time.sleep(0.1)

    try:
        wait(lambda: process.poll() is not None or all(map(is_at_work, folders)))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    wait(lambda: not any(map(is_at_work, folders)))


def test_every_order_with_every_seed_each_in_a_folder_that_says_so(config: Config, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n".join(map(str, range(12))))
    mine = str(tmp_path / "mine.txt")
    results = compare(each(config, "ncm", "knn"), [0, 1], tmp_path / "out", jobs=1, orders=[1993, mine])
    found = [(one["method"], one["config"]["stream"]["order"], one["seed"]) for one in results]
    assert found == [(method, order, seed) for method in ("ncm", "knn") for order in (1993, mine) for seed in (0, 1)]
    folders = {folder.name for folder in (tmp_path / "out").iterdir() if folder.is_dir()}
    assert folders == {f"{m}-order{o}-seed{s}" for m in ("ncm", "knn") for o in ("1993", "mine.txt") for s in (0, 1)}
    one, other = (next(r for r in results if r["config"]["stream"]["order"] == order) for order in (1993, mine))
    assert one["accuracy"][0] != other["accuracy"][0]  # other classes come first
    assert one["last_accuracy"] == pytest.approx(other["last_accuracy"])  # all of them in the end
    assert json.loads((tmp_path / "out" / MARK).read_text())["orders"] == [1993, mine]


def test_one_order_given_is_as_if_the_recipe_had_it(config: Config, tmp_path: Path) -> None:
    (given,) = compare(each(config, "ncm"), [0], tmp_path, jobs=1, orders=[7])
    (same,) = compare(each(with_changes(config, stream={"order": 7}), "ncm"), [0], tmp_path, jobs=1)  # found finished
    assert given == same and (tmp_path / "ncm-seed0").is_dir()


def test_orders_that_cannot_be_compared_are_refused_before_anything_runs(config: Config, tmp_path: Path) -> None:
    for folder, classes in (("a", range(12)), ("b", range(9))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.txt").write_text("\n".join(map(str, classes)))
        (tmp_path / folder / "same.txt").write_text("\n".join(map(str, range(12))))
    named = with_changes(config, stream={"tasks": [["0", "1"], ["2"]], "first": None, "step": None})
    bad = {
        "stream.tasks names the classes": (named, [1, 2]),
        "two files of the same name": (config, [str(tmp_path / folder / "same.txt") for folder in "ab"]),
        r"tasks of the same sizes, got \(6, 3\) and \(6, 3, 3\)": (config, [f"{tmp_path}/{f}/{f}.txt" for f in "ab"]),
        "stream.order: no file": (config, [1, "nowhere.txt"]),
        "stream.order must be from 0": (config, [1, -1]),
    }
    for message, (one, orders) in bad.items():
        with pytest.raises(InputError, match=message):
            compare(each(one, "ncm"), [0], tmp_path / "out", jobs=1, orders=orders)
        assert not (tmp_path / "out").exists()


def test_all_methods_are_those_of_the_table_that_differ_on_vectors(call, clusters: Path, tmp_path: Path) -> None:
    """No cell runs: the device is not there. What was to be compared is written down before."""
    absent = "cuda" if not torch.cuda.is_available() else "mps"
    common = ("--set", f"stream.data={clusters}", *TINY, "--set", f"device={absent}", "--jobs", "1", "--out", "all")
    code, _, error = call("compare", "clinc150", "--methods", "all", *common)
    names = [name for name in METHODS if name not in ("mtn-unlocked", "ccil-sd", "adaptation", "der", "aanets")]
    assert code == 2
    assert json.loads((tmp_path / "all" / MARK).read_text())["methods"] == names
    assert all(f"{name}-seed0: device" in error.replace("\n", " ") for name in names)


def test_all_methods_on_images_are_those_that_take_images() -> None:
    names = {config.method.name for config in runnable(comparison("learned/omniglot", METHODS))}
    assert {"mtn", "mtn-unlocked", "ccil-sd", "ssil", "joint"} <= names
    assert not {"slda", "ranpac", "practical", "anacp"} & names


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["learned/omniglot", "--methods", "ssil,slda"], "method 'slda' is for frozen features"),
        (["demo", "--methods", "all,slda"], "--methods: all stands alone, got all,slda"),
        (["demo", "--streams", "noisy,all"], "--streams: all stands alone, got noisy,all"),
        (["demo", "--streams", "noisy", "--set", "stream.kind=repeat"], "leave out --set stream.kind"),
        (["demo", "--methods", "SLDA"], "no method 'SLDA': did you mean 'slda'?"),
        (["demo", "--methods", "slda", "--seeds", "0,1,0"], "--seeds names a value twice"),
    ],
)
def test_what_cannot_be_compared_is_one_line_before_anything_runs(
    call, tmp_path: Path, words: list[str], reason: str
) -> None:
    code, _, error = call("compare", *words)
    assert code == 2 and reason in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


PRACTICAL = {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.0, "replay": 96, "min_steps": 50}
"""What `practical` declares of [train]."""


def values(config: Config, like: dict) -> dict:
    return {key: getattr(config.train, key) for key in like}


def test_each_method_has_its_own_values_above_those_of_a_recipe_for_all() -> None:
    practical, mtn, ssil = comparison("demo", ["practical", "mtn", "ssil"])
    assert values(practical, PRACTICAL) == PRACTICAL and practical.train.loss is None
    assert (mtn.train.optimizer, mtn.train.lr, mtn.train.min_steps, mtn.train.loss) == ("adamw", 0.003, 100, "balanced")
    assert (ssil.train.min_steps, ssil.train.loss) == (400, None)
    assert practical.method.size == mtn.method.size == "small"


def test_what_a_recipe_says_of_the_method_it_names_is_for_that_one_alone(tmp_path: Path) -> None:
    recipe_file = tmp_path / "own.toml"
    text = '[stream]\ndata = "x.npz"\n[memory]\ntotal = 9\n[method]\nname = "practical"\nk = 3\n[train]\nlr = 0.5\n'
    recipe_file.write_text(text, "utf-8")
    practical, er = comparison(str(recipe_file), ["practical", "er"])
    assert values(practical, PRACTICAL) == PRACTICAL | {"lr": 0.5} and practical.method.k == 3
    assert (er.train, er.method.k) == (Config.model_fields["train"].default, 10)
    recipe_file.write_text(text + "[others.train]\nmin_steps = 7\nreplay = 5\n", "utf-8")
    practical, er, fetril = comparison(str(recipe_file), ["practical", "er", "fetril"])
    assert (practical.train.min_steps, er.train.min_steps, fetril.train.min_steps) == (50, 7, 400)  # its own
    assert (er.train.replay, er.train.lr, er.method.k) == (5, 0.1, 10)
    recipe_file.write_text(text + "[others]\nstream = 3\n", "utf-8")
    for method in ("er", "practical"):
        with pytest.raises(InputError, match="others must be a table of tables method and train"):
            comparison(str(recipe_file), [method])


def test_what_is_set_holds_for_all_but_a_loss_only_for_those_that_have_it() -> None:
    settings = ["train.lr=0.2", "train.loss=ce", "method.k=4"]
    configs = comparison("practical", ["practical", "mtn", "er", "slda"], settings)
    assert {(config.train.lr, config.method.k) for config in configs} == {(0.2, 4)}
    assert [config.train.loss for config in configs] == [None, "ce", "ce", None]
    with pytest.raises(InputError, match=r"train\.loss should be"):
        comparison("demo", ["slda"], ["train.loss=none"])


@pytest.mark.parametrize("method", ["er", "mtn", "practical", "slda"])
@pytest.mark.parametrize("name", ["demo", "practical"])
def test_a_run_of_a_method_is_its_cell_of_a_comparison(name: str, method: str) -> None:
    (cell,) = comparison(name, [method])
    assert recipe(name, [f"method.name={method}"]) == cell


def test_a_comparison_has_each_method_once_on_the_same_stream(config: Config, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each method once, got 'ncm' twice"):
        compare(each(config, "ncm", "ncm"), [0], tmp_path)
    with pytest.raises(InputError, match="'knn' has another stream or memory than 'ncm'"):
        other = with_changes(config, stream={"first": 7})
        compare([*each(config, "ncm"), *each(other, "knn")], [0], tmp_path)


def test_the_table_and_results_json_say_which_values_each_method_had(call, clusters: Path, tmp_path: Path) -> None:
    """At the door: `er` beside `practical` and `mtn` has neither their optimiser nor their rate nor their replay."""
    small = [f"stream.data={clusters}", "stream.first=6", "stream.step=6", "memory.total=40", "train.epochs=1"]
    options = [word for one in small for word in ("--set", one)]
    methods = ("--methods", "practical,mtn,er,slda", "--jobs", "1", "--out", "out")
    code, out, _ = call("compare", "practical", *methods, *options, "--set", "train.min_steps=5")
    assert code == 0
    assert (
        "train.lr: 0.1 for er; 0.003 for practical, mtn" in out
        and "train.loss: balanced for mtn; unset for practical, er" in out
        and "train.optimizer: sgd for er; adamw for practical, mtn" in out
    )
    assert "train.min_steps" not in out and "train.epochs" not in out  # the same for all
    markdown = (tmp_path / "out" / "results.md").read_text("utf-8")
    assert "- train.replay: 32 for er; 96 for practical, mtn" in markdown
    found = {one["method"]: one["differing_values"] for one in json.loads((tmp_path / "out/results.json").read_text())}
    assert found["practical"]["train.optimizer"] == "adamw" and found["mtn"]["train.loss"] == "balanced"
    assert found["slda"] == {}  # trains nothing


def test_a_run_with_another_method_than_the_recipe_is_about(call, clusters: Path) -> None:
    er = ("run", "demo", "--set", "method.name=er", "--set", f"stream.data={clusters}", *TINY)
    code, out, _ = call(*er)
    assert code == 0 and "er on clusters" in out
    code, _, error = call(*er, "--set", "train.loss=balanced")
    assert code == 2 and "train.loss = 'balanced': method 'er' takes ce" in error.replace("\n", " ")


class OwnValues(ER):
    """A user's own method that declares its values."""

    defaults = {"train.lr": 0.25}  # noqa: RUF012


class WrongValues(ER):
    """One that declares what is not its own."""

    defaults = {"memory.total": 3}  # noqa: RUF012


def test_a_method_of_ones_own_declares_its_values_too() -> None:
    own, er = comparison("demo", ["tests.test_compare:OwnValues", "er"])
    assert (own.train.lr, own.train.min_steps, er.train.lr) == (0.25, 400, 0.1)
    with pytest.raises(InputError, match=r"keys of \[train\] and \[method\], got 'memory.total'"):
        comparison("demo", ["tests.test_compare:WrongValues"])


def test_cells_with_a_memory_in_milvus_have_a_collection_each(config: Config, tmp_path: Path) -> None:
    for package in ("pymilvus", "milvus_lite"):
        pytest.importorskip(package, reason=f"{package} is not there: pip install '.[milvus]'")
    uri = str(tmp_path / "memory.db")
    remote = with_changes(config, memory={"store": "milvus", "uri": uri})
    with pytest.raises(InputError, match=r"--jobs must be 1: memory\.uri is a file"):
        compare(each(remote, "knn", "er"), [0], tmp_path / "remote", jobs=2)
    results = compare(each(remote, "knn", "er"), [0], tmp_path / "remote")
    local = compare(each(config, "knn", "er"), [0], tmp_path / "local", jobs=1)
    assert [result["accuracy"] for result in results] == [result["accuracy"] for result in local]
    names = [(tmp_path / "remote" / f"{method}-seed0" / "collection").read_text() for method in ("knn", "er")]
    assert len(set(names)) == 2
    total = config.memory.total
    assert [Collection(Location(uri, name), 16).count(tasks=3) for name in names] == [total, total]


def test_every_key_reaches_the_cells(config: Config) -> None:
    """Those too that are no part of what a run is."""
    remote = with_changes(config, log="tensorboard", memory={"store": "milvus", "uri": "http://localhost:19530"})
    for method in ("knn", "practical"):  # the second declares values
        cell = for_method(remote, method)
        assert (cell.log, cell.memory) == (remote.log, remote.memory)

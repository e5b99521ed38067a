"""The search over a method's own values: on the first task alone, written into a recipe, and said in the tables."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mtn.config import Config
from mtn.data import load_vectors
from mtn.errors import InputError
from mtn.experiments import tuning
from mtn.methods import METHODS
from mtn.recipes import recipe, with_changes
from mtn.stream import split

Call = Callable[..., tuple[int, str, str]]


def test_only_the_first_task_is_looked_at(configure: Callable[..., Config]) -> None:
    config = configure(stream={"first": 8, "step": 2})
    data = load_vectors(config.stream.data)
    first = split(data, config.stream)[0]
    pilot, part = tuning.pilot_stream(config, data)
    assert sorted(part.names) == sorted(first.names)
    assert set(part.train.id.tolist()) == set(first.train.id.tolist())
    assert set(part.test.id.tolist()) < set(data.validation.id.tolist()), "and not at the test split"
    labels = [data.names[int(label)] for label in data.validation.y]
    of = dict(zip(data.validation.id.tolist(), labels, strict=True))
    assert [part.names[y] for y in part.test.y.tolist()] == [of[number] for number in part.test.id.tolist()]
    assert pilot.memory.total == 40, "60 exemplars for 12 classes are 40 for 8"
    assert [len(task.names) for task in split(part, pilot.stream)] == [4, 1, 1, 1, 1]


def test_every_combination_is_tried_and_the_best_comes_first(configure: Callable[..., Config]) -> None:
    config = configure(method={"name": "er"}, train={"lr": 1e-6, "min_steps": 1, "epochs": 0})
    assert len(tuning.combinations(config)) == 5 * 3
    assert tuning.combinations(config)[0] == {"train.lr": 1e-6, "train.min_steps": 1}, "what it has now, first"
    told: list[tuning.Trial] = []
    trials = tuning.tune(with_changes(config, method={"name": "knn"}), on_trial=told.append)
    assert [trial.values for trial in told] == [{"method.k": k} for k in (5, 1, 10, 20, 50)]
    assert [trial.accuracy for trial in trials] == sorted((trial.accuracy for trial in told), reverse=True)
    assert tuning.tune(with_changes(config, method={"name": "knn"})) == trials


def test_the_recipe_that_is_written_gives_the_values_and_the_table_says_so(
    call: Call, clusters: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'[stream]\ndata = "{clusters}"\nfirst = 6\nstep = 2\n[memory]\ntotal = 60\n')
    code, said, errors = call("tune", "own.toml", "--method", "klda", "--set", "method.units=20")
    assert code == 0 and said.count(" %  method.gamma = ") == 9, errors
    best = said.splitlines()[-1]
    assert best.startswith("own-tuned.toml: [tuned.klda] method.gamma = ")
    assert call("tune", "own-tuned.toml", "--method", "knn", "--out", "own-tuned.toml")[0] == 0, "one more"
    config = recipe("own-tuned.toml", ["method.name=klda"])
    assert config.tuned and f"method.gamma = {config.method.gamma}, method.strength = {config.method.strength}" in best
    assert not recipe("own-tuned.toml", ["method.name=slda"]).tuned
    assert recipe("own-tuned.toml", ["method.name=klda", "method.gamma=0.7"]).method.gamma == 0.7, "--set is above"
    code, said, errors = call("compare", "own-tuned.toml", "--methods", "knn,slda", "--jobs", "1", "--out", "both")
    assert code == 0 and "knn (tuned)" in said and "slda (tuned)" not in said, errors
    assert "| knn (tuned) |" in (tmp_path / "both" / "results.md").read_text()
    written = {
        name: json.loads((tmp_path / "both" / f"{name}-seed0/config.json").read_text()) for name in ("knn", "slda")
    }
    assert written["knn"]["tuned"] is True and "tuned" not in written["slda"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["demo", "--method", "ncm"], "method 'ncm' declares nothing to search for"),
        (["demo", "--method", "klda", "--out", "there.toml"], "--out must be a new .toml file"),
        (["demo", "--method", "klda", "--out", "values.json"], "--out must be a new .toml file"),
        (["there.toml", "--method", "knn", "--out", "new.toml"], "has a section [tuned.knn] already"),
        (["demo", "--method", "knn", "--set", "tuned=true"], "unknown key 'tuned'"),
        (["demo", "--method", "knn", "--set", "stream.first=3", "--set", "stream.step=197"], "at least 4 classes"),
    ],
)
def test_what_cannot_be_searched_is_one_line(call: Call, tmp_path: Path, words: list[str], reason: str) -> None:
    there = '[stream]\ndata = "glyphs-200"\n[memory]\ntotal = 60\n[tuned.knn]\n"method.k" = 5\n'
    (tmp_path / "there.toml").write_text(there)
    code, _, errors = call("tune", *words)
    assert code == 2 and reason in errors and (tmp_path / "there.toml").read_text() == there


@pytest.mark.parametrize("section", ["tuned = 3", "[tuned]\nknn = 3", '[tuned.knn]\n"stream.first" = 3'])
def test_a_section_of_something_else_is_refused(tmp_path: Path, section: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f"{section}\n[stream]\ndata = 'x'\n[memory]\ntotal = 60\n")
    with pytest.raises(InputError, match=r"tuned must have a table of keys of \[train\] and \[method\]"):
        recipe(str(path), ["method.name=knn"])


def test_what_methods_declare_are_keys_with_valid_values() -> None:
    for name, method in METHODS.items():
        for key, values in method.knobs.items():
            for value in values:
                config = recipe("clinc150", [f"method.name={name}", f"{key}={value}"])
                section, _, field = key.partition(".")
                assert getattr(getattr(config, section), field) == value
        assert len(method.knobs) <= 3

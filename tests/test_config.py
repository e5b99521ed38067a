"""Recipes: every mistake is one line that names the key, the rule and the value."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mtn.config import Config
from mtn.errors import InputError
from mtn.recipes import keys, parse, recipe, recipe_header, recipe_names, with_changes

SMALLEST = '[stream]\ndata = "a.npz"\n[memory]\ntotal = 10\n'


@pytest.fixture
def toml(tmp_path: Path):
    """Writes a recipe of one's own and returns its path."""

    def write(text: str = SMALLEST) -> str:
        path = tmp_path / "own.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return write


def small(**sections: dict) -> Config:
    return parse({"stream": {"data": "a.npz"}, "memory": {"total": 10}, **sections}, "test")


def message(name: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        recipe(name, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_parses_and_says_what_it_is(name):
    assert isinstance(recipe(name), Config)
    assert recipe_header(name).strip()
    assert "#" not in recipe_header(name).splitlines()[0]


def test_recipes_are_shipped():
    assert {"clinc150", "flowers102"} <= set(recipe_names())


def test_defaults_are_the_values_the_paper_states():
    config = small()  # without what a method declares
    assert (config.method.name, config.method.k, config.method.size) == ("mtn", 10, "medium")
    assert (config.train.optimizer, config.train.lr, config.train.weight_decay) == ("sgd", 0.1, 1e-4)
    assert (config.train.epochs, config.train.batch, config.train.replay) == (10, 128, 32)
    assert (config.memory.select, config.stream.order) == ("ring", 1993)


def test_a_file_of_ones_own_is_read_by_its_path(toml):
    config = recipe(toml())
    assert (config.stream.data, config.memory.total) == ("a.npz", 10)


def test_a_missing_recipe_file_is_named(tmp_path):
    path = str(tmp_path / "none.toml")
    assert path in message(path)


def test_a_misspelt_shipped_name_gets_the_closest_one():
    text = message("clinc15")
    assert "'clinc15'" in text and "'clinc150'" in text


def test_text_that_is_no_toml_is_named(toml):
    path = toml("[stream\ndata = 1")
    assert path in message(path) and "not valid TOML" in message(path)


def test_bytes_that_are_no_text_are_refused(toml, tmp_path):
    path = toml()
    Path(path).write_bytes(b"seed = \xff\xfe")
    assert path in message(path)


# ---- unknown keys


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("memory.totl", "memory.total"),
        ("memry.total", "memory.total"),
        ("method.readuot", "method.readout"),
        ("sed", "seed"),
    ],
)
def test_an_unknown_key_of_an_override_names_the_closest(wrong, right):
    text = message("clinc150", f"{wrong}=1")
    assert repr(wrong) in text and f"did you mean {right!r}?" in text


def test_a_key_unlike_all_others_gets_the_whole_list():
    assert message("clinc150", "xyzzy=1").endswith(", ".join(sorted(keys())))


@pytest.mark.parametrize(
    ("body", "wrong", "right"),
    [
        (SMALLEST.replace("[memory]", "stp = 3\n[memory]"), "stream.stp", "stream.step"),
        (SMALLEST + "[train]\nepoch = 3\n", "train.epoch", "train.epochs"),
        ("sead = 1\n" + SMALLEST, "sead", "seed"),
    ],
)
def test_an_unknown_key_of_a_file_names_the_closest(toml, body, wrong, right):
    path = toml(body)
    text = message(path)
    assert path in text and repr(wrong) in text and repr(right) in text


@pytest.mark.parametrize(
    ("body", "wrong"),
    [(SMALLEST.replace("data", "dta"), "stream.dta"), (SMALLEST.replace("memory", "memroy"), "memroy")],
)
def test_a_misspelt_required_key_is_named_rather_than_missed(toml, body, wrong):
    assert repr(wrong) in message(toml(body))


def test_a_whole_section_cannot_be_overridden():
    assert "'stream'" in message("clinc150", "stream=3")


def test_keys_lists_every_leaf_once():
    assert len(keys()) == len(set(keys()))
    assert {"seed", "device", "stream.data", "memory.per_class", "method.k", "train.temperature"} <= set(keys())
    assert not {"stream", "memory", "method", "train"} & set(keys())


# ---- values


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("memory.total=0", "memory.total", "0"),
        ("memory.total=ten", "memory.total", "'ten'"),
        ("memory.select=rings", "memory.select", "'rings'"),
        ("stream.first=0", "stream.first", "0"),
        ("stream.step=2.5", "stream.step", "2.5"),
        ("stream.data=7", "stream.data", "7"),
        ("stream.order=1.5", "stream.order", "1.5"),
        ("stream.tasks=[[1]]", "stream.tasks", "1"),
        ("stream.evaluate=train", "stream.evaluate", "'train'"),
        ("method.k=0", "method.k", "0"),
        ("method.k=2.0", "method.k", "2.0"),
        ("method.labels=1", "method.labels", "1"),
        ("method.size=huge", "method.size", "'huge'"),
        ("train.epochs=true", "train.epochs", "True"),
        ("train.epochs=-1", "train.epochs", "-1"),
        ("train.lr=0", "train.lr", "0"),
        ("train.lr=nan", "train.lr", "nan"),
        ("train.temperature=0", "train.temperature", "0"),
        ("train.loss=none", "train.loss", "'none'"),
        ("device=gpu", "device", "'gpu'"),
        ("seed=-1", "seed", "-1"),
    ],
)
def test_a_bad_value_is_named_with_its_key(override, key, value):
    text = message("clinc150", override)
    assert text.startswith("recipe 'clinc150': ")
    assert f" {key} " in text and text.endswith(f"got {value}")


@pytest.mark.parametrize("key", ["lr", "epochs", "temperature"])
def test_an_infinite_number_is_refused(key):
    assert f"train.{key} " in message("clinc150", f"train.{key}=inf")


def test_a_seed_beyond_64_bits_is_refused():
    assert "seed " in message("clinc150", f"seed={2**64}")


def test_a_bad_number_inside_a_list_is_told_by_its_rule():
    text = message("clinc150", "stream.step=[5, 0]")
    assert "stream.step" in text and "greater than or equal to 1" in text


@pytest.mark.parametrize(("body", "key"), [("[memory]\ntotal = 1\n", "stream"), ('[stream]\ndata = "a"\n', "memory")])
def test_what_is_missing_is_named(toml, body, key):
    assert message(toml(body)).endswith(f"{key} is missing")


def test_a_section_that_is_no_table_is_refused(toml):
    path = toml('memory = 5\n[stream]\ndata = "a"\n')
    assert "memory" in message(path) and message(path).endswith("got 5")
    assert message(path, "memory.total=3") == "memory must be a table, got 5"


def test_an_override_without_a_sign_is_refused():
    assert "'seed'" in message("clinc150", "seed")


def test_a_method_whose_name_is_a_number_is_refused_by_its_key():
    said = message("clinc150", "method.name=0")
    assert "method.name" in said and said.endswith("got 0")


@settings(deadline=None, max_examples=150)
@given(key=st.sampled_from(keys()), value=st.text("0123456789.,-+_eTinf[]{}='\"# \n", max_size=8) | st.text(max_size=8))
def test_whatever_the_value_it_is_taken_or_refused_in_one_line(key, value):
    try:
        recipe("clinc150", [f"{key}={value}"])
    except InputError as error:
        assert key in str(error) and "\n" not in str(error)


# ---- what overrides are made of


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("stream.data=my.npz", "stream", "data", "my.npz"),
        ("stream.data='my.npz'", "stream", "data", "my.npz"),
        ("stream.data=a=b", "stream", "data", "a=b"),
        ('stream.data="12"', "stream", "data", "12"),
        ("method.name=knn", "method", "name", "knn"),
        (" method.k = 3 ", "method", "k", 3),
        ("method.labels=true", "method", "labels", True),
        ("train.lr=1e-3", "train", "lr", 0.001),
        ("train.lr=1", "train", "lr", 1.0),
        ("stream.step=[70, 5]", "stream", "step", [70, 5]),
        ("stream.order=order.txt", "stream", "order", "order.txt"),
        ('stream.tasks=[["a", "b"], ["c"]]', "stream", "tasks", [["a", "b"], ["c"]]),
    ],
)
def test_overrides_take_toml_values_and_bare_text(override, section, key, value):
    found = getattr(getattr(recipe("clinc150", [override]), section), key)
    assert found == value and type(found) is type(value)


def test_the_last_of_two_overrides_counts():
    assert recipe("clinc150", ["seed=1", "seed=2"]).seed == 2


def test_overrides_leave_the_rest_of_the_recipe(toml):
    plain, changed = recipe(toml()), recipe(toml(), ["method.k=3"])
    assert changed.method.k == 3
    assert with_changes(changed, method={"k": plain.method.k}) == plain


# ---- keys that exclude each other


@pytest.mark.parametrize("name", ["total", "per_class"])
@pytest.mark.parametrize("other", ["total", "per_class"])
def test_overriding_one_budget_takes_the_other_out(toml, name, other):
    memory = recipe(toml(SMALLEST.replace("total", name)), [f"memory.{other}=7"]).memory
    assert getattr(memory, other) == 7
    assert (memory.total is None) != (memory.per_class is None)


def test_tasks_and_sizes_take_each_other_out():
    listed = recipe("clinc150", ['stream.tasks=[["a"]]']).stream
    assert (listed.tasks, listed.first, listed.step) == ([["a"]], None, None)
    sized = recipe("clinc150", ['stream.tasks=[["a"]]', "stream.step=15"]).stream
    assert (sized.tasks, sized.first, sized.step) == (None, None, 15)


@pytest.mark.parametrize("budget", ["", "total = 3\nper_class = 4\n"])
def test_a_file_sets_exactly_one_budget(toml, budget):
    text = message(toml('[stream]\ndata = "a"\n[memory]\n' + budget))
    assert "memory.total" in text and "memory.per_class" in text


def test_a_file_cannot_have_tasks_beside_sizes(toml):
    text = message(toml(SMALLEST.replace("[memory]", 'first = 1\ntasks = [["a"]]\n[memory]')))
    assert "stream.tasks" in text and "stream.first" in text


# ---- identity


def test_the_digest_is_eight_hexadecimal_digits_and_stays():
    assert re.fullmatch("[0-9a-f]{8}", small().digest())
    assert small().digest() == small().digest()


@pytest.mark.parametrize("change", [{"seed": 1}, {"method": {"k": 11}}, {"train": {"lr": 0.2}}, {"device": "cpu"}])
def test_the_digest_tells_configurations_apart(change):
    assert with_changes(small(), **change).digest() != small().digest()


def test_equal_configurations_have_equal_digests():
    written_out = small(train={"epochs": 10, "lr": 0.1, "batch": 128})
    assert written_out == small()
    assert written_out.digest() == small().digest()


def test_replacing_nothing_changes_nothing():
    assert with_changes(small()) == small()
    assert with_changes(small()).digest() == small().digest()


def test_replace_checks_like_a_recipe():
    with pytest.raises(InputError, match=r"train\.lr"):
        with_changes(small(), train={"lr": -1.0})
    with pytest.raises(InputError, match=r"'method.neme': did you mean 'method.name'"):
        with_changes(small(), method={"neme": "knn"})


def test_a_configuration_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        small().seed = 3


def test_a_dumped_configuration_parses_to_itself():
    config = recipe("clinc150", ["train.loss=ce"])
    assert parse(config.model_dump(), "a dump") == config

"""Recipe (TOML) + dotted overrides -> a `Config` whose method's options are validated by what the method declares.

Values come in layers, each above the one before: the defaults of `mtn.config`, the recipe, what the method declares
(`Method.defaults`), what `mtn tune` found for it (the section [tuned.NAME]), overrides. So a recipe's [method] and
[train] hold for every method that declares nothing else. A recipe that names a method states the values of that one:
they stand above what it declares, and no other method has them, but those of its section [others]. The shipped recipes
lie beside this file.
"""

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mtn.config import Config, MethodOptions, Section, Stream
from mtn.errors import InputError, closest
from mtn.methods import METHODS, Method, find
from mtn.protocols import STREAMS, find_stream
from mtn.storage import files
from mtn.storage.shipped import recipe_file, recipe_header, recipe_names

S = TypeVar("S", bound=Section)

__all__ = [
    "PARAMETERS",
    "assignment",
    "classifier_config",
    "comparison",
    "keys",
    "option_owners",
    "parse",
    "recipe",
    "recipe_header",
    "recipe_names",
    "recipe_text",
    "with_changes",
]

LARGEST_RECIPE = 1 << 20
"""Bytes of a recipe."""
MOST_PARTS = 100
"""Of a dotted key."""
KEY = re.compile(r"[\w.\"'\- \t]+")
"""What may be a dotted key."""


def recipe(name: str, overrides: Iterable[str] = ()) -> Config:
    """The recipe called `name` (shipped, or a path) with `key=value` overrides applied."""
    return _layered(_read(name), dict(map(assignment, overrides)), f"recipe {name!r}")


def comparison(name: str, methods: Iterable[str], overrides: Iterable[str] = ()) -> list[Config]:
    """The recipe for each of several methods, as `mtn compare` runs them.

    Overrides hold for all of them, but a loss only for those that leave the choice.
    """
    values, settings, configs = _read(name), dict(map(assignment, overrides)), []
    for method in methods:
        own = settings | {"method.name": method}
        if _is_loss_of_others(own.get("train.loss"), find(method)):
            del own["train.loss"]
        configs.append(_layered(values, own, f"recipe {name!r}"))
    return configs


def comparison_on(kind: str, name: str, methods: Iterable[str], overrides: Iterable[str] = ()) -> list[Config]:
    """The same on another kind of stream; overrides that are options of other kinds are left out."""
    others = {f"stream.{option}" for option, kinds in stream_option_owners().items() if kind not in kinds}
    keys = {text: assignment(text)[0] for text in overrides}
    if "stream.kind" in keys.values():
        raise InputError("--streams names the kinds of streams: leave out --set stream.kind")
    own = [text for text, key in keys.items() if key not in others]
    return comparison(name, methods, [*own, f"stream.kind={kind}"])


def for_method(config: Config, method: str) -> Config:
    """A configuration with the values of another method; that of the method itself is as it is."""
    if method == config.method.name:
        return config
    values = _dumped(config)
    values.pop("tuned", None)
    del values["method"]["name"]
    return _layered(values, {"method.name": method}, "a changed configuration")


def assignment(text: str) -> tuple[str, Any]:
    """`key=value` as --set takes it."""
    key, sign, value = text.partition("=")
    if not sign:
        raise InputError(f"--set takes key=value, got {text!r}")
    return key.strip(), _value(value.strip())


PARAMETERS = {
    "method.name": "method",
    "memory.total": "memory",
    "method.k": "k",
    "seed": "random_state",
    "device": "device",
}
"""Keys of a recipe that are parameters of MTNClassifier in their own right, and their names there."""


def classifier_config(changes: Mapping[str, Any], *, import_methods: bool = True) -> Config:
    """What MTNClassifier learns by: the defaults, what its method declares, and dotted keys changed."""
    return _layered({"stream": {"data": "none"}}, changes, "MTNClassifier", import_methods=import_methods)


def parse(values: dict[str, Any], origin: str, *, import_methods: bool = True) -> Config:
    """Validate; the first mistake becomes one line that names the key, the rule and the value.

    A method of one's own (package.module:Class) is imported for its options, unless `import_methods` is False: then
    its module must have been imported already. What comes from a file of somebody else is parsed that way.
    """
    section, stream = values.get("method", {}), values.get("stream")
    try:
        if isinstance(section, dict):
            values = values | {"method": _method_options(section, import_methods)}
        if isinstance(stream, dict):
            values = values | {"stream": _stream_section(stream, import_methods)}
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{origin}: {_explain(error)}") from None
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def with_changes(config: Config, **sections: Any) -> Config:
    """A copy with some keys changed and all others as they are: `with_changes(config, seed=1, method={"k": 5})`."""
    return parse(_merge(_dumped(config), sections), "a changed configuration")


def keys() -> list[str]:
    """Every dotted key that a recipe may have, the options of all kinds of streams and shipped methods included."""
    own = {"stream": stream_option_owners(), "method": option_owners()}
    last = {"stream": "stream.evaluate", "method": "method.features"}
    common = _section_keys(Config)
    for section, options in own.items():
        place = common.index(last[section]) + 1
        added = [f"{section}.{name}" for name in options if f"{section}.{name}" not in common]
        common = common[:place] + added + common[place:]
    return [key for key in common if key != "tuned"]  # which `mtn tune` alone may say


def stream_option_owners() -> dict[str, list[str]]:
    """Each option that some kinds of streams have beside the common ones, and those kinds."""
    owners: dict[str, list[str]] = {}
    for kind, section in STREAMS.items():
        for option in section.model_fields.keys() - Stream.model_fields.keys():
            owners.setdefault(option, []).append(kind)
    return dict(sorted(owners.items()))


def option_owners() -> dict[str, list[str]]:
    """Each option that some shipped methods declare beside the common ones, and those methods."""
    owners: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for option in method.Options.model_fields.keys() - MethodOptions.model_fields.keys():
            owners.setdefault(option, []).append(name)
    return dict(sorted(owners.items()))


def _method_options(values: dict[str, Any], import_methods: bool) -> MethodOptions:
    """The section [method], validated by what its method declares.

    A recipe may have options of other shipped methods: `mtn compare` runs several methods with one recipe. They are
    validated by what those methods declare, and kept.
    """
    name = values.get("name", MethodOptions.model_fields["name"].default)
    try:
        declared = find(name, import_modules=import_methods).Options if isinstance(name, str) else MethodOptions
    except InputError as error:
        raise InputError(f"method.name: {error}") from None
    owners = option_owners()
    kept = dict(values)
    for key in values.keys() - declared.model_fields.keys():
        if key not in owners:
            known = [f"method.{known}" for known in (*declared.model_fields, *owners)]
            raise InputError(f"unknown key 'method.{key}': {closest(f'method.{key}', known)}")
        other = METHODS[owners[key][0]].Options
        kept[key] = getattr(_validated(other, {key: values[key]}, "method."), key)
    return _validated(declared, kept, "method.")


def _stream_section(values: dict[str, Any], import_modules: bool) -> Stream | dict[str, Any]:
    """The section [stream], validated by what its kind declares; that of blocks is left to `Config`."""
    kind = values.get("kind", "blocks")
    try:
        section = find_stream(kind, import_modules=import_modules) if isinstance(kind, str) else Stream
    except InputError as error:
        raise InputError(f"stream.kind: {error}") from None
    for key in values.keys() - section.model_fields.keys():
        if key in stream_option_owners():
            kinds = " or ".join(f'"{owner}"' for owner in stream_option_owners()[key])
            raise InputError(f"stream.{key} is for stream.kind = {kinds}, got {_short(kind)}")
    return values if section is Stream else _validated(section, values, "stream.")


def _validated(section: type[S], values: dict[str, Any], prefix: str) -> S:
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise InputError(_explain(error, prefix)) from None


def _layered(
    values: Mapping[str, Any], settings: Mapping[str, Any], origin: str, *, import_methods: bool = True
) -> Config:
    """The values of a recipe, those that its method declares, and dotted settings, as a configuration."""
    layers = copy.deepcopy(dict(values))
    section = layers.get("method")
    named = section.get("name") if isinstance(section, dict) else None
    name = settings.get("method.name", named or MethodOptions.model_fields["name"].default)
    others = {} if named is None else _others(layers.pop("others", {}))
    if named not in (None, name):  # the recipe speaks of another method
        layers = {key: layers[key] for key in layers if key not in ("method", "train")} | others
    tuned = _tuned(layers.pop("tuned", {}), name)
    learned = "images.side" in settings or "side" in _section(layers, "images.side")
    _add_declared(layers, name, above=named != name, learned=learned, import_methods=import_methods)
    for key, value in (*tuned.items(), *settings.items()):
        _put(layers, key, value)
    return parse(layers | ({"tuned": True} if tuned else {}), origin, import_methods=import_methods)


def _tuned(sections: Any, name: Any) -> dict[str, Any]:
    """Dotted key -> value of the section [tuned.NAME] of a method, which `mtn tune` writes."""
    own = sections.get(str(name), {}) if isinstance(sections, dict) else None  # `parse` refuses a name that is no text
    if not isinstance(own, dict) or not all(key.startswith(("train.", "method.")) for key in own):
        raise InputError(f"tuned must have a table of keys of [train] and [method] a method, got {_short(sections)}")
    return own


def _others(values: Any) -> dict[str, Any]:
    """The section [others] of a recipe that names a method: [others.method] and [others.train] of all other methods."""
    if not isinstance(values, dict) or values.keys() - {"method", "train"}:
        raise InputError(f"others must be a table of tables method and train, got {_short(values)}")
    return values


def _add_declared(layers: dict[str, Any], name: Any, *, above: bool, learned: bool, import_methods: bool) -> None:
    """Put what a method declares above or below what a recipe says; a loss is not for methods that have no such one.

    Not where features are learned by a method that lends its backbone: that one would be trained by it, too.
    """
    if not isinstance(name, str):
        return  # `parse` says so, of a name that is not found too
    try:
        method = find(name, import_modules=import_methods)
    except InputError:
        return
    train = layers.get("train")
    if above and isinstance(train, dict) and _is_loss_of_others(train.get("loss"), method):
        del train["loss"]
    for key, value in ({} if learned and method.needs.backbone == "borrowed" else method.defaults).items():
        if not key.startswith(("train.", "method.")):
            raise InputError(f"method {name!r}: defaults may have keys of [train] and [method], got {key!r}")
        leaf, section = key.partition(".")[2], _section(layers, key)
        if above or leaf not in section:
            section[leaf] = value
    if isinstance(train, dict) and train.get("loss") in method.losses[:1]:
        del train["loss"]  # its own is what unset means: one configuration, one digest


def _is_loss_of_others(loss: Any, method: type[Method]) -> bool:
    return loss not in method.losses and any(loss in other.losses for other in METHODS.values())


def _dumped(config: Config) -> dict[str, Any]:
    """The sections of a configuration as a recipe has them, those keys included that are no part of what a run is."""
    values = config.model_dump(exclude_none=True) | {"log": config.log}
    values["memory"] |= {"store": config.memory.store, "uri": config.memory.uri}
    return values


def _section_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            names += _section_keys(inner, f"{prefix}{name}.")
        else:
            names.append(f"{prefix}{name}")
    return names


def recipe_text(name: str) -> str:
    """The text of a recipe."""
    if name.endswith(".toml"):
        path: Traversable = Path(name)
        if not path.is_file():
            raise InputError(f"no recipe file {name!r}")
    else:
        known = recipe_names()
        if name not in known:
            raise InputError(f"no recipe {name!r}: {closest(name, known)} (a file of your own ends in .toml)")
        path = recipe_file(name)
    try:
        if isinstance(path, Path):
            return files.read_text(path, largest=LARGEST_RECIPE)
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"recipe {name!r} is not valid TOML: {error}") from None


def _read(name: str) -> dict[str, Any]:
    text = recipe_text(name)
    try:
        return tomllib.loads(_checked_keys(text))
    except RecursionError:
        raise InputError(f"recipe {name!r} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # also of a number of thousands of digits
        raise InputError(f"recipe {name!r} is not valid TOML: {error}") from None


def _checked_keys(text: str) -> str:
    """TOML without dotted keys of many parts, for which the parser takes a time that grows with their square."""
    for line in text.splitlines():
        if line.count(".") > MOST_PARTS and any(words.count(".") > MOST_PARTS for words in KEY.findall(line)):
            raise ValueError(f"a key has more than {MOST_PARTS} parts")
    return text


# Of these, setting one takes the other out: TOML has no word for "unset".
_ALTERNATIVES = {
    "memory.total": ("memory.per_class",),
    "memory.per_class": ("memory.total",),
    "stream.tasks": ("stream.first", "stream.step"),
    "stream.first": ("stream.tasks",),
    "stream.step": ("stream.tasks",),
}


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    if key not in keys() and not key.startswith(("method.", "stream.")):  # one's own may have options of its own
        raise InputError(f"unknown key {key!r}: {closest(key, keys())}")
    for other in _ALTERNATIVES.get(key, ()):
        _section(values, other).pop(other.rpartition(".")[2], None)
    _section(values, key)[key.rpartition(".")[2]] = value


def _section(values: dict[str, Any], key: str) -> dict[str, Any]:
    parent = key.rpartition(".")[0]
    section = values.setdefault(parent, {}) if parent else values
    if not isinstance(section, dict):
        raise InputError(f"{parent} must be a table, got {_short(section)}")
    return section


def _value(text: str) -> Any:
    """A TOML value, or the bare text where it is none (`stream.data=my.npz` needs no quotes)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise InputError(f"--set: a value is nested too deeply: {text[:40]!r}...") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"--set: {error}: {text[:40]!r}...") from None


def _merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        merged[key] = _merge(merged.get(key, {}), change) if isinstance(change, dict) else change
    return merged


def _explain(error: ValidationError, prefix: str = "") -> str:
    errors = error.errors()
    unknown = [entry for entry in errors if entry["type"] == "extra_forbidden"]  # a misspelt key is also a missing one
    same_key = [entry for entry in errors if entry["loc"][:2] == errors[0]["loc"][:2]]
    first = unknown[0] if unknown else max(same_key, key=lambda entry: len(entry["loc"]))
    if first["type"] == "extra_forbidden":
        key = prefix + ".".join(str(part) for part in first["loc"])
        return f"unknown key {key!r}: {closest(key, keys())}"
    if prefix:
        key = f"{prefix}{first['loc'][0]}"
    else:  # a location also names members of unions, which are no keys
        words = ".".join(keys()).split(".")
        key = ".".join(str(part) for part in first["loc"] if str(part) in words)
    if first["type"] == "missing":
        return f"{key} is missing"
    rule = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "value_error":
        return rule
    return f"{key} {rule}, got {_short(first['input'])}"


def _short(value: Any) -> str:
    """A value as Python writes it, cut off where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= 200 else f"{text[:200]}..."

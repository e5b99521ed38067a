"""The recipes that come with the package: their names, their files, what they say of themselves."""

import itertools
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable


def recipe_names() -> list[str]:
    """Every shipped recipe, as `mtn run` takes it."""
    return sorted(_walk(_folder(), ""))


def recipe_file(name: str) -> Traversable:
    """The file of a shipped recipe."""
    return _folder().joinpath(f"{name}.toml")


def recipe_header(name: str) -> str:
    """The comment a shipped recipe opens with: what it is, its command, what to expect."""
    lines = recipe_file(name).read_text("utf-8").splitlines()
    return "\n".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))


def _folder() -> Traversable:
    return resources.files("mtn").joinpath("recipes")  # not `mtn.recipes`, which would load torch


def _walk(folder: Traversable, prefix: str) -> Iterable[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")

"""Pages of the site that are made from the program itself: commands, recipe keys, and the README as the first page.

mkdocs calls these functions (`hooks` in mkdocs.yml). What is generated is written nowhere in the repository.
"""

import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from mtn.cli.main import app
from mtn.config import Config, MethodOptions, Section, Stream
from mtn.methods import METHODS
from mtn.protocols import STREAMS

ROOT = Path(__file__).parents[1]
FOLDERS = {"methods/": "docs/methods", "results/": "docs/results"}
"""Entries of the navigation that stand for all pages of a folder."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder in the place of its name in the navigation."""
    config["nav"] = [_expanded(entry) for entry in config["nav"]]
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(content) for title, content in entry.items()}
    if isinstance(entry, list):
        return [_expanded(part) for part in entry]
    if entry in FOLDERS:
        pages = sorted((ROOT / FOLDERS[entry]).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
        return [entry + page.name for page in pages if page.name != "adding.md"]
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"index.md": readme(), "reference/commands.md": commands(), "reference/recipes.md": recipe_keys()}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside of docs/ instead of linking to them."""
    return re.sub(r"\[([^]]+)\]\((?:\.\./)*(?:SECURITY|CONTRIBUTING)\.md\)", r"\1", markdown)


def readme() -> str:
    """The README with links as they are within the site."""
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", (ROOT / "README.md").read_text("utf-8"))
    return re.sub(r"\]\(results\)", "](results/README.md)", text)


def commands() -> str:
    """Every command with its arguments and options, as the program itself has them."""
    lines = ["# Commands", "", "`mtn COMMAND --help` prints the same."]
    for name, command in _commands(typer.main.get_command(app), "mtn"):
        lines += ["", f"## {name}", "", command.help or "", ""]
        rows = [_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            lines += ["| | Default | |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in getattr(group, "commands", {}).items():
        found += [(f"{prefix} {name}", command), *_commands(command, f"{prefix} {name}")]
    return found


def _parameter(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    name = ", ".join(parameter.opts) if option else parameter.metavar or parameter.name.upper()
    default = parameter.default
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    return f"| `{name}` | {shown} | {_cell(getattr(parameter, 'help', None) or '')} |"


def recipe_keys() -> str:
    """Every key of a recipe with its default; then the options of each kind of stream and of each method."""
    lines = ["# Recipe keys", "", "`mtn recipes` lists the shipped recipes. `--set KEY=VALUE` changes a key."]
    lines += ["", *_keys(Config, "")]
    for kind, section in STREAMS.items():
        own = section.model_fields.keys() - Stream.model_fields.keys()
        if own:
            lines += ["", f'## stream.kind = "{kind}"', "", *_table(section, "stream.", sorted(own))]
    for name, method in METHODS.items():
        own = method.Options.model_fields.keys() - MethodOptions.model_fields.keys()
        if own:
            lines += ["", f'## method.name = "{name}"', "", *_table(method.Options, "method.", sorted(own))]
    return "\n".join(lines) + "\n"


def _keys(section: type[BaseModel], prefix: str) -> list[str]:
    fields = section.model_fields
    inner = {
        name: field.annotation
        for name, field in fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    lines = ["## Of a run", "", *_table(section, prefix, [name for name in fields if name not in inner])]
    for name, part in inner.items():
        assert part is not None
        lines += ["", f"## [{name}]", "", *_table(part, f"{name}.", list(part.model_fields))]
    return lines


def _table(section: type[BaseModel], prefix: str, names: list[str]) -> list[str]:
    rows = ["| Key | Default | Meaning |", "|---|---|---|"]
    for name in names:
        field = section.model_fields[name]
        default = "" if field.is_required() or field.default is None else f"`{field.default}`"
        rows.append(f"| `{prefix}{name}` | {default} | {_cell(field.description or '')} |")
    return rows


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

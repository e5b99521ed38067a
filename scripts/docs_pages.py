"""Pages of the site that are made from elsewhere: commands, recipe keys, notebooks, and the README as the first page.

mkdocs calls these functions (`hooks` in mkdocs.yml). What is generated is written nowhere in the repository.
"""

import ast
import inspect
import json
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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
    pages["reference/changelog.md"] = _within_site("CHANGELOG.md", "../")
    pages |= {f"notebooks/{path.stem}.md": notebook(path) for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside of docs/ instead of linking to them; link to the pages of notebooks."""
    markdown = re.sub(r"\]\(([^)]*notebooks/)?(\w+)\.ipynb\)", r"](\1\2.md)", markdown)
    return re.sub(r"\[([^]]+)\]\((?:\.\./)*(?:SECURITY|CONTRIBUTING|CHANGELOG|CITATION)\.(?:md|cff)\)", r"\1", markdown)


def readme() -> str:
    """The README with links as they are within the site."""
    return re.sub(r"\]\(results\)", "](results/README.md)", _within_site("README.md", ""))


def _within_site(name: str, up: str) -> str:
    """A file beside docs/, with links as they are from a page; `up` leads from its folder to that of the site."""
    return re.sub(r"\]\(docs/([^)]*)\)", rf"]({up}\1)", (ROOT / name).read_text("utf-8"))


def notebook(path: Path) -> str:
    """A notebook with what it printed and drew, as a page."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    picture = "".join(output["data"]["image/png"]).replace("\n", "")
    return f"![What the cell draws](data:image/png;base64,{picture})"


def commands() -> str:
    """Every command with its arguments and options, as the program itself has them."""
    lines = ["# Commands", "", "`mtn COMMAND --help` prints the same."]
    for name, command in _commands(typer.main.get_command(app), "mtn"):
        lines += ["", f"## {name}", "", command.help or "", ""]
        rows = [_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            lines += ["| Argument or option | Default | Meaning |", "|---|---|---|", *rows]
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
    """A row a key; one without a meaning fails the build."""
    rows, meanings = ["| Key | Default | Values | Meaning |", "|---|---|---|---|"], _meanings(section)
    for name in names:
        field = section.model_fields[name]
        default = "" if field.is_required() or field.default is None else f"`{field.default}`"
        values = " ".join(f"`{value}`" for value in _values(field.annotation))
        rows.append(f"| `{prefix}{name}` | {default} | {values} | {_cell(meanings[name])} |")
    return rows


def _values(annotation: Any) -> list[str]:
    """What a key may be: the words it is chosen from, else its types; `None` is how it is left unset."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        found = [value for part in get_args(annotation) for value in _values(part)]
        return [value for value in dict.fromkeys(found) if value != "None"]
    if get_origin(annotation) is list:
        return ["list"]
    return [getattr(annotation, "__name__", "").replace("NoneType", "None")]


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    """The string below each field, of the class and those it inherits from. Pydantic could read them, at each start."""
    found: dict[str, str] = {}
    for part in reversed([part for part in section.__mro__ if issubclass(part, Section)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = ast.literal_eval(below.value)
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

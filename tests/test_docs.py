"""The manual: what its pages tell a reader to do, works; what is drawn and run for it is up to date."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
Call = Callable[..., tuple[int, str, str]]


def follow(page: str, call: Call, names: dict[str, Any], leave_out: str = "\0") -> str:
    """Do what a page says, block by block; all that was printed. What it says is printed must have been."""
    told = ""
    for kind, block in re.findall(r"```(python|console|text)\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, page, "exec"), names)
            told += printed.getvalue()
        elif kind == "text":
            assert all(line in told for line in block.splitlines() if line.startswith("[")), block
        for line in re.findall(r"^\$ mtn (.*)$", block, re.M) if kind == "console" else []:
            if leave_out not in line:
                code, said, errors = call(*shlex.split(line.split("  #")[0]))
                assert code == 0 and said, (line, errors)
                told += said
    return told


def test_the_tutorial_of_the_first_model(call: Call, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    told = follow("tutorials/first-model.md", call, names)
    right, unknown = (float(re.search(rf"^{word}: ([\d.]+)", told, re.M)[1]) for word in ("right", "called unknown"))
    assert right > 0.9 and unknown > 0.5 and (tmp_path / "why.png").stat().st_size > 1000
    assert names["again"].classes_.tolist() == ["0", "1", "2", "4", "7", "9"]


@pytest.mark.slow
def test_the_tutorial_of_the_router(call: Call) -> None:
    told = follow("tutorials/intents.md", call, {})
    assert "delivery None" in told and "return delivery" in told and "week 2 classes 4" in told


@pytest.mark.slow
def test_the_tutorial_of_the_photographs(call: Call, tmp_path: Path) -> None:
    told = follow("tutorials/photos.md", call, {})
    assert "photos" in told and "not in the catalogue" in (tmp_path / "sorted.csv").read_text()
    assert (tmp_path / "why.png").is_file() and (tmp_path / "how-good.png").is_file()


@pytest.mark.slow
def test_the_tutorial_of_the_reproduction(call: Call, tmp_path: Path, clusters: Path) -> None:
    told = follow("tutorials/reproduce.md", call, {}, leave_out="my-features")
    assert "average" in told and list(tmp_path.rglob("index.html"))
    own = ("--data", str(clusters), "--seeds", "0", "--fast", "--out", "own")  # `all` takes hours
    assert call("reproduce", "tasks", *own)[0] == 0 and (tmp_path / "own" / "index.html").is_file()


@pytest.mark.slow
def test_the_tutorial_of_a_method(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "tutorials" / "method.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "my_methods.py").write_text("\n".join(code[:2]))
    monkeypatch.syspath_prepend(tmp_path)
    for line in re.findall(r"^\$ mtn (.*)$", page, re.M):
        status, _, errors = call(*line.split())
        assert status == 0, errors
    exec(code[2], {})


@pytest.mark.slow
@pytest.mark.parametrize("page", ["compare", "streams"])
def test_the_commands_of_a_page_on_experiments(page: str, call: Call, clusters: Path, tmp_path: Path) -> None:
    """As they are printed, on a small stream with few steps. The stream of one's own has a test of its own."""
    small = ("stream.data=" + str(clusters), "stream.first=6", "stream.step=3", "memory.total=60", "train.epochs=1")
    few = [word for key in (*small, "train.min_steps=0") for word in ("--set", key)]
    text = (DOCS / "how-to" / f"{page}.md").read_text("utf-8")
    for line in re.findall(r"^\$ mtn (.*)$", text, re.M):
        if "my_streams" not in line:
            code, said, errors = call(*shlex.split(line), *(() if line.startswith("leaderboard") else few))
            assert code == 0 and said, (line, errors)
    assert (tmp_path / "leaderboard.html").is_file() or page == "streams"


def test_the_page_on_other_libraries(tmp_path: Path, clusters: Path) -> None:
    pytest.importorskip("river", reason="pip install '.[river]'")
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    page = (DOCS / "how-to" / "libraries.md").read_text("utf-8").replace("memory=500", "'slda'")
    stream = [
        ({f"{place}": value for place, value in enumerate(row)}, int(label)) for row, label in zip(X, y, strict=True)
    ][::-1]
    names: dict[str, Any] = {"X": X, "y": y, "stream": stream}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(block, names)
    assert names["model"].predict_one(stream[0][0]) is not None


def test_the_notebooks_run(tmp_path: Path) -> None:
    """In one kernel, which starts slowly: names are deleted between two of them."""
    paths = sorted((DOCS / "notebooks").glob("*.ipynb"))
    together = nbformat.v4.new_notebook()
    for path in paths:
        book = nbformat.read(path, as_version=4)
        assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code"), f"{path}: not executed"
        together.cells += [cell for cell in book.cells if cell.cell_type == "code"]
        together.cells.append(nbformat.v4.new_code_cell("%reset -f"))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(together, kernel_name="python3", timeout=300, resources=resources).execute()
    assert len(paths) == 3 and (tmp_path / "digits-model").is_dir() and (tmp_path / "runs" / "slda").is_dir()


@pytest.mark.slow
def test_the_site_opens_from_a_folder_in_light_dark_and_on_a_phone(tmp_path: Path) -> None:
    """Without a server and without another host: no error on the console, nothing wider than a phone, search works."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install '.[dev]'")
    browser_path = shutil.which("chromium")
    if browser_path is None:
        pytest.skip("chromium is not there")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    problems: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 850})
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.on("requestfailed", lambda request: problems.append(request.url))
            for name in ("index", "how-to/index", "reference/http", "reference/python", "notebooks/quickstart"):
                page.goto((tmp_path / f"{name}.html").as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page = browser.new_page()
        page.goto((tmp_path / "index.html").as_uri())
        page.click("input[name=query]")
        page.keyboard.type("partial_fit")
        page.wait_for_selector(".md-search-result__item")
        assert "Python" in page.locator(".md-search-result__list").inner_text()
        browser.close()
    assert not problems


def test_the_figures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "draw_figures.py", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "explanation" / "figures").iterdir()}


def test_every_page_has_one_title() -> None:
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
        if not page.parent.parent.name.startswith("reproduce-"):
            assert len(re.findall(r"^# ", text, re.M)) == 1, page


def rows(text: str) -> dict[str, list[str]]:
    """The tables of a text by the first cell of a row, without emphasis; of two rows with the same cell the first."""
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (.*) \|$", re.sub(r"\*\*| \\[*]", "", text), re.M):
        first, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
        found.setdefault(first, cells)
    return found


def test_the_measured_table_of_the_readme_is_that_of_the_results() -> None:
    """And so is what the page on other tools says of k-NN."""
    results = {page.stem: page.read_text("utf-8") for page in (DOCS / "results").glob("*.md")}
    practical = rows(results["practical"])
    _, *streams = rows((ROOT / "README.md").read_text("utf-8").split("\n## Measured")[1].split("\n## ")[0]).items()
    behind = []
    for stream, cells in streams:
        name = stream.split(" (")[0]
        now = practical["practical"][practical[""].index(name)].split(" \\|")[0]
        paper, _, longer = results[name.lower().replace("-102", "102")].partition("## At least 400")
        mtn = [rows(part)["mtn"][0] if part else "" for part in (paper, longer)]
        assert cells == [now, *mtn, rows(paper)["ssil"][0], rows(paper)["knn"][0]], stream
        behind.append(round(float(now.split()[0]) - float(cells[-1].split()[0])))
    said = "by {} points on CLINC150, {} on Flowers-102 and {} on Glyphs-1k".format(*behind)
    assert said in " ".join((DOCS / "explanation" / "comparison.md").read_text("utf-8").split())

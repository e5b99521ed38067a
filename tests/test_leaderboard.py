"""The page of all finished runs: its numbers are those of run folders, its commands give their configurations."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtn.config import Config
from mtn.errors import InputError
from mtn.experiments import leaderboard
from mtn.experiments.provenance import compare_command
from mtn.experiments.report import mean_std
from mtn.experiments.run import run
from mtn.recipes import comparison, with_changes

CHROMIUM = shutil.which("chromium")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(configure: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slda and knn with two seeds, slda on a few-shot stream too."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("slda", 0), ("slda", 1), ("knn", 0), ("knn", 1)):
        run(configure(method={"name": name}, seed=seed), folder / "blocks" / f"{name}-{seed}")
    run(configure(stream={"kind": "few-shot"}, method={"name": "slda"}), folder / "few-shot")
    return folder


@pytest.fixture
def changed(runs: Path, tmp_path: Path) -> Callable[..., Path]:
    """The folder of a run with some values of its result, and of both its configurations, changed."""

    def change(name: str, config: dict[str, Any] | None = None, **values: Any) -> Path:
        folder = tmp_path / "changed" / name
        shutil.copytree(runs / "blocks" / "slda-0", folder)
        result = json.loads((folder / "result.json").read_text()) | values
        for section, own in (config or {}).items():
            result["config"][section] = result["config"][section] | own if isinstance(own, dict) else own
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "config.json").write_text(json.dumps(result["config"]))
        return folder

    return change


def boards_of(page: Path) -> list[dict[str, Any]]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    boards: list[dict[str, Any]] = json.loads(text)
    return boards


def test_the_page_has_the_mean_over_the_runs_of_each_cell(runs: Path, call: Call, tmp_path: Path) -> None:
    code, said, errors = call("leaderboard", str(runs), "--out", "site/page.html")
    assert code == 0 and "site/page.html: 5 runs" in said, errors
    blocks, few = boards_of(tmp_path / "site" / "page.html")
    assert (blocks["stream"], few["stream"]) == ("blocks", "few-shot, shots 5")
    assert blocks["about"] == "6 + 3 x 2 classes, M = 60" and few["metric"] == "harmonic accuracy"
    rows = {row["method"]: row for row in blocks["rows"]}
    results = [json.loads((runs / "blocks" / f"knn-{seed}" / "result.json").read_text()) for seed in (0, 1)]
    a, b = (result["average_incremental_accuracy"] for result in results)
    mean, std, text = rows["knn"]["accuracy"]
    assert (mean, std) == (pytest.approx((a + b) / 2), pytest.approx(abs(a - b) / 2**0.5))
    assert text == f"{mean:.1f} ± {std:.1f}" == str(mean_std([a, b], with_std=True)), "as tables print it"
    assert rows["knn"]["floats"] == results[0]["kept"]["total"] and rows["knn"]["seeds"] == [0, 1]
    assert rows["knn"]["runs"] == [f"{runs.name}/blocks/knn-0", f"{runs.name}/blocks/knn-1"]
    assert "--set stream.data=clusters.npz" in rows["knn"]["command"], "the folder of the data is not published"
    assert few["rows"][0]["accuracy"][1] is None, "one run has no spread"
    text = (tmp_path / "site" / "page.html").read_text("utf-8")
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", ""), "it needs no host"


@pytest.mark.parametrize(
    ("name", "method", "sets"),
    [
        ("clinc150", "slda", []),
        ("clinc150", "ranpac", ["method.units=5000", "stream.kind=noisy", "stream.share=0.4"]),
        ("flowers102", "er", ["train.min_steps=0", "memory.per_class=3", "stream.data=a folder/flowers'.npz"]),
        ("demo", "practical", ["seed=3"]),
        ("learned/omniglot", "mtn", []),
    ],
)
def test_the_command_of_a_cell_gives_its_configuration(name: str, method: str, sets: list[str]) -> None:
    (config,) = comparison(name, [method], sets)
    command = compare_command(config, [config.seed], [1993])
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["mtn", "compare"] and words[words.index("--seeds") + 1] == str(config.seed)
    given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    (again,) = comparison(words[2], [words[words.index("--methods") + 1]], given)
    assert with_changes(again, seed=config.seed) == config
    assert len(given) <= len(sets), "nothing is set that a recipe or a default says"


def test_a_method_of_ones_own_is_shown_and_not_imported(changed: Callable[..., Path], runs: Path) -> None:
    folder = changed("own", {"method": {"name": "payload:Evil"}}, method="payload:Evil")
    (board,) = leaderboard.boards(leaderboard.find_runs([folder]).runs)
    assert board["rows"][0]["method"] == "payload:Evil" and board["rows"][0]["command"] is None


def test_several_configurations_of_a_method_are_told_apart(changed: Callable[..., Path]) -> None:
    changed("weak", {"train": {"epochs": 1.0}})
    changed("strong", {"train": {"epochs": 2.0}})
    (board,) = leaderboard.boards(leaderboard.find_runs([changed("third", {"seed": 7}, seed=7).parent]).runs)
    assert sorted(row["values"] for row in board["rows"]) == [f"train.epochs = {n}" for n in (1.0, 2.0, 3.0)]


DAMAGES: dict[str, dict[str, Any]] = {
    "average_incremental_accuracy": {"average_incremental_accuracy": 101.0},
    "last_accuracy": {"last_accuracy": float("nan")},
    "kept.total": {"kept": {"total": -1}},
    "method": {"method": "x" * 300},
    "another method or seed": {"method": "ncm"},
    "stream.first": {"config": {"stream": {"first": "many"}}},
    "seed": {"config": {"seed": 9}},
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_folder_that_is_not_a_whole_run_is_left_out_with_the_reason(
    changed: Callable[..., Path], call: Call, runs: Path, reason: str
) -> None:
    folder = changed("damaged", **DAMAGES[reason])
    code, said, errors = call("leaderboard", str(runs / "blocks"), str(folder))
    assert code == 0 and "4 runs" in said and "left out: " in errors and reason in errors
    with pytest.raises(InputError, match="RUNS: no finished run"):
        leaderboard.find_runs([folder])


def test_a_result_without_its_run_is_left_out_and_one_run_counts_once(
    changed: Callable[..., Path], runs: Path, tmp_path: Path
) -> None:
    (changed("bare") / "config.json").unlink()
    folder = changed("another")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"seed": 5}))
    changed("copy", {"stream": {"data": "elsewhere/clusters.npz"}})
    found = leaderboard.find_runs([runs / "blocks", folder.parent])
    assert len(found.runs) == 4
    reasons = sorted(" ".join(reason.split()[1:6]) for reason in found.left_out)
    assert reasons == ["has a result.json and no", "is damaged: it is not", "is the same run as"]


def test_what_is_no_folder_and_what_is_no_page_are_one_line(call: Call, runs: Path) -> None:
    assert "RUNS: nowhere is not a folder" in call("leaderboard", "nowhere")[2]
    assert "--out must end in .html, got page.pdf" in call("leaderboard", str(runs), "--out", "page.pdf")[2]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_the_page_in_a_browser(changed: Callable[..., Path], tmp_path: Path) -> None:
    """On a phone: fronts by hand, a limit that takes one away, the command of a cell, and a name that is no HTML."""
    from playwright.sync_api import sync_playwright

    costs = {"a": (90.0, 100, 5.0), "b": (80.0, 10, 1.0), "c": (70.0, 50, 0.5), "<img src=x>": (60.0, 1000, 9.0)}
    for number, (name, (accuracy, floats, seconds)) in enumerate(costs.items()):
        own = {"average_incremental_accuracy": accuracy, "kept": {"total": floats}, "processor_seconds": seconds}
        changed(str(number), {"method": {"name": f"m:{name}"}}, method=f"m:{name}", **own)
    changed("known", average_incremental_accuracy=50.0, kept={"total": 20}, processor_seconds=0.6)
    leaderboard.write(leaderboard.find_runs([tmp_path / "changed"]), tmp_path / "page.html")
    fronts = "[...document.querySelectorAll('#table tbody tr')].map((row) => [row.cells[0], row.cells[7]].map((cell) => cell.innerText))"  # noqa: E501
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        both, names = "floats, seconds", ("m:a", "m:b", "m:c", "m:<img src=x>", "slda")
        assert page.evaluate(fronts) == [
            list(pair) for pair in zip(names, (both, both, "seconds", "", ""), strict=True)
        ]
        assert page.locator("img").count() == 0
        page.locator("#seconds").fill("60")  # 0.5 (9 / 0.5)^0.6 = 2.8
        assert [name for name, _ in page.evaluate(fronts)] == ["m:b", "m:c", "slda"]
        page.get_by_role("button", name="50.0").click()
        assert "mtn compare" in page.locator("#cell").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not problems
        browser.close()

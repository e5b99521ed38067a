"""The page in a real browser: ask, see why, teach, see it recognised, forget, undo."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from cluster_data import TEST
from mtn import MTNClassifier
from mtn.data import glyphs
from service import QUICK, Service, write_model

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
KNOWN, NEW = (0, 3, 5), 8
SOON = 120_000
"""Milliseconds. Learning gives way to all else that a machine does: on a busy one it takes a while."""
expect.set_options(timeout=SOON)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Three glyphs are known, from two lessons."""
    folder = tmp_path_factory.mktemp("page") / "model"
    it = MTNClassifier("mtn", memory=200, k=5, settings=QUICK | {"train.min_steps": 60}, encoder="glyph")
    for start in (0, 10, 20):
        pixels = np.concatenate([glyphs.render("train", label)[start : start + 10] for label in KNOWN])
        it.partial_fit(pixels, np.repeat([name(one) for one in KNOWN], 10))
    it.save(folder)
    with Service(folder, undo=4.0) as service:
        yield service


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """At phone width: what fits there fits anywhere. What the console says against the page is an error."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=SOON)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(SOON)
        complaints: list[str] = []
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        assert not complaints
        browser.close()


def name(label: int) -> str:
    return glyphs.class_name(glyphs.class_characters()[label])


def files(label: int, count: int) -> list[dict[str, object]]:
    return [
        {"name": "../x.png", "mimeType": "image/png", "buffer": png(one)}
        for one in glyphs.render("test", label)[:count]
    ]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).resize((128, 128)).save(file, "PNG")
    return file.getvalue()


def test_the_whole_round(page: Page, service: Service) -> None:
    page.goto(service.url)
    expect(page.locator("#summary")).to_contain_text("3 classes")
    expect(page.locator("#memory-text")).to_contain_text("90 examples")
    expect(page.locator("#chart svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    page.set_input_files("#ask-file", files(KNOWN[1], 1))
    expect(page.locator("#answer-title")).to_have_text(name(KNOWN[1]))
    expect(page.locator("#shares li")).to_have_count(3)
    expect(page.locator("#neighbours li")).to_have_count(5)
    assert page.locator("#neighbours li img").first.evaluate("image => image.naturalWidth") == 32
    expect(page.locator("#neighbours li").first.locator(".measure")).to_have_count(2)
    expect(page.locator("#status")).to_contain_text(f"It is {name(KNOWN[1])}")

    page.locator("#examples button").first.click()
    expect(page.locator("#answer-title")).to_have_text(name(KNOWN[0]))

    page.set_input_files("#ask-file", files(NEW, 1))  # nobody has taught it this one
    expect(page.locator("#answer-lead")).not_to_have_text("")
    page.fill("#teach-name", "new/<b>")
    page.set_input_files("#teach-file", files(NEW, 6))
    expect(page.locator("#chosen img")).to_have_count(6)
    page.locator("#teach-button").click()
    expect(page.locator("#learning-text")).to_have_text("It knows new/<b> now.")
    expect(page.locator("#answer-title")).to_have_text("new/<b>")  # what was asked before is asked again
    row = page.locator("#classes li", has_text="new/<b>")
    expect(row.locator(".count")).to_have_text("6")

    forget = row.get_by_role("button", name="Forget new/<b>")
    forget.focus()
    page.keyboard.press("Enter")
    undo = row.get_by_role("button", name="Undo: keep new/<b>")
    expect(undo).to_be_focused()
    page.keyboard.press("Enter")
    expect(row.locator(".count")).to_have_text("6")
    row.get_by_role("button", name="Forget new/<b>").click()
    expect(row).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("3 classes")
    assert "new/<b>" not in service.known()


def test_pictures_are_pasted_and_dropped(page: Page, service: Service) -> None:
    give = """([area, kind, content]) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(content)], "x.png", {type: "image/png"}));
        const facts = {dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true};
        const event = kind === "drop" ? new DragEvent(kind, facts) : new ClipboardEvent(kind, facts);
        document.querySelector(area).dispatchEvent(event);
    }"""
    page.goto(service.url)
    expect(page.locator("#summary")).to_contain_text("classes")
    for area, kind, label in (("body", "paste", KNOWN[2]), ("#ask-drop", "drop", KNOWN[1])):
        page.evaluate(give, [area, kind, list(png(glyphs.render("test", label)[0]))])
        expect(page.locator("#answer-title")).to_have_text(name(label))


def test_a_model_of_vectors_takes_numbers(page: Page, tmp_path: Path) -> None:
    with Service(write_model(tmp_path / "model", steps=1)) as service:
        page.goto(service.url)
        expect(page.locator("#ask-text")).to_be_visible()
        expect(page.locator("#ask-drop")).to_be_hidden()
        page.fill("#ask-text", str(TEST[0].tolist()))
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("#answer-title")).to_contain_text("class 0")
        page.get_by_role("button", name="Teach this one").click()
        page.fill("#teach-name", "another")
        page.get_by_role("button", name="Teach", exact=True).click()
        expect(page.locator("#learning-text")).to_have_text("It knows another now.")
        page.goto(f"{service.url}/docs")
        expect(page.locator("article")).to_have_count(12)

"""The page in a real browser: ask, see why, teach, see what changed, correct, forget, undo."""

import io
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import ConsoleMessage, Page, Route, expect, sync_playwright

from cluster_data import LABELS, TEST, TRAIN
from mtn import MTNClassifier
from mtn.data import glyphs
from service import QUICK, Service

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
    it = MTNClassifier(memory=200, k=5, settings=QUICK | {"train.min_steps": 40}, encoder="glyph")
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
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera], timeout=SOON)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(SOON)
        complaints: list[str] = []
        page.on("console", lambda line: complaints.append(line.text) if is_complaint(line) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        assert not complaints
        browser.close()


def is_complaint(line: ConsoleMessage) -> bool:
    """Whether it is against the page. A request that is refused, as it should be, is told too."""
    return line.type in ("error", "warning") and "status of 4" not in line.text


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
    expect(page.locator("#summary")).to_have_text("model takes pictures. It knows 3 classes and keeps learning.")
    expect(page.locator("#memory-text")).to_contain_text("90 examples")
    expect(page.locator("#chart svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    page.set_input_files("#ask-file", files(KNOWN[1], 1))
    expect(page.locator("#answer-title")).to_have_text(name(KNOWN[1]))
    expect(page.locator("#shares li")).to_have_count(3)
    expect(page.locator("#neighbours li")).to_have_count(5)
    assert page.locator("#neighbours li img").first.evaluate("image => image.naturalWidth") == 32
    expect(page.locator("#neighbours li").first.locator(".measure")).to_have_count(2)
    expect(page.locator("#status")).to_contain_text(f"it is {name(KNOWN[1])}")

    page.locator("#examples button").first.click()
    expect(page.locator("#answer-title")).to_have_text(min(map(name, KNOWN)))

    page.set_input_files("#ask-file", files(NEW, 1))  # nobody has taught it this one
    expect(page.locator("#answer-lead")).not_to_have_text("")
    page.fill("#teach-name", "new/<b>")
    page.set_input_files("#teach-file", files(NEW, 7))
    page.get_by_role("button", name="Leave out picture 7").click()
    expect(page.locator("#chosen img")).to_have_count(6)
    page.route("**/jobs/*", lambda route: say_it_is_being_trained(route, service, "new/<b>"))
    page.locator("#teach-button").click()
    expect(page.locator("#learning-text")).to_contain_text("It answers with new/<b> already")
    expect(page.locator("#summary")).to_contain_text("4 classes")
    page.unroute("**/jobs/*")
    expect(page.locator("#learning-text")).to_have_text("It knows new/<b> now.")
    expect(page.locator("#answer-title")).to_have_text("new/<b>")  # what was asked before is asked again
    expect(page.locator("#changed")).to_have_text(re.compile(r"^3 classes → 4; estimated accuracy \d+\s%"))
    expect(page.locator("#record-text")).to_contain_text("Estimated now:")
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


def say_it_is_being_trained(route: Route, service: Service, label: str) -> None:
    """As the service does once it knows a class; it may have finished by then."""
    while label not in service.known():
        time.sleep(0.1)
    route.fulfill(json=route.fetch().json() | {"state": "running", "doing": "training", "progress": 0.5})


GIVE = """([area, kind, content, times]) => {
    const data = new DataTransfer();
    const parts = Array(times).fill(Uint8Array.from(content));
    data.items.add(new File(parts, "x.png", {type: "image/png"}));
    const facts = {dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true};
    const event = kind === "drop" ? new DragEvent(kind, facts) : new ClipboardEvent(kind, facts);
    document.querySelector(area).dispatchEvent(event);
}"""


def test_pictures_are_pasted_and_dropped(page: Page, service: Service) -> None:
    page.goto(service.url)
    expect(page.locator("#summary")).to_contain_text("classes")
    for area, kind, label in (("body", "paste", KNOWN[2]), ("#ask-drop", "drop", KNOWN[1])):
        page.evaluate(GIVE, [area, kind, list(png(glyphs.render("test", label)[0])), 1])
        expect(page.locator("#answer-title")).to_have_text(name(label))


def test_several_pictures_wrong_files_and_the_camera(page: Page, service: Service) -> None:
    page.goto(service.url)
    answer, problem = page.locator("#answer"), page.locator("#problem")
    page.set_input_files("#ask-file", files(KNOWN[0], 1) + files(KNOWN[1], 1))
    expect(page.locator("#several button")).to_have_count(2)
    expect(page.locator("#answer-title")).to_have_text(name(KNOWN[0]))
    page.locator("#several button").nth(1).click()
    expect(page.locator("#answer-title")).to_have_text(name(KNOWN[1]))

    page.set_input_files("#ask-file", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}])
    expect(problem).to_contain_text("“notes.txt” is not a picture.")
    page.set_input_files("#ask-file", [{"name": "x.png", "mimeType": "image/png", "buffer": b"hello"}])
    expect(problem).to_contain_text("Picture 1 cannot be read: it is not an image")
    expect(answer).to_be_hidden()  # the answer was to another question
    page.evaluate(GIVE, ["#teach-drop", "drop", [0] * 17, 2**20])
    expect(problem).to_have_text("“x.png” has 17 MB. A picture may have at most 16 MB.")

    page.get_by_role("button", name="Use the camera").first.click()
    page.get_by_role("button", name="Take a picture").click()
    expect(page.locator("#camera")).to_be_hidden()
    expect(answer).to_be_visible()
    expect(problem).to_be_hidden()
    assert page.locator("#asked").evaluate("image => image.naturalWidth") == 640
    assert page.evaluate("document.getElementById('video').srcObject") is None, "the camera is let go"
    page.get_by_role("button", name="Use the camera").nth(1).click()
    for _ in range(2):
        page.get_by_role("button", name="Take a picture").click()
    expect(page.locator("#camera-status")).to_have_text("2 pictures taken.")
    page.keyboard.press("Escape")
    expect(page.locator("#chosen img")).to_have_count(2)


def test_examples_are_seen_moved_and_deleted_and_a_class_renamed(page: Page, service: Service) -> None:
    page.goto(service.url)
    page.get_by_role("button", name=name(KNOWN[0]), exact=True).click()
    expect(page.locator("#exemplars img")).to_have_count(24)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#exemplars img")).to_have_count(30)
    assert page.evaluate("document.documentElement.scrollWidth") == 390

    page.locator("#exemplars button").nth(2).click()
    page.fill("#relabel", "nobody")
    page.keyboard.press("Enter")
    expect(page.locator("#class-problem")).to_have_text("There is no class 'nobody'.")
    page.fill("#relabel", name(KNOWN[1]))
    page.get_by_role("button", name="Move").click()
    expect(page.locator("#class-status")).to_have_text(f"The example is one of {name(KNOWN[1])} now.")
    page.locator("#exemplars button").first.click()
    page.get_by_role("button", name="Delete this example").click()
    page.get_by_role("button", name="Delete it for good?").click()
    expect(page.locator("#class-status")).to_have_text("The example is deleted.")
    expect(page.locator("#class-count")).to_contain_text("28 examples")
    page.fill("#rename", "<i>first</i>")
    page.keyboard.press("Enter")
    expect(page.locator("#class-title")).to_have_text("<i>first</i>")
    page.get_by_role("button", name="Close").click()
    assert service.known() == {"<i>first</i>": 28, name(KNOWN[1]): 31, name(KNOWN[2]): 30}

    page.locator("#examples button").first.click()  # one that it remembers
    expect(page.locator("#answer-title")).to_have_text("<i>first</i>")
    with page.expect_download() as found:
        page.get_by_role("button", name="Download the model").click()
    assert found.value.suggested_filename == "model.zip"
    with zipfile.ZipFile(found.value.path()) as archive:
        assert "model/model.json" in archive.namelist()


def test_a_model_of_vectors_takes_numbers(page: Page, tmp_path: Path) -> None:
    model = MTNClassifier("mtn", memory=2000, k=5, settings=QUICK | {"train.min_steps": 1})
    model.fit(TRAIN[:180], [int(label[-2:]) for label in LABELS[:180]]).save(tmp_path / "model")
    token, file = "a-token-that-may-teach", tmp_path / "tokens"
    file.write_text(f"teach {token}")
    file.chmod(0o600)
    with Service(tmp_path / "model", "--token-file", str(file), token=token) as service:
        page.goto(service.url)
        expect(page.locator("#problem")).to_have_text("Enter your token to go on.")
        for text in ("wrong", token):
            page.get_by_label("Your token").fill(text)
            page.keyboard.press("Enter")
            if text == "wrong":
                expect(page.locator("#problem")).to_have_text("The service does not know this token.")
        expect(page.locator("#problem")).to_be_hidden()
        expect(page.locator("#summary")).to_contain_text("model takes vectors of 16 numbers.")
        expect(page.locator("#ask-drop")).to_be_hidden()
        expect(page.locator("#examples")).to_be_hidden()
        page.fill("#ask-text", "1 2 3")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_have_text("A vector of this model has 16 numbers, got 3 in vector 1.")
        page.fill("#ask-text", str(TEST[0].tolist()))
        page.keyboard.press("Enter")
        expect(page.locator("#answer-title")).to_have_text(re.compile(r"^\d$"))
        page.get_by_role("button", name="Teach this one").click()
        page.fill("#teach-name", "cat")
        page.get_by_role("button", name="Teach", exact=True).click()
        expect(page.locator("#problem")).to_contain_text(
            "names of this model are whole numbers, such as 7. “cat” is not one."
        )
        page.fill("#teach-name", "17")
        page.get_by_role("button", name="Teach", exact=True).click()
        expect(page.locator("#learning-text")).to_have_text("It knows 17 now.")
        assert service.known()[17] == 1
        page.goto(f"{service.url}/docs")
        expect(page.locator("article")).to_have_count(17)


def test_with_a_token_to_read_nothing_that_teaches_is_offered(page: Page, model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    tokens = {"read": "a-token-that-may-read", "teach": "a-token-that-may-teach"}
    file = tmp_path / "tokens"
    file.write_text("\n".join(map(" ".join, tokens.items())))
    file.chmod(0o600)
    teaching = ["#teach-form", "#download", "#rename-form", "#relabel-form", "#remove", "#teach-this", ".forget"]
    with Service(tmp_path / "model", "--token-file", str(file), token=tokens["read"]) as service:
        assert service.client.get("/model").json()["may_teach"] is False
        for right, token in tokens.items():
            page.goto(service.url)
            page.evaluate("token => sessionStorage.setItem('token', token)", token)
            page.reload()
            page.fill("#ask-text", str(TEST[0].tolist()))
            page.keyboard.press("Enter")
            expect(page.locator("#answer-title")).to_have_text(re.compile("^class"))
            page.get_by_role("button", name="class 03", exact=True).click()
            page.locator("#exemplars button").first.click()
            expect(page.locator("#exemplar-text")).to_be_visible()
            hint = page.locator("#class-count").filter(has_text="Choose one to move or delete it.")
            expect(hint).to_have_count(0 if right == "read" else 1)
            shown = [area for area in teaching if page.locator(area).first.is_visible()]
            assert shown == ([] if right == "read" else teaching)
        page.evaluate("sessionStorage.clear()")


SENTENCES = {
    "flight": [
        "book me a flight to rome",
        "i need a plane ticket to berlin",
        "find flights to madrid",
        "is my flight on time",
    ],
    "bill": [
        "pay my electricity bill",
        "settle my phone bill please",
        "make a payment for the gas bill",
        "pay the rent",
    ],
    "weather": [
        "will it rain tomorrow",
        "how cold is it outside",
        "do i need an umbrella",
        "what is the weather like " * 9,
    ],
}


def test_sentences_are_asked_with_enter_and_shown_as_evidence(page: Page, tmp_path: Path) -> None:
    model = MTNClassifier(memory=100, k=5, settings=QUICK | {"train.min_steps": 5}, encoder="hashing")
    sentences = [sentence for group in SENTENCES.values() for sentence in group]
    model.fit(sentences, np.repeat(list(SENTENCES), 4)).save(tmp_path / "<b>intents")
    with Service(tmp_path / "<b>intents") as service:
        page.goto(service.url)
        expect(page.locator("#summary")).to_contain_text("<b>intents takes sentences. It knows 3 classes")
        expect(page.locator("#chart-legend")).to_be_hidden()  # one lesson is no curve
        page.locator("#ask-text").press_sequentially("what is the weather like")
        page.keyboard.press("Enter")
        expect(page.locator("#answer-title")).to_have_text("weather")
        expect(page.locator("#asked-text")).to_have_text("what is the weather like")
        nearest = page.locator("#neighbours li").first
        expect(nearest.locator("p .text")).to_have_text(re.compile("^what is the weather like what .* …$"))
        nearest.get_by_role("button", name="Show all").click()
        expect(nearest.locator("p .text")).to_have_text(SENTENCES["weather"][3].strip())

        asked = [
            f"{word} zebra {word}" for word in ("my", "quick", "green", "the", "old", "a", "is", "over", "no", "up")
        ]
        for text in asked:
            (why,) = service.client.post("/explain", json={"texts": [text]}).json()["answers"]
            if why["agreement"]:
                break
        page.fill("#ask-text", text)
        page.keyboard.press("Enter")
        expect(page.locator("#agreement")).to_have_text(why["agreement"])
        assert page.locator("#neighbours li").count() == 5
        texts = [near["text"] for near in why["own"] if len(near["text"]) < 100]
        assert set(texts) <= set(page.locator("#own .text").all_text_contents()) and texts
        assert page.locator("#parts li span:first-child").all_text_contents() == list(why["shares"])
        expect(page.locator("#parts-text")).to_contain_text(f"It leads {why['runner_up']} by")
        assert not re.search(r"-[.\d]", page.locator("#why").inner_text())  # a minus is a minus, not a hyphen

        page.locator("#examples button").first.click()
        expect(page.locator("#asked-text")).not_to_have_text(text)
        page.get_by_role("button", name="bill", exact=True).click()
        expect(page.locator("#exemplars button")).to_have_count(4)

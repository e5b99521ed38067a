"""Pages of strangers in a real browser: DNS rebinding, requests and forms from another site."""

import json
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from cluster_data import TEST
from service import Service, write_model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """No test changes its model."""
    with Service(write_model(tmp_path_factory.mktemp("abused") / "model", steps=1)) as service:
        yield service


CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def stranger(service: Service) -> Iterator[Page]:
    """A page of http://evil.test, whose name leads to this machine: DNS rebinding, after the page was loaded."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        rules = "--host-resolver-rules=MAP evil.test 127.0.0.1"
        own_defence = "--disable-features=LocalNetworkAccessChecks"  # newer browsers have one, others must not need it
        arguments = ["--no-sandbox", rules, own_defence]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_context().new_page()
        page.set_default_timeout(120_000)
        page.route("**/stranger.html", lambda route: route.fulfill(content_type="text/html", body="<p>hello"))
        page.goto(f"http://evil.test:{service.port}/stranger.html")  # this one answer is not the service's
        assert page.inner_text("p") == "hello"
        yield page
        browser.close()


FETCH = """async ([url, method, mode, content]) => {
    const options = {method, mode, body: content, headers: {"content-type": "text/plain"}};
    try {
        const answer = await fetch(url, options);
        return [answer.status, answer.type, await answer.text()];
    } catch (error) {
        return [0, String(error), ""];
    }
}"""
ATTEMPTS = [
    *(("GET", path) for path in ("/", "/model", "/classes", "/metrics", "/openapi.json", "/healthz", "/readyz")),
    *(("POST", path) for path in ("/predict", "/explain", "/learn?label=evil", "/classes/class%2000/undo")),
    ("DELETE", "/classes/class%2000"),
]


@pytest.mark.parametrize(("method", "path"), ATTEMPTS)
def test_a_rebound_name_is_refused(method: str, path: str, stranger: Page, service: Service) -> None:
    """To the browser both are one site: nothing but the service's check of the host keeps the page out."""
    before = service.known()
    content = None if method == "GET" else json.dumps({"vectors": TEST[:1].tolist(), "labels": ["evil"]})
    status, _, text = stranger.evaluate(FETCH, [path, method, "same-origin", content])
    assert (status, json.loads(text)["error"]) == (421, "this service answers to its loopback address only")
    assert service.known() == before and service.client.get("/model").json()["waiting"] == 0


def test_a_rebound_name_shows_no_page(stranger: Page, service: Service) -> None:
    page = stranger.context.new_page()
    answer = page.goto(f"http://evil.test:{service.port}/")
    assert answer is not None and answer.status == 421 and page.locator("#summary").count() == 0
    page.close()


@pytest.mark.parametrize(("method", "path"), ATTEMPTS)
@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_another_site_reads_and_changes_nothing(
    mode: str, method: str, path: str, stranger: Page, service: Service
) -> None:
    """The page asks for the service by its own address, as any page may try."""
    before = service.known()
    content = None if method == "GET" else json.dumps({"vectors": TEST[:1].tolist(), "labels": ["evil"]})
    status, _, text = stranger.evaluate(FETCH, [service.url + path, method, mode, content])
    assert (status, text) == (0, "")
    assert service.known() == before and service.client.get("/model").json()["waiting"] == 0


def test_a_form_of_another_site_teaches_nothing(stranger: Page, service: Service) -> None:
    page = stranger.context.new_page()
    form = f'<form method=post enctype=text/plain action="{service.url}/learn?label=evil"><input name=a></form>'
    page.route("**/stranger.html", lambda route: route.fulfill(content_type="text/html", body=form))
    page.goto(f"http://evil.test:{service.port}/stranger.html")
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    assert "pages of other sites may not use this service" in page.content()
    assert "evil" not in service.known() and service.client.get("/model").json()["waiting"] == 0
    page.close()

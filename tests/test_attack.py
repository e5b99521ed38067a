"""A cut of `make attack`, and what a browser on another site can do to a service at a loopback address."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from service import LABELS, Service, write_model

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium")
CAMPAIGNS = ("kills", "damage", "hostile", "load")


def test_a_cut_of_the_attack_finds_nothing(tmp_path: Path) -> None:
    """A hundredth of it, two minutes at the most: it is a campaign, so it takes longer than other tests."""
    command = [sys.executable, "-m", "attack", "--share", "0.01", "--minutes", "2", "--seed", "23"]
    done = subprocess.run(
        [*command, "--failures", str(tmp_path / "failures")], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    rows = re.findall(r"^\| (\w+) \| ([\d ]+) \| (\d+) \|", done.stdout, re.M)
    assert tuple(name for name, _, _ in rows) == CAMPAIGNS
    assert all(int(tries.replace(" ", "")) > 0 and failures == "0" for _, tries, failures in rows)


def test_the_attack_is_no_part_of_the_package_and_make_runs_it() -> None:
    assert not list((ROOT / "src").rglob("attack*"))
    dry = subprocess.run(["make", "--dry-run", "attack", "SHARE=0.1"], cwd=ROOT, capture_output=True, text=True)
    assert "python -m attack --share 0.1" in dry.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_another_site_in_a_real_browser_reaches_nothing(tmp_path: Path) -> None:
    """DNS rebinding: a name of a stranger that means this machine. And a page of a stranger that sends requests."""
    rebound = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with Service(write_model(tmp_path / "model", steps=1)) as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rebound])
        page = browser.new_page()
        for path in ("/", "/model", "/classes"):
            answer = page.goto(f"http://evil.example:{service.port}{path}")
            assert answer is not None and answer.status == 421 and "class 00" not in page.content()
        send = """async ([url, options]) => {
            try { const answer = await fetch(url, options); return `${answer.type} ${await answer.text()}` }
            catch (error) { return "blocked" }
        }"""
        forget = f"{service.url}/classes/class%2000"
        for page_url in ("data:text/html,other", f"http://evil.example:{service.port}/"):
            page.goto(page_url)
            assert page.evaluate(send, [f"{service.url}/classes", {}]) == "blocked"
            assert page.evaluate(send, [forget, {"method": "DELETE"}]) == "blocked"
            blind = {"method": "POST", "mode": "no-cors", "body": "x"}
            assert page.evaluate(send, [f"{service.url}/learn?label=evil", blind]) in ("opaque ", "blocked")
        browser.close()
        assert (
            set(service.known()) == set(LABELS[:180].tolist()) and service.client.get("/model").json()["waiting"] == 0
        )

"""The playground in headless Chromium: a design is typed, drawn, broken, priced, shared; nothing leaves the host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from tensornet_attn.cli.serve import server

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MINE = """tensornet: 1
name: mine
legs: {n: query, m: key, f: 64, d: 16}
inputs: {x: n f}
weights: {Wq: f d, Wk: f d, Wv: f d, Wo: d f}
diagram:
  Q: x[n f] Wq[f d] -> n d
  K: x[m f] Wk[f d] -> m d
  V: x[m f] Wv[f d] -> m d
  A: {softmax: m, scale: d ** -0.5, of: "Q[n d] K[m d] -> n m"}
  y: A[n m] V[m d] Wo[d f] -> n f
output: y
"""
SECONDS = 120_000


@pytest.fixture(scope="module")
def site(page: Path) -> Iterator[str]:
    serving = server(page, 0)
    thread = Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}/"
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture(scope="module")
def tab(site: str) -> Iterator[Any]:
    """One tab for all tests of this file: Python starts once."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.set_default_timeout(SECONDS)
        opened.requests, opened.wrong = [], []
        opened.on("request", lambda request: opened.requests.append(request.url))
        opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
        opened.goto(site)
        opened.wait_for_selector("#bar.done", state="attached")
        yield opened
        browser.close()


def write(tab: Any, text: str) -> None:
    """Puts text into the editor at once, as a paste does: typing closes brackets by itself."""
    tab.click(".cm-content")
    tab.keyboard.press("Control+A")
    tab.keyboard.insert_text(text)


def test_a_design_is_typed_drawn_broken_and_mended(tab: Any) -> None:
    tab.wait_for_selector('#view svg:has-text("thsa")')
    write(tab, MINE)
    tab.wait_for_selector('#view svg:has-text("mine")')
    tab.wait_for_selector("#problems pre.error", state="detached")
    tab.keyboard.press("Control+End")
    tab.keyboard.insert_text("legz: {}\n")
    tab.wait_for_selector("#problems pre.error")
    told = tab.inner_text("#problems")
    assert told.startswith("design.yaml:13:1: unknown-key: there is no key 'legz' here.")
    assert "\n    ^^^^" in told
    assert tab.inner_text(".cm-lintRange-error") == "legz"
    tab.keyboard.press("Control+Z")
    tab.wait_for_selector("#problems pre.error", state="detached")


def test_completion_offers_keys_of_the_schema(tab: Any) -> None:
    tab.keyboard.press("Control+End")
    tab.keyboard.type("los")
    tab.wait_for_selector('.cm-tooltip-autocomplete li:has-text("losses")')
    tab.keyboard.press("Escape")
    for _ in "los":
        tab.keyboard.press("Backspace")


def test_the_cost_follows_the_slider_of_n(tab: Any) -> None:
    tab.click('[data-tab="cost"]')
    total = '[data-cost="as written"] tr.total td:nth-child(2)'
    before = tab.inner_text(total)
    tab.locator('#sliders [data-leg="n"]').focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function("([path, old]) => document.querySelector(path).innerText !== old", arg=[total, before])
    assert tab.inner_text('#sliders label:has([data-leg="n"]) output') == "2048"


def test_sliders_follow_the_file_and_set_legs(tab: Any) -> None:
    shown = '#sliders label:has([data-leg="f"]) output'
    write(tab, MINE.replace("f: 64", "f: 128"))
    tab.wait_for_function("path => document.querySelector(path)?.innerText === '128'", arg=shown)
    tab.locator('#sliders [data-leg="f"]').focus()
    tab.keyboard.press("ArrowRight")
    tab.click('[data-tab="picture"]')
    tab.wait_for_selector('#view svg:has-text("f = 256")')
    assert tab.inner_text(shown) == "256"
    tab.locator('#sliders [data-leg="f"]').dblclick()
    tab.wait_for_selector('#view svg:has-text("f = 128")')


def test_every_tab_and_shipped_design_shows_something(tab: Any) -> None:
    tab.select_option("#designs", "hard_fish")
    wanted = {
        "picture": '#view svg:has-text("hard_fish")',
        "plan": "#view .region",
        "rewrites": "#view .added",
        "torch": '#view .cm-content:has-text("class HardFish")',
        "triton": '#view .cm-content:has-text("triton")',
    }
    for name, path in wanted.items():
        tab.click(f'[data-tab="{name}"]')
        tab.wait_for_selector(path)
    tab.click('[data-tab="picture"]')
    tab.select_option("#overlay", "cost")
    tab.wait_for_selector('#view svg:has-text("of the work")')
    tab.select_option("#theme", "dark")
    tab.wait_for_selector('#view svg polygon[fill="#15181d"]')


def test_a_shared_address_brings_the_design_back(tab: Any) -> None:
    write(tab, MINE.replace("name: mine", "name: shared"))
    tab.wait_for_selector('#view svg:has-text("shared")')
    tab.click("#share")
    tab.wait_for_function("() => location.hash.startsWith('#text=')")
    tab.reload()
    assert "name: shared" in tab.inner_text(".cm-content")  # before Python is there
    tab.wait_for_selector('#view svg:has-text("shared")')


def test_no_request_leaves_the_host_and_no_script_fails(tab: Any, site: str) -> None:
    assert {urlsplit(url).netloc for url in tab.requests} == {urlsplit(site).netloc}
    assert tab.wrong == []

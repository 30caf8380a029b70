"""Measures the built page in headless Chromium: `python docs/playground/measure.py`. Needs playwright and Chromium.

It prints the seconds until the editor, Python and the first picture are ready, and the milliseconds from a key press to
the updated picture, including the debounce delay, for ten keys.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from threading import Thread

from playwright.sync_api import sync_playwright

from tensornet_attn.cli.playground import BUILT
from tensornet_attn.cli.serve import HOST, server

KEYS = 10


def main(page: Path = BUILT) -> None:
    serving = server(page, 0)
    Thread(target=serving.serve_forever, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page()
        began = time.perf_counter()
        tab.goto(f"http://{HOST}:{serving.server_port}/")
        for words, path in (("editor", ".cm-content"), ("Python", "#bar.done"), ("first picture", "#view svg")):
            tab.wait_for_selector(path, state="attached", timeout=120_000)
            print(f"{words}: {time.perf_counter() - began:.1f} s")
        time.sleep(5)  # until the imports after the first picture are done
        tab.click(".cm-content")
        tab.keyboard.press("Control+End")
        found = []
        for _ in range(KEYS):
            tab.evaluate("() => { delete document.body.dataset.updated }")
            began = time.perf_counter()
            tab.keyboard.type("#")
            tab.wait_for_function("() => document.body.dataset.updated")
            found.append(1000 * (time.perf_counter() - began))
        print(f"a key: median {statistics.median(found):.0f} ms, of {KEYS}: {', '.join(f'{ms:.0f}' for ms in found)}")
        browser.close()


if __name__ == "__main__":
    main()

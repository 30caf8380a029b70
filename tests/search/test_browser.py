"""The report in a real browser: its script runs under the page's own policy, cards open, tables sort and narrow."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tensornet_attn.search import Space
from tensornet_attn.search.page import page
from tensornet_attn.search.study import Study
from tensornet_attn.search.trial import Trial
from tests.search.report_made import made

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.skipif(BROWSER is None, reason="there is no chromium on this machine")]
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--window-size=1300,1000")
Made = tuple[Study, Space, list[Trial]]


@pytest.fixture(scope="module")
def study() -> Made:
    return made(6)


@pytest.fixture(scope="module")
def report(study: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(*study), encoding="utf-8")
    return path


def dom(path: Path, mark: str = "") -> str:
    """The page as it stands when its scripts have run."""
    command = [
        str(BROWSER),
        *OPTIONS,
        f"--user-data-dir={path.parent / 'profile'}",
        "--dump-dom",
        f"{path.as_uri()}{mark}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "data-error" not in done.stdout.partition(">")[2].partition(">")[0], done.stdout[:300]
    return done.stdout


def after(report: Path, script: str) -> str:
    """The page after somebody has done something; the policy would keep this script out."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", report.read_text(encoding="utf-8"))
    path = report.with_name("after.html")
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return dom(path)


def card(text: str) -> str:
    """The card as far as it is open."""
    found = re.search(r'<aside id="card"([^>]*)>(.*?)</aside>', text, re.DOTALL)
    assert found is not None
    return "" if "hidden" in found[1] else f"{found[1]} {found[2]}"


def column(text: str, place: int) -> list[str]:
    body = re.search(r'<table class="sorted".*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    assert body is not None
    rows = [row for row in re.findall(r"<tr[^>]*>.*?</tr>", body[1], re.DOTALL) if not re.match(r"<tr[^>]*hidden", row)]
    return [re.sub(r"<[^>]*>", "", re.findall(r"<td.*?</td>", row, re.DOTALL)[place]) for row in rows]


def test_a_page_without_a_mark_has_no_card_open_and_a_point_a_trial(study: Made, report: Path) -> None:
    text = dom(report)
    assert card(text) == ""
    last = [trial for trial in study[2] if trial.slot >= 0 and trial.rung == 2]
    plots = len(study[0].objectives) - 1
    assert text.count('<a class="point ') == plots * (study[0].proposals + len(last))


def test_a_link_to_a_trial_opens_its_card(study: Made, report: Path) -> None:
    text = dom(report, "#trial-3")
    trial = next(trial for trial in study[2] if trial.slot == 3)
    found = card(text)
    assert 'class="kept"' in found
    assert "<h3>Trial 3</h3>" in found
    assert re.findall(r"<span>([^<]*)</span>", found)[: len(trial.path)] == list(map(str, trial.path))
    assert re.search(r'<div class="picture"[^>]*><svg', found)
    assert '<tr id="row-3" class="shown">' in text or '<tr id="row-3" class="front shown">' in text
    assert card(dom(report, "#trial-999")) == ""


POINT = "document.querySelector('a.point[href=\"#trial-0\"]')"


def test_a_card_is_there_as_long_as_one_points(report: Path) -> None:
    over = f"{POINT}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));"
    assert "<h3>Trial 0</h3>" in card(after(report, over))
    assert card(after(report, f"{over} {POINT}.dispatchEvent(new MouseEvent('mouseout', {{bubbles: true}}));")) == ""
    assert "<h3>Trial 0</h3>" in card(after(report, f"{POINT}.focus();"))


def test_a_click_keeps_a_card_until_escape(report: Path) -> None:
    click = f"{POINT}.dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}));"
    away = f"{POINT}.dispatchEvent(new MouseEvent('mouseout', {{bubbles: true}}));"
    assert 'class="kept' in card(after(report, f"{click} {away}"))
    escape = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));"
    assert card(after(report, f"{click} {escape}")) == ""
    closed = "document.querySelector('#card .close').click();"
    assert card(after(report, f"{click} {closed}")) == ""


def test_the_table_sorts_by_numbers_what_is_missing_last(study: Made, report: Path) -> None:
    press = "document.querySelectorAll('table.sorted th button')[4].click();"
    first = column(after(report, press), 4)
    known = [value for value in first if value]
    assert known == sorted(known, key=float)
    assert first == known + [""] * (study[0].proposals - len(known))
    text = after(report, press * 2)
    assert [value for value in column(text, 4) if value] == known[::-1]
    assert column(text, 4)[-1] == ""
    assert re.findall(r'aria-sort="(\w+)"', text.partition("<tbody>")[0] + text) == ["descending"]


def test_the_table_narrows_to_rows_with_some_words(study: Made, report: Path) -> None:
    script = "const i = document.querySelector('input'); i.value = 'RANDOM mhsa'; i.dispatchEvent(new Event('input'));"
    text = after(report, script)
    wanted = [t.slot for t in study[2] if t.arm == "random" and t.slot >= 0 and t.path[0].name == "mhsa"]
    assert column(text, 0) == list(map(str, wanted))
    assert f"<output>{len(wanted)} of {study[0].proposals}</output>" in text

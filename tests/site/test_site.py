"""The documentation site builds without a warning, every page is in a toctree, and its figures are those of today."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tests import release

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
pytest.importorskip("sphinx", reason="the site needs `pip install '.[site]'`")


@pytest.fixture(autouse=True)
def modules_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))


def test_every_page_is_in_a_toctree() -> None:
    import site_pages

    assert site_pages.missing() == [], "a toctree lists what is no page"
    assert site_pages.orphans() == [], "list these pages in a toctree"


def test_pictures_of_pages_show_their_designs_as_they_are() -> None:
    """`make notebooks` draws them again."""
    import site_pictures

    from tensornet_attn.draw.render import mark

    designs = list(site_pictures.page_designs())
    assert {"linear_map", "one_head", "recall"} <= {name for name, _, _ in designs}
    for name, graph, about in designs:
        picture = (site_pictures.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
        assert f"title-{mark(graph, name, about)}" in picture, f"{name}.svg is drawn from another version of the design"


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. auto(?:function|class):: tensornet_attn\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted({*ta.__all__} - {"__version__"})


def test_the_gallery_sorts_designs_by_work_and_by_decoding_state() -> None:
    from site_gallery import card

    from docs.generate.catalogue import Catalogue

    entries = Catalogue().entries
    cards = {name: card(entries[name]) for name in ("mhsa", "linear", "band", "mlp", "gqa")}
    assert {name: (one.work, one.state) for name, one in cards.items()} == {
        "mhsa": ("quadratic", "grows"),
        "linear": ("linear", "fixed"),
        "band": ("linear", "window"),
        "mlp": ("linear", "none"),
        "gqa": ("quadratic", "grows"),
    }
    assert "A[h n m]" in cards["mhsa"].equations


class Addresses(HTMLParser):
    """What a page links to and loads, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if "src" in found or (tag == "link" and found.get("rel") in ("stylesheet", "icon")):
            self.loaded.append(found.get("src") or found.get("href", ""))


@pytest.mark.slow  # run by `make pages`
def test_the_site_builds_without_a_warning_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-n",
        "--keep-going",
        "-q",
        "-c",
        "docs/site",
        "docs",
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path: Addresses(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        assert not [address for address in page.loaded if "://" in address], f"{path.name} loads from the network"
        for address in (*page.links, *page.loaded):
            where, _, place = address.partition("?")[0].partition("#")
            if "://" in address or address.startswith(("mailto:", "data:")):
                continue
            target = path if not where else (path.parent / where).resolve()
            if not target.exists() or (place and target in pages and place not in pages[target].ids):
                broken.append(f"{path.relative_to(tmp_path)}: {address}")
    assert broken == []
    index = (tmp_path / "searchindex.js").read_text(encoding="utf-8")
    assert "tutorial" in index
    assert "gallery" in index
    gallery = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert gallery.count('class="gallery-card"') == len(ta.list_designs())


@pytest.mark.slow  # run by `make pages`
@pytest.mark.parametrize("name", ["first_design", "inside_a_model", "search"])
def test_notebooks_run(name: str) -> None:
    pytest.importorskip("ipykernel")
    import site_notebooks

    fresh = site_notebooks.executed(site_notebooks.NOTEBOOKS / f"{name}.ipynb")
    stored = site_notebooks.nbformat.read(site_notebooks.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert kinds(fresh) == kinds(stored), "the stored outputs are of another version: run `make notebooks`"


def kinds(notebook: Any) -> list[tuple[list[list[str]], set[str]]]:
    """Of each cell, the types of what it shows, and the streams that it writes: a busy kernel sends one in parts."""
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    return [
        ([sorted(out.data) for out in each if "data" in out], {out.name for out in each if "name" in out})
        for each in outputs
    ]


def test_release_check_names_what_is_missing_and_what_does_not_belong() -> None:
    names = ["pyproject.toml", "node_modules/a.js", "docs/node_modules/b.js"]
    assert release.problems(names, ["pyproject.toml", "README.md"]) == [
        "'README.md' is missing.",
        "'docs/node_modules/b.js' and 1 more files of 'node_modules/' do not belong there.",
    ]
    assert {"site", "test", "train"} <= {*release.extras()}

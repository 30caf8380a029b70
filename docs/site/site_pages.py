"""The pages of the site by their toctrees, and the name of Sphinx's own search page.

In a toctree, the line `others` stands for the folder's pages that no toctree lists. So a new page in docs/ is on the
site at once; list it by name where its place matters. Pages of designs are reached from the gallery.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.domains.std import StandardDomain

DOCS = Path(__file__).resolve().parents[1]
CARDS = "designs"  # the folder that the gallery leads to
SKIPPED = ("playground/", "reproduce/", "results/")  # folders without pages
OTHERS = "others"
_TOCTREE = re.compile(r"^:::\{toctree\}\n(.*?)^:::$", re.DOTALL | re.MULTILINE)
_TITLED = re.compile(r".*<(.*)>")


class Builder(StandaloneHTMLBuilder):
    """Writes Sphinx's search page as find.html, because docs/search.md is search.html."""

    def handle_page(self, pagename: str, addctx: dict[str, Any], *others: Any, **named: Any) -> None:
        """One page; the search page under its other name."""
        templates = (*others[:1], named.get("templatename"))
        super().handle_page("find" if "search.html" in templates else pagename, addctx, *others, **named)


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the builder and what fills in `others`."""
    app.add_builder(Builder, override=True)
    for labels in ("labels", "anonlabels"):
        StandardDomain.initial_data[labels].pop("search", None)
    getattr(StandardDomain, "_virtual_doc_names", {}).pop("search", None)  # a toctree may list the page `search`
    app.connect("html-page-context", _search_page)
    app.connect("builder-inited", lambda app: _pages.cache_clear())
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


@cache
def _pages() -> dict[str, str]:
    found = {}
    for path in sorted(path for ending in ("md", "rst", "ipynb") for path in DOCS.rglob(f"*.{ending}")):
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        if not name.startswith(SKIPPED):
            found[name] = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
    return found


def pages() -> list[str]:
    """All pages, as Sphinx names them."""
    return list(_pages())


def entries(page: str) -> list[str]:
    """What the toctrees of a page list: names of pages, patterns, and `others`."""
    lines = [line for block in _TOCTREE.findall(_pages()[page]) for line in block.splitlines()]
    found = [line.strip() for line in lines if line.strip() and not line.startswith(":")]
    found = [match[1] if (match := _TITLED.fullmatch(entry)) else entry for entry in found]
    folder = page.rpartition("/")[0]
    return [_joined(folder, entry) for entry in found]


def _joined(folder: str, entry: str) -> str:
    parts: list[str] = []
    for part in f"{folder}/{entry}".split("/"):
        parts = parts[:-1] if part == ".." else [*parts, *([part] if part else [])]
    return "/".join(parts)


def missing() -> list[str]:
    """Entries of toctrees that lead nowhere."""
    wanted = [entry for page in pages() for entry in entries(page) if entry.rpartition("/")[2] != OTHERS]
    return [entry for entry in wanted if not any(fnmatch(page, entry) for page in pages())]


def unlisted(folder: str = "") -> list[str]:
    """The pages of a folder of docs/ that no toctree lists by name or pattern."""
    listed = [entry for page in pages() for entry in entries(page)]
    own = [page for page in pages() if page.rpartition("/")[0] == folder and page != "index"]
    return [page for page in own if not any(fnmatch(page, entry) for entry in listed)]


def orphans() -> list[str]:
    """Unlisted pages of folders without a toctree that takes others."""
    takers = {entry.rpartition("/")[0] for page in pages() for entry in entries(page) if entry.endswith(OTHERS)}
    folders = {page.rpartition("/")[0] for page in pages()} - {CARDS}
    return [page for folder in sorted(folders - takers) for page in unlisted(folder)]


def _search_page(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """The theme's links to the search page lead to find.html."""
    path = context["pathto"]
    context["pathto"] = lambda name, *others, **named: path("find" if name == "search" else name, *others, **named)


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname.startswith(f"{CARDS}/"):
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"
    names = "\n".join(f"/{page}" for page in unlisted(docname.rpartition("/")[0]))
    source[0] = re.sub(rf"^{OTHERS}$\n", f"{names}\n" if names else "", source[0], flags=re.MULTILINE)

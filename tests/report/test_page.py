"""What all pages share: every text is escaped, nothing is loaded, only the page's own script runs, gaps are errors."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from jinja2 import UndefinedError

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.errors import MissingPartError
from tensornet_attn.report.page import TEMPLATES, Image, Table, drawing, page, picture

NOTHING: dict[str, Any] = {"notes": [], "layers": [], "several": False, "overview": []}


def test_texts_are_escaped_wherever_they_stand() -> None:
    table = Table(["<a>"], [["b & c"], ['"d"']], "<e>", total=True)
    text = page(
        "analyse.html", "<f>", **{**NOTHING, "notes": ["<g>"], "overview": [table, "<h>", Image("data:,", "<i>")]}
    )
    assert re.search(r"<[a-i]>", text.partition("<body>")[2]) is None
    for one in ("&lt;a&gt;", "b &amp; c", "&lt;e&gt;", "<title>&lt;f&gt;</title>", "&lt;g&gt;", 'alt="&lt;i&gt;"'):
        assert one in text
    assert '<p class="note">&lt;h&gt;</p>' in text
    assert text.count('class="whole"') == 1


def test_no_script_but_the_page_s_own() -> None:
    assert "script" not in page("analyse.html", "Title", **NOTHING)
    text = page("analyse.html", "Title", "search.js", **NOTHING)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script == (TEMPLATES / "search.js").read_text(encoding="utf-8")
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in text


def test_what_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        page("analyse.html", "Title")


def test_without_graphviz_a_sentence_stands_in_the_place_of_a_diagram(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> bytes:
        raise MissingPartError("pictures need <Graphviz>.")

    monkeypatch.setattr(compiler, "picture", missing)
    design = ta.load("mhsa")
    assert drawing(design) == '<p class="note">No picture: pictures need &lt;Graphviz&gt;.</p>'
    assert picture(design, "The diagram.") == "No picture of the diagram: pictures need <Graphviz>."

"""Everything shown in README.md and docs/ is true: designs pass, mistakes give the answer shown, code and commands run.

`pytest tests/test_docs.py --write-docs` writes the outputs shown again; read the diff. Conventions: doc_blocks.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn import limits
from tensornet_attn.search.read import check as check_space
from tests import doc_blocks as docs
from tests.doc_blocks import Block

LANGUAGES = {"yaml", "python", "console", "text", "sh"}
TRAINS = re.compile(r"^\$ .*tensornet-attn (train|search) ", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)\s]*)?\)|<img [^>]*src=\"([^\"]+)\"")


def by_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", docs.all_blocks(kind), ids=lambda block: block.id)


@pytest.fixture
def agree(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """Compares a block's text with the truth, or writes the truth into the page where that is asked for."""

    def compare(block: Block, truth: str) -> None:
        if request.config.getoption("--write-docs") and block.text != truth:
            docs.rewrite(block, truth)
        else:
            assert block.text == truth

    return compare


def problems(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    check = check_space if text.startswith("space:") else ta.models.check if "\nmodel:" in text else ta.check
    return "".join(f"{problem}\n" for problem in check(str(path))).replace(f"{path.parent}/", "")


@by_kind("design")
def test_a_design_is_good(block: Block, tmp_path: Path) -> None:
    docs.write_designs(block.page, tmp_path)
    assert problems(tmp_path / f"{docs.name_of(block)}.yaml") == ""


@by_kind("fragment")
def test_a_fragment_is_good_where_it_stands(block: Block, tmp_path: Path) -> None:
    docs.write_designs(block.page, tmp_path)
    assert problems(docs.complete(block, tmp_path)) == ""


@by_kind("mistaken")
def test_a_mistake_gets_the_answer_shown(block: Block, tmp_path: Path, agree) -> None:  # type: ignore[no-untyped-def]
    docs.write_designs(block.page, tmp_path)
    (fresh,) = [b for b in docs.blocks(block.page) if b.text == block.text]  # an earlier rewrite may have moved it
    shown = docs.after(fresh)
    assert shown is not None, f"{block.id}: no text block with the answer"
    agree(shown, problems(tmp_path / f"{docs.name_of(block)}.yaml"))


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agree) -> None:  # type: ignore[no-untyped-def]
    docs.write_designs(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # modules of the page
    for block, printed in docs.run_python(page):
        (fresh,) = [b for b in docs.blocks(page) if b.language == "python" and b.text == block.text]
        shown = docs.after(fresh)
        if shown is None:
            assert printed == "", f"{block.id}: this prints, and no text block shows it"
        elif not docs.matches(shown.text, printed):
            agree(shown, printed)


def consoles() -> list[Any]:
    """Those that train are slow, and run by `make pages`."""
    return [
        pytest.param(block, marks=pytest.mark.slow if TRAINS.search(block.text) else [], id=block.id)
        for block in docs.all_blocks("console")
    ]


@pytest.mark.parametrize("block", consoles())
def test_commands_say_what_is_shown(block: Block, tmp_path: Path, monkeypatch, agree) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # C++ kernels of other tests would change plans
    docs.write_designs(block.page, tmp_path)
    (fresh,) = [b for b in docs.blocks(block.page) if b.text == block.text]
    agree(fresh, docs.run_console(fresh, tmp_path))


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_and_every_answer_a_question(page: Path) -> None:
    found = docs.blocks(page)
    fences = re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found), "a block is indented or not closed"
    assert {block.language for block in found} <= LANGUAGES
    answers = {docs.after(block) for block in found if block.kind in ("mistaken", "python")}
    assert {block.id for block in found if block.language == "text" and block.note != "grammar"} <= {
        answer.id for answer in answers if answer
    }


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [match[1] or match[3] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    links = [link for link in links if "://" not in link and not link.startswith("../../actions/")]  # of the repository
    assert [link for link in links if not (page.parent / link).exists()] == []


@by_kind("sh")
def test_make_targets_exist(block: Block) -> None:
    rules = (docs.ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE):
        assert f"\n{target}:" in rules


def test_every_code_named_on_the_language_page_is_in_the_checker_and_the_other_way_round() -> None:
    table = (docs.ROOT / "docs/language.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE))
    sources = [
        p
        for folder in ("ir", "ops", "spec", "graph", "special")
        for p in (docs.ROOT / "tensornet_attn" / folder).glob("*.py")
    ]
    text = "\n".join(path.read_text() for path in sources)
    code = r"\"([a-z0-9]+(?:-[a-z0-9]+)*)\""
    calls = (r"(?:Refusal|\.error|\.warning|_stop|Problem)\(\s*", r"_unreadable\([^,]+,\s*", r"\.refuse\([^,]*,\s*")
    used = {found for call in calls for found in re.findall(call + code, text)}
    assert sorted(used - named) == [], "not in the table of docs/language.md"
    assert sorted(c for c in named if f'"{c}"' not in text and f'"{c.partition("-")[0]}-{{' not in text) == []


@pytest.mark.parametrize(
    "start", ["Chunks of the sequence", "Keys that a query chooses", "Several memories", "Outputs on a latent leg"]
)
def test_the_language_page_says_what_is_not_supported(start: str) -> None:
    section = (docs.ROOT / "docs/language.md").read_text().partition("\n## Not supported\n")[2].partition("\n## ")[0]
    assert f"- **{start}**" in section


def test_the_limits_named_on_the_language_page_are_those_of_the_code() -> None:
    page = (docs.ROOT / "docs/language.md").read_text()
    for name, value in re.findall(r"^\| .* \| ([0-9,]+) \| `([A-Z_]+)` \|", page, re.MULTILINE):
        assert int(name.replace(",", "")) == getattr(limits, value)

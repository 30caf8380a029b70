"""A look into a space: its size, its samples, its page; and the command that prints them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.cli.boundary import run
from tensornet_attn.search import built, load, size_of, survey
from tensornet_attn.search.survey import every, paths_at_most

FEW: dict[str, Any] = {
    "space": 1,
    "name": "few",
    "base": ["mhsa", "gqa"],
    "legs": {"f": 16, "h": [2, 4], "g": [1, 2], "j": 2},
    "moves": {"share": {"g": [1, 2]}, "kernel": {"map": "elu1"}},
    "most": 2,
    "bounds": {"n": 8},
}


def test_a_small_space_is_counted() -> None:
    space = load(FEW)
    found = list(every(space))
    # mhsa: 2 sizes of h, each alone, shared 2 ways, with a kernel, both in 2 orders and 2 ways; gqa: 2 sizes of g.
    # Shared and then a kernel is a kernel and then shared.
    assert len([p for p in found if p.path[0].name == "mhsa"]) == 2 * (1 + 2 + 1 + 2 + 2)
    assert size_of(space).exact
    assert size_of(space).count == len({proposal.essence for proposal in found}) < len(found)
    assert paths_at_most(space) >= len(found)
    assert all(built(space, proposal.path).hash == proposal.hash for proposal in found)  # type: ignore[union-attr]


def test_a_setting_of_an_alternative_varies() -> None:
    step = {"softmax": "m", "scale": "d ** -0.5", "mask": "window(reach, 0)", "of": "Q[n h d] K[m h d] -> h n m"}
    near = {"A": {"near": {"settings": {"reach": 7}, "step": step}}}
    space = load({"space": 1, "base": "mhsa", "legs": {"f": 16}, "settings": {"reach": [3, 7]}, "alternatives": near})
    assert {proposal.design.settings.get("reach") for proposal in every(space)} == {None, 3, 7}
    assert size_of(space).count == 3 <= paths_at_most(space)
    assert {sample.design.settings.get("reach") for sample in survey(space).samples} == {None, 3, 7}


def test_a_large_space_has_a_bound() -> None:
    size = size_of(
        load({"space": 1, "base": "mhsa", "legs": {"f": {"range": [1, 1000]}}, "moves": ["group"], "most": 1})
    )
    assert (size.count, size.exact) == (1000 * (1 + 3), False)
    assert size.to_text() == ("at most 4,000 designs: the number of paths, including invalid and equivalent ones")


def test_samples_differ_and_come_again() -> None:
    space = load(FEW)
    seen = survey(space, 5)
    assert len({sample.essence for sample in seen.samples}) == 5
    assert seen.to_text() == survey(space, 5).to_text()
    assert len(survey(load({"space": 1, "base": "mhsa"}), 12).samples) == 1  # there is no more


def test_of_a_small_space_all_is_shown_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tensornet_attn.search.survey"], "TIRED", 1)  # one twice ends it
    few = load({"space": 1, "base": "mhsa", "legs": {"f": 4, "h": 1, "d": {"range": [1, 5]}}, "bounds": {"n": 4}})
    for samples in (4, 5, 99):
        seen = survey(few, samples)
        assert len({sample.essence for sample in seen.samples}) == len(seen.samples) == min(samples, 5)


def test_the_text() -> None:
    space = {"space": 1, "name": "two", "about": "Two sizes.", "base": "mhsa", "legs": {"f": 16, "h": [2, 4]}}
    assert survey(load({**space, "bounds": {"n": 4, "macs": 5000}})).to_text() == TWO


TWO = """\
two: Two sizes.
bases: mhsa
varies: f, h
moves: none
size: 2 designs, enumerated: valid, within bounds, all different
costs at n = 4, batch 1, of the samples below

            macs  parameters  activations  decoding state
least      4,608       1,024          328             128
median     4,608       1,024          332             128
most       4,608       1,024          336             128
bounds  <= 5,000        none         none            none

2 samples:
  mhsa; f = 16; h = 4
  mhsa; f = 16; h = 2"""


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.yaml"
    path.write_text(json.dumps(FEW))
    return path


def test_the_command(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["space", str(few), "--samples", "3", "--json", "--n", "4"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["space"] == "few"
    assert (data["exact"], data["n"], len(data["samples"])) == (True, 4, 3)
    for sample in data["samples"]:
        assert ta.load(sample["design"]).hash == sample["hash"]
        assert data["ranges"]["macs"]["least"] <= sample["macs"] <= data["ranges"]["macs"]["most"]


def test_the_page(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["space", str(few), "--samples", "3", "-o", str(page)]) == 0
    assert capsys.readouterr().out == survey(load(few), 3).to_text() + "\n"
    text = page.read_text()
    assert text.count('<figure class="card">') == 3
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_a_mistake_is_status_one(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few.write_text("space: 1\nbase: mhsa\nbounds: {macs: 5}\n")
    assert run(["space", str(few)]) == 1
    assert capsys.readouterr().err == (
        "error: all 160 drafts of the space 'space' were refused: 160 by 'macs at most 5'; "
        "the nearest had macs 71,303,168: widen the bound, or allow smaller legs.\n"
    )

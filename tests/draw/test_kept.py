"""Pictures mark what a decoding cache keeps: results, boxes with states, a legend; without a cache nothing changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.draw import to_dot, to_mermaid, to_svg, to_text
from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.kept import kept_marks
from tensornet_attn.graph import build
from tensornet_attn.spec import library


def titles(name: str) -> list[tuple[str, ...]]:
    """What the marked frames of a causal design say."""
    graph = build(ta.load(name), causal=True)
    return [frame.words for frame in flatten(graph, kept_marks(graph)).frames if frame.kept]


def test_results_are_marked_where_they_are_made() -> None:
    assert titles("mhsa") == [("K", "cached: all positions"), ("V", "cached: all positions")]
    assert titles("mla") == 2 * [("C", "cached: all positions")]  # it is drawn at each of its uses
    assert ("K[m r h d]", "cached: all positions") in titles("smgk")  # drawn apart
    assert titles("band") == [("K", "cached: last 3 positions"), ("V", "cached: last 3 positions")]


def test_states_are_marked_at_their_box() -> None:
    words = ("A: normalize over m", "causal", "cached: state1[h d_ d]", "cached: state2[h d]")
    assert titles("linear") == [words]
    assert [one[-2:] for one in titles("fast_weight1")] == [("cached: state1[h d e]", "cached: state2[h d]")]
    blend = titles("fmm1_rows")
    assert ("K", "cached: last 3 positions") in blend
    assert any("cached: copy.state1[h d]" in one for one in blend)


@pytest.mark.parametrize("name", library.names())
def test_every_mark_is_in_the_picture(name: str) -> None:
    graph = build(ta.load(name), causal=True)
    if name in ("cross", "perceiver", "fmm_lra_release", "gau", "sigmoid_attention"):
        with pytest.raises(ta.InputError, match="no cache can be kept"):
            kept_marks(graph)
        return
    marks = kept_marks(graph)
    found = [words for frame in flatten(graph, marks).frames if frame.kept for words in frame.words]
    assert {word for words in marks.values() for word in words} <= {*found}


def test_each_kind_of_picture_says_so() -> None:
    graph = build(ta.load("linear"), causal=True)
    marks = kept_marks(graph)
    dot = to_dot(graph, kept=marks)
    (frame,) = [line for line in dot.splitlines() if "#1b7f4d" in line and "normalize" not in line and "bb=" in line]
    assert "penwidth=2.6" in frame
    assert dot.count('label="in the decoding cache"') == 1
    mermaid = to_mermaid(graph, kept=marks)
    assert re.search(r"classDef kept stroke:#1b7f4d,stroke-width:4px", mermaid)
    assert "in the decoding cache" in mermaid
    last = to_text(graph, kept=marks).splitlines()[-1]
    assert last == "cache: A (cached: state1[h d_ d]; cached: state2[h d])"
    assert f"{last}.</desc>" in to_svg(graph, kept=marks)
    assert "cache" not in to_dot(graph) + to_mermaid(graph) + to_text(graph)


def test_draw_with_a_cache(tmp_path: Path) -> None:
    ta.draw("mhsa", tmp_path / "a.dot", causal=True, cache=True)
    text = (tmp_path / "a.dot").read_text()
    assert text.count("cached: all positions") == 2
    assert "causal" in text
    ta.draw("mhsa", tmp_path / "b.dot", causal=True)
    assert "cached" not in (tmp_path / "b.dot").read_text()
    with pytest.raises(ta.InputError, match="compile it with causal=True"):
        ta.draw("mhsa", tmp_path / "c.dot", cache=True)
    assert not (tmp_path / "c.dot").exists()

"""Themes change colours and nothing else; overlays fill frames by the plan or the cost, and the legend says so."""

from __future__ import annotations

import re

import pytest

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.draw import to_dot, to_svg
from tensornet_attn.draw.looks import KEPT
from tensornet_attn.draw.overlay import cost_overlay, plan_overlay
from tensornet_attn.draw.themes import DARK, LIGHT, PRINT, REGIONS, SHARES, THEMES, Theme
from tensornet_attn.graph import build

COLOUR = re.compile(r"\b(\w*color)=(\"#\w{6}\"|\w+) ?")


def colours(source: str) -> set[str]:
    return {value.strip('"') for _, value in COLOUR.findall(source)}


def luminance(colour: str) -> float:
    """Relative luminance, as the Web Content Accessibility Guidelines define it."""
    named = {"black": "#000000", "white": "#ffffff"}.get(colour, colour)
    parts = [int(named[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_themes_differ_in_colours_alone() -> None:
    graph = build(ta.load("thsa"))
    light = to_dot(graph)
    assert to_dot(graph, theme=LIGHT) == light
    for theme in (DARK, PRINT):
        drawn = to_dot(graph, theme=theme)
        assert drawn != light
        assert re.sub(r"\s+", " ", COLOUR.sub("", drawn)) == re.sub(r"\s+", " ", COLOUR.sub("", light))


def test_dark_has_no_colour_of_light_and_print_has_none_at_all() -> None:
    graph = build(ta.load("thsa"), causal=True)
    kept = {"A": ("kept",)}
    assert KEPT["color"] in colours(to_dot(graph, kept=kept))
    assert not colours(to_dot(graph, kept=kept, theme=DARK)) & colours(to_dot(graph, kept=kept))
    for colour in colours(to_dot(graph, kept=kept, theme=PRINT)) - {"black", "white"}:
        assert len({colour[1:3], colour[3:5], colour[5:7]}) == 1


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_text_can_be_read_on_every_fill(theme: Theme) -> None:
    ink = theme.colour("black")
    for fill in (theme.ground, *map(theme.colour, ("white", "#dddddd", "#f6b26b", *REGIONS, *SHARES))):
        assert contrast(ink, fill) >= 4.5, fill


def test_an_unknown_theme_or_overlay_is_refused() -> None:
    with pytest.raises(ta.InputError, match=r"there is no theme 'drak'; did you mean 'dark'\?"):
        compiler.picture("mhsa", theme="drak")
    with pytest.raises(ta.InputError, match=r"there is no overlay 'plans'; did you mean 'plan'\?"):
        compiler.picture("mhsa", overlay="plans")
    for form, asked in (("txt", {"overlay": "plan"}), ("mmd", {"theme": "dark"})):
        with pytest.raises(ta.InputError, match=f"'{form}' pictures do not show .*; draw to '.svg'"):
            compiler.picture("mhsa", form, **asked)


def test_the_plan_has_a_colour_for_each_way() -> None:
    plan = compiler.plan_of(build(ta.load("thsa")))
    shown = plan_overlay(plan)
    assert [words for words, _ in shown.legend] == ["one product", "blockwise"]
    assert shown.fills["Q"] == shown.fills["K"] == shown.fills["y"] == REGIONS[0]
    assert shown.fills["A"] == REGIONS[1]
    gates = plan_overlay(compiler.plan_of(build(ta.load("epa")))).fills
    assert gates["Gs.of"] != gates["Gs"]  # nested in the box, and computed before it
    drawn = to_svg(plan.graph, overlay=shown)
    assert ">blockwise</text>" in drawn


def test_the_cost_says_the_share_of_each_step() -> None:
    graph = build(ta.load("thsa"))
    costs, lengths = compiler.cost("thsa", n=1024).written, {"n": 1024, "m": 1024}
    shown = cost_overlay(graph, costs, {**lengths, "f": 512, "h": 1})
    assert shown.words["A"] == ("99.4 % of the work",)  # that of the scores inside, too
    assert "A.of" not in shown.words
    shares = [float(words.split()[0]) for (words,) in shown.words.values()]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert shown.widths["n"] > shown.widths["f"] > shown.widths["h"]
    drawn = to_dot(graph, overlay=shown)
    assert "99.4 % of the work" in drawn
    assert "penwidth=4.1" in drawn  # n


@pytest.mark.parametrize("name", ta.list_designs())
@pytest.mark.parametrize("overlay", ["plan", "cost"])
def test_every_design_shows_its_plan_and_cost(name: str, overlay: str) -> None:
    graph = build(ta.load(name))
    shown = compiler.overlay_of(graph, overlay, 64, None)
    assert shown.fills
    assert {*shown.fills} <= {*graph.step}
    drawn = to_dot(graph, overlay=shown)
    used = {fill for _, fill in shown.legend}
    assert used <= colours(drawn)

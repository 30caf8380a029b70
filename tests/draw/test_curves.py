"""Panels of curves: well-formed, the same bytes again, axes that hold the values, coinciding curves drawn once."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tensornet_attn.cli.cost import sweep
from tensornet_attn.cost.sweep import Sweep
from tensornet_attn.draw.sweep import STYLES, Panel, SweepCurve, curves, sweep_svg

XS = (128, 256, 512)


def panel(*ys: tuple[float | None, ...], title: str = "a title") -> Panel:
    drawn = tuple(SweepCurve(f"curve {i}", XS, values) for i, values in enumerate(ys))
    return Panel(title, "length n", drawn, "the same for all n")


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def lines(svg: str) -> list[str]:
    return re.findall(r'<path d="(M[^"]*)" fill="none"', svg)


def test_ratios_have_a_linear_axis_around_them():
    svg = curves([panel((0.95, 0.8, 0.7), (1.05, 1.0, 0.9))], "title", "about")
    assert {"0.7", "0.8", "0.9", "1", "1.1"} <= {*texts(svg)}
    assert "0" not in texts(svg)
    assert svg.count('stroke="#999"') == 1  # the line at 1


def test_counts_have_a_logarithmic_axis():
    svg = curves([panel((2_000.0, 40_000.0, 3_000_000.0))], "title", "about")
    assert {"1 k", "10 k", "100 k", "1 M", "10 M"} <= {*texts(svg)}


def test_each_curve_has_a_line_and_an_entry_of_the_legend():
    many = panel(*(((i + 1) / 10, (i + 2) / 10, (i + 3) / 10) for i in range(len(STYLES))))
    svg = curves([many], "title", "about")
    assert len(lines(svg)) == len(STYLES)
    assert {f"curve {i}" for i in range(len(STYLES))} <= {*texts(svg)}


def test_curves_that_coincide_are_drawn_once_and_said_to_be_the_same():
    svg = curves([panel((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)), panel((1.0, 2.0, 3.0), (2.0, 2.0, 3.0))], "title", "about")
    assert len(lines(svg)) == 1 + 2
    assert texts(svg).count("the same for all n") == 1


def test_a_value_that_is_missing_leaves_its_point_out():
    (line,) = lines(curves([panel((1.0, None, 3.0))], "title", "about"))
    assert line.count("L") == 1
    assert lines(curves([panel((None, None, None))], "title", "about")) == []


def test_a_flat_curve_and_one_point_have_axes_too():
    assert "nan" not in curves([panel((0.5, 0.5, 0.5))], "title", "about")
    one = Panel("one", "n", (SweepCurve("a", (8,), (0.25,)),))
    assert "nan" not in curves([one], "title", "about")


@pytest.mark.parametrize("amount", [1, 2, 3, 4])
def test_everything_stands_inside(amount: int) -> None:
    svg = curves([panel((1.0, 2.0, 3.0), (2.0, 3.0, 5.0))] * amount, "title", "about")
    root = ElementTree.fromstring(svg)
    wide, high = int(root.attrib["width"]), int(root.attrib["height"])
    for node in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(node.attrib["x"]) < wide
        assert 0 < float(node.attrib["y"]) < high


def test_a_sweep_is_described_in_words_and_escaped():
    asked = Sweep(("mqa",), {"n": (64, 128), "h": (4, 8)}, ("macs", "parameters"), against="mhsa")
    svg = sweep_svg(sweep(asked))
    assert svg == sweep_svg(sweep(asked))
    root = ElementTree.fromstring(svg)
    title, about = (root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc"))
    assert title == "mqa against mhsa: batch 1, float32, as planned"
    assert about is not None
    assert about.startswith("macs (multiply-adds of a forward pass). h = 4: 0.")
    assert "macs, ratio to mhsa" in texts(svg)
    assert "a &lt; b" in curves([panel((1.0, 2.0, 3.0), title="a < b")], "title", "about")

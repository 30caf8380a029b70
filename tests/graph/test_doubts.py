"""Warnings about scores that nothing normalises along the keys, and about rotations on one side."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.doubts import rotated_alone, unnormalized_scores
from tests.shipped import graph_of

SCORES = "Q[n h d] K[m h d] -> h n m"


def warned(extends: str, **diagram: Any) -> list[str]:
    design = {"tensornet": 1, "name": "doubtful", "extends": extends, "diagram": diagram}
    return [str(problem).partition(": ")[2] for problem in ta.check(design) if problem.code != "unused"]


@pytest.mark.parametrize("leg", ["n", "h"])
def test_a_softmax_over_another_leg_than_the_keys(leg: str) -> None:
    assert warned("mhsa", A={"softmax": leg, "of": SCORES}) == [
        f"softmax-leg: warning: 'A' is a softmax over '{leg}', and nothing normalizes its scores over the keys 'm'.\n"
        "  hint: write 'softmax: m', or normalize the result over 'm' in another box."
    ]
    squares = {"map": "relu", "of": SCORES}
    assert [text.partition(":")[0] for text in warned("mhsa", A={"normalize": leg, "of": squares})] == ["softmax-leg"]


def test_a_softmax_over_another_leg_beside_one_over_the_keys() -> None:
    """Slot attention: slots compete for each key, then the weights of each slot are normalised."""
    slots = {"softmax": "n", "of": SCORES}
    assert warned("mhsa", A={"normalize": "m", "of": slots}) == []
    assert warned("mhsa", A={"softmax": "n", "of": {"softmax": "m", "of": SCORES}}) == []


@pytest.mark.parametrize(("side", "other", "leg"), [("Q", "K", "n"), ("K", "Q", "m")])
def test_a_rotation_of_one_side(side: str, other: str, leg: str) -> None:
    rotated = {f"{side}r": {"rope": leg, "along": "d", "of": side}}
    names = {"Q": "Q", "K": "K"} | {side: f"{side}r"}
    scores = {"A": {"softmax": "m", "of": f"{names['Q']}[n h d] {names['K']}[m h d] -> h n m"}}
    assert warned("mhsa", **rotated, **scores) == [
        f"rotated-alone: warning: '{side}r' is rotated and '{other}' is not, so their product depends on absolute "
        f"positions.\n  hint: rotate '{other}' too, or neither of them."
    ]


def test_shipped_designs_are_not_doubted() -> None:
    for name in ta.list_designs():
        assert unnormalized_scores(graph_of(name)) == [], name
        assert [*rotated_alone(graph_of(name))] == [], name

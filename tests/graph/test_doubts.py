"""Warnings about scores that nothing normalises along the keys, and about rotations on one side."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.doubts import rotated_alone, unnormalized_scores
from tests.shipped import graph_of

SCORES = "Q[n h d] K[m h d] -> h n m"


def warned(**diagram: Any) -> list[tuple[str, str, str]]:
    """The warnings about mhsa with these steps instead: code, message and hint."""
    design = {"tensornet": 1, "name": "doubtful", "extends": "mhsa", "diagram": diagram}
    problems = ta.check(design)
    assert all(problem.severity == "warning" for problem in problems)
    return [(problem.code, problem.message, problem.hint) for problem in problems]


@pytest.mark.parametrize("leg", ["n", "h"])
def test_a_softmax_over_another_leg_than_the_keys(leg: str) -> None:
    squares = {"map": "square", "of": SCORES}
    for kind, scores in (("softmax", SCORES), ("normalize", squares)):
        message = f"'A' is a {kind} over '{leg}', and nothing normalizes its scores over the keys 'm'."
        hint = f"write '{kind}: m', or normalize the result over 'm' in another box."
        assert warned(A={kind: leg, "of": scores}) == [("softmax-leg", message, hint)]


def test_a_softmax_over_another_leg_beside_one_over_the_keys() -> None:
    """Slot attention: slots compete for each key, then the weights of each slot are normalised."""
    slots = {"softmax": "n", "of": SCORES}
    assert warned(A={"normalize": "m", "of": slots}) == []
    assert warned(A={"softmax": "n", "of": {"softmax": "m", "of": SCORES}}) == []


@pytest.mark.parametrize(("side", "other", "leg"), [("Q", "K", "n"), ("K", "Q", "m")])
def test_a_rotation_of_one_side(side: str, other: str, leg: str) -> None:
    steps = {"R": {"rope": leg, "along": "d", "of": side}, "A": {"softmax": "m", "of": SCORES.replace(side, "R")}}
    message = f"'R' is rotated and '{other}' is not, so their product depends on absolute positions."
    assert warned(**steps) == [("rotated-alone", message, f"rotate '{other}' too, or neither of them.")]


def test_shipped_designs_are_not_doubted() -> None:
    for name in ta.list_designs():
        assert unnormalized_scores(graph_of(name)) == [], name
        assert [*rotated_alone(graph_of(name))] == [], name

"""Objectives: points to be minimised, bounds in words, and spaces that keep to a study's bounds."""

from __future__ import annotations

from math import inf, nan

import pytest

from tensornet_attn.search import Price, load, propose
from tensornet_attn.search.study import OBJECTIVES, Limit
from tensornet_attn.search.trial import broken, excess, larger, points, values_at, values_of, within
from tests.refusals import refusal
from tests.search.made import SPACE, study, trial

PRICE = Price(1000, 250, 500, 100)


def test_only_quality_is_better_when_larger() -> None:
    assert [name for name in OBJECTIVES if larger(name)] == ["quality"]


def test_values_are_those_that_are_known() -> None:
    costs = {"macs": 1000.0, "parameters": 250.0, "activations": 500.0, "decoding_state": 100.0}
    assert values_of(PRICE, None) == costs
    assert values_of(PRICE, 0.5, 1e-3) == costs | {"quality": 0.5, "latency": 1e-3}


def test_values_have_the_quality_of_their_rung() -> None:
    one = trial(0, quality=(0.9, 0.4), rung=2, latency=0.25)
    assert [values_at(one, rung).get("quality") for rung in range(4)] == [None, 0.9, 0.4, None]
    assert {values_at(one, rung)["latency"] for rung in range(3)} == {0.25}


def test_points_are_minimised_and_the_unknown_is_worst() -> None:
    trials = [trial(0, quality=0.75, macs=7), trial(1, quality=None, macs=5), trial(2, rung=0), trial(3, quality=nan)]
    assert points(trials, ("quality", "macs", "latency")) == [
        (-0.75, 7.0, inf),
        (inf, 5.0, inf),
        (inf, 1000.0, inf),
        (inf, 1000.0, inf),
    ]


BOUNDS = {"macs": Limit(least=10, most=1_000_000), "quality": Limit(least=0.5), "latency": Limit(most=0.002)}
BROKEN = [
    ({"macs": 1_000_000.0, "quality": 0.5, "latency": 0.002}, None, 0.0),
    ({"macs": 1_500_000.0}, "macs at most 1,000,000, not 1,500,000", 0.5),
    ({"macs": 5.0}, "macs at least 10, not 5", 0.5),
    ({"quality": 0.123456789}, "quality at least 0.5, not 0.123457", 0.753086422),
    ({"quality": nan}, "quality at least 0.5, not nan", inf),
    ({"latency": 0.003, "quality": 0.25}, "quality at least 0.5, not 0.25", 1.0),
    ({}, None, 0.0),
]


@pytest.mark.parametrize(("values", "words", "share"), BROKEN)
def test_bounds(values: dict[str, float], words: str | None, share: float) -> None:
    own = study(bounds=BOUNDS)
    assert broken(own, values) == words
    assert excess(own, values) == pytest.approx(share, rel=1e-12)


def test_bounds_on_costs_hold_for_proposals() -> None:
    space = load(SPACE)
    free = [propose(space, 0, number).price.macs for number in range(12)]
    middle = sorted(free)[6]
    tight = within(study(bounds={"macs": Limit(most=middle), "quality": Limit(least=2.0)}), space)
    assert max(free) > middle >= max(propose(tight, 0, number).price.macs for number in range(12))
    assert refusal(propose, within(study(bounds={"macs": Limit(most=1)}), space), 0, 0).startswith(
        "all 160 drafts of the space 'tiny' were refused: 160 by 'macs at most 1';"
    )

"""Equal designs are recognised at sizes where a leg is none."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.search.build import essence
from tensornet_attn.search.sketch import sketch_of

EQUAL: list[tuple[str, dict[str, Any], str]] = [
    ("gqa", {"g": 1, "j": 8}, "mqa"),
    ("gqa", {"g": 8, "j": 1}, "mhsa"),
    ("gqa_rope", {"g": 8, "j": 1}, "mhsa_rope"),
]


@pytest.mark.parametrize(("name", "legs", "other"), EQUAL)
def test_a_leg_of_size_one_is_none(name: str, legs: dict[str, Any], other: str) -> None:
    design = ta.load(name, legs=legs)
    assert design.hash != ta.load(other).hash
    assert essence(sketch_of(design), design.hash) == ta.load(other).hash


@pytest.mark.parametrize(
    ("name", "legs"), [("mhsa", {}), ("mgk", {"r": 1}), ("mhsa_core", {"h": 1}), ("alibi", {"h": 1})]
)
def test_a_leg_that_something_needs_stays(name: str, legs: dict[str, Any]) -> None:
    design = ta.load(name, legs=legs)
    assert essence(sketch_of(design), "own") in ("own", design.hash)

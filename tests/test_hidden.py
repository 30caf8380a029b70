"""What a mask hides may be infinite or NaN: it reaches neither the output nor a gradient, on any backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.decay_designs import DECAYS, compare_decay
from tests.hidden_cases import BAD, BOXES, F64, FORMS, MAPS, MASKS, Case, check

PLANS = [("reference", {}), ("torch", {}), ("torch", {"linear_memory": True})]


def turned(place: int) -> tuple[Case, torch.dtype, float]:
    """Every map in every box, each with another form, mask, dtype and number than the one before."""
    function, box = MAPS[place // len(BOXES)], BOXES[place % len(BOXES)]
    cases = (
        Case(function, box, form, mask)
        for step in range(99)
        for form, mask in [([*FORMS][(place * 5 + step) % len(FORMS)], MASKS[(place * 3 + step) % len(MASKS)])]
    )
    return next(case for case in cases if case.possible), (torch.float32, F64)[place % 2], BAD[place % len(BAD)]


@pytest.mark.parametrize("place", range(len(MAPS) * len(BOXES)), ids=lambda place: str(turned(place)[0]))
def test_every_map_in_every_box(place: int) -> None:
    case, dtype, bad = turned(place)
    check(case, PLANS, 24, dtype, bad)


LONG = pytest.param(1024, marks=pytest.mark.rotated)


@pytest.mark.parametrize("n", [64, LONG])
@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay(name: str, options: tuple[str, dict[str, Any]], n: int) -> None:
    """exp(c[n] - c[m]) overflows in float32 where the key is later than the query."""
    compare_decay(name, *options, n, torch.float32)


@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay_in_float64(name: str, options: tuple[str, dict[str, Any]]) -> None:
    compare_decay(name, *options, 64, F64)

"""What a mask hides reaches neither the output nor a gradient of a kernel, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

import tensornet_attn as ta
from tests.decay_designs import DECAYS, compare_decay
from tests.hidden_cases import (
    BOXES,
    F64,
    MAPS,
    OVERFLOWS,
    PADDED,
    ROWS,
    Case,
    check,
    check_overflow,
    check_padded,
    check_rows,
    module_of,
    rows_design,
)
from tests.test_hidden import compare_pairs, turned
from tests.test_random_designs import filtered, seeds
from tests.triton.regions import draw, on_triton, pair, same

KERNELS = [("triton", {})]
EVERY = 12  # of all maps in all boxes, one in so many runs each time


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=[pytest.mark.slow] if place % EVERY else [], id=str(turned(place)[0]))
        for place in range(len(MAPS) * len(BOXES))
    ],
)
def test_every_map_in_every_box(place: int) -> None:
    case, dtype, bad = turned(place)
    check(case, KERNELS, 24, dtype, bad)


@pytest.mark.parametrize("form", ["times", "over heads", pytest.param("two boxes", marks=pytest.mark.slow)])
def test_regions_of_tiles(form: str) -> None:
    """A product, heads that a mask of the call names and are summed, and two masks: what is hidden, kernels know."""
    case = Case("exp", "softmax", form, "heads")
    regions = on_triton(ta.compile(case.design(), "triton", dtype=F64))
    assert {name.partition(".")[0] for name in regions} == {"y"}  # of two boxes, each has its own
    check(case, KERNELS, 24, F64, torch.nan)


@pytest.mark.parametrize("name", OVERFLOWS)
def test_products_that_overflow(name: str) -> None:
    check_overflow(name, "triton", {})


@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay(name: str) -> None:
    compare_decay(name, "triton", {}, 64, torch.float32)


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_a_key_mask_hides(name: str) -> None:
    module = module_of(rows_design(name), "triton", F64)
    check_rows(module, torch.nan)
    if name in PADDED:
        check_padded(module, torch.nan)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=filtered)
@given(seeds)
def test_hidden_entries_of_random_designs(seed: int) -> None:
    compare_pairs(seed, "triton")


BEYOND: dict[str, Any] = {
    "tensornet": 1,
    "name": "beyond",
    "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3},
    "inputs": {"a": "n h", "b": "m h", "e": "m d"},
    "weights": {"W": "h"},
    "diagram": {
        "D": {"map": "exp", "of": "a[n h] - b[m h] -> h n m"},
        "L": {"map": "log", "of": "b[m h] + a[n h] - 19 -> h n m"},
        "P": "D[h n m] W[h] + L[h n m] -> h n m",
        "y": "P[h n m] e[m d] -> n h d",
    },
    "output": "y",
}


def test_maps_beyond_the_last_key() -> None:
    """Blocks end after the keys: exp(a - b) would overflow there, as the log of what is negative is no number."""
    module, oracle = pair(BEYOND)
    inputs = [10 + 0.1 * draw(2, 21, 2), 10 + 0.1 * draw(2, 21, 2, seed=1), draw(2, 21, 3)]
    same(module, oracle, inputs)


def test_gradients_of_pairs_that_no_block_has() -> None:
    """Of what is given for each query and key, kernels leave out the blocks that a mask hides."""
    data = Case("sigmoid", "softmax", "alone", "window").design()
    module, oracle = pair(data)
    torch.full((2, 2, 70, 70), torch.nan, dtype=F64)  # what memory may hold
    same(module, oracle, [draw(2, 70, 3), draw(2, 70, 3, seed=1), draw(2, 2, 70, 70)])

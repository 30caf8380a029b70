"""Random designs and calls on Triton, in the interpreter: values, gradients and states of the reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.random_call import Call, same_if_usable
from tests.random_design import random_design
from tests.random_region import random_region
from tests.test_random_designs import causal_of, checked, filtered, pair
from tests.triton.regions import small_blocks

seeds = st.integers(0, 2**32)


def check(seed: int, data: dict[str, Any], length: int = 0) -> bool:
    """Whether there was something to compare; then it is the same. `length`: of queries and keys, if not 0."""
    draw = random.Random(seed)
    oracle, module = pair(data, seed, causal_of(data, draw), "triton")
    if not any(getattr(step.op, "kind", "") == "tiles" for step in module.plan.schedule.steps):
        return False
    call = Call(module.plan.graph, draw, seed)
    call.lengths = dict.fromkeys(call.lengths, length) if length else call.lengths
    return same_if_usable(module, oracle, *call.arguments())


@pytest.mark.parametrize("seed", [24, 45, 62, 183, 2186, 100515, 300311, 400381, 500225])
def test_some(seed: int) -> None:
    """Long addresses, noise on the key leg, coefficients, entries that stand for all of a leg, a batch of alike,
    a mask that is added to what is averaged over the keys, legs with names that kernels need,
    sums over heads of what all heads share, maps that are mixed after they are normalized."""
    check(seed, random_design(random.Random(seed)))


@pytest.mark.parametrize("seed", range(12))
def test_maps_of_several_legs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 16 queries and keys."""
    small_blocks(monkeypatch)
    check(seed, random_region(random.Random(seed)), 21)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=filtered)
@given(seeds)
def test_many(seed: int) -> None:
    assume(check(seed, checked(seed)))

"""What a mask hides may be infinite or NaN: it reaches neither the output nor a gradient, on any backend."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensornet_attn.reference import evaluate
from tests.decay_designs import DECAYS, compare_decay
from tests.hidden_cases import BAD, BOXES, F64, FORMS, MAPS, MASKS, Case, check, module_of, results
from tests.random_call import Call, assert_same, usable
from tests.random_call import results as results_of
from tests.test_random_designs import causal_of, checked, filtered, pair, seeds

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


KEYS_ALONE = {
    "tensornet": 1,
    "name": "keys",
    "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3},
    "inputs": {"x": "n d", "g": "m h", "e": "m d"},
    "weights": {"W": "d h"},
    "diagram": {
        "l": {"sum": "m", "of": {"map": "log", "of": "g"}},
        "K": {"map": "exp", "of": "e[m d] W[d h] -> m d h"},
        "A": {"normalize": "m", "of": "x[n d] K[m d h] -> h n m"},
        "y": "l[h] A[h n m] e[m d] -> n h d",
    },
    "output": "y",
}
FAST = KEYS_ALONE | {
    "name": "fast",
    "causal": True,
    "inputs": {"x": "m d", "g": "m h", "e": "m d"},
    "diagram": {
        "rate": {"map": "power(-0.5)", "of": "g"},
        "K": {"l1norm": "d", "of": {"map": "exp", "of": "e[m d] W[d h] -> m d h"}},
        "V": "x[m d] W[d h] -> m h",
        "y": {"delta_rule": "m", "query": "x[n d] W[d h] -> n d h", "key": "K", "value": "V", "rate": "rate"},
    },
}


@pytest.mark.parametrize("data", [KEYS_ALONE, FAST], ids=lambda data: data["name"])
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_keys_that_a_key_mask_hides(options: tuple[str, dict[str, Any]], data: dict[str, Any]) -> None:
    """Roots and logs of gates that are zero there, features that overflow: infinite maps of finite keys."""
    draw = torch.Generator().manual_seed(0)
    x, g, e = (torch.rand(2, 20, width, generator=draw, dtype=F64) + 0.5 for width in (3, 2, 3))
    key_mask = torch.rand(2, 20, generator=draw) < 0.6
    hidden = ~key_mask[..., None]
    module = module_of(data, options[0], F64, **options[1])
    plain = results(module, [x, g, e], {"key_mask": key_mask})
    found = results(module, [x, g.masked_fill(hidden, 0), e.masked_fill(hidden, 1e4)], {"key_mask": key_mask})
    for got, want in zip(found, plain, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10 * max(1.0, want.abs().max().item()))


@settings(max_examples=60, suppress_health_check=filtered)
@given(seeds)
def test_hiding_changes_nothing_else(seed: int) -> None:
    """Where all is finite, a random design is what it is without it: nothing counts as hidden that somebody sees."""
    data, draw = checked(seed), random.Random(seed)
    causal = causal_of(data, draw)
    first, second = (pair(data, seed, causal, "reference")[0] for _ in range(2))
    inputs, options = Call(first.plan.graph, draw, seed).arguments()
    with patch.dict(evaluate.__globals__, hiding=lambda graph, *_, **__: graph):
        wanted = results_of(first, inputs, options)
    assume(usable(wanted))
    assert_same(results_of(second, inputs, options), wanted)


@pytest.mark.slow
@settings(max_examples=1500, suppress_health_check=filtered)
@given(seeds)
def test_hiding_changes_nothing_else_in_many(seed: int) -> None:
    test_hiding_changes_nothing_else.hypothesis.inner_test(seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(MAPS), st.sampled_from(BOXES), st.sampled_from([*FORMS]), st.sampled_from(MASKS), seeds)
def test_many_calls(function: str, box: str, form: str, mask: str, seed: int) -> None:
    case = Case(function, box, form, mask)
    assume(case.possible)
    draw = random.Random(seed)
    check(case, PLANS, draw.choice([1, 17, 64, 130]), draw.choice([torch.float32, F64]), draw.choice(BAD))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_queries(form: str) -> None:
    check(Case("exp", "keep", form, "causal"), PLANS, 1024, torch.float32, torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["twice", "over heads"])
def test_compiled_by_inductor(form: str) -> None:
    check(Case("exp", "softmax", form, "heads"), [("inductor", {})], 24, torch.float32, torch.inf)

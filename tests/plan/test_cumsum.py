"""Sums over the keys: one cumulative sum where what is summed is a product of sides, and the result is the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import same_outcome

from .decay_cases import CONSTANTS
from .linear_cases import diagram
from .test_decay import SHAPES
from .test_linear import draw, modules, same_with_masks

READ = "T[h n] q[n h] Wt[f h] -> n f"


def summed(of: Any, read: str = READ, **more: Any) -> dict[str, Any]:
    made = diagram({"T": {"sum": "m", "of": of, **more}, "y": read})
    return made | {"constants": {"one": CONSTANTS["one"]} if "one[" in str(of) else {}}


SUMS = {
    "keys": summed("one[n] k[m h] -> h n m"),
    "queries and keys": summed("q[n h] k[m h] -> h n m"),
    "the query first": summed("q[n h] k[m h] -> n h m", "T[n h] q[n h] Wt[f h] -> n f"),
    "features": summed("0.5 * Q[n h d] K[m h d] + one[n] k[m h] - b[h] q[n h] k[m h] -> h n m"),
    "a number without legs": summed("q[n h] k[m h] - 0.5 * wu[d] wu[d] + b[h] -> h n m"),
    "rows of a core": summed("P[g h] Qg[n g d] Kg[m g d] -> h n m"),
}
OTHERS = {
    "a mask of its own": summed("q[n h] k[m h] -> h n m", mask=["window(3, 0)"]),
    "a map": summed({"map": "tanh", "of": "q[n h] k[m h] -> h n m"}),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_one_running_sum_and_the_result_is_the_same(name: str, causal: bool) -> None:
    source = SUMS[name]
    if causal:
        source = source | {"diagram": source["diagram"] | {"T": source["diagram"]["T"] | {"mask": ["causal"]}}}
    told = "a cumulative sum over the keys" if causal else "a sum over the keys, once for all queries"
    ours, oracle = modules(source, False)
    assert f"  T: {told}" in ours.explain().splitlines()
    for (n, m), batch in zip(SHAPES, itertools.cycle([(2,), ()]), strict=False):
        added = draw(*batch, 3, n, m, seed=4)  # a number for each pair
        same_with_masks(ours, oracle, n, m, batch, added)


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    ours, oracle = modules(OTHERS[name], False)
    assert "sum over the keys" not in ours.explain()
    same_outcome(ours, oracle, [draw(2, 5, 4), draw(2, 6, 4, seed=1)])


def test_a_sum_costs_what_its_keys_cost() -> None:
    """As many multiply-adds for a query as it has heads, whatever the number of keys."""
    design = ta.load(SUMS["keys"])
    macs = [ta.cost(design, n=n, m=m).best.total.macs for n, m in ((64, 1), (64, 1000))]
    keys = [ta.cost(design, n=1, m=m).best.total.macs for m in (1, 1000)]
    assert macs[1] - macs[0] == keys[1] - keys[0]


def test_a_sum_is_as_exact_in_bfloat16_as_one_rounding() -> None:
    design = ta.load(
        SUMS["keys"]
        | {"diagram": SUMS["keys"]["diagram"] | {"T": {"sum": "m", "mask": ["causal"], "of": "one[n] k[m h] -> h n m"}}}
    )
    module = ta.compile(design, dtype=torch.bfloat16)
    x, z = (draw(2000, 4, seed=i).bfloat16() for i in range(2))
    exact = ta.compile(design, "reference", dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    wanted = exact(x.double(), z.double())
    assert (module(x, z).double() - wanted).abs().max() < 0.02 * wanted.abs().max()

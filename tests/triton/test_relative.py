"""Scores by relative position in kernels: lengths, masks, heads mixed, maps before the shift, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tests.plan.rows_cases import SCORES, design
from tests.triton.regions import F64, draw, on_triton, pair, same

SMALL = {"f": 12, "h": 2}
FAR = {"far": {"legs": "l d", "value": "sinusoid"}}


def shifted(of: Any, scores: str = f"{SCORES[:-9]} + U[h n m] -> h n m", **more: Any) -> dict[str, Any]:
    """A design whose scores have a part by relative position l."""
    legs = {"l": "relative"}
    return design({"map": "tanh", "of": scores}, legs=legs, U={"rel_shift": "l", "to": "m", "of": of}, **more)


DESIGNS = {
    "one row for all queries": shifted("b[h] R2[d] far[l d] -> h l", constants=FAR),
    "a map before the shift": shifted({"map": "relu", "of": "Q[n h d] far[l d] -> h n l"}, constants=FAR),
    "heads mixed": shifted(
        "Q[n h d] far[l d] -> h n l", "P[h g] Q[n h d] K[m h d] + P[h g] U[h n m] -> g n m", constants=FAR,
        read="A[g n m] P[h g] V[m h d] Wo[h d f] -> n f",
    ),
}  # fmt: skip
DESIGNS["one row for all queries"]["weights"]["R2"] = "d"


@pytest.mark.parametrize(
    ("n", "m"), [(5, 40), *(pytest.param(n, m, marks=pytest.mark.slow) for n, m in [(19, 19), (40, 21), (70, 130)])]
)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(n: int, m: int, causal: bool) -> None:
    design = ta.load("transformer_xl", legs=SMALL)
    ours, oracle = (ta.compile(design, b, causal, dtype=F64) for b in ("triton", "reference"))
    oracle.load_state_dict(ours.state_dict())
    assert on_triton(ours) == {"y.p1"}
    same(ours, oracle, [draw(2, n, 12), draw(2, m, 12, seed=1)])


@pytest.mark.parametrize(("n", "m"), [(3, 0), (1, 1)])
def test_small(n: int, m: int) -> None:
    ours, oracle = pair("transformer_xl", legs=SMALL)
    same(ours, oracle, [draw(2, n, 12), draw(2, m, 12, seed=1)])


def test_masks() -> None:
    ours, oracle = pair("transformer_xl", legs=SMALL)
    mask = torch.where(draw(2, 7, 35, seed=3) < 0.8, draw(2, 7, 35, seed=4), -torch.inf)
    inputs = [draw(2, 7, 12), draw(2, 35, 12, seed=1)]
    same(ours, oracle, inputs, mask=mask, key_mask=draw(2, 35, seed=5) < 0.8)


@pytest.mark.parametrize("name", DESIGNS)
def test_diagrams(name: str) -> None:
    ours, oracle = pair(DESIGNS[name])
    assert on_triton(ours)
    same(ours, oracle, [draw(2, 18, 6), draw(2, 35, 6, seed=1)])


def test_gradients_of_positions_are_the_same_each_time() -> None:
    ours, _ = pair("transformer_xl", legs=SMALL)
    found = [torch.autograd.grad(ours(draw(1, 20, 12)).sum(), ours.Wr)[0] for _ in range(2)]
    assert torch.equal(*found)


def test_two_legs_of_relative_positions_have_no_tiles() -> None:
    two = shifted("Q[n h d] far[l d] -> h n l", f"{SCORES[:-9]} + U[h n m] + U2[h n m] -> h n m",
                  U2={"rel_shift": "p", "to": "m", "of": "Q[n h d] near[p d] -> h n p"},
                  constants=FAR | {"near": {"legs": "p d", "value": "sinusoid"}})  # fmt: skip
    two["legs"]["p"] = "relative"
    plan = plan_of(build(ta.load(two)), "triton")
    told = {reason for region in plan.regions for low in region.refused for reason in low.against}
    assert "'l' and 'p' are both relative positions" in told

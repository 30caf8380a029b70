"""Maps that only mask and divide: queries that read their products with values become part of the scores."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import same_outcome
from tests.refusals import refusal

from .linear_cases import positive
from .test_linear import draw, modules, same_with_masks

MOVED = "  P: the queries that read its products with values move into the scores"
SIZES = {"f": 4, "h": 2, "d": 3, "e": 32, "r": 16}
FASTER = {"d": 8, "e": 8}  # sizes at which queries in the scores take less time
WEIGHTS = {
    "Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Ws": "f h r", "Wa": "f h r", "Wr": "h r f", "Wo": "h e f",
    "Wz": "h r e f",
}  # fmt: skip
FIRST: dict[str, Any] = {
    "Q": "x[n f] Wq[f h d] -> n h d",
    "K": "z[m f] Wk[f h d] -> m h d",
    "V": "z[m f] Wv[f h e] -> m h e",
    "s": positive("z[m f] Ws[f h r] -> m h r"),
    "a": positive("x[n f] Wa[f h r] -> n h r"),
    "b": positive("2 * x[n f] Wa[f h r] -> n h r"),
    "D": {"map": "exp", "of": "-1 * b[n h r] - s[m h r] -> h r n m"},
}
MAP = {"normalize": "m", "of": "s[m h r] one[n] -> h r n m"}
KEPT = {"keep": "m", "of": "s[m h r] one[n] -> h r n m"}
Z = "P[h r n m] V[m h e] -> n h r e"
READ = "a[n h r] Z[n h r e] Wo[h e f] -> n f"


def design(P: Any = MAP, Z: Any = Z, y: str = READ, **between: Any) -> dict[str, Any]:
    """A design with the map P, its product Z with values unless it is None, other steps, and the output."""
    own = {"P": P, "Z": Z, **between, "y": y}
    steps = {name: step for name, step in own.items() if step is not None}
    for name in reversed(FIRST):
        steps = ({name: FIRST[name]} if re.search(rf"\b{name}\[", str(steps)) else {}) | steps
    return {
        "tensornet": 1, "name": "one",
        "legs": {"n": "query", "m": "key"}
        | {leg: f"head {size}" for leg, size in SIZES.items() if re.search(rf"\b{leg}\b", str(steps))},
        "inputs": {"x": "n f", "z": "m f"},
        "constants": {"one": {"legs": "n", "value": "ones"}} if "one[" in str(steps) else {},
        "weights": {name: legs for name, legs in WEIGHTS.items() if re.search(rf"\b{name}\[", str(steps))},
        "diagram": steps, "output": "y",
    }  # fmt: skip


MOVES = {
    "a leg of the map": design(),
    "kept": design(KEPT),
    "with eps": design(MAP | {"eps": 0.5}),
    "one product of all": design(Z=None, y="a[n h r] P[h r n m] V[m h e] Wo[h e f] -> n f"),
    "a leg of the values": design(
        Z="P[h r n m] K[m h d] -> n h r d", T="Q[n h d] Z[n h r d] -> n h r", y="T[n h r] Wr[h r f] -> n f"
    ),
    "both": design(
        Z="P[h r n m] K[m h d] -> n h r d",
        T={"softmax": "r", "of": "Q[n h d] Z[n h r d] -> n h r"},
        U=Z,
        y="T[n h r] U[n h r e] Wo[h e f] -> n f",
    ),
    "queries in the scores": design({"normalize": "m", "of": "2 * s[m h r] b[n h r] -> h r n m"}),
    "decay by the leg of the map": design({"keep": "m", "of": "s[m h r] D[h r n m] -> h r n m"}),
    "decay, divided by row sums": design({"normalize": "m", "of": "s[m h r] D[h r n m] -> h r n m"}),
    "decay, a leg of the values": design(
        {"keep": "m", "of": "s[m h r] D[h r n m] -> h r n m"},
        Z="P[h r n m] K[m h d] -> n h r d",
        T="Q[n h d] Z[n h r d] -> n h r",
        y="T[n h r] Wr[h r f] -> n f",
    ),
    "scaled, one term of several": design(
        Z="0.5 * P[h r n m] V[m h e] -> n h r e", y="3 * a[n h r] Z[n h r e] Wo[h e f] - x[n f] -> n f"
    ),
    "two terms of one sum": design(
        Z=None,
        y="a[n h r] P[h r n m] V[m h e] Wo[h e f] + b[n h r] P[h r n m] V[m h e] Wo[h e f] -> n f",
    ),
}
STAYS = {
    "read twice": design(y="a[n h r] Z[n h r e] Wo[h e f] + b[n h r] Z[n h r e] Wo[h e f] -> n f"),
    "no queries": design(y="Z[n h r e] Wz[h r e f] + x[n f] -> n f"),
    "a map between": design(R={"map": "tanh", "of": "Z"}, y="a[n h r] R[n h r e] Wo[h e f] -> n f"),
    "softmax": design({"softmax": "m", "of": "s[m h r] b[n h r] -> h r n m"}),
    "a window": design(MAP | {"mask": ["window(3, 0)"]}),
    "scores that sum a leg": design({"normalize": "m", "of": "s[m h r] b[n h r] Q[n h d] K[m h d] -> h r n m"}),
}


def hold(ours: Any, oracle: Any) -> None:
    for (n, m), batch in itertools.product([(5, 5), (3, 6), (6, 3), (40, 40), (1, 1)], [(), (2,)]):
        same_with_masks(ours, oracle, n, m, batch, draw(*batch, n, m, seed=4) > 0.5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MOVES)
def test_queries_move_into_the_scores_and_the_result_is_the_same(name: str, causal: bool) -> None:
    legs = MOVES[name]["legs"]
    legs = legs | {leg: f"head {size}" for leg, size in FASTER.items() if leg in legs}
    ours, oracle = modules(MOVES[name] | {"legs": legs}, causal, device_costs="generic")
    assert MOVED in ours.explain().splitlines()
    hold(ours, oracle)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", STAYS)
def test_other_products_stay(name: str, causal: bool) -> None:
    ours, oracle = modules(STAYS[name], causal)
    assert MOVED not in ours.explain().splitlines()
    hold(ours, oracle)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sum_that_decays_is_a_map_too(causal: bool) -> None:
    state = {"sum": "m", "of": "s[m h r] D[h r n m] V[m h e] -> h r n m e"}
    ours, oracle = modules(design(None, state, "a[n h r] Z[h r n e] Wo[h e f] -> n f"), causal)
    assert "  Z.map.o: linear attention" in ours.explain()
    hold(ours, oracle)


@pytest.mark.parametrize("name", ["abc", "gsa"])
def test_no_slot_is_stored_for_a_query(name: str) -> None:
    plan = ta.compile(name, "torch", device_costs="generic").plan
    assert not [step.name for step in plan.schedule.steps if {"n", "r", "d"} <= {*step.legs}]


def test_few_numbers_stay_as_they_are_written() -> None:
    legs = {"f": 16, "h": 2, "r": 1, "d": 1}
    assert (
        MOVED not in ta.compile(ta.load("abc", legs=legs), "torch", n=4, device_costs="generic").explain().splitlines()
    )


def test_hidden_values_reach_nothing() -> None:
    """Also where a query sees no key, so that its row sum is 0."""
    ours, oracle = modules(MOVES["both"], True)
    x, z = draw(6, 4), draw(6, 4, seed=1)
    keys = torch.tensor([False, False, True, True, False, True])
    same_outcome(ours, oracle, [x, z], key_mask=keys)
    one, other = (ours(x, z.masked_fill(~keys[:, None], value), key_mask=keys) for value in (0.0, torch.inf))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_mask_for_each_slot_is_refused_with_a_hint() -> None:
    ours, _ = modules(MOVES["both"], False)
    assert refusal(ours, draw(3, 4), draw(3, 4), mask=torch.ones(2, 16, 3, 3, dtype=torch.bool)) == (
        "one: mask has 4 dimensions; 'P' is planned as one map for many entries of its legs, so give [n, m] or "
        "[batch..., n, m], or compile with backend='reference'."
    )

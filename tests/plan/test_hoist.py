"""Maps that several products read: what they read is made once for each of the values, and the result is the same."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tests.agreement import same_outcome

from .explained import TRITON, ways
from .linear_cases import READ, SCORES, diagram, positive
from .test_linear import draw, modules

pytestmark = pytest.mark.usefixtures("in_blocks")

FUSED, LINEAR, ROWS = "fused attention", "linear attention", "blockwise"
SOFTMAX = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
FAR = {"normalize": "m", "of": SCORES}
TERM = "A[h n m] V[m h e] Wo[h e f]"
OTHER = "A[h n m] Vs[m e] Wo[h e f]"
READ_MORE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {  # steps; how what is read of each map is computed
    "in two terms": ({"A": SOFTMAX, "y": f"b[h] {TERM} - 0.5 * {TERM} -> n f"}, {"A": FUSED}),
    "in two steps": (
        {"A": SOFTMAX, "O": "A[h n m] V[m h e] -> n h e", "y": f"q[n h] O[n h e] Wo[h e f] + {TERM} -> n f"},
        {"A": FUSED},
    ),
    "a blend": (
        {"near": SOFTMAX, "far": FAR, "A": "near[h n m] + b[h] far[h n m] -> h n m",
         "y": f"{TERM} + q[n h] {TERM} -> n f"},
        {"near": FUSED, "far.o": LINEAR},
    ),
    "two kinds of values": ({"A": SOFTMAX, "y": f"{TERM} + {OTHER} -> n f"}, {"A": FUSED, "A.copy": FUSED}),
    "two kinds of values, one of them twice": (
        {"A": FAR, "y": f"{TERM} + {OTHER} - b[h] {TERM} -> n f"},
        {"A.o": LINEAR, "A.copy.o": LINEAR},
    ),
}  # fmt: skip
STAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "read once": ({"A": SOFTMAX, "y": READ}, {"A": FUSED}),
    "by a box too": (
        {"A": SOFTMAX, "T": {"max": "m", "of": "A"}, "y": f"{TERM} + T[h n] Wt[f h] -> n f"}, {"T": ROWS, "y.p1": ROWS}
    ),
    "with its keys": (
        {"A": SOFTMAX, "T": "A[h n m] k[m h] -> h n m", "y": f"{TERM} + T[h n m] Vs[m e] Wo[h e f] -> n f"},
        {"y.p1": ROWS, "y.p3": ROWS},
    ),
    "values of the query": (
        {"A": SOFTMAX, "y": f"{TERM} + A[h n m] W[n m h e] Wo[h e f] -> n f"}, {"y.p1": ROWS, "y.p3": ROWS}
    ),
    "a map that is stored": (
        {"A": {"softmax": "m", "of": positive(SCORES)}, "y": f"{TERM} + {OTHER} -> n f"}, {"y.p1": ROWS, "y.p3": ROWS}
    ),
    "dropout": ({"A": SOFTMAX | {"dropout": 0.1}, "y": f"{TERM} + {OTHER} -> n f"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", READ_MORE)
def test_what_the_map_reads_is_made_once(name: str, causal: bool) -> None:
    steps, wanted = READ_MORE[name]
    ours, oracle = modules(diagram(steps), causal)
    assert ways(ours.explain()) == wanted
    assert not any({"n", "m"} <= {*step.legs} for step in ours.plan.schedule.steps)
    same_outcome(ours, oracle, [draw(2, 6, 4), draw(2, 6, 4, seed=1)], key_mask=draw(2, 6, seed=2) > -0.3)
    same_outcome(ours, oracle, [draw(6, 4), draw(6, 4, seed=1)], mask=draw(6, 6, seed=2) > -0.3)


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    steps, wanted = STAYS[name]
    plan = ta.compile(diagram(steps), device_costs="generic").plan
    assert ways(plan.explain()) == wanted
    assert not any(step.name in ("A.V", "A.Vs", "A.copy") for step in plan.schedule.steps)
    stored = {step.name for step in plan.schedule.steps if {"n", "m"} <= {*step.legs}}
    assert stored == (set() if wanted else {"A.of", "A"})  # a map with dropout is drawn once, for both of its readers


def test_kernels_read_several_values_of_one_map() -> None:
    """So that a map is not made apart for them."""
    told = ta.explain(diagram(READ_MORE["two kinds of values"][0]), backend="triton")
    assert ways(told) == {"y.p1": TRITON, "y.p3": TRITON}
    assert "A.copy" not in told

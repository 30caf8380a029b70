"""Blends of attention maps become blends of what the maps read, where each map can then be lowered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agreement import same_outcome

from .explained import ways
from .linear_cases import READ, SCORES, diagram
from .test_linear import draw, modules

NEAR = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
FAR, KEPT = {"normalize": "m", "of": SCORES}, {"keep": "m", "of": "Qc[n d] Kc[m d] -> n m"}
GROUPS = {"softmax": "m", "of": "Qg[n g d] Kg[m g d] -> g n m"}
MANY = {"softmax": "m", "of": "Qj[n h j d] K[m h d] -> j h n m"}
DENSE = {"softmax": "m", "of": {"map": "tanh", "of": SCORES}}
TWO = {"near": NEAR, "far": FAR}
BOTH = {"near": "fused attention", "far.o": "linear attention"}
BLENDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {  # steps; how each map is computed with the values it reads
    "weighted": (TWO | {"A": "b[h] near[h n m] - 2 * far[h n m] -> h n m", "y": READ}, BOTH),
    "weighted by the query": (TWO | {"A": "q[n h] near[h n m] + far[h n m] -> h n m", "y": READ}, BOTH),
    "a map without heads": (
        {"near": NEAR, "far": KEPT, "A": "near[h n m] + b[h] far[n m] -> h n m", "y": READ}, BOTH
    ),
    "one map": ({"far": FAR, "A": "b[h] far[h n m] -> h n m", "y": READ}, {"far.o": "linear attention"}),
    "one map in two terms": (
        TWO | {"A": "near[h n m] + b[h] far[h n m] - 0.5 * far[h n m] -> h n m", "y": READ}, BOTH
    ),
    "a blend of blends": (
        TWO | {"third": KEPT, "T": "0.5 * near[h n m] + third[n m] -> h n m"}
        | {"A": "b[h] T[h n m] + far[h n m] -> h n m", "y": READ},
        BOTH | {"third.o": "linear attention"},
    ),
    "weighted by the key": (
        {"near": NEAR, "A": "k[m h] near[h n m] - 2 * b[h] near[h n m] -> h n m", "y": READ},
        {"near": "fused attention"},
    ),
    "one of two weighted by the key": (
        TWO | {"A": "q[n h] near[h n m] k[m h] + far[h n m] -> h n m", "y": READ}, BOTH
    ),
    "maps of several heads each": (
        {"near": MANY, "A": "Qj[n h j d] u[d] near[j h n m] -> h n m", "y": READ}, {"near": "fused attention"}
    ),
    "a map in two sums": (
        {"near": MANY, "A": "Qj[n h j d] u[d] near[j h n m] + R[g j] R[g j] near[j h n m] -> h n m", "y": READ},
        {"near": "fused attention"},
    ),
    "no projection after it": (
        TWO | {"A": "near[h n m] + far[h n m] -> h n m", "O": "2 * A[h n m] V[m h e] + V[n h e] -> n h e"}
        | {"y": "O[n h e] Wo[h e f] -> n f"},
        BOTH,
    ),
}  # fmt: skip
WHOLE: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "a map that no lowering takes": (
        {"near": DENSE, "far": FAR, "A": "near[h n m] + far[h n m] -> h n m", "y": READ},
        {"A": ("the map 'near' would still be stored",)},
    ),
    "read twice": (
        TWO | {"A": "near[h n m] + far[h n m] -> h n m", "y": READ.replace("->", "+ A[h n m] V[m h e] Wo[h e f] ->")},
        {},
    ),
    "heads mixed": ({"near": GROUPS, "far": FAR, "A": "P[g h] near[g n m] + far[h n m] -> h n m", "y": READ}, {}),
    "a leg of the values inside": (
        {"near": MANY, "A": "R[g j] near[j h n m] -> g h n m", "y": "A[g h n m] Vj[m h j e] Wp[j h e f] R[g j] -> n f"},
        {},
    ),
    "pairs beside maps": ({"far": FAR, "A": "far[h n m] + S[h n m] -> h n m", "y": READ}, {}),
    "a box between": (TWO | {"T": "near[h n m] + far[h n m] -> h n m", "A": {"map": "relu", "of": "T"}, "y": READ}, {}),
}


@pytest.mark.parametrize("name", BLENDS)
def test_each_map_reads_the_values(name: str) -> None:
    source, wanted = BLENDS[name]
    ours, oracle = modules(diagram(source), False)
    assert ways(ours.explain()) == wanted
    assert "not distribution" not in ours.explain()
    assert not any({"n", "m"} <= {*step.legs} for step in ours.plan.schedule.steps)  # no map is stored, nor a blend
    same_outcome(ours, oracle, [draw(2, 5, 4), draw(2, 5, 4, seed=1)])


@pytest.mark.parametrize("name", WHOLE)
def test_what_unlocks_nothing_stays_and_says_why(name: str) -> None:
    source, refused = WHOLE[name]
    ours, oracle = modules(diagram(source), False)
    assert all(f"\n    not distribution: {reason}" in ours.explain() for (reason,) in refused.values())
    same_outcome(ours, oracle, [draw(2, 5, 4), draw(2, 6, 4, seed=1)])

"""A design has a cache of constant size if, and only if, it trains in a time that is linear in the length."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.target import Target
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.kernels import KERNELS
from tensornet_attn.plan.decoding import as_decoder, decoding_of
from tensornet_attn.plan.make import plan_of
from tensornet_attn.tiles.legs import quadratic
from tests.relations.found import FOUND

N = 1 << 16
STATES = (
    "map_that_a_sum_and_values_read",
    "gated_square",
    "earlier_keys",
    "sum_over_earlier_keys",
    "square_with_its_sums",
)
GATED = [design for design in FOUND if design["name"] in STATES]


def for_all_pairs(graph: Graph) -> list[str]:
    """The steps of a plan whose work is that of all pairs of queries and keys."""
    schedule = plan_of(graph, "torch", Target(n=N)).schedule
    pairs = {kind for kind, row in KERNELS.items() if row.pairs and kind not in ("band", "scan")}
    return [
        step.name
        for step in schedule.steps
        if (step.kernel.kind in pairs if step.kernel else quadratic(schedule, step.legs))
    ]


@pytest.mark.parametrize(
    "design", [*ta.list_designs(), *GATED], ids=lambda design: getattr(design, "get", lambda _: design)("name")
)
def test_constant_states_train_linearly(design: str | dict[str, Any]) -> None:
    graph = build(ta.load(design))
    try:
        decoding = decoding_of(graph)
    except InputError:
        return  # no cache
    if graph.key is None or decoding.memory or all(kept.reach for kept in decoding.kept):
        return
    assert (decoding.floats(N) == decoding.floats(2 * N)) == (not for_all_pairs(graph))


def test_states_of_powers_are_not_larger_than_keys() -> None:
    """Values share the leg of keys, so that a state has the leg twice: 8 heads of 64 ** 3 elements."""
    assert as_decoder(build(ta.load("mhsa_poly"))).floats(1024) == 2 * 1024 * 512


def test_each_map_of_one_power_is_measured() -> None:
    """The features that the first map brings do not make the larger state of the second one small: 64 * 64 * 512."""
    design = ta.Design(
        tensornet=1,
        name="two_powers",
        causal=True,
        legs={"n": "query", "m": "key", "f": 8, "d": 64, "e": 1, "u": 512},
        inputs={"x": "n f"},
        weights={"Wq": "f d", "Wk": "f d", "Wv": "f e", "Wu": "f u", "Wo": "e f", "Wp": "u f"},
        diagram={
            "Q": "x[n f] Wq[f d] -> n d",
            "K": "x[m f] Wk[f d] -> m d",
            "S": {"map": "square", "of": "Q[n d] K[m d] -> n m"},
            "A": {"keep": "m", "of": "2 * S[n m] -> n m"},
            "B": {"keep": "m", "of": "3 * S[n m] -> n m"},
            "V": "x[m f] Wv[f e] -> m e",
            "U": "x[m f] Wu[f u] -> m u",
            "y": "A[n m] V[m e] Wo[e f] + B[n m] U[m u] Wp[u f] -> n f",
        },
        output="y",
    )
    decoding = decoding_of(build(design))
    assert [*decoding.reasons] == ["B"]
    assert "2,097,152 elements" in decoding.reasons["B"]
    assert any(kept.name.startswith("A.state") for kept in decoding.kept)


SECOND_MAP = """
tensornet: 1
name: own
causal: true
inputs: {x: n f}
output: y
legs: {n: query, m: key, f: 64, h: head 4, d: head 16, e: head 16}
weights: {Wq: f h d, Wk: f h d, Wv: f h e, Wg: f h d, Wo: h e f}
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  V: x[m f] Wv[f h e] -> m h e
  c: {cumsum: m, of: "x[m f] Wg[f h d] -> m h d"}
  D: {map: exp, of: "c[n h d] - c[m h d] -> h d n m"}
  A: {keep: m, of: "Q[n h d] K[m h d] D[h d n m] -> h n m"}
  B: BOX
  y: A[h n m] V[m h e] Wo[h e f] + B[h n m] V[m h e] Wo[h e f] -> n f
"""


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (
            '{keep: m, mask: causal(300), of: "Q[n h d] K[m h d] -> h n m"}',
            "a sum over all keys cannot exclude those that 'causal(300)' hides",
        ),
        (
            '{keep: m, of: "Q[n h e] K[m h d] D[h d n m] -> h e n m"}',
            "'D' decays along 'd', but the scores sum no leg of both",
        ),
    ],
)
def test_reasons_why_no_state_exists(box: str, reason: str) -> None:
    diagram = SECOND_MAP.replace("BOX", box)
    graph = build(ta.load(diagram.replace("B[h n m]", "B[h e n m]") if "h e n m" in box else diagram))
    decoding = decoding_of(graph)
    assert dict(decoding.reasons) == {"B": reason}
    assert f"no state of constant size for 'B': {reason}" in decoding.to_text()
    assert reason in plan_of(graph, "torch", Target(n=1024)).explain()

"""Absorbed weights as rewrites: what they make, and where they do not fit. That the function stays: test_rules."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.rewrite.engine import everywhere
from tensornet_attn.rewrite.products import ABSORPTIONS, CHAIN, KEY, VALUE

FITS = {"mla": ["K", "V"], "cross": ["K", "V"], "mhsa_rope": ["V"], "gqa": ["K", "V"], "transformer_xl": ["V"]}


def changed(before: Graph, after: Graph) -> list[str]:
    """The steps that were not there."""
    old = before.to_text().splitlines()
    return [line for line in after.to_text().splitlines() if "] = " in line and line not in old]


def variant(**diagram: Any) -> Graph:
    return build(ta.load({"tensornet": 1, "name": "variant", "extends": "mla", "diagram": diagram}))


def test_a_key() -> None:
    graph = build(ta.load("mla"))
    made = KEY.apply(graph, "K")
    assert made is not None
    assert changed(graph, made) == ["A.q[n h c] = Q[n h d] Wuk[c h d]", "A.of[h n m] = C[m c] A.q[n h c]"]


def test_a_value() -> None:
    graph = build(ta.load("mla"))
    made = VALUE.apply(graph, "V")
    assert made is not None
    assert changed(graph, made) == ["y[n f] = C[m c] Wuv[c h d] A[h n m] Wo[h d f]"]


def test_a_chain() -> None:
    graph = KEY.apply(build(ta.load("mla")), "K")
    assert graph is not None
    made = CHAIN.apply(graph, "Q")
    assert made is not None
    assert changed(graph, made) == ["A.q[n h c] = x[n f] Wq[f h d] Wuk[c h d]"]


def test_a_leg_that_both_sides_sum_gets_a_name_of_its_own() -> None:
    own = {"tensornet": 1, "name": "own", "extends": "mla", "weights": {"Z": "c"}, "diagram": {
        "u": "x[n f] Wc[f c] -> n c",
        "A": {"softmax": "m", "of": "Q[n h d] K[m h d] u[n c] Z[c] -> h n m"},
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    }}  # fmt: skip
    graph = build(ta.load(own))
    made = KEY.apply(graph, "K")
    assert made is not None
    (inner,) = (leg.name for leg in made.legs if leg not in graph.legs)
    assert changed(graph, made)[-1] == f"A.of[h n m] = C[m {inner}] A.q[n h {inner}]"
    assert made.leg[inner].size == graph.leg["c"].size


@pytest.mark.parametrize("name", FITS)
def test_where_they_fit(name: str) -> None:
    graph = build(ta.load(name))
    keys_and_values = [step.name for step in graph.steps for rule in (KEY, VALUE) if rule.apply(graph, step.name)]
    assert keys_and_values == FITS[name]


REFUSED = {
    "read twice": {"A": {"softmax": "m", "of": "Q[n h d] K[m h d] + K[m h d] K[m h d] -> h n m"}},
    "a box": {"K": {"map": "tanh", "of": "C[m c] Wuk[c h d] -> m h d"}},
    "a sum": {"K": "C[m c] Wuk[c h d] + C[m c] Wuv[c h d] -> m h d"},
    "a box reads it": {"B": {"map": "tanh", "of": "K[m h d]"},
                       "A": {"softmax": "m", "of": "Q[n h d] B[m h d] -> h n m"}},
}  # fmt: skip


@pytest.mark.parametrize("title", REFUSED)
def test_where_keys_stay(title: str) -> None:
    graph = variant(**REFUSED[title])
    assert KEY.apply(graph, "K") is None


def test_latents_that_nothing_else_reads_are_absorbed_too_and_no_weight_is_lost() -> None:
    own = {"tensornet": 1, "name": "own", "extends": "mla", "weights": {"Wuv": None, "Wv": "f h d"}}
    graph = build(ta.load(own | {"diagram": {"V": "x[m f] Wv[f h d] -> m h d"}}))
    made, trace = everywhere(graph, ABSORPTIONS)
    assert {firing.step_name for firing in trace} >= {"K", "V"}
    assert made.tensors == graph.tensors
    assert {"K", "V", "C"} & made.step.keys() == set()
    assert {t.name for t in made.of_role("weight")} <= made.readers.keys()

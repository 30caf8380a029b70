"""Roles are read off the wires: names, order of factors and nesting say nothing."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.graph import Use
from tensornet_attn.search import MOVES, apply
from tensornet_attn.search.roles import (
    AttentionMap,
    OperandPlace,
    ValueProduct,
    maps,
    output,
    projection,
    reader,
    source,
)
from tensornet_attn.search.sketch import sketch_of, slot_of, wire
from tests.shipped import OWN_KEYS

STRANGE = """
tensornet: 1
name: strange
legs: {q: query, k: key, a: 512, b: head 8, c: a / b}
inputs:
  V: q a
  d: {legs: k a, default: V}
weights: {K: a b c, x: a b c, A: a b c, Q: b c a}
diagram:
  Wv: A[a b c] d[k a] -> k b c
  y: K[a b c] V[q a] -> b q c
  Wq: d[k a] x[a b c] -> b k c
  Wo: Wq[b k c] y[b q c] -> b q k
  Wk: {softmax: k, scale: 1 / sqrt(c), of: Wo}
  z: Q[b c a] Wk[b q k] Wv[k b c] -> q a
output: z
"""
OWN = STRANGE.replace("  d: {legs: k a, default: V}\n", "").replace("d[k a]", "V[k a]")  # keys of the queries' input


@pytest.mark.parametrize(("text", "origin"), [(STRANGE, "d"), (OWN, "V")])
def test_the_roles_of_a_strange_design(text: str, origin: str) -> None:
    sketch = sketch_of(ta.load(text))
    (found,) = maps(sketch)
    assert found == AttentionMap("Wk", "Wo", 0, Use("y", ("b", "q", "c")), Use("Wq", ("b", "k", "c")))
    at = reader(sketch, "Wk")
    assert at == ValueProduct("z", 0, Use("Wk", ("b", "q", "k")), Use("Wv", ("k", "b", "c")))
    assert output(sketch, at) == OperandPlace("z", 0, Use("Q", ("b", "c", "a")))
    place = projection(sketch, found.key)
    assert place == OperandPlace("Wq", 0, Use("x", ("a", "b", "c")))
    assert source(sketch, place) == Use(origin, ("k", "a"))


@pytest.mark.parametrize(("named", "text"), [("mhsa", STRANGE), (OWN_KEYS, OWN)], ids=["memory", "own keys"])
@pytest.mark.parametrize("name", MOVES)
def test_a_move_does_not_read_names(name: str, named: Any, text: str) -> None:
    plain, strange = ta.load(named), ta.load(text)
    assert plain.hash == strange.hash
    one, other = apply(plain, name), apply(strange, name)
    assert one is not None
    assert other is not None
    assert one.hash == other.hash


@pytest.mark.parametrize(
    ("name", "boxes"),
    [("mlp", []), ("transformer_xl", []), ("differential", ["A1", "A2"]), ("fmm2", ["near", "far1", "far2"])],
)
def test_maps_of_shipped_designs(name: str, boxes: list[str]) -> None:
    assert [found.box for found in maps(sketch_of(ta.load(name)))] == boxes


def test_a_wire_goes_everywhere_until_it_is_cut() -> None:
    sketch = sketch_of(ta.load("mhsa"))
    key = maps(sketch)[0].key
    everywhere = wire(sketch, [slot_of(key, "h")])
    assert everywhere.owners == {"Q", "K", "V", "A.of", "A", "Wq", "Wk", "Wv", "Wo"}
    above = wire(sketch, [slot_of(key, "h")], frozenset({("A.of", "K")}))
    assert above.owners == {"K", "Wk"}
    assert above.slots == {("K", 1), ("Wk", 1)}

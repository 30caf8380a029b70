"""Sums that run along keys, in C++: which way the passes walk, and values and gradients."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tests.hidden_cases import FORMS, Case
from tests.hidden_cases import check as check_hidden
from tests.random_call import F64
from tests.tiles.test_cpp import check, compared, needs_compiler, regions

BOTH_WAYS = """
name: both_ways
extends: mhsa
legs: {f: 12, h: head 2, d: 6}
settings: {w: 90}
diagram:
  S: Q[n h d] K[m h d] -> h n m
  G: {map: sigmoid, of: S}
  up: {cumsum: m, of: G}
  down: {reverse_cumsum: m, mask: "window(w, 0)", of: G}
  T: {map: tanh, of: "0.1 * up[h n m] + 0.2 * down[h n m] -> h n m"}
  again: {cumsum: m, of: T}
  A:
    softmax: m
    of: S[h n m] + 0.1 * again[h n m] -> h n m
"""
OF_MAPS = """
name: of_maps
extends: talking_heads
legs: {f: 12, g: head 3, h: head 2, e: head 2}
diagram:
  A:
    softmax: m
    mask: causal(-3)
    of: Pl[g h] Q[n g d] K[m g d] -> h n m
  B: {cumsum: m, of: A}
  C: {reverse_cumsum: m, of: "A[h n m] B[h n m] -> h n m"}
  D: C[h n m] B[h n m] -> h n m
  U: D[h n m] Pw[h e] -> e n m
"""
MIXED_MAPS = """
name: mixed_maps
extends: talking_heads
legs: {f: 12, g: head 3, h: head 2, e: head 2}
diagram:
  S: Pl[g h] Q[n g d] K[m g d] -> h n m
  up: {cumsum: m, of: {map: sigmoid, of: S}}
  T: {map: tanh, of: up}
  down: {reverse_cumsum: m, of: T}
  A:
    softmax: m
    of: down
"""
RUNNING = {
    "D": {"map": "MAP", "of": "E"},
    "R": {"reverse_cumsum": "m", "of": "D"},
    "A": {"of": "D[h n m] - 0.1 * R[h n m] -> h n m"},
}


def walks(text: str) -> str:
    """The way of each pass: > from the first key on, < from the last one."""
    return "".join("<" if "start -= KEYS" in line else ">" for line in text.splitlines() if "for (long start" in line)


@pytest.mark.parametrize(
    ("source", "forward", "backward"),
    [
        ("stick_breaking", "<", "<>"),
        ("cope", "<", "<>"),
        (BOTH_WAYS, "><>", "><><>"),
        (MIXED_MAPS, "><>", "><>>><"),
        ("mhsa", ">", ">"),
    ],
)
def test_passes_walk_the_way_of_the_sums_that_they_make(source: str, forward: str, backward: str) -> None:
    (region,) = regions(source)
    first, second = region.text.split('extern "C"')[1:]
    assert (walks(first), walks(second)) == (forward, backward)


def test_triton_says_why_it_computes_no_running_sums() -> None:
    plan = plan_of(build(ta.load("stick_breaking")), "triton")
    told = [reason for region in plan.regions for low in region.refused for reason in low.against]
    assert "Triton kernels have no sums that run along keys, as 'left' does" in told


@needs_compiler
@pytest.mark.parametrize("causal", [True, False])
def test_stick_breaking(causal: bool) -> None:
    oracle, module = compared(ta.load("stick_breaking", legs={"f": 16, "h": 2}), causal=causal)
    for lengths in ((150, 150), (9, 300), (300, 9))[: 1 if causal else 3]:
        check(oracle, module, 16, lengths)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_contextual_positions(causal: bool) -> None:
    oracle, module = compared(ta.load("cope", legs={"f": 16, "h": 2, "p": 9}), causal=causal)
    oracle.E.data.normal_()  # type: ignore[union-attr, operator]
    module.load_state_dict(oracle.state_dict())
    check(oracle, module, 16, (150, 150) if causal else (70, 290))


HATS = """
name: hats
extends: cope
legs: {f: 16, h: head 2, p: head 9}
diagram:
  place: OF -> h n m
  near: {map: relu, of: "WIDTH - off[h n m p] -> h n m p"}
"""
COUNT, MIXED = "count[h n m]", "count[h n m] - 6 * S[h n m]"


@pytest.mark.parametrize(("of", "width", "sums"), [(COUNT, "1", False), (COUNT, "2", True), (MIXED, "1", False)])
def test_hats_are_lookups(of: str, width: str, sums: bool) -> None:
    (region,) = regions(HATS.replace("OF", of).replace("WIDTH", width))
    assert ("between(" in region.text) != sums
    assert ("at_p < 9" in region.text) == sums


TWO_PLACES = """
name: two_places
extends: mhsa
legs: {f: 16, h: head 2, p: head 9}
weights:
  E: {legs: d p, init: normal(1)}
constants:
  i: {legs: p, value: index}
diagram:
  S: Q[n h d] K[m h d] -> h n m
  z: Q[n h d] E[d p] -> n h p
  o1: {map: abs, of: "3 * S[h n m] - i[p] -> h n m p"}
  o2: {map: abs, of: "-2 * S[h n m] - i[p] -> h n m p"}
  n1: {map: relu, of: "1 - o1[h n m p] -> h n m p"}
  n2: {map: relu, of: "1 - o2[h n m p] -> h n m p"}
  A:
    softmax: m
    of: (d ** -0.5) * S[h n m] + n1[h n m p] z[n h p] + n2[h n m p] z[n h p] -> h n m
"""


@needs_compiler
@pytest.mark.slow
def test_one_table_read_at_two_places() -> None:
    oracle, module = compared(TWO_PLACES, causal=False)
    assert regions(TWO_PLACES)[0].text.count("between(") >= 2
    check(oracle, module, 16, (70, 150))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("of", "width"), [(COUNT, "1"), (COUNT, "2"), (MIXED, "1")])
def test_hats_beyond_their_table(of: str, width: str) -> None:
    oracle, module = compared(HATS.replace("OF", of).replace("WIDTH", width), causal=False)
    oracle.E.data.normal_()  # type: ignore[union-attr, operator]
    module.load_state_dict(oracle.state_dict())
    check(oracle, module, 16, (70, 150))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "causal"), [(BOTH_WAYS, True), (BOTH_WAYS, False), (OF_MAPS, False), (MIXED_MAPS, False)]
)
def test_sums_both_ways(source: str, causal: bool) -> None:
    oracle, module = compared(source, causal=causal)
    check(oracle, module, 12, (150, 150) if causal else (290, 150))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mask", ["causal", "boolean", "heads", "key_mask"])
@pytest.mark.parametrize(("function", "box"), [("softplus", "keep"), ("sigmoid", "softmax"), ("log", "softmax")])
def test_hidden_entries_reach_no_running_sum(function: str, box: str, mask: str) -> None:
    with patch.dict(FORMS, running=RUNNING):
        for bad in (torch.nan, torch.inf):
            check_hidden(Case(function, box, "running", mask), [("cpp", {})], 24, F64, bad)

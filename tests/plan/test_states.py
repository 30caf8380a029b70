"""Sums over the keys that queries read: linear attention written as its states, mixed over heads or not."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
import yaml

import tensornet_attn as ta
from tests.refusals import refusal

from .linear_cases import positive
from .test_decay import SHAPES
from .test_linear import CHOSEN, draw, modules, same_with_masks

pytestmark = pytest.mark.usefixtures("in_blocks")

STATE = "one[n] Kg[m g d] Vg[m g e] -> n m g d e"
OUT = "O[n h e] Wo[h e f] -> n f"
FIRST: dict[str, Any] = {
    "Q": positive("x[n f] Wq[f h d] -> n h d"),
    "Qc": positive("x[n f] Wqc[f d] -> n d"),
    "q": positive("x[n f] Wt[f h] -> n h"),
    "K": positive("z[m f] Wk[f h d] -> m h d"),
    "Kg": positive("z[m f] Wkg[f g d] -> m g d"),
    "Kc": positive("z[m f] Wkc[f d] -> m d"),
    "k": positive("z[m f] Wt[f h] -> m h"),
    "kg": positive("z[m f] Wtg[f g] -> m g"),
    "V": "z[m f] Wv[f h e] -> m h e",
    "Vg": "z[m f] Wvg[f g e] -> m g e",
    "Vs": "z[m f] Ws[f e] -> m e",
    "V0": "x[n f] Wv[f h e] -> n h e",
}
WEIGHTS = {
    "Wq": "f h d", "Wqc": "f d", "Wt": "f h", "Wk": "f h d", "Wkg": "f g d", "Wkc": "f d", "Wtg": "f g", "Wv": "f h e",
    "Wvg": "f g e", "Ws": "f e", "Wo": "h e f", "Wu": "e f", "P": "g h", "b": "h", "u": "d", "c": "g", "B": "h d e",
}  # fmt: skip
SIZES = {"f": 4, "h": 3, "g": 2, "d": 4, "e": 3}


def read(state: Any = STATE, out: str = OUT, **more: Any) -> dict[str, Any]:
    """A design with the state S, what is made of it in `more`, and the output."""
    own = {"S": {"sum": "m", "of": state}, **more, "y": out}
    used = [name for name in FIRST if re.search(rf"\b{name}\[", str(own))]
    steps = {name: FIRST[name] for name in used} | own
    weights = {name: legs for name, legs in WEIGHTS.items() if re.search(rf"\b{name}\[", str(steps))}
    legs = [leg for leg in SIZES if any(leg in own.split() for own in (*weights.values(), "f"))]
    return {
        "tensornet": 1, "name": "one", "legs": {"n": "query", "m": "key"} | {leg: f"head {SIZES[leg]}" for leg in legs},
        "inputs": {"x": "n f", "z": "m f"}, "weights": weights, "constants": {"one": {"legs": "n", "value": "ones"}},
        "diagram": steps, "output": "y",
    }  # fmt: skip


MIXED = {  # the states of few heads, mixed before they are read
    "mixed states": read(T="P[g h] S[n g d e] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"),
    "mixed where they are read": read(O="Q[n h d] P[g h] S[n g d e] -> n h e"),
    "mixed alike for all heads": read(T="c[g] S[n g d e] -> n d e", O="Q[n h d] T[n d e] -> n h e"),
    "mixed twice": read(T="P[g h] b[h] S[n g d e] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"),
    "with a constant state beside": read(T="P[g h] S[n g d e] + B[h d e] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"),
    "with a product beside": read(
        T="P[g h] S[n g d e] + 2 * P[g h] c[g] B[h d e] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"
    ),
    "with numbers beside": read(T="P[g h] S[n g d e] + b[h] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"),
    "scaled, read by a term of two": read(
        T="0.5 * P[g h] S[n g d e] -> n h d e", O="2 * Q[n h d] T[n h d e] + V0[n h e] -> n h e"
    ),
    "one product of all": read(T="P[g h] S[n g d e] -> n h d e", out="q[n h] Q[n h d] T[n h d e] Wo[h e f] -> n f"),
    "keys without values": read(
        "one[n] Kg[m g d] -> n m g d", T="P[g h] S[n g d] -> n h d", O="Q[n h d] T[n h d] V0[n h e] -> n h e"
    ),
    "one query head": read(O="Qc[n d] c[g] S[n g d e] -> n e", out="O[n e] Wu[e f] -> n f"),
    "weighted keys": read(
        "one[n] Kg[m g d] kg[m g] u[d] Vg[m g e] -> n m g d e", O="Q[n h d] P[g h] S[n g d e] -> n h e"
    ),
}
MAPS = {  # the same heads in queries and keys: linear attention as it is known
    "heads": read("one[n] K[m h d] V[m h e] -> n m h d e", O="Q[n h d] S[n h d e] -> n h e"),
    "no heads": read("one[n] Kc[m d] Vs[m e] -> n m d e", O="Qc[n d] S[n d e] -> n e", out="O[n e] Wu[e f] -> n f"),
    "one state for all query heads": read("one[n] Kc[m d] Vs[m e] -> n m d e", O="Q[n h d] S[n d e] -> n h e"),
}
OTHERS = {  # a state that is more than mixed, or read by no feature
    "a map of the state": read(
        R={"map": "relu", "of": "S"}, T="P[g h] R[n g d e] -> n h d e", O="Q[n h d] T[n h d e] -> n h e"
    ),
    "no feature is summed": read("one[n] k[m h] V[m h e] -> n m h e", O="q[n h] S[n h e] -> n h e"),
    "read twice": read(T="P[g h] S[n g d e] -> n h d e", O="Q[n h d] T[n h d e] + Q[n h d] P[g h] S[n g d e] -> n h e"),
}


def causal_too(source: dict[str, Any], causal: bool) -> dict[str, Any]:
    state = source["diagram"]["S"] | ({"mask": ["causal"]} if causal else {})
    return source | {"diagram": source["diagram"] | {"S": state}}


def hold(source: dict[str, Any]) -> None:
    ours, oracle = modules(source, False)
    for (n, m), batch in zip([*SHAPES, (70, 70), (40, 90)], itertools.cycle([(2,), ()]), strict=False):
        same_with_masks(ours, oracle, n, m, batch, draw(*batch, n, m, seed=4) > 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_few_states_are_mixed_before_many_heads_read_them(name: str, causal: bool) -> None:
    source = causal_too(MIXED[name], causal)
    chunks = ", in chunks of 16" if causal else ""
    told = f": mixed states: the keys are summed first, then mixed over 'g' and read by queries{chunks}"
    assert told in ta.compile(source, n=4096, m=4096, device_costs="generic").explain()
    hold(source)


@pytest.mark.parametrize("name", [name for name in MIXED if name.startswith("with ")])
def test_what_is_added_to_states_is_added_before_queries_read_them(name: str) -> None:
    """Except numbers without a leg of the states: queries read these on their own."""
    source = ta.emit_source(ta.load(MIXED[name]), package=True)
    assert ("added=" in source.partition("def mixed_states")[0]) == (name != "with numbers beside")


def test_a_design_with_noise_in_its_states_reads_them_once() -> None:
    source = ta.emit_source("lfish", package=True)
    assert "maps=(elu1, elu1), added=(KV_added, E)" in " ".join(source.split())
    assert "einsum" not in source


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_states_of_the_heads_that_read_them_are_linear_attention(name: str, causal: bool) -> None:
    source = causal_too(MAPS[name], causal)
    assert f": {CHOSEN}" in ta.compile(source, n=4096, m=4096, device_costs="generic").explain()
    hold(source)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_states_stay(name: str, causal: bool) -> None:
    source = causal_too(OTHERS[name], causal)
    assert "mixed states" not in ta.compile(source, device_costs="generic").explain()
    hold(source)


@pytest.mark.parametrize("source", [MIXED["mixed states"], MAPS["heads"]], ids=["mixed", "maps"])
def test_nothing_is_added_to_a_sum_that_is_read_as_attention(source: dict[str, Any]) -> None:
    """A float mask would be added to each number of the state."""
    module = ta.compile(source, n=4096, m=4096)
    assert refusal(module, torch.randn(2, 5, 4), torch.randn(2, 5, 4), mask=torch.randn(5, 5)) == (
        "one: a float mask cannot be added in 'S', a sum that is planned as attention; give a boolean one, or compile "
        "with backend='reference'."
    )


@pytest.mark.parametrize("causal", [False, True])
def test_keys_and_values_and_the_same_keys_alone_are_one_call(causal: bool) -> None:
    design = ta.load("hard_lfish", legs={"f": 4, "h": 4, "g": 2, "d": 3, "e": 2})
    source = yaml.safe_load(design.to_yaml()) | {"causal": causal}
    forward = ta.emit_source(source, package=True).partition("def forward")[2].partition("\n\n\n")[0]
    assert "KV_read, z_read = mixed_states_and_blockwise(" in forward
    assert "mixed_states(" not in forward
    assert "in one call with 'KV.read'" in ta.compile(source, device_costs="generic").explain()
    hold(source)


def test_causal_states_of_one_call_make_their_scores_once() -> None:
    n, legs = 4096, {"f": 512, "h": 8, "g": 2}
    found = ta.cost(ta.load("hard_lfish", legs=legs), n=n, causal=True).best
    macs = {row.step.split()[0]: row.macs for row in found.steps}
    heads, chunk, d = 8 * 2, 32, 64
    assert macs["z.read"] == n // chunk * heads * d + n * 8 * d
    assert macs["KV.read"] == n * 2 * d * d + n // chunk * heads * d * d + n * 8 * d * d + n * chunk * heads * 2 * d


def test_multiply_adds_of_the_linear_part_follow_the_global_heads() -> None:
    """(g + h) / 2 h of those of `linear`, the mixing of states apart: exactly."""
    n, f, h, g = 4096, 512, 8, 2
    d = f // h
    lfish = ta.cost(ta.load("hard_lfish", legs={"f": f, "h": h, "g": g}), n=n).best.total.macs
    linear = ta.cost(ta.load("linear", legs={"f": f, "h": h}), n=n).best.total.macs
    mixing = h * g * d * (d + 1)
    rows = n * h * d  # what queries read of the sums of the keys
    states = 2 * n * h * d * d
    assert linear - 4 * n * f * f - rows == states
    assert lfish - 2 * n * f * f - 2 * n * f * g * d - rows - mixing == states * (g + h) // (2 * h)

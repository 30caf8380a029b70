"""Scores by relative position in kernels: lengths, masks, heads mixed, maps before the shift, tables with a reach, and
what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import emit_source, plan_of
from tensornet_attn.graph import build
from tests.plan.blockwise_cases import READ, SCORES, design
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


BIASED = f"{SCORES[:-9]} + U[h n m] -> h n m"


def reaching(of: Any, scores: str = BIASED, read: str = READ, reach: int = 4, **more: Any) -> dict[str, Any]:
    """A design whose scores have a part from a table of distances t."""
    legs = {"t": f"relative {reach}", **more.pop("legs", {})}
    return design(scores, read, legs=legs, U={"rel_shift": "t", "to": "m", "of": of}, **more)


TABLES = {
    "a bias of each head": reaching("B"),
    "a bias of all heads": reaching("R1", f"{SCORES[:-9]} + U[n m] -> h n m"),
    "by query": reaching("Q[n h d] R2[t d] -> h n t"),
    "a factor of scores": reaching({"map": "tanh", "of": "B"}, f"U[h n m] {SCORES}"),
    "heads mixed, then again": reaching(
        "B", "P[h g] Q[n h d] K[m h d] + P[h g] U[h n m] -> g n m", "A2[h n m] V[m h d] Wo[h d f] -> n f",
        A2="A[g n m] P[h g] -> h n m",
    ),
    "a table made of others": reaching("b[h] R1[t] + far[t d] R4[d] -> h t",
                                       constants={"far": {"legs": "t d", "value": "sinusoid"}}),
    "one distance": reaching("B", reach=1),
    "causal": reaching("B", causal=True),
    "in a window": reaching("B", box={"mask": ["window(2, 6)"]}),
    "beside relative positions without a reach": reaching(
        "B", f"{SCORES[:-9]} + U[h n m] + U2[h n m] -> h n m", legs={"l": "relative"},
        U2={"rel_shift": "l", "to": "m", "of": "Q[n h d] far[l d] -> h n l"}, constants=FAR,
    ),
    "two tables": reaching("B", f"{SCORES[:-9]} + U[h n m] + U2[h n m] -> h n m", legs={"p": "relative 2"},
                           U2={"rel_shift": "p", "to": "m", "of": "Q[n h d] R3[p d] -> h n p"}),
}  # fmt: skip
for _name, _legs in (("R1", "t"), ("R2", "t d"), ("R3", "p d"), ("R4", "d")):
    for _one in TABLES.values():
        if _name in str(_one["diagram"]):
            _one["weights"][_name] = _legs


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("n", "m"), [(18, 35), pytest.param(40, 21, marks=pytest.mark.slow)])
def test_tables(name: str, n: int, m: int) -> None:
    same_length = "m" in TABLES[name]["legs"] and TABLES[name].get("causal", False)
    ours, oracle = pair(TABLES[name])
    assert on_triton(ours)
    assert ours.plan.regions
    keys = [draw(2, n if same_length else m, 6, seed=1)]
    same(ours, oracle, [draw(2, n, 6), *keys], key_mask=draw(2, keys[0].shape[1], seed=5) < 0.8)


def test_a_table_of_all_ranks_where_programs_loop_over_them() -> None:
    """Its rows are added to by one program, rank after rank: not as many parts as there are ranks."""
    ranks = design(
        "C[r s] Q[n s] K[m s] + U[n m] -> r n m",
        "A[r n m] V[m r] Wo[r f] -> n f",
        legs={"r": "head 8", "s": "head 4", "t": "relative 3"},
        U={"rel_shift": "t", "to": "m", "of": "R1"},
    )
    ranks["weights"] = {"C": "r s", "Wq": "f s", "Wk": "f s", "Wv": "f r", "Wo": "r f", "R1": "t"}
    ranks["diagram"] |= {"Q": "x[n f] Wq[f s] -> n s", "K": "z[m f] Wk[f s] -> m s", "V": "z[m f] Wv[f r] -> m r"}
    ranks["legs"] = {leg: size for leg, size in ranks["legs"].items() if leg in "nmfrst"}
    ours, oracle = pair(ranks)
    assert on_triton(ours)
    source = emit_source(ta.load(ranks), backend="triton")
    assert 'loops={"rows": "r"' in source
    assert re.search(r"R1_before, R1_after,\s+True", source)
    same(ours, oracle, [draw(2, 21, 6), draw(2, 35, 6, seed=1)])
    same(ours, oracle, [draw(70, 6), draw(70, 6, seed=1)])


def test_gradients_of_tables_are_the_same_each_time() -> None:
    ours, _ = pair(TABLES["a bias of each head"])
    found = [torch.autograd.grad(ours(draw(1, 20, 6), draw(1, 20, 6, seed=1)).sum(), ours.B)[0] for _ in range(2)]
    assert torch.equal(*found)
    ours.B.requires_grad_(False)
    torch.autograd.grad(ours(draw(1, 20, 6), draw(1, 20, 6, seed=1)).sum(), ours.Wq)


def test_a_table_that_is_made_for_each_block_has_no_tiles() -> None:
    """More numbers than its factors, and read by this group alone: it is not kept for all rows."""
    plan = plan_of(build(ta.load(reaching("S[n h] B[h t] -> h n t", legs={"n": "query 64"}))), "triton")
    told = {reason for region in plan.regions for low in region.refused for reason in low.against}
    assert "'U.of' is computed per block, but read by the distance of query and key" in told

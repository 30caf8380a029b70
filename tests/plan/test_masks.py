"""Masks and what `and`, `or`, `not` make of them: like a plain boolean matrix, in every way to compute them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.kernels import blocks
from tests.agreement import in_chunks, modules
from tests.masked import CAUSAL, MANY, MASKS, design, matrix
from tests.random_call import F64, same_results

pytestmark = pytest.mark.usefixtures("in_blocks")

N = 13
PLANS: dict[str, Mapping[str, Any]] = {
    "dense": {"n": 1, "m": 1},
    "fused": {"n": 64, "m": 64},
    "long": {"n": 4096, "m": 4096},
}


def plainly(module: Any, x: torch.Tensor, z: torch.Tensor, keep: torch.Tensor, kind: str) -> torch.Tensor:
    """The design of `masked` with a boolean matrix."""
    q, k, v = (torch.einsum("bnf,fhd->bhnd", of, getattr(module, w)) for of, w in ((x, "Wq"), (z, "Wk"), (z, "Wv")))
    maps = q @ k.mT / 3**0.5
    if kind == "softmax":
        maps = maps.masked_fill(~(keep | ~keep.any(-1, keepdim=True)), -torch.inf).softmax(-1)
    if kind == "normalize":
        maps = maps.exp()
    maps = torch.where(keep, maps, 0)
    if kind == "normalize":
        maps = maps / maps.sum(-1, keepdim=True).where(keep.any(-1, keepdim=True), 1)
    return torch.einsum("bhnm,bhmd,hdf->bnf", maps, v, module.Wo)


@pytest.mark.parametrize("kind", ["softmax", "normalize", "keep"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_is_a_plain_matrix_in_values_and_gradients(mask: str, kind: str) -> None:
    oracle, _ = modules(design(mask, kind, own=False))
    for n, m in ((N, N), (4, N), (N, 9)):
        x, z = (torch.randn(2, length, 6, dtype=F64, requires_grad=True) for length in (n, m))
        wanted, found = plainly(oracle, x, z, matrix(mask, n, m), kind), oracle(x, z)
        torch.testing.assert_close(found, wanted)
        direction, given = torch.randn_like(found), [x, z, *oracle.parameters()]
        for one, other in zip(*(torch.autograd.grad(y, given, direction) for y in (found, wanted)), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mask", MASKS)
def test_code_is_the_reference_in_values_and_gradients(mask: str, plan: str) -> None:
    oracle, module = modules(design(mask, own=False), **PLANS[plan])
    for n, m in ((N, N), (4, N), (N, 9)):
        inputs = [torch.randn(2, length, 6, dtype=F64) for length in (n, m)]
        for options in ({}, {"mask": torch.rand(n, m) < 0.6}, {"key_mask": torch.rand(2, m) < 0.6}):
            same_results(module, oracle, inputs, options)


@pytest.mark.parametrize("kind", ["softmax", "normalize", "keep"])
@pytest.mark.parametrize("mask", MASKS)
def test_blocks_of_queries_are_the_reference(mask: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST", 4)
    monkeypatch.setattr(blocks, "budget_of", lambda device: 4)
    oracle, module = modules(design(mask, kind, wide=True, own=False))
    assert "blockwise" in module.explain()
    for n, m in ((N, N), (4, N), (N, 9)):
        inputs = [torch.randn(2, length, 6, dtype=F64) for length in (n, m)]
        options = {"mask": torch.rand(n, m) < 0.6} if n < m else {}
        same_results(module, oracle, inputs, options)


@pytest.mark.parametrize(
    ("mask", "causal", "reach"),
    [
        ("causal and (window(w, 0) or prefix(p))", False, ["reach=(3, 0, 2)"]),
        ("prefix(p)", False, ["reach=(-1, 0, 2)"]),
        ("causal", False, []),
        ("causal(1)", False, ["reach=(None, -1, 0)"]),
        ("block(w) and causal(1)", False, ["reach=(2, -1, 0)"]),
        ("window(w, p)", False, ["reach=(3, 2, 0)"]),
        ("window(w, p)", True, ["reach=(3, 0, 0)"]),
        ("block_causal(w)", False, ["reach=(None, 2, 0)"]),
    ],
)
def test_a_block_has_the_keys_that_its_rows_may_see(mask: str, causal: bool, reach: list[str]) -> None:
    source = ta.emit_source(design(mask, wide=True), causal=causal, backend="torch", package=True)
    assert re.findall(r"reach=\([^)]*\)", source) == reach
    assert "keys=(" in source


def test_second_derivatives_of_a_block_that_lacks_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST", 4)
    monkeypatch.setattr(blocks, "budget_of", lambda device: 4)
    x, found = torch.randn(1, N, 6, dtype=F64, requires_grad=True), []
    for module in modules(design("causal and (window(w, 0) or prefix(p))", wide=True)):
        (gradient,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        found += torch.autograd.grad(gradient.square().sum(), x)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mask", ["window(w, 0)", "window(1, p)", "block(w) and causal", "prefix(1) or window(w, 0)"])
@pytest.mark.parametrize("bias", ["gap", "far", "near", "place"])
def test_a_block_without_the_first_keys_knows_where_it_is(
    mask: str, bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LEAST", 4)
    monkeypatch.setattr(blocks, "budget_of", lambda device: 4)
    source = design(mask, wide=True, own=False)
    source["legs"] |= {"far": {"t": "relative"}, "near": {"t": "relative 3"}}.get(bias, {}) | {"d": "head 3"}
    source["weights"] |= {"near": {"B": "t h"}, "far": {"u": "h d"}, "place": {"u": "h d"}}.get(bias, {})
    source["constants"] = {
        "gap": {"G": {"legs": "n m", "value": "distance"}},
        "far": {"P": {"legs": "t d", "value": "sinusoid"}},
        "place": {"P": {"legs": "m d", "value": "sinusoid"}},
    }.get(bias, {})
    more = {
        "gap": {"S": "0.1 * Q[n h d] K[m h d] + 0.1 * G[n m] -> h n m"},
        "near": {"R": {"rel_shift": "t", "to": "m", "of": "B"}, "S": "0.1 * Q[n h d] K[m h d] + R[n m h] -> h n m"},
        "far": {
            "R": {"rel_shift": "t", "to": "m", "of": "u[h d] P[t d] Q[n h d] -> h n t"},
            "S": "0.1 * Q[n h d] K[m h d] + R[h n m] -> h n m",
        },
        "place": {"S": "0.1 * Q[n h d] K[m h d] + u[h d] Q[n h d] P[m d] -> h n m"},
    }[bias]
    steps = source["diagram"] | more
    steps["S"] = {"map": "tanh", "of": steps["S"]}
    source["diagram"] = {name: steps[name] for name in ("Q", "K", "V", *more, "A", "y") if name in steps}
    oracle, module = modules(source)
    assert ("reach=(" in module.source) == ("prefix" not in mask or bias in ("gap", "place"))
    for n, m in ((N, N), (4, N), (N, 9)):
        inputs = [torch.randn(2, length, 6, dtype=F64) for length in (n, m)]
        same_results(module, oracle, inputs)


@pytest.mark.parametrize("mask", MASKS)
def test_causality_is_proved_where_there_is_one(mask: str) -> None:
    module = ta.compile(design(mask), dtype=F64)
    if mask not in CAUSAL:
        with pytest.raises(ta.InputError, match="in 'A' a query sees later keys; compile it with causal=True"):
            module.new_cache()
        module = ta.compile(design(mask), dtype=F64, causal=True)
    x = torch.randn(2, N, 6, dtype=F64)
    for cuts in ([1] * N, [3, 1, 9]):
        torch.testing.assert_close(in_chunks(module, x, cuts), module(x))


@pytest.mark.parametrize("mask", MASKS)
def test_the_hash(mask: str) -> None:
    graph = ta.build(ta.Design(**design(mask)))
    assert ta.build(ta.Design(**design(f"({mask})"))).hash == graph.hash
    joined, listed = (ta.build(ta.Design(**design(mask))) for mask in (f"global(9) and ({mask})", ["global(9)", mask]))
    assert joined.hash == listed.hash


@pytest.mark.parametrize("mask", ["causal and (window(w, 0) or prefix(p))", "block_causal(w)"])
@pytest.mark.parametrize("wide", [False, True])
def test_exported_for_any_length(mask: str, wide: bool) -> None:
    module = ta.compile(design(mask, wide=wide), dtype=F64, n=4096, m=4096).eval()
    x, length = torch.randn(2, 40, 6, dtype=F64), torch.export.Dim("n", min=2, max=512)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {1: length}}).module()
    for n in (40, 2, 70):
        x = torch.randn(2, n, 6, dtype=F64)
        torch.testing.assert_close(program(x), module(x))


def test_what_a_text_joins_by_and_is_a_list_of_masks() -> None:
    one, other = (ta.build(ta.Design(**design(mask))) for mask in ("causal and band(3)", ["causal", "band(3)"]))
    assert one == other
    assert ta.build(ta.Design(**design("causal(0)"))) == ta.build(ta.Design(**design("causal")))


BANDED = (
    "not document or band(1)",
    "window(1, -1)", "window(-1, w)", "causal and (window(w, 0) or prefix(p))", "band(w) and not band(p - 1)",
    "block(w)", "block(4) and not dilated(w)", "window(2 * w, 0) and dilated(2)", "prefix(p)", "block(w) and causal(1)",
    "not document or band(1)", MANY,
)  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_blocks_of_what_is_near_and_of_the_first_keys(mask: str) -> None:
    oracle, module = modules(design(mask, own=False), n=4096, m=4096)
    assert ("banded attention: blocks" in module.explain()) == (mask in BANDED)
    for n, m in ((100, 100), (40, 150), (150, 90)) if mask in BANDED else ():
        inputs = [torch.randn(2, length, 6, dtype=F64) for length in (n, m)]
        for options in ({"mask": torch.randn(n, m, dtype=F64)}, {"key_mask": torch.rand(2, m) < 0.6}):
            same_results(module, oracle, inputs, options)


def test_the_first_keys_and_those_nearby_are_blocks() -> None:
    module = ta.compile(design("causal and (window(64, 0) or prefix(4))"), n=4096, m=4096)
    assert "blocks of 32 queries read 100 keys each, including the first 4" in module.explain()
    module = ta.compile(design("global(4) or band(9)"), n=4096, m=4096)
    assert "not banded attention: its masks do not bound the distance of visible keys" in module.explain()


@pytest.mark.parametrize("wide", [False, True])
def test_keys_that_are_left_out_cost_nothing(wide: bool) -> None:
    def scores(mask: str) -> int:
        report = ta.cost(design(mask, wide=wide), n=8192).as_dict()
        return (
            report["planned"]["total"]["macs"]
            - ta.cost(design("window(0, 0)", wide=wide), n=8192).as_dict()["planned"]["total"]["macs"]
        )

    every = 2 * 8192 * 8192 * 6  # products of queries, keys and values of two heads
    assert scores("causal and (window(63, 0) or prefix(4))") < every / 64
    assert scores("block_causal(64)") > every / 2

"""Masks of the table and formulas of them in kernels, in the interpreter; blocks that no query sees are left out."""

from __future__ import annotations

import pytest
import torch

from tests.agreement import in_chunks, modules
from tests.masked import MASKS, design
from tests.random_call import F64, same_results
from tests.triton.regions import on_triton


@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients(mask: str) -> None:
    oracle, module = modules(design(mask, own=False), "triton")
    assert on_triton(module)
    for n, m in ((70, 60), (9, 70)):
        inputs = [torch.randn(1, length, 6, dtype=F64) for length in (n, m)]
        options = {"mask": torch.rand(n, m) < 0.6} if n < m else {}
        same_results(module, oracle, inputs, options)


@pytest.mark.parametrize("mask", ["global(p)", "block(w)", "band(w) and not band(p - 1)"])
def test_values_and_gradients_of_some(mask: str) -> None:
    test_values_and_gradients(mask)


@pytest.mark.parametrize(("n", "m"), [(300, 300), (40, 260)])
@pytest.mark.parametrize(
    "mask", ["causal and (window(w, 0) or prefix(p))", "global(p) or band(w)", "prefix(p)", "prefix(p) and not causal"]
)
def test_blocks_between_the_first_keys_and_those_nearby_are_left_out(mask: str, n: int, m: int) -> None:
    oracle, module = modules(design(mask, own=False), "triton")
    assert ("prefix = " in module.source) == ("or" in mask)
    inputs = [torch.randn(1, length, 6, dtype=F64) for length in (n, m)]
    same_results(module, oracle, inputs)


@pytest.mark.parametrize("mask", ["causal and (window(w, 0) or prefix(p))", "window(2 * w, 0) and dilated(2)"])
def test_chunks_are_the_same_as_at_once(mask: str) -> None:
    oracle, module = modules(design(mask), "triton")
    x = torch.randn(1, 13, 6, dtype=F64)
    torch.testing.assert_close(in_chunks(module.eval(), x, [5, 1, 7]), oracle(x))

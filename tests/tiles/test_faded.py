"""Blocks of keys whose weights are all 0, in C++: they are left out, but not where infinity or NaN could hide."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.random_call import F64, same_results
from tests.tiles.test_cpp import check, compared, needs_compiler, regions

STEEP = """
name: steep
extends: alibi
legs: {f: 16, h: head 2}
diagram:
  A:
    softmax: m
    of: (d ** -0.5) * Q[n h d] K[m h d] - 4 * slopes[h] gap[n m] -> h n m
"""


@pytest.mark.parametrize(
    ("name", "left_out"), [("alibi", True), ("fox", True), ("mhsa", False), ("talking_heads", False)]
)
def test_where_weights_may_be_zero(name: str, left_out: bool) -> None:
    (region,) = regions(name)
    assert ("if (live ||" in region.text) == left_out


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_values_and_gradients(causal: bool) -> None:
    oracle, module = compared(STEEP, causal=causal)
    check(oracle, module, 16, (1500, 1500))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("weight", ["Wq", "Wk", "Wv"])
def test_what_is_not_finite_stays(bad: float, weight: str) -> None:
    """A weight 0 times infinity is NaN, as it is without blocks."""
    torch.manual_seed(0)
    plain = ta.compile(ta.load(STEEP), "torch", dtype=F64, causal=False)
    module = ta.compile(ta.load(STEEP), "cpp", dtype=F64, causal=False)
    getattr(plain, weight).data[0, 0, 0] = bad
    module.load_state_dict(plain.state_dict())
    x = torch.zeros(1500, 16, dtype=F64)
    x[:, 1:] = torch.randn(1500, 15, dtype=F64)
    x[0, 0] = 1.0  # the first key is far from most queries
    results = []
    for layer in (plain, module):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        (gradient,) = torch.autograd.grad(y[1000:].sum(), leaf)
        results.append((y.isfinite(), gradient.isfinite()))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@needs_compiler
@pytest.mark.slow
def test_queries_that_see_no_key() -> None:
    """The first queries are before all keys: no block of theirs begins at a key."""
    window = STEEP.replace("softmax: m", 'softmax: m\n    mask: "causal(5) and window(700, 0)"')
    oracle, module = compared(window, causal=False)
    check(oracle, module, 16, (1500, 1100))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("name", "own"), [("stick_breaking", {}), ("cope", {"p": 9})])
def test_blocks_that_masks_of_the_call_hide(name: str, own: dict[str, int]) -> None:
    oracle, module = compared(ta.load(name, legs={"f": 16, "h": 2} | own), causal=True)
    x = torch.randn(2, 700, 16, generator=torch.Generator().manual_seed(0), dtype=F64)
    place = torch.arange(700)
    padding, documents = torch.stack([place < 300, place >= 290]), place // 280
    for options in ({"key_mask": padding}, {"mask": documents[:, None] == documents}):
        same_results(module, oracle, [x], options)

"""Decaying scores in chunks by kernels, in the interpreter: values and gradients of the plain ones, whole designs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.runtime.decay import decay_attention
from tensornet_attn.runtime.triton.kernels.decayed import (
    triton_decay,
    triton_decay_attention,
    triton_decay_gradients,
    triton_decay_reads,
)
from tests.plan.decay_cases import FADING
from tests.triton.agreement import agree, drawn
from tests.triton.regions import F64, draw, same

pytestmark = pytest.mark.rotated

SHAPES = [(1, 1, 1, 1), (9, 9, 3, 3), (130, 130, 3, 3), (5, 70, 16, 3), (70, 5, 3, 17)]  # n, m, widths


def operands(n: int, m: int, d: int, e: int, dtype: torch.dtype = F64, rate: float = 0.3) -> list[Tensor]:
    """Queries, keys, values, and sums of gates at queries and keys."""
    gates = torch.rand(2, 3, max(n, m), 1, generator=torch.Generator().manual_seed(1), dtype=F64)
    since = -(rate * gates).cumsum(-2).to(dtype)
    sides = [drawn(2, 3, length, width, dtype=dtype, positive=True) for length, width in ((n, d), (m, d), (m, e))]
    return sides + [since[..., -length:, :].clone().requires_grad_() for length in (n, m)]


def both(given: list[Tensor], *options: Any) -> None:
    q, k, v, a, b = given
    found, wanted = (f([(q, k, a, b)], v, *options) for f in (triton_decay_attention, decay_attention))
    agree(found, wanted, given)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m", "d", "e"), SHAPES)
def test_values_and_gradients(n: int, m: int, d: int, e: int, causal: bool) -> None:
    keys = torch.rand(2, m, generator=torch.Generator().manual_seed(2)) < 0.6
    for key_mask in (None, keys, torch.zeros_like(keys)):
        both(operands(n, m, d, e), None, key_mask, 1, 1, 0.25, True, False, causal)
    both(operands(n, m, d, e), None, None, 1, 1, 0.0, False, False, causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    both(operands(40, 40, 16, 3, dtype, 0.02), None, None, 1, 1, 0.25, True, False, True)


def test_scores_that_vanish_within_a_chunk() -> None:
    """Nothing overflows, although exp(a) exp(-b) would."""
    both(operands(130, 130, 3, 3, rate=60.0), None, None, 1, 1, 0.25, True, False, True)


def test_terms_of_every_kind() -> None:
    """One that decays by heads, one by features, one not at all; legs that operands lack."""
    q, k, v, a, b = operands(20, 20, 4, 3)
    wide = [(x * torch.linspace(0.5, 1, 4, dtype=F64)).detach().requires_grad_() for x in (a, b)]
    shared = drawn(20, 4, positive=True)
    terms = [(q, k, a, b), (q, shared, *wide), (shared, k)]
    found, wanted = (
        f(terms, v, None, None, 1, 1, 0.25, True, False, True) for f in (triton_decay_attention, decay_attention)
    )
    agree(found, wanted, [q, k, v, a, b, *wide, shared])


def test_the_operations_as_torch_checks_them() -> None:
    q, k, v, a, b = (x.detach() for x in operands(6, 6, 3, 2, torch.float32))
    given = [*(x.requires_grad_() for x in (q, k, v)), *(x[..., 0].requires_grad_() for x in (a, b))]
    torch.library.opcheck(triton_decay, given)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(triton_decay_gradients, [torch.rand_like(v), *(x.detach() for x in given)], test_utils=tests)


@pytest.mark.slow
def test_gradients_against_differences() -> None:
    given = [x.detach().requires_grad_() for x in operands(2, 3, 2, 1)]

    def function(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return triton_decay_reads([(q, k, a, b)], v, True, 64, False)[0][0]

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("name", ["by distance", pytest.param("by gates", marks=pytest.mark.slow)])
def test_designs(name: str) -> None:
    ours, oracle = (ta.compile(FADING[name], b, dtype=F64, n=8192, m=8192) for b in ("triton", "reference"))
    oracle.load_state_dict(ours.state_dict())
    assert "triton_decay_attention(" in ours.source
    count = len(ours.plan.graph.of_role("input"))  # type: ignore[union-attr]
    same(ours, oracle, [draw(2, 70, 4, seed=i) for i in range(count)])

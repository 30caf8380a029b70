"""Decaying scores in chunks by kernels, in the interpreter: values and gradients of the plain ones, whole designs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.runtime.decay import decay_attention
from tensornet_attn.runtime.linear import Term
from tensornet_attn.runtime.triton.kernels.decayed import (
    triton_decay,
    triton_decay_attention,
    triton_decay_gradients,
    triton_decay_reads,
)
from tests.plan.decay_cases import ALONE, FADING
from tests.triton.agreement import agree, drawn
from tests.triton.regions import F64, draw, same

OWN = "with more of the own position"
DESIGNS = FADING | {OWN: ALONE[OWN]}
SHAPES = [(1, 1, 1, 1), (9, 9, 3, 3), (130, 130, 3, 3), (5, 70, 16, 3), (70, 5, 3, 17)]  # n, m, widths


def operands(
    n: int, m: int, d: int, e: int, dtype: torch.dtype = F64, rate: float = 0.3, rates: int = 1
) -> list[Tensor]:
    """Queries, keys, values, and sums of gates at queries and keys, `rates` of them for each of 3 heads, else of 1."""
    heads = 3 if rates == 1 else 1
    gates = torch.rand(2, heads, max(n, m), rates, generator=torch.Generator().manual_seed(1), dtype=F64)
    since = -(rate * gates).cumsum(-2).to(dtype)
    sides = [drawn(2, heads, length, width, dtype=dtype, positive=True) for length, width in ((n, d), (m, d), (m, e))]
    return sides + [since[..., -length:, :].clone().requires_grad_() for length in (n, m)]


def both(given: list[Tensor], *options: Any) -> None:
    q, k, v, a, b = given
    found, wanted = (f([Term(q, k, a, b)], v, *options) for f in (triton_decay_attention, decay_attention))
    agree(found, wanted, given)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m", "d", "e"), SHAPES)
def test_values_and_gradients(n: int, m: int, d: int, e: int, causal: bool) -> None:
    keys = torch.rand(2, m, generator=torch.Generator().manual_seed(2)) < 0.6
    for key_mask in (None, keys, torch.zeros_like(keys)):
        both(operands(n, m, d, e), None, key_mask, 1, 1, 0.25, True, False, causal)
    both(operands(n, m, d, e), None, None, 1, 1, 0.0, False, False, causal)


@pytest.mark.parametrize(("n", "m", "d", "e"), [(9, 9, 3, 3), (70, 70, 3, 2), (5, 40, 16, 3), (40, 5, 3, 17)])
def test_a_rate_for_each_feature(n: int, m: int, d: int, e: int) -> None:
    keys = torch.rand(2, m, generator=torch.Generator().manual_seed(2)) < 0.6
    both(operands(n, m, d, e, rates=d), None, keys, 1, 1, 0.25, True, False, True)
    both(operands(n, m, d, e, rates=d), None, keys, 1, 1, 0.0, False, False, False)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "e"), [(40, 3), (3, 70)])
def test_more_features_and_values_than_a_block_has(d: int, e: int) -> None:
    both(operands(70, 70, d, e, rates=d), None, None, 1, 1, 0.0, False, False, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    for rates in (1, 16):
        both(operands(40, 40, 16, 3, dtype, 0.02, rates), None, None, 1, 1, 0.25, True, False, True)


@pytest.mark.parametrize("rates", [1, 3])
def test_scores_that_vanish_within_a_chunk(rates: int) -> None:
    """Nothing overflows, although exp(a) exp(-b) would."""
    both(operands(70, 70, 3, 3, rate=60.0, rates=rates), None, None, 1, 1, 0.25, True, False, True)


def test_rates_that_differ_by_any_factor() -> None:
    """One feature decays by exp(-50) for each key, one hardly, one grows."""
    q, k, v, *_ = operands(70, 70, 3, 2, torch.float32, rates=3)
    since = torch.tensor([-50.0, -0.01, 0.5]) * torch.arange(70.0)[:, None]
    a, b = (since.expand(2, 1, 70, 3).clone().requires_grad_() for _ in "ab")
    both([q, k, v, a, b], None, None, 1, 1, 0.0, False, False, True)
    assert all(x.isfinite().all() for x in torch.autograd.grad(triton_decay(q, k, v, a, b).sum(), [q, k, v, a, b]))


def test_terms_of_every_kind() -> None:
    """One that decays by heads, one by features, one not at all; legs that operands lack."""
    q, k, v, a, b = operands(20, 20, 4, 3)
    wide = [(x * torch.linspace(0.5, 1, 4, dtype=F64)).detach().requires_grad_() for x in (a, b)]
    shared = drawn(20, 4, positive=True)
    terms = [Term(q, k, a, b), Term(q, shared, *wide), Term(shared, k)]
    found, wanted = (
        f(terms, v, None, None, 1, 1, 0.25, True, False, True) for f in (triton_decay_attention, decay_attention)
    )
    agree(found, wanted, [q, k, v, a, b, *wide, shared])


@pytest.mark.parametrize("rates", [1, 3])
def test_the_operations_as_torch_checks_them(rates: int) -> None:
    given = [x.detach().requires_grad_() for x in operands(6, 6, 3, 2, torch.float32, rates=rates)]
    torch.library.opcheck(triton_decay, given)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        triton_decay_gradients, [torch.rand_like(given[2]), *(x.detach() for x in given)], test_utils=tests
    )


@pytest.mark.slow
@pytest.mark.parametrize("rates", [1, 2])
def test_gradients_against_differences(rates: int) -> None:
    given = [x.detach().requires_grad_() for x in operands(2, 3, 2, 1, rates=rates)]

    def function(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return triton_decay_reads([Term(q, k, a, b)], v, True, 64, False)[0][0]

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize(
    "name",
    [
        "by distance",
        "by features",
        OWN,
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("by gates", "by features, kept")),
    ],
)
def test_designs(name: str) -> None:
    ours, oracle = (ta.compile(DESIGNS[name], b, dtype=F64, n=8192, m=8192) for b in ("triton", "reference"))
    oracle.load_state_dict(ours.state_dict())
    assert "triton_decay_attention(" in ours.source
    count = len(ours.plan.graph.of_role("input"))  # type: ignore[union-attr]
    same(ours, oracle, [draw(2, 70, 4, seed=i) for i in range(count)])

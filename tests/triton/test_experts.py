"""Products with chosen experts by kernels in the interpreter: values and gradients of the plain ones."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime.experts import expert_rows, expert_sums, routed
from tensornet_attn.runtime.triton.kernels.choices import newly_sorted
from tensornet_attn.runtime.triton.kernels.experts import (
    triton_expert_rows,
    triton_expert_sums,
    triton_routed,
    triton_routed_gradients,
)
from tests.triton.agreement import SIZES, agree, drawn


def choices(tokens: int, h: int, e: int, k: int) -> Tensor:
    return torch.rand(tokens, h, e, generator=torch.Generator().manual_seed(tokens)).argsort(-1)[..., :k]


def operands(
    tokens: int,
    h: int,
    e: int,
    k: int,
    wide: tuple[int, int] = (1, 1),
    widths: tuple[int, int] = (4, 3),
    **kind: torch.dtype,
) -> list[Tensor]:
    """x, weight and gates."""
    return [drawn(tokens, *wide, widths[0], **kind), drawn(h, e, *widths, **kind), drawn(tokens, h, k, **kind)]


@pytest.mark.parametrize("tokens", [0, 7])
@pytest.mark.parametrize(("h", "e", "k"), [(1, 1, 1), (2, 6, 2)])
def test_values_and_gradients(tokens: int, h: int, e: int, k: int) -> None:
    """Of 6 experts of a head some are chosen by nobody."""
    chosen = choices(tokens, h, e, k)
    for number, (one_x, one_slot, heads, slots) in enumerate(product((False, True), repeat=4)):
        x, weight, gates = operands(tokens, h, e, k, (1 if one_x else h, 1 if one_slot else k))
        call = x, weight, gates if number % 2 else None, chosen, h if heads else 1, k if slots else 1
        agree(triton_routed(*call), routed(*call), [x, weight, gates] if number % 2 else [x, weight])


def test_choices_are_sorted_in_blocks() -> None:
    """1,200 choices of 80 experts: some blocks of both; those of one expert stay in the order in which they are."""
    chosen, weight = choices(200, 2, 40, 3), drawn(2, 40, 1, 1)
    found = newly_sorted(chosen, 2, 40)
    own = (chosen + torch.tensor([0, 40])[:, None]).flatten()
    assert found.order.tolist() == own.argsort(stable=True).tolist()
    ends = found.ends
    assert ends.tolist() == own.bincount(minlength=80).cumsum(0).tolist()
    x, gates = drawn(200, 2, 1, 1), drawn(200, 2, 3)
    call = x, weight, gates, chosen, 2, 1
    agree(triton_routed(*call), routed(*call), [x, weight, gates])


def compare(tokens: int, h: int, e: int, widths: tuple[int, int], **kind: torch.dtype) -> None:
    """Two chosen experts of e for each of h heads."""
    x, weight, gates = operands(tokens, h, e, 2, widths=widths, **kind)
    call = x, weight, gates, choices(tokens, h, e, 2), h, 1
    agree(triton_routed(*call), routed(*call), [x, weight, gates])


@pytest.mark.parametrize(("tokens", "widths"), [(130, (40, 16)), (64, (1, 64)), (17, (64, 1))])
def test_many_tiles(tokens: int, widths: tuple[int, int]) -> None:
    compare(tokens, 1, 3, widths)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("tokens", "c", "o"), SIZES)
def test_every_size(tokens: int, c: int, o: int, dtype: torch.dtype) -> None:
    compare(tokens, 2, 4, (c, o), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    compare(20, 2, 4, (16, 3), dtype=dtype)


def test_the_functions_that_modules_call() -> None:
    x, weight, gates = operands(6, 2, 4, 3)
    chosen = choices(6, 2, 4, 3)
    for total in (False, True):
        call = x, weight, gates, chosen, total
        agree(triton_expert_sums(*call), expert_sums(*call), [x, weight, gates])
    agree(triton_expert_rows(x, weight, chosen), expert_rows(x, weight, chosen), [x, weight])
    one = x[:, 0], weight[0], gates[:, 0], chosen[:, 0]
    agree(triton_expert_sums(*one), expert_sums(*one), [x, weight, gates])
    agree(triton_expert_rows(*one[:2], one[3]), expert_rows(*one[:2], one[3]), [x, weight])


@pytest.mark.slow
def test_gradients_against_differences() -> None:
    given, chosen = operands(4, 2, 3, 2, widths=(2, 2)), choices(4, 2, 3, 2)
    assert torch.autograd.gradcheck(lambda *x: triton_routed(*x, chosen, 2, 1), given, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: triton_routed(*x, chosen, 2, 1), given, fast_mode=True)


@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_what_needs_no_gradient_gets_none(fixed: int) -> None:
    given, chosen = operands(7, 2, 5, 2), choices(7, 2, 5, 2)
    given[fixed].requires_grad_(False)
    call = *given, chosen, 2, 1
    agree(triton_routed(*call), routed(*call), [x for x in given if x.requires_grad])


def test_the_operations_as_torch_checks_them() -> None:
    given, chosen = operands(7, 2, 5, 2, dtype=torch.float32), choices(7, 2, 5, 2)
    torch.library.opcheck(triton_routed, (*given, chosen, 2, 1))
    plain = [x.detach() for x in given]
    call = torch.randn(7, 2, 1, 3), *plain, chosen, 2, 1, [True] * 3
    torch.library.opcheck(triton_routed_gradients, call, test_utils=("test_schema", "test_faketensor"))


def test_vmap() -> None:
    x, weight, gates = (y.detach() for y in operands(6, 1, 4, 2))
    chosen = choices(6, 1, 4, 2)
    found = torch.vmap(lambda x, g, c: triton_routed(x[None], weight, g[None], c[None], 1, 1))(x, gates, chosen)
    torch.testing.assert_close(found[:, 0], triton_routed(x, weight, gates, chosen, 1, 1))

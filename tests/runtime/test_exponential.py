"""exp whose time does not depend on the values: results below the smallest normal number are 0."""

from __future__ import annotations

import math

import pytest
import torch

from tensornet_attn.runtime.exponential import FEW_NUMBERS, exp


def spread(dtype: torch.dtype) -> torch.Tensor:
    """More than FEW_NUMBERS numbers whose exponentials are between the smallest and the largest normal number."""
    least = math.log(torch.finfo(dtype).tiny)
    return torch.linspace(least + 1, -least - 1, 2 * FEW_NUMBERS + 1, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_exact_to_the_rounding_of_x(dtype: torch.dtype) -> None:
    x = spread(dtype)
    error = (exp(x).double() / x.double().exp() - 1).abs() / x.double().abs().clamp(min=1)
    assert error.max() < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_far_numbers_give_zeros_and_special_ones_what_exp_gives(dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, math.nan, math.inf, -math.inf, -2000.0], dtype=dtype).repeat(FEW_NUMBERS)
    assert torch.equal(exp(special).nan_to_num(-1), special.exp().nan_to_num(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_result_is_denormal(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    x = math.log(tiny) + torch.linspace(-30, 3, 2 * FEW_NUMBERS, dtype=dtype)
    assert torch.equal(exp(x) == 0, exp(x) < tiny)
    assert (exp(x)[x < math.log(tiny) - 0.1] == 0).all()
    assert (exp(x)[x > math.log(tiny) + 0.1] > 0).all()


def test_derivatives_of_every_kind() -> None:
    x = torch.linspace(-3, 3, FEW_NUMBERS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(exp, x, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(exp, x, fast_mode=True)
    rows = x.detach().repeat(2, 1)
    assert torch.allclose(torch.vmap(torch.func.grad(lambda row: exp(row).sum()))(rows), rows.exp(), rtol=1e-14)


def test_far_numbers_pass_no_gradient_on() -> None:
    x = torch.full((FEW_NUMBERS,), -1000.0, requires_grad=True)
    exp(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros(FEW_NUMBERS))

"""Attention within a band by kernels in the interpreter: values and gradients of the plain one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.nn.functions.band import attend_band
from tensornet_attn.nn.triton.kernels.band import triton_attend_band, triton_band, triton_band_gradients
from tests.triton.agreement import SIZES, agree, drawn

REACHES = [(0, 0), (4, 0), (9, 9), (17, 2), (4, -2), (-1, 3), (300, 300)]
LENGTHS = [(1, 1), (17, 17), (5, 40), (40, 5)]


def operands(n: int, m: int, d: int = 3, e: int = 5, batch: tuple[int, ...] = (1,), dtype: Any = None) -> list[Tensor]:
    """Four query heads, two of keys and values."""
    kind = {"dtype": dtype or torch.float64}
    return [drawn(*batch, n, 4, d, **kind), drawn(*batch, m, 2, d, **kind), drawn(*batch, m, 2, e, **kind)]


def both(given: list[Tensor], left: int, right: int, key_mask: Tensor | None = None, **options: Any) -> None:
    found, wanted = (
        f(*given, left, right, max(4, left + right), key_mask=key_mask, batch=1, scale=0.7, **options)
        for f in (triton_attend_band, attend_band)
    )
    agree(found, wanted, given)


@pytest.mark.rotated
@pytest.mark.parametrize(("left", "right"), REACHES)
@pytest.mark.parametrize(("n", "m"), LENGTHS)
def test_values_and_gradients(n: int, m: int, left: int, right: int) -> None:
    both(operands(n, m), left, right)


@pytest.mark.parametrize(("left", "right"), [(9, 9), (40, 0)])
def test_many_tiles_and_wide_heads(left: int, right: int) -> None:
    both(operands(130, 130, 16, 3), left, right)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("n", "d", "e"), SIZES)
def test_every_size(n: int, d: int, e: int, dtype: torch.dtype) -> None:
    both(operands(n, n, d, e, dtype=dtype), 16, n % 3 * 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    both(operands(40, 40, 16, 3, dtype=dtype), 9, 9)


def test_a_key_mask() -> None:
    keep = torch.rand(1, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    for mask in (keep, torch.zeros_like(keep)):
        both(operands(20, 20), 4, 1, mask)


def test_a_mask_is_left_to_the_plain_function() -> None:
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.6
    both(operands(9, 9), 2, 2, mask=mask, tied=True)


@pytest.mark.parametrize("batch", [(), (0,), (2, 1, 2)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...]) -> None:
    both(operands(9, 9, batch=batch), 2, 1)


def test_operands_may_be_shared_and_in_any_layout() -> None:
    q, k, v = operands(9, 9)
    wide = q.detach().expand(3, -1, -1, -1).clone().requires_grad_()
    both([wide, k.detach().mT.contiguous().mT.requires_grad_(), v.detach()[:, :, :1].clone().requires_grad_()], 2, 1)


@pytest.mark.slow
def test_gradients_against_differences() -> None:
    given = [drawn(1, 4, 2, 2), drawn(1, 5, 1, 2), drawn(1, 5, 1, 2)]

    def function(*some: Tensor) -> Tensor:
        return triton_attend_band(*some, 2, 1, 4, scale=0.7)

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


def test_the_operations_as_torch_checks_them() -> None:
    q, k, v = (x.detach().float().transpose(1, 2).contiguous().requires_grad_() for x in operands(6, 6))
    keep = torch.rand(1, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    torch.library.opcheck(triton_band, (q, k, v, keep, 2, 1, 0.7))
    out, tops = triton_band(*(x.detach() for x in (q, k, v)), keep, 2, 1, 0.7)
    given = [torch.rand_like(out), *(x.detach() for x in (q, k, v)), keep, out, tops, 2, 1, 0.7]
    torch.library.opcheck(triton_band_gradients, given, test_utils=("test_schema", "test_faketensor"))


def test_vmap() -> None:
    given = [x.detach() for x in operands(9, 9, batch=(3,))]
    found = torch.vmap(lambda *x: triton_attend_band(*x, 2, 1, 4))(*given)
    torch.testing.assert_close(found, triton_attend_band(*given, 2, 1, 4))

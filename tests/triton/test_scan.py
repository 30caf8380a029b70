"""The delta rule by kernels in the interpreter: values and gradients of the plain one, with and without its sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.scan import delta_rule
from tensornet_attn.runtime.triton.kernels import scan
from tensornet_attn.runtime.triton.kernels.scan import triton_delta, triton_delta_gradients, triton_delta_rule
from tests.triton.agreement import SIZES, agree, drawn

SHAPES = [(1, 1, 3, 1), (17, 17, 3, 16), (64, 64, 40, 3), (130, 130, 16, 3), (5, 40, 1, 3), (40, 5, 3, 16)]
MODES = pytest.mark.parametrize("mode", ["none", "read", "both"])


def operands(n: int, m: int, d: int, e: int, batch: tuple[int, ...] = (1,), dtype: Any = torch.float64) -> list[Tensor]:
    """Queries, keys of length 1, values and rates below 1: a step never grows what is there."""
    keys = F.normalize(drawn(*batch, m, d, positive=True).detach(), dim=-1).to(dtype).requires_grad_()
    rate = drawn(*batch, m, dtype=dtype, positive=True)
    return [drawn(*batch, n, d, dtype=dtype, positive=True), keys, drawn(*batch, m, e, dtype=dtype), rate]


def both(given: list[Tensor], *options: Any) -> None:
    agree(triton_delta_rule(*given, *options), delta_rule(*given, *options), given)


@MODES
@pytest.mark.parametrize(("n", "m", "d", "e"), SHAPES)
def test_values_and_gradients(n: int, m: int, d: int, e: int, mode: str) -> None:
    both(operands(n, m, d, e), None, mode, 0.1)


@MODES
def test_wide_keys(mode: str) -> None:
    both(operands(40, 40, 200, 3), None, mode, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("n", "d", "e"), SIZES)
def test_every_size(n: int, d: int, e: int, dtype: torch.dtype) -> None:
    both(operands(n, n, d, e, dtype=dtype), None, ("none", "read", "both")[(n + d + e) % 3], 0.1)


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype, mode: str) -> None:
    both(operands(40, 40, 16, 3, dtype=dtype), None, mode, 0.1)


@pytest.mark.parametrize("mode", ["none", "read"])
def test_what_kernels_keep_may_be_rounded(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is beside bfloat16, which the interpreter lacks: float16 stands for it here."""
    monkeypatch.setattr(scan, "kept_in", lambda *given: torch.float16)
    both(operands(130, 130, 16, 3, dtype=torch.float16), None, mode, 0.1)


@MODES
def test_a_key_mask(mode: str) -> None:
    keep = torch.rand(1, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    for mask in (keep, torch.zeros_like(keep)):
        both(operands(20, 20, 3, 2), mask, mode, 0.1)


def test_wide_keys_are_left_to_the_plain_function() -> None:
    both(operands(5, 5, 130, 2))


def test_equal_keys_that_are_written_over() -> None:
    q, k, v, rate = operands(70, 70, 3, 2)
    with torch.no_grad():
        k.copy_(k[:, :1].clone())
        rate.fill_(1)
    both([q, k, v, rate])


@pytest.mark.parametrize("batch", [(), (0,), (2, 1, 2)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...]) -> None:
    both(operands(7, 7, 3, 2, batch))


@MODES
def test_gradients_against_differences(mode: str) -> None:
    given = operands(2, 3, 2, 1, ())

    def function(*some: Tensor) -> Tensor:
        return triton_delta_rule(*some, None, mode, 0.1)

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    if mode != "both":
        assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


def test_the_operations_as_torch_checks_them() -> None:
    q, k, v, rate = operands(6, 6, 3, 2, (2, 1), torch.float32)
    given = [q, k, v, rate.detach()[..., None].requires_grad_()]
    plain = [x.detach() for x in given]
    for call in ((False, 0.0), (True, 0.1)):
        torch.library.opcheck(triton_delta, (*given, *call))
        found = (torch.rand(2, 1, 6, 2), *plain, *triton_delta(*plain, *call), *call)
        torch.library.opcheck(triton_delta_gradients, found, test_utils=("test_schema", "test_faketensor"))


def test_vmap() -> None:
    given = [x.detach() for x in operands(9, 9, 3, 2, (2,))]
    torch.testing.assert_close(torch.vmap(triton_delta_rule)(*given), triton_delta_rule(*given))

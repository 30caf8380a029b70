"""The delta rule with decay by a kernel in the interpreter: values and gradients of the plain one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensornet_attn.runtime.gated import gated_delta_rule
from tensornet_attn.runtime.triton.kernels.gated import triton_gated, triton_gated_delta_rule
from tests.runtime.test_gated import KINDS, drawn, options
from tests.triton.agreement import agree


def both(given: dict[str, Any], **more: Any) -> None:
    found, wanted = triton_gated_delta_rule(**given, **more), gated_delta_rule(**given, **more)
    agree(found, wanted, [*given.values()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (17, 17), (70, 70), (5, 40), (40, 5)])
def test_values_and_gradients(kind: str, n: int, m: int) -> None:
    torch.manual_seed(0)
    both(drawn(kind, (2,), n, m), **options(kind), chunk=16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lower_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both(drawn("by channel", (), 40, 40, dtype), chunk=16)


def test_a_key_mask() -> None:
    torch.manual_seed(0)
    keep = torch.rand(1, 20) < 0.6
    for mask in (keep, torch.zeros_like(keep)):
        both(drawn("erase and write, by channel", (), 20, 20), key_mask=mask, chunk=8)


def test_every_argument_by_position() -> None:
    torch.manual_seed(0)
    given = drawn("erase and write, by channel", (), 9, 9)
    call = *given.values(), True, torch.rand(9) < 0.6, 4, (), 1
    agree(triton_gated_delta_rule(*call), gated_delta_rule(*call), [*given.values()])


def test_no_key_and_no_query() -> None:
    for n, m in ((5, 0), (0, 5)):
        both(drawn("by head", (), n, m))


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    given = drawn("by channel", (), 3, 3)
    assert torch.autograd.gradgradcheck(
        lambda *x: triton_gated_delta_rule(*x, chunk=2), [*given.values()], fast_mode=True
    )


def test_the_operation_as_torch_checks_it() -> None:
    x = {name: value.detach().requires_grad_() for name, value in drawn("by channel", (2,), 6, 6).items()}
    rate = x["rate"].detach()[..., None].requires_grad_()
    torch.library.opcheck(triton_gated, (x["q"], None, x["k"], None, x["v"], rate, x["decay"], None, False, 4))


def test_vmap() -> None:
    given = [x.detach() for x in drawn("by channel", (2,), 9, 9).values()]
    torch.testing.assert_close(torch.vmap(triton_gated_delta_rule)(*given), triton_gated_delta_rule(*given))


def test_several_steps_at_each_position() -> None:
    torch.manual_seed(0)
    given = drawn("by head", (), 18, 18)
    given |= {name: given[name].detach()[:, ::3].clone().requires_grad_() for name in ("q", "decay")}
    both(given, key_mask=torch.rand(1, 6) < 0.7, steps=3, chunk=8)

"""Fused attention where its kernels need care: scales that are not positive, masks of more dimensions than operands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime.draw import update_
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.softmax import attend, masked_softmax

F64 = torch.float64


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("scale", [-0.7, 0.0])
@pytest.mark.parametrize("n", [5, 3])
def test_a_scale_may_be_negative_or_zero(scale: float, n: int) -> None:
    q, k, v = some(2, 3, n, 4), some(2, 3, 5, 4), some(2, 3, 5, 4)
    wanted = masked_softmax(scale * q @ k.mT, causal_mask(n, 5)) @ v
    torch.testing.assert_close(attend(q, k, v, scale=scale, causal=True), wanted)


@pytest.mark.parametrize("batch", [(), (1,), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.bool, F64])
def test_a_mask_may_have_batch_dimensions_that_the_operands_lack(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = some(*batch, 2, 5, 4), some(*batch, 1, 6, 4), some(*batch, 1, 6, 3)
    mask = some(2, 3, 1, 5, 6) > 0
    keep, bias = (mask, None) if dtype == torch.bool else (None, mask.to(F64))
    wanted = masked_softmax(q @ k.mT, keep, bias) @ v
    torch.testing.assert_close(attend(q, k, v, keep, bias), wanted)


def test_an_empty_batch_leaves_a_state_as_it_is() -> None:
    state = torch.ones(3)
    update_(state, torch.zeros(0, 3), torch.zeros(0, 5, 3))
    assert torch.equal(state, torch.ones(3))
    update_(state, torch.tensor([[1.0, 2, 3], [3, 2, 1]], requires_grad=True), torch.ones(2))
    assert torch.equal(state, torch.full((3,), 2.0))
    update_(state, torch.arange(3.0), torch.ones(2))
    assert torch.equal(state, torch.arange(3.0))


def test_operands_in_any_layout_are_fused() -> None:
    """Where the width is not the last dimension in memory, torch would compute all scores, and say nothing."""
    q, k, v = (torch.randn(2, 3, 8, 5, requires_grad=True).mT for _ in range(3))
    assert "Flash" in names_behind(attend(q, k, v))


def names_behind(y: Tensor) -> str:
    """The names of all operations that made a result."""
    todo, found = [y.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [behind for behind, _ in node.next_functions]
    return " ".join(node.name() for node in found)

"""Fused attention where its kernels need care: scales that are not positive, masks of more dimensions than operands."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import softmax
from tensornet_attn.runtime.draw import update_
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.sink import attention_beside_sink
from tensornet_attn.runtime.softmax import attend, masked_softmax, sink_softmax

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


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_takes_masks_of_single_precision(half: torch.dtype, sink: bool) -> None:
    """Numbers beyond its range hide no row, and tell keys apart."""
    q, k, v = some(2, 5, 4).to(half), some(2, 6, 4).to(half), some(2, 6, 4).to(half)
    bias, keep = 1e6 * some(5, 6).float(), some(1, 5, 6) > -1
    bias[2] = torch.finfo(torch.float32).min
    more = {"sink": some(2, 5, 1).to(half), "call": attention_beside_sink} if sink else {}
    both = {name: more[name] for name in more if name == "sink"}
    dense = masked_softmax if not sink else partial(sink_softmax, **both)
    wide = masked_softmax if not sink else partial(sink_softmax, sink=more["sink"].double())
    wanted = wide((q @ k.mT).double(), keep=keep, bias=bias.double()) @ v.double()
    for outcome in (attend(q, k, v, keep, bias, **more), dense(q @ k.mT, keep=keep, bias=bias) @ v):
        rows = [0, 1, 3, 4] if half == torch.float16 and not sink else [*range(5)]  # float16 absorbs no score
        assert outcome.dtype == half
        assert outcome.isfinite().all()
        torch.testing.assert_close(outcome.double()[:, rows], wanted[:, rows], rtol=0.02, atol=0.02)


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


@pytest.mark.parametrize("heads", [(3, 3), (4, 2)])
def test_one_query_reads_many_keys_in_two_products(heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as leave the caches: the fused kernel has blocks for many queries. Both give the same."""
    q, k, v = (torch.randn(2, h, n, 5, dtype=torch.float64) for h, n in zip((*heads, heads[1]), (1, 9, 9), strict=True))
    keep = torch.rand(2, 1, 1, 9) > 0.3
    expected = attend(q, k, v, keep, scale=0.4)
    monkeypatch.setattr(softmax, "LONG", k.numel())
    torch.testing.assert_close(attend(q, k, v, keep, scale=0.4), expected, rtol=0, atol=1e-12)

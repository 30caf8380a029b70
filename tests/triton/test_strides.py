"""The memory order of results and gradients of regions, in the interpreter: that of their readers, without copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import tensornet_attn as ta
from tensornet_attn.emit.load import load
from tensornet_attn.runtime.triton.kernels import region_launch
from tensornet_attn.runtime.triton.kernels.regions import tiled
from tests.triton.regions import F64, draw, pair, same_mask_gradients

N, BATCH = 19, (2, 3)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # of [2, 3, heads, n, d]
    "heads first": lambda x: x,
    "rows first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "columns": lambda x: x.mT.contiguous().mT,
    "batch turned": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "a part of a wider tensor": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every second row": lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
    "one batch element": lambda x: x[0, 0],
    "one head": lambda x: x[:, :, :1],
    "the same for all": lambda x: x[:1, :1].expand_as(x),
}


@pytest.fixture(scope="module")
def region() -> str:
    """The region of a softmax attention of two heads."""
    module = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}), "triton", dtype=F64)
    return load(module.source, module.plan.graph.name).y_1_tiles  # type: ignore[union-attr, no-any-return]


def attention(region: str, *operands: Tensor) -> Tensor:
    return tiled(region, [*operands], N, N, BATCH, None, None, [8**-0.5])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_in_any_order(region: str, layout: str) -> None:
    """One operand and the gradient of the result in this order, the others as projections make them."""
    rows_first = LAYOUTS["rows first"]
    g = LAYOUTS[layout](draw(*BATCH, 2, N, 8, seed=9))
    for place in range(3):
        operands = [rows_first(draw(*BATCH, 2, N, 8, seed=i)) for i in range(3)]
        operands[place] = LAYOUTS[layout](operands[place])
        leaves = [x.detach().requires_grad_() for x in operands]
        out = attention(region, *leaves)
        found = torch.autograd.grad(out, leaves, g.expand_as(out))
        plain = [x.expand(*BATCH, 2, N, 8) for x in leaves]
        wanted = scaled_dot_product_attention(*plain)
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
        for x, one, other in zip(leaves, found, torch.autograd.grad(wanted, leaves, g.expand_as(wanted)), strict=True):
            assert one.shape == x.shape
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", range(3))
def test_the_gradient_of_one_operand(region: str, place: int) -> None:
    operands = [draw(*BATCH, 2, N, 8, seed=i) for i in range(3)]
    operands[place].requires_grad_()
    found = torch.autograd.grad(attention(region, *operands).square().sum(), operands[place])
    wanted = torch.autograd.grad(scaled_dot_product_attention(*operands).square().sum(), operands[place])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_nothing_is_rearranged(region: str) -> None:
    """Rows of the result have all heads, and gradients have the strides of their operands."""
    leaves = [LAYOUTS["rows first"](draw(*BATCH, 2, N, 8, seed=i)).requires_grad_() for i in range(3)]
    out = attention(region, *leaves)
    assert out.transpose(-3, -2).is_contiguous()
    for x, found in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
        assert found.stride() == x.stride()


@pytest.mark.parametrize("layout", ["heads first", "rows first"])
def test_compiled_calls_know_the_strides(region: str, layout: str) -> None:
    """The operation and its shapes for torch.compile agree on strides."""
    operands = [LAYOUTS[layout](draw(*BATCH, 2, N, 8, seed=i)) for i in range(3)]
    call = (region, [True] * 3, N, N, [*BATCH], [8**-0.5], False, None)
    from tensornet_attn.runtime.triton.kernels import regions

    run, of_shapes = regions.tiles_forward, regions.tiles_shape
    made, shapes = run(operands, None, None, None, *call), of_shapes(operands, None, None, None, *call)
    assert [x.stride() for x in made] == [x.stride() for x in shapes]
    given = (torch.ones_like(made[0]), *made, [True] * 3 + [False], operands, None, None, None)
    made, shapes = regions.tiles_backward(*given, *call), regions.tiles_gradients(*given, *call)
    assert [x.stride() for x in made] == [x.stride() for x in shapes]


def test_gradient_of_a_mask_beside_a_loop_over_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that loop over heads write a part of the mask's gradient for each of them."""
    monkeypatch.setattr(region_launch, "BUSY", 1)
    ours, oracle = pair("talking_heads", legs={"f": 24, "h": 4})
    same_mask_gradients(ours, oracle, 24)

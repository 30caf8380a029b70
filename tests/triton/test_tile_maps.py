"""Feature maps that kernels of linear attention compute themselves: values and gradients of the plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.ops import MAPS
from tensornet_attn.runtime.linear import Term, linear_attention
from tensornet_attn.runtime.triton.kernels.linear import triton_linear, triton_linear_attention
from tensornet_attn.runtime.triton.kernels.tile_maps import tile_map
from tests.agreement import outcome
from tests.triton.agreement import agree, drawn, near

F64 = torch.float64
WHOLE = [name for name, own in MAPS.items() if not own.arguments]
POSITIVE = ("log", "log1p", "sqrt")  # maps of positive numbers


@triton.jit
def exp_tile(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


@triton.jit
def exp_slope(x, y, d):  # type: ignore[no-untyped-def]
    return d * y


EXP = tile_map("tests.exp", torch.exp, exp_tile, exp_slope)


def design(name: str, causal: bool = False) -> dict[str, Any]:
    box = {"normalize": "m", "eps": 50, "of": "phiQ[n h d] phiK[m h d] -> h n m"}
    return {
        "tensornet": 1,
        "name": "mapped",
        "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3},
        "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}},
        "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"},
        "diagram": {
            "Q": "x[n f] Wq[f h d] -> n h d",
            "K": "memory[m f] Wk[f h d] -> m h d",
            "V": "memory[m f] Wv[f h d] -> m h d",
            "phiQ": {"map": name, "of": "Q"},
            "phiK": {"map": name, "of": "K"},
            "A": box | ({"mask": "causal"} if causal else {}),
            "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
        },
        "output": "y",
    }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of 1 / 0 beyond the ends of tiles
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_a_design_equals_its_reference(name: str, causal: bool) -> None:
    source, draw = design(name, causal), torch.Generator().manual_seed(0)
    module, wanted = ta.compile(source, "triton", dtype=F64), ta.reference(source, dtype=F64)
    assert f"{name}_map" in module.source
    x = torch.randn(2, 19, 6, dtype=F64, generator=draw)
    if name in POSITIVE:
        x = x.abs()
        for weight in module.parameters():
            weight.data.abs_()
    wanted.load_state_dict(module.state_dict())
    keys = torch.rand(2, 19, generator=draw) < 0.6
    for masks in ({}, {"key_mask": keys}, {"mask": torch.rand(19, 19, generator=draw) < 0.6}):
        for own, other in zip(outcome(module, [x], **masks), outcome(wanted, [x], **masks), strict=True):
            near(own, other)


def test_a_map_without_tiles_is_left_to_torch() -> None:
    source = ta.emit_source(design("leaky_relu(0.1)"), backend="triton")
    assert "F.leaky_relu(" in source
    assert "maps=" not in source


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("maps", [(EXP, EXP), (EXP, ""), ("", EXP)])
def test_values_and_gradients(maps: tuple[str, str], normalize: bool, causal: bool) -> None:
    q, k, v = (drawn(2, 3, length, width, positive=True) for length, width in ((5, 17), (70, 17), (70, 3)))
    keys, options = torch.arange(140).view(2, 70) % 3 > 0, (1, 1, 0.25, normalize, causal)
    found = triton_linear_attention([Term(q, k)], v, None, keys, *options, maps=maps)
    whole = tuple(torch.exp if name else torch.Tensor.clone for name in maps)
    agree(found, linear_attention([Term(q, k)], v, None, keys, *options, maps=whole), [q, k, v])


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_hidden_keys_is_read(causal: bool) -> None:
    q, k, v = (drawn(1, 2, 20, 4) for _ in range(3))
    keys = torch.arange(20)[None] % 3 > 0

    def of(*given: Tensor) -> Tensor:
        return triton_linear_attention([Term(*given[:2])], given[2], None, keys, 1, 1, causal=causal, maps=(EXP, EXP))

    wanted = of(q, k, v)
    hidden = ~keys[:, None, :, None]
    other_k, other_v = (x.detach().masked_fill(hidden, torch.nan).requires_grad_() for x in (k, v))
    found = of(q, other_k, other_v)
    near(found, wanted)
    for own, other in zip(
        torch.autograd.grad(found.square().sum(), [q, other_k, other_v]),
        torch.autograd.grad(wanted.square().sum(), [q, k, v]),
        strict=True,
    ):
        near(own, other)


def test_heads_of_a_row_are_side_by_side() -> None:
    """So that flattening the result, and the gradients of projections, are views."""
    q, k, v = (drawn(2, 9, 3, 4).detach().transpose(1, 2).requires_grad_() for _ in range(3))
    for options in ({}, {"causal": True}, {"mask": torch.ones(9, 9, dtype=torch.bool)}):
        out = triton_linear_attention([Term(q, k)], v, **options)
        for x in (out, *torch.autograd.grad(out.square().sum(), [q, k, v])):
            assert x.transpose(1, 2).is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_against_differences(causal: bool) -> None:
    operands, keys = [drawn(1, 3, 2), drawn(1, 3, 2), drawn(1, 3, 1)], torch.tensor([[True, False, True]])

    def function(*given: Tensor) -> Tensor:
        return triton_linear_attention(
            [Term(*given[:2])], given[2], None, keys, 1, 0, 0.5, causal=causal, maps=(EXP, EXP)
        )

    assert torch.autograd.gradcheck(function, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


def test_the_operation_as_torch_checks_it() -> None:
    q, k, v = (drawn(1, 2, 6, 3, dtype=torch.float32) for _ in range(3))
    torch.library.opcheck(triton_linear, (q, k, v, torch.ones(1, 2, 6) > 0, False, True, 0.5, EXP, EXP))

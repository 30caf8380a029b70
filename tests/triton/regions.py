"""Modules on Triton beside the oracle, in the interpreter, with the same random weights."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.runtime.triton.kernels import region_launch
from tests.agreement import outcome
from tests.random_call import Call, same_results

F64 = torch.float64


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def small_blocks(monkeypatch: pytest.MonkeyPatch, parts: int = 0) -> None:
    """Kernels run in blocks of 16 queries and keys; in so many parts of the keys, if not 0."""
    monkeypatch.setattr(region_launch, "blocks_for", lambda cores, target: ((16, 16, 4, 1, 160, 1),))
    monkeypatch.setattr(region_launch, "CONFIGS", {})
    if parts:
        monkeypatch.setattr(region_launch, "parts_for", lambda programs, blocks, processors: parts)


def pair(
    source: Any, dtype: torch.dtype = F64, positive: tuple[str, ...] = (), **load: Any
) -> tuple[nn.Module, nn.Module]:
    """A design on Triton, and the oracle in float64, in evaluation."""
    design = ta.load(source, **load)
    ours, oracle = ta.compile(design, backend="triton", dtype=dtype), ta.reference(design, dtype=F64)
    state = {name: 0.4 * draw(*value.shape, seed=i) for i, (name, value) in enumerate(oracle.state_dict().items())}
    state |= {name: state[name].abs() for name in positive if name in state}
    ours.load_state_dict(state)
    oracle.load_state_dict(ours.state_dict())
    return ours.eval(), oracle.eval()


def on_triton(module: nn.Module) -> set[str]:
    """The regions of a module that run on Triton."""
    return {name for name, backend in module.plan.backends.items() if backend == "triton"}  # type: ignore[union-attr]


def same(ours: nn.Module, oracle: nn.Module, inputs: list[Tensor], atol: float = 1e-10, **call: Any) -> None:
    """Equal values, and equal gradients of inputs and weights, to atol of the largest."""
    found = []
    for module in (ours, oracle):
        kind = next(module.parameters()).dtype
        noise = {name: value.to(kind) for name, value in call.get("noise", {}).items()}
        found.append(outcome(module, [x.to(kind) for x in inputs], **{**call, "noise": noise or None}))
    for got, want in zip(*found, strict=True):
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got.to(F64), want, rtol=0, atol=atol * scale)


def same_in_calls(source: Any) -> None:
    """In calls with lengths, batch dimensions and masks at random."""
    ours, oracle = pair(source)
    for seed in (1, 4):
        same_results(ours, oracle, *Call(ours.plan.graph, random.Random(seed), seed).arguments())


def same_mask_gradients(ours: nn.Module, oracle: nn.Module, width: int) -> None:
    """Equal gradients of an additive mask of the call."""
    found = []
    for module in (ours, oracle):
        mask = draw(2, 17, 17).requires_grad_()
        module(draw(2, 17, width), mask=mask).square().sum().backward()
        found.append(mask.grad)
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)

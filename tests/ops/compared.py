"""A compiled design beside the reference: outputs and the gradients of all inputs and weights, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.nn.module import CompiledDesign
from tests.agreement import modules

F64 = torch.float64


def results(layer: CompiledDesign, inputs: tuple[Tensor, ...], options: Mapping[str, Any]) -> list[Tensor]:
    """The output, and the gradients of floating inputs and of the weights, for one random gradient of the output."""
    given = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = layer(*given, **options)
    like = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    wanted = [*(x for x in given if x.requires_grad), *(p for p in layer.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(y, wanted, like, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, gradients, strict=True))]


def agree(
    source: Any, *inputs: Tensor, backend: str = "torch", causal: bool | None = None, n: int | None = None, **call: Any
) -> CompiledDesign:
    """The compiled design, once it agrees with the reference to 1e-10; `n`: the length that it is planned for."""
    plain, layer = modules(source, backend, causal, **({} if n is None else {"n": n, "m": n}))
    for got, wanted in zip(results(layer, inputs, call), results(plain, inputs, call), strict=True):
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10 * max(1.0, size))
    return layer

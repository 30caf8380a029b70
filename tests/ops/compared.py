"""A compiled design beside the reference: outputs and the gradients of all inputs and weights, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensornet_attn.nn.module import CompiledDesign
from tests.agreement import modules, outcome

F64 = torch.float64


def agree(
    source: Any, *inputs: Tensor, backend: str = "torch", causal: bool | None = None, n: int | None = None, **call: Any
) -> CompiledDesign:
    """The compiled design, once it agrees with the reference to 1e-10; `n`: the length that it is planned for."""
    plain, layer = modules(source, backend, causal, **({} if n is None else {"n": n, "m": n}))
    for got, wanted in zip(outcome(layer, inputs, **call), outcome(plain, inputs, **call), strict=True):
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10 * max(1.0, size))
    return layer

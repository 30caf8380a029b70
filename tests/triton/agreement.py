"""Operands for kernels, and whether these give what tensor code gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROUGH = {  # relative to the largest number of a tensor
    torch.float64: 1e-11,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
}
WIDTHS = (1, 3, 16, 40, 64)
SIZES = [(n, WIDTHS[i], WIDTHS[(2 * i + j) % 5]) for j, n in enumerate((1, 17, 64, 130)) for i in range(5)]


def drawn(*shape: int, dtype: torch.dtype = torch.float64, positive: bool = False) -> Tensor:
    """A leaf, the same for the same shape."""
    generator = torch.Generator().manual_seed(sum((i + 1) * size for i, size in enumerate(shape)))
    draw: Any = torch.rand if positive else torch.randn
    return draw(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def near(found: Tensor, wanted: Tensor) -> None:
    """Equal up to the rounding of the dtype, by the largest number of the tensor, a tenth at least."""
    assert found.dtype == wanted.dtype
    most = wanted.detach().abs().max().item() if wanted.numel() else 0.0
    torch.testing.assert_close(found, wanted, rtol=0, atol=ROUGH[wanted.dtype] * (0.1 + most))


def agree(found: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """Equal values, and equal gradients under random weights."""
    near(found, wanted)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        wanted.dtype
    )
    pairs = [torch.autograd.grad(y, leaves, weights, materialize_grads=True) for y in (found, wanted)]
    for one, other in zip(*pairs, strict=True):
        near(one, other)

"""Functions of lengths: numbers, or tensors where a trace would fix a length whose logarithm it needs as a number."""

import math

import torch
from torch import Tensor


def at_least_one(length: int | Tensor) -> int | Tensor:
    """A length in a number, where 0 counts as 1: what `1 / m` then multiplies is a sum of nothing."""
    return length.clamp(min=1) if isinstance(length, Tensor) else max(length, 1)


def first_entries(x: Tensor, dim: int, length: int) -> Tensor:
    """The first entries along a dimension; in traced code a copy, because a view of all of them is another layout."""
    if torch.compiler.is_compiling():
        return x.index_select(dim, torch.arange(length, device=x.device))
    return x.narrow(dim, 0, length)


def of_lengths(number, traced):
    """`number` of a length, or in traced code `traced` of a scalar tensor with this value."""

    def function(x: float | Tensor) -> float | Tensor:
        x = unfixed(x)
        return traced(x) if isinstance(x, Tensor) else number(x)

    return function


log_of_length = of_lengths(math.log, torch.log)
log2_of_length = of_lengths(math.log2, torch.log2)
sqrt_of_length = of_lengths(math.sqrt, torch.sqrt)
exp_of_length = of_lengths(math.exp, torch.exp)
floor_of_length = of_lengths(math.floor, torch.floor)
ceil_of_length = of_lengths(math.ceil, torch.ceil)


def unfixed(x: float | Tensor) -> float | Tensor:
    """x, in traced code as a scalar tensor: comparing a number, or its logarithm, would fix lengths."""
    if isinstance(x, Tensor) or (isinstance(x, int | float) and not torch.compiler.is_compiling()):
        return x
    return torch.scalar_tensor(x, dtype=torch.float64)

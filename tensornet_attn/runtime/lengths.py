"""Functions of lengths: numbers, or tensors where a trace would fix a length whose logarithm it needs as a number."""

import math

import torch
from torch import Tensor


def log_of_length(x: float | Tensor) -> float | Tensor:
    """The natural logarithm of a length."""
    return of_lengths(x, math.log, torch.log)


def log2_of_length(x: float | Tensor) -> float | Tensor:
    """The logarithm to base 2 of a length."""
    return of_lengths(x, math.log2, torch.log2)


def sqrt_of_length(x: float | Tensor) -> float | Tensor:
    """The square root of a length."""
    return of_lengths(x, math.sqrt, torch.sqrt)


def exp_of_length(x: float | Tensor) -> float | Tensor:
    """The exponential of a length."""
    return of_lengths(x, math.exp, torch.exp)


def floor_of_length(x: float | Tensor) -> float | Tensor:
    """The largest integer up to a number of lengths."""
    return of_lengths(x, math.floor, torch.floor)


def ceil_of_length(x: float | Tensor) -> float | Tensor:
    """The smallest integer from a number of lengths on."""
    return of_lengths(x, math.ceil, torch.ceil)


def of_lengths(x: float | Tensor, number, traced) -> float | Tensor:
    """`number` of x, or in traced code `traced` of a scalar tensor with this value."""
    x = unfixed(x)
    return traced(x) if isinstance(x, Tensor) else number(x)


def unfixed(x: float | Tensor) -> float | Tensor:
    """x, in traced code as a scalar tensor: comparing a number, or its logarithm, would fix lengths."""
    if isinstance(x, Tensor) or (isinstance(x, int | float) and not torch.compiler.is_compiling()):
        return x
    return torch.scalar_tensor(x, dtype=torch.float64)

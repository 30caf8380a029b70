"""Values kept in at least float32 whatever the dtype of a layer: decays, their sums, constants."""

import math

import torch
from torch import Tensor

HALF_MAX = 65504  # the largest number of float16
LOG_OF_NOTHING = -1e15  # in at least float32


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a half-precision sum would lose small terms, and differences of large exponents."""
    return torch.promote_types(dtype, torch.float32)


def to_wide(x: Tensor) -> Tensor:
    """x in at least float32."""
    return x.to(wide_dtype(x.dtype))


def to_wide_on_cpu(x: Tensor) -> Tensor:
    """A factor of a product of few rows that is kept wide: a CPU converts it faster than it multiplies halves."""
    if x.device.type != "cpu":
        return x
    return x.to(wide_dtype(x.dtype), memory_format=torch.contiguous_format)


def to_narrow(x: Tensor, like: Tensor) -> Tensor:
    """x in the dtype of `like`."""
    return x.to(like.dtype)


def rounded_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype. Float16 has its own number for the logarithm of nothing, see `masked_logsumexp`."""
    if dtype == torch.float16 != x.dtype:
        x = torch.where(x == LOG_OF_NOTHING, -HALF_MAX / 2, x)
    return x.to(dtype)


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """x limited to low ... high."""
    return x.clamp(limit(low, x), limit(high, x))


def clamp_min(x: Tensor, low: float) -> Tensor:
    """x limited from below."""
    return x.clamp(min=limit(low, x))


def clamp_max(x: Tensor, high: float) -> Tensor:
    """x limited from above."""
    return x.clamp(max=limit(high, x))


def limit(bound: float, x: Tensor) -> float:
    """A bound of x, infinite if the dtype of x has no number as large."""
    if -HALF_MAX <= bound <= HALF_MAX or not x.is_floating_point() or abs(bound) <= torch.finfo(x.dtype).max:
        return bound
    return math.copysign(math.inf, bound)


def in_range(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias in a dtype; numbers beyond its range become the last of it, where infinities would hide whole rows."""
    if not is_wider(bias, dtype):
        return bias.to(dtype)
    return bias.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)


def row_bias(bias: Tensor, keep: Tensor | None, dtype: torch.dtype, sink: Tensor | None = None) -> Tensor:
    """A bias of a softmax in a dtype, or in the wider one beside a sink, which may be as large.

    Rows are moved to 0, where it has most digits, or, where scores are lost beside them, until their sums fit it.
    """
    if sink is not None or not is_wider(bias, dtype) or not bias.shape[-1]:
        return bias.to(dtype if sink is None else torch.promote_types(bias.dtype, dtype))
    shown = bias if keep is None else torch.where(keep, bias, torch.finfo(bias.dtype).min)
    row_max = shown.detach().amax(-1, keepdim=True)
    least = torch.where(row_max > LOG_OF_NOTHING, 0.0, torch.finfo(dtype).min / 2)
    return in_range(bias - (row_max - row_max.clamp(least, torch.zeros_like(least))), dtype)


def is_wider(bias: Tensor, dtype: torch.dtype) -> bool:
    """Whether a bias has numbers that a dtype lacks."""
    return torch.promote_types(bias.dtype, dtype) != dtype

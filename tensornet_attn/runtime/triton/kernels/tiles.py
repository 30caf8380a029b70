"""What kernels share: addresses and masks of tiles, and products with sums in at least float32."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensornet_attn.runtime.operations import mapped_first


@triton.jit
def part_and_lead(parts):
    """Which of `parts` a program computes, and for which batch and head, as 64-bit numbers."""
    return (tl.program_id(0) % parts).to(tl.int64), (tl.program_id(0) // parts).to(tl.int64)


@triton.jit
def of_lead(x, lead, heads, batch_step, head_step):
    """Where the batch and head `lead` of a tensor [b, heads, ...] begins."""
    return x + lead // heads * batch_step + lead % heads * head_step


@triton.jit
def tile_at(x, row, step, column):
    """The addresses of the tile with these rows, which are `step` apart, and columns."""
    return x + row[:, None] * step + column[None, :]


@triton.jit
def tile_mask(rows, columns):
    """Which entries of a tile have both a row and a column that exist."""
    return rows[:, None] & columns[None, :]


@triton.jit
def finite_of(x):
    """x, 0 in place of -inf, so that differences from it are defined."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b, accumulated in at least float32; of two dtypes the smaller keeps its bits, and the larger is not rounded.

    float32 with bfloat16 is split into two bfloat16 values, 16 bits together. float32 with float16 is multiplied as
    float32, because large sums overflow float16.
    """
    if a.dtype == b.dtype:
        acc = tl.dot(a, b, input_precision=PRECISION)
    elif b.dtype == tl.bfloat16:
        high = a.to(tl.bfloat16)
        acc = tl.dot(high, b) + tl.dot((a - high.to(a.dtype)).to(tl.bfloat16), b)
    elif a.dtype == tl.bfloat16:
        high = b.to(tl.bfloat16)
        acc = tl.dot(a, high) + tl.dot(a, (b - high.to(b.dtype)).to(tl.bfloat16))
    elif b.dtype == tl.float16:
        acc = tl.dot(a, b.to(a.dtype), input_precision=PRECISION)
    else:
        acc = tl.dot(a.to(b.dtype), b, input_precision=PRECISION)
    return acc


def precision_of(*operands: Tensor) -> str:
    """The input precision of float32 products: exact, or three TF32 products if an operand has fewer bits."""
    return "tf32x3" if any(x.dtype in (torch.bfloat16, torch.float16) for x in operands) else "ieee"


def sums_of(x: Tensor) -> torch.dtype:
    """The dtype of sums of x: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def tile_type(dtype: torch.dtype):
    """The corresponding triton dtype."""
    return getattr(tl, str(dtype).removeprefix("torch."))


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype that represents the values of all of these."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def batch_and_heads(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[..., length, width], expanded to the leading dimensions, as [batch, heads, length, width]."""
    *batch, heads = 1, *lead
    return x.expand(*lead, *x.shape[-2:]).reshape(math.prod(batch), heads, *x.shape[-2:])


def in_batch_dimension(op):
    """A vmap rule: the mapped dimension becomes part of the kernels' batch, first in each tensor."""

    def mapped(info, dims, *arguments):
        mapped_arguments = mapped_first(info, dims, arguments)
        outs = op(*(x.flatten(0, 1) if isinstance(x, Tensor) else x for x in mapped_arguments))
        if isinstance(outs, Tensor):
            return outs.unflatten(0, (info.batch_size, -1)), 0
        batched = [x.ndim > 1 for x in outs]  # empty tensors stand for results that are not computed
        outs = (
            x.unflatten(0, (info.batch_size, -1)) if is_batched else x
            for x, is_batched in zip(outs, batched, strict=True)
        )
        return tuple(outs), tuple(0 if is_batched else None for is_batched in batched)

    return mapped

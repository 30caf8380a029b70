"""Linear attention under a mask of the call by a Triton kernel: no tensor of queries x keys but the mask."""

import torch
from torch import Tensor

from tensornet_attn.runtime.maps import kept, normalized
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.recomputed import derivatives_of, recomputed
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear_chunks import (
    Chunked,
    chunked,
    operand_shapes,
    row_sums_gradient,
    side_by_side,
)
from tensornet_attn.runtime.triton.kernels.masked_kernels import masked_reads
from tensornet_attn.runtime.triton.kernels.tiles import in_batch_dimension, precision_of, sums_of, tile_type


def reads_where_seen(
    left: Tensor,
    right: Tensor,
    values: Tensor,
    mask: Tensor,
    how: Chunked,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    later: bool = False,
    eps: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The values that `left` reads by `masked_reads`; mask [b, h, n, m], of which left has the last leg if `later`.

    With `eps`, they are divided by the row sums; the reciprocals are the second result.
    """
    batch, heads, length, features = left.shape
    others, width = values.shape[-2:]
    mask = mask.view(torch.uint8)
    config, chunks = how.widths(features, width), -(-length // how.chunk)
    out = side_by_side(left, width)
    inverse = None if eps is None else left.new_empty(batch, heads, length, dtype=sums_of(left))
    if out.numel():
        masked_reads[(batch * heads * chunks, -(-width // config["WIDTH"]))](
            left, right, values, mask, scale, bias, out, inverse,
            *left.stride()[:3], *right.stride()[:3], *values.stride()[:3], *out.stride()[:3],
            *mask.stride()[:2], *(mask.stride()[:1:-1] if later else mask.stride()[2:]),
            heads, length, others, others - length, features, width, chunks,
            CAUSAL=how.causal, LATER=later, EPS=eps, DTYPE=tile_type(sums_of(left)),
            PRECISION=precision_of(left, right, values), **config,
        )  # fmt: skip
    return out, inverse


@torch.library.custom_op(operation("triton_masked_linear"), mutates_args=())
def triton_masked_linear(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool, normalize: bool, eps: float
) -> tuple[Tensor, Tensor]:
    """q [b, h, n, d], k [b, h, m, d], v [b, h, m, e], mask [b, h, n, m] of booleans -> as `triton_linear`."""
    with torch.cuda.device_of(q):
        q, k, v = map(laid_out, (q, k, v))
        how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), causal)
        out, inverse = reads_where_seen(q, k, v, mask, how, eps=eps if normalize else None)
        return out, q.new_empty(0, dtype=sums_of(q)) if inverse is None else inverse


@torch.library.custom_op(operation("triton_masked_linear_gradients"), mutates_args=())
def triton_masked_linear_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, out: Tensor, inverse: Tensor,
    causal: bool, normalize: bool, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, by the formulas of `triton_linear_gradients` over the visible pairs."""
    with torch.cuda.device_of(g):
        g, q, k, v = map(laid_out, (g, q, k, v))
        how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), causal)
        scale, bias = (inverse, row_sums_gradient(g, out, inverse)) if normalize else (None, None)
        dq, _ = reads_where_seen(g, v, k, mask, how, scale, bias)
        dk, _ = reads_where_seen(v, g, q, mask, how, scale, bias, later=True)
        dv, _ = reads_where_seen(k, q, g, mask, how, scale, later=True)
        return dq, dk, dv


@triton_masked_linear.register_fake
def triton_masked_linear_shapes(q, k, v, mask, causal, normalize, eps):
    """The shapes of the result and of the reciprocal row sums."""
    rows = q.shape[:-1] if normalize else (0,)
    return side_by_side(q, v.shape[-1]), q.new_empty(rows, dtype=sums_of(q))


triton_masked_linear_gradients.register_fake(operand_shapes)


def plain_masked(q, k, v, mask, causal, normalize, eps):
    """The first result of `triton_masked_linear`."""
    keep = mask & causal_mask(mask.shape[-2], mask.shape[-1], mask.device) if causal else mask
    return (normalized(q @ k.mT, keep, eps) if normalize else kept(q @ k.mT, keep)) @ v


read_masked = recomputed(
    triton_masked_linear, triton_masked_linear_gradients, derivatives_of(plain_masked, 3), in_batch_dimension
)

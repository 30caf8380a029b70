"""Softmax attention within a band by Triton kernels, which load the tiles of the band alone; beside `attend_band`."""

import math

import torch
from torch import Tensor

from tensornet_attn.nn.functions.at_import import operation
from tensornet_attn.nn.functions.autocast import product_dtype
from tensornet_attn.nn.functions.band import attend_band
from tensornet_attn.nn.functions.masks import window_mask
from tensornet_attn.nn.functions.softmax import masked_softmax
from tensornet_attn.nn.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.nn.triton.kernels.band_kernels import band_keys, band_queries, band_reads
from tensornet_attn.nn.triton.kernels.linear_launch import row_sums_gradient
from tensornet_attn.nn.triton.kernels.tiles import common_dtype, in_batch_dimension, sums_of, tile_type, width_first

WIDEST = 256  # a head whose tiles fit
BAND = ((128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (32, 32, 4, 2), (32, 32, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1))


def triton_attend_band(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: int,
    right: int,
    block: int,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    scale: float = 1.0,
    dropout: float = 0.0,
    tied: bool = False,
) -> Tensor:
    """`attend_band` of the same arguments, which itself takes a `mask`, dropout, and heads too wide for a tile."""
    if mask is not None or dropout or max(q.shape[-1], v.shape[-1]) > WIDEST:
        return attend_band(q, k, v, left, right, block, mask, key_mask, batch, scale, dropout, tied)
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    groups, dtype = max(k.shape[-2], v.shape[-2]), product_dtype(v, common_dtype(q, k, v))
    k, v = (x.expand(*x.shape[:-2], groups, x.shape[-1]) for x in (k, v))
    q, k, v = (x.to(dtype).expand(*lead, *x.shape[-3:]).transpose(-2, -3) for x in (q, k, v))
    q, k, v = (x.reshape(math.prod(lead), *x.shape[-3:]) for x in (q, k, v))
    if key_mask is not None:
        key_mask = key_mask.expand(*lead, key_mask.shape[-1]).reshape(math.prod(lead), key_mask.shape[-1])
    out, _ = triton_band(q, k, v, key_mask, left, right, scale)
    return out.reshape(*lead, *out.shape[1:]).transpose(-2, -3)


@torch.library.custom_op(operation("triton_band"), mutates_args=())
def triton_band(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, before: int, after: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q [b, h, n, d], k [b, g, m, d], v [b, g, m, e], keep [b, m] -> [b, h, n, e], log of sums [b, h, n], base 2."""
    with torch.cuda.device_of(q):
        q, k, v = map(width_first, (q, k, v))
        out, tops = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=sums_of(q))
        if out.numel():
            config = band_config(q, v)
            band_reads[(q.shape[0] * q.shape[1] * -(-q.shape[2] // config["QUERIES"]),)](
                q, k, v, keep_bytes(keep), out, tops, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
                *band_sizes(q, k, v, before, after), SCALE=scale * math.log2(math.e), **config,
            )  # fmt: skip
        return out, tops


@torch.library.custom_op(operation("triton_band_gradients"), mutates_args=())
def triton_band_gradients(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    out: Tensor,
    tops: Tensor,
    before: int,
    after: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from that of what is read."""
    with torch.cuda.device_of(g):
        g, q, k, v = map(width_first, (g, q, k, v))
        dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        dots = row_sums_gradient(g, out, torch.full_like(tops, -1))
        config = band_config(q, v)
        given = g, q, k, v, keep_bytes(keep), tops, dots
        rest = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *g.stride()[:3], *band_sizes(q, k, v, before, after))
        factors = {"FACTOR": scale, "SCALE": scale * math.log2(math.e), **config}
        if dq.numel():
            band_queries[(q.shape[0] * q.shape[1] * -(-q.shape[2] // config["QUERIES"]),)](*given, dq, *rest, **factors)
        if dk.numel() or dv.numel():
            band_keys[(k.shape[0] * k.shape[1] * -(-k.shape[2] // config["KEYS"]),)](*given, dk, dv, *rest, **factors)
        return dq, dk, dv


def keep_bytes(keep: Tensor | None) -> Tensor | None:
    """A mask as the kernels load it."""
    return None if keep is None else keep.contiguous().view(torch.int8)


def band_sizes(q: Tensor, k: Tensor, v: Tensor, before: int, after: int) -> tuple[int, ...]:
    """Heads, heads that share a key, lengths, the position of the first query, the reach, the widths."""
    heads, n, width = q.shape[1:]
    m = k.shape[2]
    return heads, heads // k.shape[1], n, m, m - n, before, after, width, v.shape[-1]


def band_config(q: Tensor, v: Tensor) -> dict:
    """What the kernels are launched with for operands like these."""
    width, values, size = padded(q.shape[-1]), padded(v.shape[-1]), q.element_size()
    rows = padded(min(q.shape[-2], 128))
    candidates = [
        {"QUERIES": min(queries, rows), "KEYS": min(keys, rows), "num_warps": warps, "num_stages": stages}
        for queries, keys, warps, stages in BAND
    ]

    def need(QUERIES: int, KEYS: int, **launch: int) -> tuple[int, int]:
        numbers = QUERIES * (KEYS + width + values) + KEYS * (width + values)
        return numbers * held_for(size), size * (KEYS + QUERIES) * (width + values)

    sizes = (width, values, rows, str(q.dtype).removeprefix("torch."))
    kinds = {"DTYPE": tile_type(sums_of(q)), "PRECISION": "ieee", "WIDTH": width, "VALUES": values}
    return configured("band", sizes, distinct(candidates), need) | kinds


@triton_band.register_fake
def triton_band_shapes(q, k, v, keep, before, after, scale):
    """The shapes of what is read and of the logs of sums."""
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=sums_of(q))


@triton_band_gradients.register_fake
def triton_band_gradients_shapes(g, q, k, v, *rest):
    """The shapes of the gradients."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def triton_band_keep(ctx, inputs, output):
    """Keeps the operands and the results, no scores."""
    *operands, ctx.before, ctx.after, ctx.scale = inputs
    ctx.save_for_backward(*operands, *output)


def triton_band_pull(ctx, g, _):
    """The gradients of the operands."""
    return *triton_band_gradients(g, *ctx.saved_tensors, ctx.before, ctx.after, ctx.scale), None, None, None, None


def triton_band_keep_all(ctx, inputs, output):
    """Keeps what the gradients are made of."""
    *tensors, ctx.before, ctx.after, ctx.scale = inputs
    ctx.save_for_backward(*tensors[:5])


def triton_band_twice(ctx, *seconds):
    """The gradients of the gradients, by those of plain tensor code that makes every score."""
    *operands, keep = ctx.saved_tensors

    def plain(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        near = window_mask(q.shape[-2], k.shape[-2], ctx.before, ctx.after, q.device)
        near = near if keep is None else near & keep[:, None, None, :]
        return masked_softmax(ctx.scale * q @ k.mT, near) @ v

    def gradients(g, *some):
        return torch.func.vjp(plain, *some)[1](g)

    return *torch.func.vjp(gradients, *operands)[1](seconds), None, None, None, None, None, None


triton_band.register_autograd(triton_band_pull, setup_context=triton_band_keep)
triton_band_gradients.register_autograd(triton_band_twice, setup_context=triton_band_keep_all)


@triton_band.register_vmap
def triton_band_mapped(info, dims, *given):
    """One more batch dimension."""
    found = triton_band(*in_batch_dimension(info, dims, given))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in found), (0, 0)


@triton_band_gradients.register_vmap
def triton_band_gradients_mapped(info, dims, *given):
    """One more batch dimension."""
    found = triton_band_gradients(*in_batch_dimension(info, dims, given))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in found), (0, 0, 0)

"""The delta rule by Triton kernels, in chunks of keys; beside `delta_rule`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.at_import import operation
from tensornet_attn.nn.functions.autocast import exact_products
from tensornet_attn.nn.functions.normalize import divided
from tensornet_attn.nn.functions.scan import delta_rule, gradients_by_chunks, keys_by_sum
from tensornet_attn.nn.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.nn.triton.kernels.linear_launch import Chunked, read_chunks
from tensornet_attn.nn.triton.kernels.scan_kernels import (
    chunk_inverse,
    chunk_products,
    delta_gradients_end,
    delta_states,
)
from tensornet_attn.nn.triton.kernels.tiles import (
    batch_and_heads,
    common_dtype,
    in_batch_dimension,
    precision_of,
    sums_of,
    tile_type,
    width_first,
)

DEEPEST = 128  # width of keys whose states a program holds
DELTA = ((32, 32, 4, 1), (32, 32, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1))


def triton_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    key_mask: Tensor | None = None,
    normalize: str = "none",
    eps: float = 0.0,
    chunk: int = 64,
) -> Tensor:
    """`delta_rule` of the same arguments, which itself takes wider keys; the kernels choose their own chunk."""
    if k.shape[-1] > DEEPEST:
        return delta_rule(q, k, v, rate, key_mask, normalize, eps, chunk)
    n, m, dtype = q.shape[-2], k.shape[-2], v.dtype
    wide = torch.promote_types(dtype, torch.float32)
    rate = rate.to(wide)
    if key_mask is not None:
        k, rate = torch.where(key_mask[..., None], k, 0), torch.where(key_mask, rate, 0)
    if normalize == "none":
        return delta_by_heads(q, k, v, rate).to(dtype)
    q, k, v = (x.to(wide) for x in (q, k, v))
    z = k.cumsum(-2)
    used, rate = keys_by_sum(k, z, rate, key_mask, eps) if normalize == "both" else (k, rate)
    z = F.pad(z, (0, 0, n - m, 0))  # as the last query stands at the last key; a negative width crops
    return divided(delta_by_heads(q, used, v, rate), (z * q).sum(-1, keepdim=True) + eps).to(dtype)


def delta_by_heads(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """The delta rule without its sums: operands that broadcast, as `delta_rule` takes them."""
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2], rate.shape[:-1])
    dtype = common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    out = triton_delta(*operands, batch_and_heads(rate[..., None], lead))
    return out.reshape(*lead, *out.shape[-2:])


@torch.library.custom_op(operation("triton_delta"), mutates_args=())
def triton_delta(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """What the queries read: q [b, h, n, d], k [b, h, m, d], v [b, h, m, e], rate [b, h, m, 1] -> [b, h, n, e]."""
    with torch.cuda.device_of(q):
        q, k, v = map(width_first, (q, k, v))
        how = delta_chunked(k, k.shape[-1], v.shape[-1])
        undone, writes, _ = solve_chunks(k, v, rate.contiguous(), how)
        states, written = scan_chunks(k, writes, undone, how)
        return read_chunks(q, k, written, states, how)[0]


@torch.library.custom_op(operation("triton_delta_gradients"), mutates_args=())
def triton_delta_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and rate from that of what is read; `moved` is -1 times that of the writes."""
    with torch.cuda.device_of(g):
        g, q, k, v, rate = *map(width_first, (g, q, k, v)), rate.contiguous()
        how, wide = delta_chunked(k, k.shape[-1], v.shape[-1]), sums_of(k)
        undone, writes, inverse = solve_chunks(k, v, rate, how)
        states, written = scan_chunks(k, writes, undone, how)
        g_written, _ = read_chunks(k, q, g, None, how, later=True, dtype=wide)
        after, moved = scan_chunks(undone, g_written, k, how, (q, g))
        dq, _ = read_chunks(g, written, k, states.mT, how)
        dk, _ = read_chunks(written, g, q, after.mT, how, later=True, dtype=wide)
        of_undone, _ = read_chunks(moved, moved, k, states.mT, how, pairs=False)
        of_key, of_value = solved_by(inverse, of_undone, None, how), solved_by(inverse, moved, None, how, -1)
        more, dv, drate = solve_gradients(k, v, rate, (undone, writes, of_key, of_value), how)
        return dq, dk.add_(more).to(k.dtype), dv, drate


def delta_chunked(k: Tensor, features: int, width: int) -> Chunked:
    """The launch for keys like k of these widths; a chunk is a power of two."""
    size, rows, deep = k.element_size(), padded(min(k.shape[-2], 64)), padded(features)
    candidates = [
        {"CHUNK": min(chunk, rows), "BLOCK": min(block, padded(max(features, width))),
         "num_warps": warps, "num_stages": stages} for chunk, block, warps, stages in DELTA
    ]  # fmt: skip

    def need(CHUNK: int, BLOCK: int, **launch: int) -> tuple[int, int]:
        numbers = CHUNK * (CHUNK + BLOCK + 2 * deep) + BLOCK * deep
        return numbers * held_for(max(4, size)), max(4, size) * (2 * CHUNK * deep + CHUNK * BLOCK)

    sizes = (features, width, rows, str(k.dtype).removeprefix("torch."))
    config = dict(configured("delta", sizes, distinct(candidates), need))
    return Chunked(True, config.pop("CHUNK"), config.pop("BLOCK"), tuple(config.items()))


def solve_chunks(k: Tensor, v: Tensor, rate: Tensor, how: Chunked) -> tuple[Tensor, Tensor, Tensor]:
    """undone [b, h, m, d], writes [b, h, m, e] and the inverse of each chunk's system [b h, chunks c, c]."""
    batch, heads, length, features = k.shape
    chunks, config = -(-length // how.chunk), how.widths(features, v.shape[-1])
    inverse = k.new_empty(batch * heads, chunks * how.chunk, how.chunk, dtype=sums_of(k))
    if inverse.numel():
        del config["WIDTH"]
        chunk_inverse[(batch * heads * chunks,)](
            k, rate, inverse, *k.stride()[:3], heads, length, features, chunks,
            levels=how.chunk.bit_length() - 1, DTYPE=tile_type(inverse.dtype), PRECISION=precision_of(k), **config,
        )  # fmt: skip
    return solved_by(inverse, k, rate, how), solved_by(inverse, v, rate, how), inverse


def solved_by(inverse: Tensor, x: Tensor, rate: Tensor | None, how: Chunked, sign: int = 1) -> Tensor:
    """inverse (rate x) for each chunk of x [b, h, m, e]; without a rate, sign times the transposed inverse and x."""
    batch, heads, length, width = x.shape
    chunks, config = -(-length // how.chunk), how.widths(width, width)
    out = inverse.new_empty(x.shape)
    del config["FEATURES"]
    if out.numel():
        chunk_products[(batch * heads * chunks, -(-width // config["WIDTH"]))](
            inverse, x, rate, out, *x.stride()[:3], heads, length, width, chunks,
            sign=sign, DTYPE=tile_type(out.dtype), PRECISION=precision_of(x), **config,
        )  # fmt: skip
    return out


def scan_chunks(
    adds: Tensor, given: Tensor, takes: Tensor, how: Chunked, more: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The states before each chunk [b h, chunks, d, e] and what is moved into them, as `delta_states` says.

    With `more`, two operands of queries, from the last chunk to the first.
    """
    batch, heads, length, features = adds.shape
    width, chunks = given.shape[-1], -(-length // how.chunk)
    left, right = (adds, given) if more is None else more
    states, moved = given.new_empty(batch * heads, chunks, features, width), torch.empty_like(given)
    config = how.widths(features, width) | {"FEATURES": padded(features)}
    if states.numel():
        delta_states[(batch * heads, -(-width // config["WIDTH"]))](
            adds, given, takes, left, right, states, moved,
            *adds.stride()[:3], *takes.stride()[:3], *left.stride()[:3], *right.stride()[:3],
            heads, length, left.shape[-2], length - left.shape[-2], features, width, chunks,
            LATER=more is not None, DTYPE=tile_type(given.dtype), PRECISION=precision_of(adds, takes, left), **config,
        )  # fmt: skip
    return states, moved


def solve_gradients(
    k: Tensor, v: Tensor, rate: Tensor, found: tuple[Tensor, ...], how: Chunked
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of k, v and rate by way of undone and writes, those of rate k and rate v `found` too."""
    batch, heads, length, features = k.shape
    width, chunks = v.shape[-1], -(-length // how.chunk)
    dk, dv, drate = found[0].new_empty(k.shape), v.new_empty(v.shape), torch.empty_like(rate)
    if rate.numel():
        delta_gradients_end[(batch * heads * chunks,)](
            k, v, rate, *found, dk, dv, drate, *k.stride()[:3], *v.stride()[:3],
            heads, length, features, width, chunks,
            DTYPE=tile_type(dk.dtype), PRECISION=precision_of(k), **how.widths(features, width),
        )  # fmt: skip
    return dk, dv, drate


@triton_delta.register_fake
def triton_delta_shape(q, k, v, rate):
    """The shape of what is read."""
    return q.new_empty(*q.shape[:-1], v.shape[-1])


@triton_delta_gradients.register_fake
def triton_delta_gradients_shapes(g, *operands):
    """The shapes of the gradients."""
    return tuple(x.new_empty(x.shape) for x in operands)


def triton_delta_keep(ctx, inputs, output):
    """Keeps the operands."""
    ctx.save_for_backward(*inputs)


def triton_delta_pull(ctx, g):
    """The gradients of the operands."""
    return triton_delta_gradients(g, *ctx.saved_tensors)


def triton_delta_twice(ctx, *seconds):
    """The gradients of the gradients, by those of plain tensor code."""
    with exact_products(seconds[0]):
        return torch.func.vjp(lambda *x: gradients_by_chunks(*x, 64), *ctx.saved_tensors)[1](seconds)


triton_delta.register_autograd(triton_delta_pull, setup_context=triton_delta_keep)
triton_delta_gradients.register_autograd(triton_delta_twice, setup_context=triton_delta_keep)


@triton_delta.register_vmap
def triton_delta_mapped(info, dims, *given):
    """One more batch dimension."""
    return triton_delta(*in_batch_dimension(info, dims, given)).unflatten(0, (info.batch_size, -1)), 0


@triton_delta_gradients.register_vmap
def triton_delta_gradients_mapped(info, dims, *given):
    """One more batch dimension."""
    found = triton_delta_gradients(*in_batch_dimension(info, dims, given))
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in found), (0, 0, 0, 0)

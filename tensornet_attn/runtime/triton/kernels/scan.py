"""`delta_rule` by Triton kernels, in chunks of keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.maps import divided
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.recomputed import derivatives_of, recomputed
from tensornet_attn.runtime.scan import delta_operands, delta_rule
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.runtime.triton.kernels.linear_chunks import (
    Chunked,
    chunk_sums,
    read_chunks,
    row_sums_gradient,
    side_by_side,
)
from tensornet_attn.runtime.triton.kernels.scan_kernels import chunk_solutions, delta_gradients_end, delta_states
from tensornet_attn.runtime.triton.kernels.tiles import (
    batch_and_heads,
    common_dtype,
    in_batch_dimension,
    precision_of,
    sums_of,
    tile_type,
)

DEEPEST = 256  # maximum width of keys whose states a program holds
DELTA = (
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (64, 64, 8, 2),
    (32, 32, 4, 2),
    (32, 32, 4, 1),
    (32, 32, 8, 1),
    (32, 16, 4, 1),
    (32, 16, 8, 1),
)


def triton_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    key_mask: Tensor | None = None,
    normalize: str = "none",
    eps: float = 0.0,
    chunk: int = 64,
    past: list[Tensor] | tuple[Tensor, ...] = (),
) -> Tensor:
    """`delta_rule`, with the same arguments; uses the torch version for wider keys and for a `past` state.

    The kernels choose the chunk.
    """
    if k.shape[-1] > DEEPEST or past:
        return delta_rule(q, k, v, rate, key_mask, normalize, eps, chunk, past)
    n, m, dtype = q.shape[-2], k.shape[-2], v.dtype
    if normalize != "both":
        rate = rate.to(torch.promote_types(dtype, torch.float32))
        if key_mask is not None:
            k, rate = torch.where(key_mask[..., None], k, 0), torch.where(key_mask, rate, 0)
        return delta_by_heads(q, k, v, rate, normalize == "read", eps).to(dtype)
    q, k, v, rate, z = delta_operands(k, v, rate, key_mask, normalize, eps, past, q)
    operand_dtype = (
        torch.bfloat16 if dtype == torch.bfloat16 else q.dtype
    )  # divided gradients are too small for float16
    read = delta_by_heads(q.to(operand_dtype), k.to(operand_dtype), v.to(operand_dtype), rate, False, 0.0)
    z = F.pad(z, (0, 0, n - m, 0))  # the last query is at the last key; a negative width crops
    return divided(read.to(q.dtype), (z * q).sum(-1, keepdim=True) + eps).to(dtype)


def delta_by_heads(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, normalize: bool, eps: float) -> Tensor:
    """The delta rule for operands that broadcast; `normalize` divides by the product of query and key sums."""
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2], rate.shape[:-1])
    dtype = common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    out = read_triton_delta(*operands, batch_and_heads(rate[..., None], lead), normalize, eps)[0]
    return out.reshape(*lead, *out.shape[-2:])


@torch.library.custom_op(operation("triton_delta"), mutates_args=())
def triton_delta(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, normalize: bool, eps: float) -> tuple[Tensor, Tensor]:
    """The values read: q [b, h, n, d], k [b, h, m, d], v [b, h, m, e], rate [b, h, m, 1] -> [b, h, n, e].

    With `normalize`, divided by q z + eps, z the cumulative key sum; the reciprocal [b, h, n] is the second result.
    """
    with torch.cuda.device_of(q):
        q, k, v = map(laid_out, (q, k, v))
        how = delta_chunked(k, k.shape[-1], v.shape[-1])
        undone, writes, _ = solve_chunks(k, v, rate.contiguous(), how)
        states, written = scan_chunks(k, writes, undone, how)
        _, total = chunk_sums(k, None, how, total=True) if normalize else (None, None)
        out, inverse = read_chunks(q, k, written, states.mT, how, total, eps=eps if normalize else None)
        return out, q.new_empty(0, dtype=sums_of(q)) if inverse is None else inverse


@torch.library.custom_op(operation("triton_delta_gradients"), mutates_args=())
def triton_delta_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, out: Tensor, inverse: Tensor, normalize: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and rate from that of the values read; `moved` is minus the gradient of the writes.

    With `normalize`, g becomes inverse g, and queries and keys receive the gradient r of the row sums, as in linear
    attention: scores that the writes read are g written^T + r.
    """
    with torch.cuda.device_of(g):
        g, q, k, v, rate = *map(laid_out, (g, q, k, v)), rate.contiguous()
        how, stored_dtype, (n, m) = delta_chunked(k, k.shape[-1], v.shape[-1]), kept_in(k), (q.shape[-2], k.shape[-2])
        bias, key_total, query_total = None, None, None
        if normalize:
            bias = row_sums_gradient(g, out, inverse)
            g = g * inverse[..., None]
            _, key_total = chunk_sums(k, None, how, total=True)
            _, query_total = chunk_sums(q, None, how, None, bias, m - n, m, later=True, total=True)
        g = g.to(stored_dtype)
        undone, writes, solved = solve_chunks(k, v, rate, how, True)
        states, written = scan_chunks(k, writes, undone, how)
        g_written, _ = read_chunks(k, q, g, None, how, later=True, dtype=stored_dtype, apart=True)
        after, moved = scan_chunks(undone, g_written, k, how, (q, g))
        dq, _ = read_chunks(g, written, k, states, how, key_total, bias=bias, dtype=q.dtype)
        dk, _ = read_chunks(
            written, g, q, after, how, query_total, bias=bias, later=True, dtype=stored_dtype, apart=True
        )
        return dq, *gradients_end(k, v, rate, (undone, writes, moved, states, solved, dk), how)


def kept_in(*tensors: Tensor) -> torch.dtype:
    """The dtype of tensors passed between kernels: large sums overflow float16, but not bfloat16."""
    return torch.bfloat16 if any(x.dtype == torch.bfloat16 for x in tensors) else sums_of(tensors[0])


def delta_chunked(k: Tensor, features: int, width: int) -> Chunked:
    """The launch options for keys like k of these widths; a chunk is a power of two with halves of at least 16 rows."""
    size, rows, deep = kept_in(k).itemsize, padded(min(k.shape[-2], 64), 32), padded(features)
    candidates = [
        {"CHUNK": min(chunk, rows), "BLOCK": min(block, padded(max(features, width))),
         "num_warps": warps, "num_stages": stages} for chunk, block, warps, stages in DELTA
    ]  # fmt: skip

    def need(CHUNK: int, BLOCK: int, **launch: int) -> tuple[int, int]:
        staged = size * CHUNK * (3 * deep + 2 * BLOCK)
        staged += size * BLOCK * deep if deep > 128 else 0  # such states do not stay in registers
        if size < 4:  # as measured by compiling for sm_80 and sm_90
            return (CHUNK * (CHUNK + BLOCK + deep) + 2 * BLOCK * deep) * 2 // 3, staged
        return (CHUNK * (CHUNK + BLOCK + 2 * deep) + BLOCK * deep) * held_for(size), staged

    sizes = (features, width, rows, str(k.dtype).removeprefix("torch."))
    config = dict(configured("delta", sizes, distinct(candidates), need))
    return Chunked(True, config.pop("CHUNK"), config.pop("BLOCK"), tuple(config.items()))


def products_of(k: Tensor) -> str:
    """The input precision of float32 products with operands like k."""
    return "bf16x3" if k.dtype == torch.bfloat16 else precision_of(k)


def solve_chunks(
    k: Tensor, v: Tensor, rate: Tensor, how: Chunked, keep: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """undone [b, h, m, d], writes [b, h, m, e] and, with `keep`, the inverse of each system, [b h, chunks c, c]."""
    batch, heads, length, features = k.shape
    width, chunks, stored_dtype = v.shape[-1], -(-length // how.chunk), kept_in(k)
    undone, writes = k.new_empty(k.shape, dtype=stored_dtype), v.new_empty(v.shape, dtype=stored_dtype)
    inverse = k.new_empty(batch * heads, chunks * how.chunk, how.chunk, dtype=stored_dtype) if keep else None
    if rate.numel():
        config = how.widths(features, width)
        half = config.pop("CHUNK") // 2
        chunk_solutions[(batch * heads * chunks,)](
            k, v, rate, undone, writes, inverse, *k.stride()[:3], *v.stride()[:3],
            heads, length, features, width, chunks, LEVELS=half.bit_length() - 1,
            DTYPE=tile_type(sums_of(k)), PRECISION=products_of(k), HALF=half, **config,
        )  # fmt: skip
    return undone, writes, inverse


def scan_chunks(
    adds: Tensor, values: Tensor, takes: Tensor, how: Chunked, queries: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The states before each chunk [b h, chunks, e, d] and the values moved into them, see `delta_states`.

    With `queries`, two operands of queries, runs from the last chunk to the first.
    """
    batch, heads, length, features = adds.shape
    width, chunks = values.shape[-1], -(-length // how.chunk)
    left, right = (adds, values) if queries is None else queries
    states, moved = values.new_empty(batch * heads, chunks, width, features), torch.empty_like(values)
    config = how.widths(features, width) | {"FEATURES": padded(features)}
    if states.numel():
        delta_states[(batch * heads, -(-width // config["WIDTH"]))](
            adds, values, takes, left, right, states, moved,
            *adds.stride()[:3], *takes.stride()[:3], *left.stride()[:3], *right.stride()[:3],
            heads, length, left.shape[-2], length - left.shape[-2], features, width, chunks,
            LATER=queries is not None, DTYPE=tile_type(sums_of(values)), PRECISION=precision_of(adds, takes, left),
            **config,
        )  # fmt: skip
    return states, moved


def gradients_end(
    k: Tensor, v: Tensor, rate: Tensor, intermediates: tuple[Tensor | None, ...], how: Chunked
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of k, v and rate from the intermediate results in `intermediates`, see `delta_gradients_end`."""
    batch, heads, length, features = k.shape
    width, chunks = v.shape[-1], -(-length // how.chunk)
    dk, dv, drate = side_by_side(k, features), side_by_side(v, width), torch.empty_like(rate)
    if rate.numel():
        delta_gradients_end[(batch * heads * chunks,)](
            k, v, rate, *intermediates, dk, dv, drate, *k.stride()[:3], *v.stride()[:3],
            heads, length, features, width, chunks,
            DTYPE=tile_type(sums_of(k)), PRECISION=precision_of(k), **how.widths(features, width),
        )  # fmt: skip
    return dk, dv, drate


@triton_delta.register_fake
def triton_delta_shape(q, k, v, rate, normalize, eps):
    """The shapes of the values read, and of the reciprocal row sums."""
    rows = q.shape[:-1] if normalize else (0,)
    return side_by_side(q, v.shape[-1]), q.new_empty(rows, dtype=sums_of(q))


@triton_delta_gradients.register_fake
def triton_delta_gradients_shapes(g, q, k, v, rate, *others):
    """The shapes of the gradients."""
    return *(side_by_side(x, x.shape[-1]) for x in (q, k, v)), rate.new_empty(rate.shape)


def plain_delta(q, k, v, rate, normalize, eps):
    """The first result of `triton_delta`."""
    return delta_rule(q, k, v, rate[..., 0], None, "read" if normalize else "none", eps)


read_triton_delta = recomputed(triton_delta, triton_delta_gradients, derivatives_of(plain_delta, 4), in_batch_dimension)

"""`linear_attention` by Triton kernels, in chunks whose states are stored in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.runtime.linear import dense_linear, linear_attention, seen_terms
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.runtime.triton.kernels.linear_kernels import linear_reads, linear_sums, row_products, sums_before
from tensornet_attn.runtime.triton.kernels.tiles import (
    batch_and_heads,
    common_dtype,
    in_batch_dimension,
    precision_of,
    sums_of,
    tile_type,
)

SPAN = 16  # chunks that one program sums if the sums between them are not needed
LINEAR = (
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 64, 8, 2),
    (64, 64, 4, 1),
    (32, 32, 4, 1),
    (32, 32, 8, 1),
    (16, 16, 4, 1),
)


def triton_linear_attention(
    terms: list[tuple[Tensor, ...]],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    causal: bool = False,
    chunk: int = 64,
) -> Tensor:
    """`linear_attention`, with the same arguments; kernels choose the chunk; a `mask` materialises the scores."""
    if mask is not None:
        return dense_linear(terms, v, mask, key_mask, batch, heads, eps, normalize, causal)
    terms = seen_terms(terms, key_mask, heads)
    cores = [core for _, _, *rest in terms for core in rest]
    if cores:
        v = v.unflatten(-1, (cores[0].shape[-1], -1)).movedim(-2, -3)  # ... h m e
        terms = [mixed_sides(*term) for term in terms]
    q, k = (joined_features(sides) for sides in zip(*terms, strict=True))
    out = linear_by_heads(q, k, v, causal, normalize, eps)
    return out.movedim(-3, -2).flatten(-2) if cores else out


def mixed_sides(q: Tensor, k: Tensor, core: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One term per head: q [..., n, (g d)] times its core [..., g, h] as [..., h, n, (g d)], with the same k."""
    if core is None:
        return q.unsqueeze(-3), k.unsqueeze(-3)
    grouped = q.unflatten(-1, (core.shape[-2], -1)).unsqueeze(-4)  # ... 1 n g d
    return (grouped * core.mT[..., :, None, :, None]).flatten(-2), k.unsqueeze(-3)


def joined_features(sides: tuple[Tensor, ...]) -> Tensor:
    """Concatenates the features of all terms, whose scores are added."""
    if len(sides) == 1:
        return sides[0]
    lead = torch.broadcast_shapes(*(side.shape[:-1] for side in sides))
    return torch.cat([side.expand(*lead, -1) for side in sides], -1)


def linear_by_heads(q: Tensor, k: Tensor, v: Tensor, causal: bool, normalize: bool, eps: float) -> Tensor:
    """One term: q [..., n, d], k [..., m, d], v [..., m, e], which broadcast -> [..., n, e] in the dtype of v."""
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    dtype = common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    out = triton_linear(*operands, causal, normalize, eps)[0]
    return out.reshape(*lead, *out.shape[-2:]).to(v.dtype)


@dataclass(frozen=True)
class Chunked:
    """The launch options of one call: positions per chunk, maximum block of a width, and others."""

    causal: bool
    chunk: int
    block: int
    launch: tuple

    def widths(self, features: int, width: int) -> dict:
        """The launch arguments of a kernel over these widths."""
        blocks = {"FEATURES": min(self.block, padded(features)), "WIDTH": min(self.block, padded(width))}
        return {"CHUNK": self.chunk, **blocks, **dict(self.launch)}


def chunked(x: Tensor, features: int, width: int, rows: int, causal: bool) -> Chunked:
    """The launch options for operands like x, of these widths and lengths."""
    most = max(padded(features), padded(width))
    size = 4 if x.dtype == torch.float16 else x.element_size()  # multiplied as float32 with sums
    candidates = [
        {"CHUNK": min(chunk, padded(rows)), "BLOCK": min(block, most), "num_warps": warps, "num_stages": stages}
        for chunk, block, warps, stages in LINEAR
    ]

    def need(CHUNK: int, BLOCK: int, **launch: int) -> tuple[int, int]:
        numbers = CHUNK * (2 * CHUNK + 3 * BLOCK) + BLOCK * BLOCK  # scores count twice where they are split
        numbers = numbers * 3 // 4 if size < 4 else numbers * held_for(size)  # as measured by compiling
        return numbers, 3 * size * CHUNK * BLOCK + max(4, size) * BLOCK * BLOCK

    sizes = (most, min(padded(rows), 64), str(x.dtype).removeprefix("torch."))
    config = dict(configured("linear", sizes, distinct(candidates), need))
    return Chunked(causal, config.pop("CHUNK"), config.pop("BLOCK"), tuple(config.items()))


def chunk_sums(
    k: Tensor,
    v: Tensor | None,
    how: Chunked,
    scale: Tensor | None = None,
    weight: Tensor | None = None,
    first: int = 0,
    most: int | None = None,
    later: bool = False,
    total: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """The sums of scale k v^T before each chunk, or after it if `later`: [b h, chunks, d, e]; with `total` also of
    weight k.

    Without v, only the sums of weight k. Not causal: the sum of all rows, as one chunk. Row i of k is at position
    `first` + i of `most`, by default of its length.
    """
    batch, heads, length, features = k.shape
    width, span = 1 if v is None else v.shape[-1], 1 if how.causal else SPAN
    config = how.widths(features, width)
    places = length if most is None or not how.causal else most
    parts = max(1, -(-places // (how.chunk * span)))
    sums = None if v is None else k.new_empty(batch * heads, parts, features, width, dtype=sums_of(k))
    totals = k.new_empty(batch * heads, parts, features, dtype=sums_of(k)) if total else None
    values = k if v is None else v
    if batch * heads * features * width:
        linear_sums[(batch * heads * parts, -(-features // config["FEATURES"]), -(-width // config["WIDTH"]))](
            k, values, scale, weight, sums, totals, *k.stride()[:3], *values.stride()[:3],
            heads, length, first if how.causal else 0, features, width, parts,
            span=span, DTYPE=tile_type(sums_of(k)), PRECISION=precision_of(k, values), **config,
        )  # fmt: skip
    made = (None if x is None else before(x, how, later) for x in (sums, totals))
    return next(made), next(made)


def before(sums: Tensor, how: Chunked, later: bool) -> Tensor:
    """Exclusive sums over the parts [b h, parts, ...], in place; or the sum of all parts, as one."""
    if not how.causal:
        return sums.sum(1, keepdim=True)
    if sums.numel():
        lead, parts, size = sums.flatten(2).shape
        block = min(1024, padded(size))
        sums_before[(lead, -(-size // block))](
            sums, parts, size, REVERSE=later, DTYPE=tile_type(sums.dtype), BLOCK=block, num_warps=4
        )
    return sums


def read_chunks(
    left: Tensor,
    right: Tensor,
    values: Tensor,
    sums: Tensor | None,
    how: Chunked,
    total: Tensor | None = None,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    later: bool = False,
    eps: float | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The values that `left` reads by `linear_reads`, in the dtype of `left` or another one.

    With `eps`, they are divided by the row sums; the reciprocals are the second result.
    """
    batch, heads, length, features = left.shape
    others, width = values.shape[-2:]
    ahead = (length - others if later else others - length) if how.causal else 0  # position of the first query
    left_first, right_first = (0, ahead) if later else (ahead, 0)
    start, config = left_first // how.chunk, how.widths(features, width)
    chunks = -(-(left_first + length) // how.chunk) - start
    out = left.new_empty(batch, heads, length, width, dtype=dtype)
    inverse = None if eps is None else left.new_empty(batch, heads, length, dtype=sums_of(left))
    if out.numel():
        strides = (0, 0, 0) if sums is None else (*sums.stride()[2:], sums.shape[1])
        linear_reads[(batch * heads * chunks, -(-width // config["WIDTH"]))](
            left, right, values, sums, total, scale, bias, out, inverse,
            *left.stride()[:3], *right.stride()[:3], *values.stride()[:3], *strides,
            heads, length, others, left_first, right_first, features, width, chunks, start,
            CAUSAL=how.causal, PAIRS=how.causal, LATER=later, EPS=eps, DTYPE=tile_type(sums_of(left)),
            PRECISION=precision_of(left, right, values), **config,
        )  # fmt: skip
    return out, inverse


def row_sums_gradient(g: Tensor, out: Tensor, inverse: Tensor | None) -> Tensor:
    """The gradient of the row sums that divide `out`, from that of `out`: -inverse <g, out>; without inverse <g, out>.

    g and out [b, h, n, e] with contiguous e, out contiguous; inverse, if given, and the result [b, h, n].
    """
    batch, heads, length, width = out.shape
    found = out.new_empty(out.shape[:-1], dtype=sums_of(out))
    if found.numel():
        row_products[(batch * heads * -(-length // 64),)](
            g, out, inverse, found, *g.stride()[:3], heads, length, width,
            DTYPE=tile_type(found.dtype), ROWS=64, WIDTH=min(64, padded(width)), num_warps=4,
        )  # fmt: skip
    return found


@torch.library.custom_op(operation("triton_linear"), mutates_args=())
def triton_linear(q: Tensor, k: Tensor, v: Tensor, causal: bool, normalize: bool, eps: float) -> tuple[Tensor, Tensor]:
    """q [b, h, n, d], k [b, h, m, d], v [b, h, m, e] -> [b, h, n, e], and the reciprocals of the row sums.

    The reciprocals are [b, h, n], or empty unless `normalize`.
    """
    with torch.cuda.device_of(q):
        q, k, v = map(laid_out, (q, k, v))
        how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), causal)
        sums, total = chunk_sums(k, v, how, total=normalize)
        out, inverse = read_chunks(q, k, v, sums, how, total, eps=eps if normalize else None)
        return out, q.new_empty(0, dtype=sums_of(q)) if inverse is None else inverse


@torch.library.custom_op(operation("triton_linear_gradients"), mutates_args=())
def triton_linear_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, inverse: Tensor, causal: bool, normalize: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v. With g' = inverse g and the gradient r of the row sums, each is linear attention:

    dq = (g' v^T + r) k,    dk = (v g'^T + r) q,    dv = (k q^T) g',    over the visible pairs.
    """
    with torch.cuda.device_of(g):
        g, q, k, v = map(laid_out, (g, q, k, v))
        n, m = q.shape[-2], k.shape[-2]
        how = chunked(q, q.shape[-1], v.shape[-1], max(n, m), causal)
        scale, bias = (inverse, row_sums_gradient(g, out, inverse)) if normalize else (None, None)
        sums, total = chunk_sums(k, v, how, total=normalize)
        dq, _ = read_chunks(g, v, k, sums.mT, how, total, scale, bias)
        sums, total = chunk_sums(q, g, how, scale, bias, m - n, m, later=True, total=normalize)
        dk, _ = read_chunks(v, g, q, sums.mT, how, total, scale, bias, later=True)
        dv, _ = read_chunks(k, q, g, sums, how, None, scale, later=True)
        return dq, dk, dv


@triton_linear.register_fake
def triton_linear_shapes(q, k, v, causal, normalize, eps):
    """The shapes of the result and of the reciprocal row sums."""
    rows = q.shape[:-1] if normalize else (0,)
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(rows, dtype=sums_of(q))


@triton_linear_gradients.register_fake
def triton_linear_gradients_shapes(g, q, k, v, out, inverse, causal, normalize, eps):
    """The shapes of the gradients."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def triton_linear_keep(ctx, inputs, output):
    """Saves the operands and the results, but no chunks."""
    *operands, ctx.causal, ctx.normalize, ctx.eps = inputs
    ctx.save_for_backward(*operands, *output)


def triton_linear_autograd(ctx, g, _):
    """The gradients of the operands."""
    return *triton_linear_gradients(g, *ctx.saved_tensors, ctx.causal, ctx.normalize, ctx.eps), None, None, None


def triton_linear_keep_all(ctx, inputs, output):
    """Saves the inputs of the gradients."""
    g, q, k, v, _, _, ctx.causal, ctx.normalize, ctx.eps = inputs
    ctx.save_for_backward(g, q, k, v)


def triton_linear_twice(ctx, *seconds):
    """The second-order gradients, by differentiating plain tensor code."""

    def plain(q, k, v):
        return linear_attention([(q, k)], v, eps=ctx.eps, normalize=ctx.normalize, causal=ctx.causal)

    def gradients(g, *operands):
        return torch.func.vjp(plain, *operands)[1](g)

    return *torch.func.vjp(gradients, *ctx.saved_tensors)[1](seconds), None, None, None, None, None


triton_linear.register_autograd(triton_linear_autograd, setup_context=triton_linear_keep)
triton_linear_gradients.register_autograd(triton_linear_twice, setup_context=triton_linear_keep_all)
triton_linear.register_vmap(in_batch_dimension(triton_linear))
triton_linear_gradients.register_vmap(in_batch_dimension(triton_linear_gradients))

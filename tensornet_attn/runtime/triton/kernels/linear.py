"""`linear_attention` by Triton kernels, in chunks whose states are stored in memory."""

import torch
from torch import Tensor

from tensornet_attn.runtime.linear import linear_attention, seen_terms
from tensornet_attn.runtime.masks import run_time_mask, visible_and_bias
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear_chunks import chunk_sums, chunked, read_chunks, row_sums_gradient
from tensornet_attn.runtime.triton.kernels.masked import triton_masked_linear
from tensornet_attn.runtime.triton.kernels.tiles import batch_and_heads, common_dtype, in_batch_dimension, sums_of


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
    """`linear_attention`, with the same arguments; kernels choose the chunk."""
    terms = seen_terms(terms, key_mask, heads)
    cores = [core for _, _, *rest in terms for core in rest]
    if mask is not None:
        mask, _ = visible_and_bias(run_time_mask(mask, batch, heads + bool(cores)))
    if cores:
        v = v.unflatten(-1, (cores[0].shape[-1], -1)).movedim(-2, -3)  # ... h m e
        terms = [mixed_sides(*term) for term in terms]
    q, k = (joined_features(sides) for sides in zip(*terms, strict=True))
    out = linear_by_heads(q, k, v, mask, causal, normalize, eps)
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


def linear_by_heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, normalize: bool, eps: float
) -> Tensor:
    """One term: q [..., n, d], k [..., m, d], v [..., m, e], mask [..., n, m] -> [..., n, e] in the dtype of v.

    Leading dimensions broadcast.
    """
    given = [x for x in (q, k, v, mask) if x is not None]
    lead, dtype = torch.broadcast_shapes(*(x.shape[:-2] for x in given)), common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    if mask is None:
        out = triton_linear(*operands, causal, normalize, eps)[0]
    else:
        out = triton_masked_linear(*operands, batch_and_heads(mask, lead), causal, normalize, eps)[0]
    return out.reshape(*lead, *out.shape[-2:]).to(v.dtype)


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

"""`decay_attention` by the kernels of linear attention; scores of a head decay at one rate, or one for each feature.

The state before a chunk holds its keys with factors exp(low - b), low the least b of them, so that none is above 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.decay import decay_attention, decayed_scores, faded
from tensornet_attn.runtime.linear import Term
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.recomputed import derivatives_of, recomputed
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear import linear_by_heads
from tensornet_attn.runtime.triton.kernels.linear_chunks import (
    Chunked,
    chunked,
    read_chunks,
    referenced_sums,
    side_by_side,
)
from tensornet_attn.runtime.triton.kernels.tiles import batch_and_heads, common_dtype, in_batch_dimension, sums_of


def triton_decay_attention(terms: list[Term], v: Tensor, *options, **more) -> Tensor:
    """`decay_attention`, with the same arguments."""
    return decay_attention(terms, v, *options, **more | {"reads": triton_decay_reads})


def triton_decay_reads(
    terms: list[Term], v: Tensor, causal: bool, chunk: int, rows: bool
) -> list[tuple[Tensor, Tensor]]:
    """`decay_reads`, with the same arguments; kernels choose the chunk."""
    reads, width = [], v.shape[-1]
    wider = F.pad(v, (0, 1), value=1.0) if rows else v
    for q, k, a, b, *_ in terms:
        if causal and a is not None:
            read = decayed_by_heads(q, k, wider, a, b)
        else:
            sides = (q, k) if a is None else faded(q, k, a, b)
            read = linear_by_heads(*sides, wider, None, causal, False, 0.0)
        reads.append((read[..., :width], read[..., width:]))
    return reads


def decayed_by_heads(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """One term: q [..., n, d], k [..., m, d], v [..., m, e], a [..., n, w], b [..., m, w] -> [..., n, e]."""
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v, a, b)))
    dtype, width = common_dtype(q, k, v), max(a.shape[-1], b.shape[-1])
    if width > 1:  # a side may lack the features
        q, k = (x.expand(*x.shape[:-1], width) for x in (q, k))
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    wide = sums_of(operands[0])
    powers = [batch_and_heads(x.to(wide).expand(*x.shape[:-1], width), lead) for x in (a, b)]
    out = read_decayed(*operands, *powers)
    return out.reshape(*lead, *out.shape[-2:]).to(v.dtype)


def decay_operands(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[list[Tensor], Chunked, tuple[str, str]]:
    """The operands with contiguous rows, the launch options, and the legs that decays of scores and of values have."""
    operands = [*map(laid_out, (q, k, v, a, b))]
    by = ("features", "width") if a.shape[-1] > 1 else ("", "")
    how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), True, channels=bool(by[0]))
    return operands, how, by


@torch.library.custom_op(operation("triton_decay"), mutates_args=())
def triton_decay(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """q [b, h, n, d], k [b, h, m, d], v [b, h, m, e], a [b, h, n, 1 or d], b [b, h, m, 1 or d] -> [b, h, n, e]."""
    with torch.cuda.device_of(q):
        (q, k, v, a, b), how, (by, _) = decay_operands(q, k, v, a, b)
        sums, reference = referenced_sums(k, v, b, -1, how, 0, k.shape[-2], False)
        return read_chunks(q, k, v, sums, how, powers=(a, b, reference), by=by)[0]


@torch.library.custom_op(operation("triton_decay_gradients"), mutates_args=())
def triton_decay_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of all operands; an exponent has that of its row times the row, and `b` the opposite.

    dq = (g v^T D) k,    dk = (v g^T D) q,    dv = (k q^T D) g,    D the decays, over the visible pairs.
    """
    with torch.cuda.device_of(g):
        g, ((q, k, v, a, b), how, (by, by_width)) = laid_out(g), decay_operands(q, k, v, a, b)
        (n, m), wide = (q.shape[-2], k.shape[-2]), {} if by else {"dtype": a.dtype}
        slopes: list = [side_by_side(x, x.shape[-1], a.dtype) if by else None for x in (q, k)]
        sums, reference = referenced_sums(k, v, b, -1, how, 0, m, False)
        options: dict = {"by": by_width, "of": (q, None, None), "slopes": slopes[0], **wide}
        dq, _ = read_chunks(g, v, k, sums.mT, how, powers=(a, b, reference), **options)
        sums, reference = referenced_sums(q, g, a, 1, how, m - n, m, True)
        powers, options = (b, a, reference), options | {"of": (k, None, None), "slopes": slopes[1]}
        dk, _ = read_chunks(v, g, q, sums.mT, how, later=True, powers=powers, **options)
        dv, _ = read_chunks(k, q, g, sums, how, later=True, powers=powers, by=by)
        da, db = slopes if by else ((x * y).sum(-1, keepdim=True).contiguous() for x, y in ((dq, q), (dk, -k)))
        return dq.to(q.dtype), dk.to(k.dtype), dv, da, db


@triton_decay.register_fake
def triton_decay_shape(q, k, v, a, b):
    """The shape of the result."""
    return side_by_side(q, v.shape[-1])


@triton_decay_gradients.register_fake
def triton_decay_gradients_shapes(g, q, k, v, a, b):
    """The shapes of the gradients."""
    wide = (side_by_side(x, x.shape[-1]) for x in (a, b)) if a.shape[-1] > 1 else (x.new_empty(x.shape) for x in (a, b))
    return *(side_by_side(x, x.shape[-1]) for x in (q, k, v)), *wide


def plain_decay(q, k, v, a, b):
    """`triton_decay` as plain tensor code."""
    return decayed_scores(q, k, a, b, causal_mask(a.shape[-2], b.shape[-2], a.device)) @ v


read_decayed = recomputed(triton_decay, triton_decay_gradients, derivatives_of(plain_decay, 5), in_batch_dimension)

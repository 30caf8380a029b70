"""`decay_attention` by the kernels of linear attention, if scores of a head decay by one number for each position.

The state before a chunk holds its keys with factors exp(low - b), low the least b of them, so that none is above 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.decay import decay_attention, decay_reads, faded
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.operations import called, eager, operation
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear import linear_by_heads
from tensornet_attn.runtime.triton.kernels.linear_chunks import (
    Chunked,
    chunk_sums,
    chunked,
    read_chunks,
    side_by_side,
)
from tensornet_attn.runtime.triton.kernels.tiles import batch_and_heads, common_dtype, in_batch_dimension, sums_of


def triton_decay_attention(terms: list[tuple[Tensor, ...]], v: Tensor, *options, **more) -> Tensor:
    """`decay_attention`, with the same arguments; torch computes causal decays by features."""
    return decay_attention(terms, v, *options, **more, reads=triton_decay_reads)


def triton_decay_reads(
    terms: list[tuple[Tensor, ...]], v: Tensor, causal: bool, chunk: int, rows: bool
) -> list[tuple[Tensor, Tensor]]:
    """`decay_reads`, with the same arguments; kernels choose the chunk."""
    found, width = [], v.shape[-1]
    wider = F.pad(v, (0, 1), value=1.0) if rows else v
    for q, k, *powers in terms:
        if causal and any(x.shape[-1] > 1 for x in powers):
            found += decay_reads([(q, k, *powers)], v, causal, chunk, rows)
            continue
        if causal and powers:
            read = decayed_by_heads(q, k, wider, *powers)
        else:
            sides = faded(q, k, *powers) if powers else (q, k)
            read = linear_by_heads(*sides, wider, None, causal, False, 0.0)
        found.append(read.tensor_split((width,), -1))
    return found


def decayed_by_heads(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """One term: q [..., n, d], k [..., m, d], v [..., m, e], a [..., n, 1], b [..., m, 1] -> [..., n, e]."""
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v, a, b)))
    dtype = common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    powers = [batch_and_heads(x.to(sums_of(operands[0])), lead)[..., 0] for x in (a, b)]
    out = called(triton_decay, TritonDecay, *operands, *powers)
    return out.reshape(*lead, *out.shape[-2:]).to(v.dtype)


def decayed(
    left: Tensor,
    right: Tensor,
    values: Tensor,
    own: Tensor,
    other: Tensor,
    how: Chunked,
    later: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Scores (left right^T) exp(own + other) times values: keys at a row's position and before, or after if `later`."""
    length, others = left.shape[-2], right.shape[-2]
    first, places = (length - others, length) if later else (0, others)
    own, other = own.flatten(0, 1).contiguous(), other.flatten(0, 1)
    reference, scale, factor = references(other, how.chunk, first, places, later)
    sums, _ = chunk_sums(right, values, how, scale, None, first, places, later, factor=factor)
    return read_chunks(
        left, right, values, sums, how, later=later, dtype=dtype, powers=(own, other.contiguous(), reference)
    )[0]


def references(power: Tensor, chunk: int, first: int, places: int, later: bool) -> tuple[Tensor, Tensor, Tensor]:
    """From exponents [b h, rows]: the most of all chunks before each, or after it; the factors of rows and of chunks.

    Row i is at position `first` + i of `places`; rows at other positions are not read.
    """
    parts = max(1, -(-places // chunk))
    grid = F.pad(power, (first, parts * chunk - first - power.shape[1]), value=-torch.inf)
    grid = grid.view(len(power), parts, chunk)
    most = grid.amax(-1)
    until = (most.flip(1).cummax(1).values.flip(1) if later else most.cummax(1).values) if most.numel() else most
    edge = until.new_full((len(power), 1), -torch.inf)
    reference = torch.cat((until[:, 1:], edge) if later else (edge, until[:, :-1]), 1)
    factor = torch.where(reference == -torch.inf, 0, (reference - until).exp())
    scale = torch.where(grid == -torch.inf, 0, (grid - until[..., None]).exp()).flatten(1)
    scale = F.pad(scale, (-first, power.shape[1] + first - parts * chunk))
    return reference, scale.contiguous(), factor


@torch.library.custom_op(operation("triton_decay"), mutates_args=())
def triton_decay(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """q [b, h, n, d], k [b, h, m, d], v [b, h, m, e], a [b, h, n], b [b, h, m] -> [b, h, n, e]."""
    with torch.cuda.device_of(q):
        q, k, v = map(laid_out, (q, k, v))
        how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), True)
        return decayed(q, k, v, a, -b, how)


@torch.library.custom_op(operation("triton_decay_gradients"), mutates_args=())
def triton_decay_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of all operands; an exponent has that of its row times the row."""
    with torch.cuda.device_of(g):
        g, q, k, v = map(laid_out, (g, q, k, v))
        how = chunked(q, q.shape[-1], v.shape[-1], max(q.shape[-2], k.shape[-2]), True)
        dq = decayed(g, v, k, a, -b, how, dtype=a.dtype)
        dk = decayed(v, g, q, -b, a, how, later=True, dtype=a.dtype)
        dv = decayed(k, q, g, -b, a, how, later=True)
        return dq.to(q.dtype), dk.to(k.dtype), dv, (dq * q).sum(-1), -(dk * k).sum(-1)


@triton_decay.register_fake
def triton_decay_shape(q, k, v, a, b):
    """The shape of the result."""
    return side_by_side(q, v.shape[-1])


@triton_decay_gradients.register_fake
def triton_decay_gradients_shapes(g, q, k, v, a, b):
    """The shapes of the gradients."""
    return *(side_by_side(x, x.shape[-1]) for x in (q, k, v)), a.new_empty(a.shape), b.new_empty(b.shape)


def triton_decay_keep(ctx, inputs, output):
    """Saves the inputs, for both derivatives."""
    ctx.save_for_backward(*inputs)


def triton_decay_autograd(ctx, g):
    """The gradients of the operands."""
    return called(triton_decay_gradients, TritonDecayGradients, g, *ctx.saved_tensors)


def triton_decay_twice(ctx, *seconds):
    """The second-order gradients, by differentiating plain tensor code."""

    def plain(q, k, v, a, b):
        keep = causal_mask(a.shape[-1], b.shape[-1], a.device)
        power = torch.where(keep, a[..., :, None] - b[..., None, :], -torch.inf)
        return (q @ k.mT * power.exp()) @ v

    def gradients(g, *operands):
        return torch.func.vjp(plain, *operands)[1](g)

    return torch.func.vjp(gradients, *ctx.saved_tensors)[1](seconds)


triton_decay.register_autograd(triton_decay_autograd, setup_context=triton_decay_keep)
triton_decay_gradients.register_autograd(triton_decay_twice, setup_context=triton_decay_keep)
triton_decay.register_vmap(in_batch_dimension(triton_decay))
triton_decay_gradients.register_vmap(in_batch_dimension(triton_decay_gradients))
TritonDecay = eager(triton_decay, triton_decay_keep, triton_decay_autograd)
TritonDecayGradients = eager(triton_decay_gradients, triton_decay_keep, triton_decay_twice)

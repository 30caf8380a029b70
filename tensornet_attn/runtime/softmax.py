"""Softmax attention over the last dimension; a row that sees nothing gives zeros, with zero gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.masks import both, causal_mask
from tensornet_attn.runtime.operations import largest_number, surely
from tensornet_attn.runtime.precision import row_bias, wide_dtype
from tensornet_attn.runtime.products import autocast_dtype

LONG = 1 << 21  # elements of all keys, more than caches hold, from which two products of one query on a CPU are faster


def masked_softmax(scores: Tensor, keep: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(scores + bias) over the keys where `keep`, zeros elsewhere: [..., n, m]."""
    dtype = scores.dtype
    if bias is not None:  # in the wider dtype of both: half precision lacks the numbers of other masks
        scores = scores + bias
    if keep is None:
        return scores.softmax(-1).to(dtype)
    # The lowest finite number: with -inf, an empty row would be NaN, and so would its gradient.
    hidden: float | Tensor = -largest_number(scores)
    if bias is not None:  # which may be as low where it is visible
        sees_any = keep.any(-1, keepdim=True)
        hidden = torch.zeros_like(sees_any, dtype=scores.dtype).masked_fill(sees_any, float("-inf"))
    return torch.where(keep, torch.where(keep, scores, hidden).softmax(-1), 0).to(dtype)


def sink_softmax(scores: Tensor, sink: Tensor, keep: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """`masked_softmax` with one more score per row, without a value: sink [..., n or 1, 1]."""
    dtype = scores.dtype
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = torch.where(keep, scores, -largest_number(scores))
    sink = sink.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights = torch.cat((sink, scores), -1).softmax(-1)[..., 1:]
    return (weights if keep is None else torch.where(keep, weights, 0)).to(dtype)


def sink_gradient(weights: Tensor, gradient: Tensor, keep: Tensor | None = None) -> Tensor:
    """The gradient of the sinks of a softmax, from that of its weights: [..., n, 1]."""
    if keep is not None:
        gradient = torch.where(keep, gradient, 0)
    weights = weights.to(wide_dtype(weights.dtype))
    share = (1 - weights.sum(-1, keepdim=True)).clamp(min=0)
    return -share * (weights * gradient).sum(-1, keepdim=True)


def softmax_gradient(weights: Tensor, gradient: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """The gradient of the scores of a softmax, from that of its weights; hidden entries contribute nothing."""
    if keep is not None:
        gradient = torch.where(keep, gradient, 0)
    weights, gradient = torch.broadcast_tensors(weights, gradient.to(weights.dtype))
    return torch._softmax_backward_data(gradient, weights, dim, weights.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float = 1.0,
    dropout: float = 0.0,
    causal: bool = False,
    keys: int = 1,
    sink: Tensor | None = None,
    call=F.scaled_dot_product_attention,
    logarithms: bool = False,
) -> Tensor:
    """softmax(scale q k^T + bias) v, fused: q [..., h, n, d], k [..., g, m, d], v [..., g, m, e] -> [..., h, n, e].

    `keep` and `bias` broadcast to [..., h, n, m]. g divides h: consecutive query heads share a key and value head; each
    of q, k and v may have one head for all. With several `keys` per position, k is [..., g, keys m, d], one set of m
    keys after another, which share v, keep and bias. `sink` [..., h or 1, n or 1, 1]: one more score per row, without a
    value; `call` then takes it. `logarithms`: the bias is added to the logsumexp of the scores of a position.
    """
    n, m = q.shape[-2], k.shape[-2] // keys
    if keys > 1:
        keep = both(keep, causal_mask(n, m, q.device)) if causal else keep
        if logarithms and bias is not None:  # which would absorb what tells the keys of a position apart
            q, k, v = with_all_heads(q, k, v)
            scores = (scale * q @ k.transpose(-1, -2)).unflatten(-1, (keys, m)).logsumexp(-2)
            weights = masked_softmax(scores, keep, bias) if sink is None else sink_softmax(scores, sink, keep, bias)
            return weights.to(v.dtype) @ v
        causal, v = False, torch.cat([v] * keys, -2)
        keep, bias = (None if t is None else torch.cat([t] * keys, -1) for t in (keep, bias))
    if n == 1 and m > 0:
        causal = False  # the only query is at the last key and sees all
    fused = causal and keep is None and bias is None and surely(n == m)
    empty = keep is not None or (causal and not fused and not surely(n <= m))
    if causal and not fused:
        keep = both(keep, causal_mask(n, m, q.device))
    sees_any, mask = None, keep
    if empty and keep is not None:
        sees_any = keep.any(-1, keepdim=True)  # ... n 1
        mask = keep | ~sees_any
    if bias is not None:
        bias = row_bias(bias, keep, q.dtype, sink)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    out = fused_attention(q, k, v, mask, scale, dropout, fused, sink, call)
    if bias is not None and out.numel() == 0:
        out = out + 0 * bias.sum()  # for an empty batch, the fused call omits the gradient of the bias
    return out if sees_any is None else torch.where(sees_any, out, 0)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    causal: bool,
    sink: Tensor | None = None,
    call=F.scaled_dot_product_attention,
) -> Tensor:
    """scaled_dot_product_attention for any batch and widths; fused kernels require four dimensions and one width.

    The dtype of q and k computes, which is wider than that of v beside `exact_columns`.
    """
    if q.dtype != v.dtype and autocast_dtype(q) is None:
        return fused_attention(q, k, v.to(q.dtype), mask, scale, dropout, causal, sink, call).to(v.dtype)
    if isinstance(scale, Tensor):  # in traced code
        q, scale = q * scale, 1.0
    if mask is None and sink is None and scale > 0 and fits(q, k, v):
        if q.shape[2] == 1:
            return one_query(q, k, v, mask, scale, dropout)
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        return call(q, k, v, None, dropout, causal, scale=scale, **grouped)
    if scale <= 0:  # fused kernels multiply the -inf of a causal mask by the scale
        q, scale = q * scale, 1.0
    operands = (q, k, v) if mask is None or mask.ndim < 4 else (q, k, v, mask)
    operands = operands if sink is None else (*operands, sink)
    batch = q.shape[:-3]
    if any(t.ndim != q.ndim or t.shape[:-3] != batch for t in operands):  # comparing shapes would specialise on sizes
        batch = torch.broadcast_shapes(*(t.shape[:-3] for t in operands))
    heads, width, out_width = max(k.shape[-3], v.shape[-3]), max(q.shape[-1], v.shape[-1]), v.shape[-1]
    q, k, v = (four_dimensions(laid_out(zero_padded(t, width)), batch) for t in (q, k, v))
    if k.shape[1] != v.shape[1]:
        k, v = (t.expand(-1, heads, -1, -1) for t in (k, v))
    if q.shape[1] < heads:
        q = q.expand(-1, heads, -1, -1)
    if mask is not None and mask.ndim > 2:
        mask = four_dimensions(mask, batch)
    if q.shape[-2] == 1 and sink is None:
        out = one_query(q, k, v, mask, scale, dropout)
    else:
        options: dict = {"enable_gqa": True} if q.shape[1] != heads else {}
        options |= {} if sink is None else {"sink": four_dimensions(sink, batch)}
        out = call(q, k, v, mask, dropout, causal, scale=scale, **options)
    if out_width != width:
        out = out[..., :out_width]
    return out if len(batch) == 1 else out.reshape(*batch, *out.shape[1:])


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel takes the operands as they are. Traced sizes are not compared."""
    if torch.compiler.is_compiling() or q.ndim != 4 or k.shape != v.shape:
        return False
    (batch, heads, _, width), k_sizes = q.shape, k.shape
    alike = k_sizes[0] == batch and k_sizes[1] <= heads and k_sizes[3] == width
    return alike and q.stride(3) == k.stride(3) == v.stride(3) == 1


def one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Attention of one query, q [b, h, 1, d], k and v [b, g, m, d]: reads keys and values once.

    Heads that share a key become rows of one product. Without shared keys, two products are faster than the fused
    kernel for many keys on a CPU, because the blocks of the kernel are designed for many queries.
    """
    groups = k.shape[1]
    if q.shape[1] != groups:
        if mask is not None and mask.ndim == 4 and mask.shape[1] != 1:
            mask = mask.expand(-1, q.shape[1], -1, -1).unflatten(1, (groups, -1)).squeeze(3)
        rows = q.unflatten(1, (groups, -1)).squeeze(3)  # b g h/g d
        return F.scaled_dot_product_attention(rows, k, v, mask, dropout, scale=scale).flatten(1, 2)[:, :, None]
    long = not dropout and not torch.compiler.is_compiling() and k.numel() >= LONG
    # in half precision, the product would round the scores
    if not long or q.device.type != "cpu" or q.element_size() < 4 or torch.is_autocast_enabled("cpu"):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
    scores = torch.matmul(k, scale * q.transpose(-1, -2)).transpose(-1, -2)  # reads keys row by row
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return torch.matmul(scores.softmax(-1), v)


def with_all_heads(*operands: Tensor) -> list[Tensor]:
    """Operands [..., h, rows, width] in which each head of keys or values stands beside the query heads that share it,
    for products that broadcast one head only."""
    heads = max(t.shape[-3] for t in operands)
    return [t if t.shape[-3] in (1, heads) else t.repeat_interleave(heads // t.shape[-3], -3) for t in operands]


def over_heads(x: Tensor, *heads: int) -> Tensor:
    """Flattens head legs into one dimension; head dimensions of size 1 are expanded.

    [..., h or 1, g or 1, m, d] -> [..., h g, m, d]
    """
    dims = len(heads)
    return x.expand(*x.shape[: -dims - 2], *heads, *x.shape[-2:]).flatten(-dims - 2, -3)


def four_dimensions(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """[batch..., h, n, d] as [one batch, h, n, d]."""
    if len(batch) == 1 and x.ndim == 4 and x.shape[:-3] == batch:
        return x
    x = x.expand(*batch, *[1] * (3 - x.ndim), *x.shape[-3:])
    return x.flatten(0, -4) if batch else x[None]


def laid_out(x: Tensor) -> Tensor:
    """x with a contiguous last dimension, which fused kernels require; torch would otherwise materialise all scores."""
    return x if x.stride(-1) == 1 else x.contiguous()


def zero_padded(x: Tensor, width: int) -> Tensor:
    """Pads the last dimension of x with zeros."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))

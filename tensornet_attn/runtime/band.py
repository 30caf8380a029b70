"""Softmax attention within a band of positions, in blocks: time and memory grow with the band, not with the keys.

A block of queries attends to one span of keys, from `before` positions ahead of its first query to `after` positions
past its last, and to a prefix of first keys, if they are visible from everywhere.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.maps import with_padding
from tensornet_attn.runtime.masks import run_time_mask, visible_and_bias
from tensornet_attn.runtime.precision import row_bias
from tensornet_attn.runtime.softmax import fused_attention


class Spans(NamedTuple):
    """Blocks of `block` queries, of `n` queries whose first is at the position `first`, and their spans of keys.

    A span has the keys from `before` positions ahead of the first query of its block to `after` positions past the
    last, behind the first `prefix` keys of all.
    """

    n: int
    first: int
    block: int
    before: int
    after: int
    prefix: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return max(2, (self.n + self.block - 1) // self.block)


def attend_band(
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
    sees=None,
    prefix: int = 0,
    sink: Tensor | None = None,
    call=F.scaled_dot_product_attention,
) -> Tensor:
    """softmax(scale q k^T + mask) v; a query sees keys at most `left` positions before it and `right` after it.

    q [..., n, h, d], k [..., m, g, d], v [..., m, g, e] -> [..., n, h, e]; g divides h: consecutive query heads share a
    key and value head. `mask` and `batch` as in `run_time_mask`, key_mask [..., m]. `tied`: n equals m. `sees(query,
    key)` restricts visibility further, as a function of positions, and also applies to the first `prefix` keys. `sink`
    and `call` as in `attend`.
    """
    n, m = q.shape[-3], k.shape[-3]
    spans = Spans(n, 0 if tied else m - n, block, max(left, 0), max(right, 0), prefix)
    present = k.new_ones(m, dtype=torch.bool) if key_mask is None else key_mask
    present = in_spans(present[..., None, None], spans)[..., 0, 0][..., None, None, :]
    keep = present & (band_keep(left, right, spans, k.device) if sees is None else seen_keep(sees, spans, k.device))
    bias = None
    if mask is not None:
        allowed, bias = visible_and_bias(mask_in_spans(run_time_mask(mask, batch, 1), m, spans))
        keep = keep if allowed is None else keep & allowed
    sees_any = keep.any(-1, keepdim=True)  # ... blocks 1 block 1; the last block may have rows beyond the queries
    bounds = keep | ~sees_any
    count = spans.blocks
    sink = None if sink is None else sink_in_blocks(sink, spans)
    if bias is not None:
        bias = row_bias(bias, keep, q.dtype, sink)
        bounds = torch.where(bounds, bias, float("-inf"))
    q = with_padding(q, (0, 0, 0, 0, 0, count * block - n)).unflatten(-3, (count, block))  # ... blocks block h d
    operands = [q, in_spans(k, spans), in_spans(v, spans), bounds]
    operands += [] if sink is None else [sink]
    lead = q.shape[:-4]
    if any(t.ndim != q.ndim or t.shape[:-4] != lead for t in operands):  # as in `fused_attention`
        lead = torch.broadcast_shapes(*(t.shape[:-4] for t in operands))
    q, k, v, bounds, *sinks = (blocks_together(t, lead) for t in operands)
    q, k, v = (t.transpose(-2, -3) for t in (q, k, v))
    out = fused_attention(q, k, v, bounds, scale, dropout, False, sinks[0] if sinks else None, call)
    out = out.unflatten(0, (*lead, count))  # ... blocks h block e
    if bias is not None and out.numel() == 0:
        out = out + 0 * bias.sum()  # for an empty batch, the fused call omits the gradient of the bias
    if mask is not None or key_mask is not None or sees is not None or min(left, right) < 0 or not tied:
        out = torch.where(sees_any, out, 0)  # in other cases each query sees its own position
    out = out.transpose(-2, -3).flatten(-4, -3)
    return with_padding(out, (0, 0, 0, 0, 0, n - count * block))  # a negative width crops


def sink_in_blocks(sink: Tensor, spans: Spans) -> Tensor:
    """A sink [..., h, n or 1, 1] as [..., blocks, h, block or 1, 1]."""
    count, block = spans.blocks, spans.block
    if sink.shape[-2] == 1:
        return sink.unsqueeze(-4).expand(*sink.shape[:-3], count, *sink.shape[-3:])
    return with_padding(sink, (0, 0, 0, count * block - spans.n)).unflatten(-2, (count, block)).transpose(-3, -4)


def key_spans(x: Tensor, spans: Spans) -> Tensor:
    """The keys of each block of queries, zeros past both ends: [..., m, g, d] -> [..., blocks, span, g, d]."""
    (_, first, block, before, after, _), count = spans, spans.blocks
    extra_blocks = (before + after + block - 1) // block  # blocks that a span covers after its first
    ahead = before - first
    beyond = (count + extra_blocks) * block - ahead - x.shape[-3]
    x = F.pad(x, (0, 0, 0, 0, ahead, beyond))
    # concatenated slices, because the backward of unfold is three times as slow
    parts = [x.narrow(-3, i * block, count * block).unflatten(-3, (count, block)) for i in range(extra_blocks + 1)]
    parts[-1] = parts[-1].narrow(-3, 0, before + after + block - extra_blocks * block)
    return torch.cat(parts, -3)


def in_spans(x: Tensor, spans: Spans) -> Tensor:
    """`key_spans` after the first keys: [..., m, g, d] -> [..., blocks, prefix + span, g, d]."""
    near, prefix = key_spans(x, spans), spans.prefix
    if prefix == 0:
        return near
    x = F.pad(x, (0, 0, 0, 0, 0, prefix))[..., :prefix, :, :].unsqueeze(-4)  # a shorter slice would fix a traced length
    return torch.cat((x.expand(*x.shape[:-4], near.shape[-4], *x.shape[-3:]), near), -3)


def blocks_together(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Flattens batch and blocks: [batch..., blocks, i, j, k] -> [one batch, i, j, k].

    Uses an intermediate one-dimensional view: with a fixed batch and a traced length, a direct view would require that
    the batch divides the number of blocks, a condition on the length that torch.export rejects. So would a reshape of
    an operand without the batch, which is copied first.
    """
    x = x if x.ndim == len(batch) + 4 else x.expand(*batch, *x.shape[-4:]).clone(memory_format=torch.contiguous_format)
    x = x.expand(*batch, *x.shape[-4:])
    inner = math.prod(x.shape[-3:])
    return x.reshape(-1).view(math.prod(x.shape[:-3]), inner).unflatten(1, x.shape[-3:])


def band_keep(left: int, right: int, spans: Spans, device: torch.device) -> Tensor:
    """Where the band allows attention: [block, span]."""
    past = torch.arange(-spans.before, spans.block + spans.after, device=device)
    past = past - torch.arange(spans.block, device=device)[:, None]
    return (past >= -left) & (past <= right)


def seen_keep(sees, spans: Spans, device: torch.device) -> Tensor:
    """Where the masks of the design allow attention: [blocks, 1, block, prefix + span]."""
    (query, key), prefix = places_in_spans(spans, device), spans.prefix
    near, far = key[:, prefix : prefix + 1], key[:, -1:]
    single = (torch.arange(key.shape[1], device=device) >= prefix) | (key < near) | (key > far)  # not in both
    return (sees(query[:, :, None], key[:, None]) & single[:, None])[:, None]


def places_in_spans(spans: Spans, device: torch.device) -> tuple[Tensor, Tensor]:
    """The positions of the queries and keys of each block: [blocks, block] and [blocks, prefix + span]."""
    (_, start, block, before, after, prefix), count = spans, spans.blocks
    query = torch.arange(count * block, device=device).unflatten(0, (count, block)) + start
    key = query[:, :1] + torch.arange(-before, block + after, device=device)
    return query, torch.cat((torch.arange(prefix, device=device).expand(count, prefix), key), 1) if prefix else key


def mask_in_spans(mask: Tensor, m: int, spans: Spans) -> Tensor:
    """A mask [n, m] or [..., h, n, m] at the pairs of each block: [..., blocks, h, block, prefix + span]."""
    n, (query, key) = spans.n, places_in_spans(spans, mask.device)
    query = query - spans.first
    if n == 0 or m == 0:  # one dummy pair that no query sees
        mask = F.pad(mask, (0, int(m == 0), 0, int(n == 0)))
    pairs = mask[
        ..., query.clamp(max=max(n - 1, 0))[:, :, None], key.clamp(0, max(m - 1, 0))[:, None]
    ]  # ... h blocks block span
    return pairs.unsqueeze(-3) if mask.ndim == 2 else pairs.transpose(-3, -4)

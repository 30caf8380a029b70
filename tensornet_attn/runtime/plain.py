"""Plain forms of functions, for files that need only torch: the same results, without tuning for a processor.

Each function stands in such a file in place of the function of the same name. Maps of all queries and keys are computed
in blocks, and sums over earlier keys in chunks, because memory has to be linear in the lengths.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.decay import faded, least_of
from tensornet_attn.runtime.fading import fading, later
from tensornet_attn.runtime.gated import end_of_chunks, gated_reads_by_chunks
from tensornet_attn.runtime.linear import Term, by_head, seen_terms
from tensornet_attn.runtime.maps import divided
from tensornet_attn.runtime.masks import causal_mask
from tensornet_attn.runtime.positions import angles_of
from tensornet_attn.runtime.products import exact_products, total_of
from tensornet_attn.runtime.scan_reads import read_sums
from tensornet_attn.runtime.softmax import masked_softmax, sink_softmax, with_all_heads
from tensornet_attn.runtime.states import mapped_sides, mixed_states, read_too
from tensornet_attn.runtime.tiled_linear import inputs_of, map_applied


def xavier_(weight: Tensor, summed: tuple[int, ...]) -> None:
    """Uniform within sqrt(6 / (fan_in + fan_out)); fan_in counts the dimensions `summed` by the first product."""
    fans = [[size for dim, size in enumerate(weight.shape) if (dim in summed) == inside] for inside in (True, False)]
    bound = (6 / sum(torch.Size(sizes).numel() for sizes in fans)) ** 0.5
    torch.nn.init.uniform_(weight, -bound, bound)


def visible(box_mask, mask, key_mask, batch: int, others: int, query: bool = True) -> tuple:
    """Which pairs [batch..., others..., n, m] a box sees, by its own mask and the masks of the call; and their bias."""
    keep, bias = box_mask, None
    if mask is not None and query:
        if mask.ndim not in (2, batch + 2, batch + others + 2):
            raise ValueError(f"mask: {mask.ndim} dimensions; give 2, {batch + 2} or {batch + others + 2}.")
        mask = mask[(..., *[None] * (batch + others + 2 - mask.ndim), slice(None), slice(None))]
        if mask.dtype != torch.bool:
            mask, bias = mask != float("-inf"), mask.where(mask != float("-inf"), 0)
        keep = mask if keep is None else keep & mask
    if key_mask is not None:
        key_mask = key_mask[(..., *[None] * (others + query), slice(None))]
        keep = key_mask if keep is None else keep & key_mask
    return keep, bias


def attend(q, k, v, keep=None, bias=None, scale=1.0, dropout: float = 0.0, causal: bool = False) -> Tensor:
    """softmax(scale q k^T + bias) v over visible keys: q [..., h, n, d], k and v [..., h, m, d] -> [..., h, n, d]."""
    operands, dtype = [q * scale, k, v.to(q.dtype)], v.dtype
    if keep is not None:
        mask = torch.where(keep | ~keep.any(-1, keepdim=True), 0.0 if bias is None else bias, float("-inf"))
        if bias is not None and mask.dtype.itemsize > q.dtype.itemsize and mask.numel():  # half precision lacks numbers
            mask = mask - mask.detach().amax(-1, keepdim=True)
        operands.append(mask.to(q.dtype)[(None,) * (3 - mask.ndim)])
    batch = torch.broadcast_shapes(*(t.shape[:-3] for t in operands))
    q, k, v, *masks = (t.expand(1, *batch, *t.shape[-3:]).flatten(0, -4) for t in operands)  # for linear memory
    out = F.scaled_dot_product_attention(q, k, v, masks[0] if masks else None, dropout, causal, scale=1.0)
    out = out.reshape(*batch, *out.shape[1:]).to(dtype)
    return out if keep is None else out.where(keep.any(-1, keepdim=True), 0)  # a row that sees nothing is 0


def attend_heads(
    q, k, v, keep=None, bias=None, scale=1.0, dropout=0.0, causal: bool = False, keys: int = 1, sink=None
) -> Tensor:
    """`attend`, q [..., h, n, d], where heads share keys, k [..., g, keys m, d], or values, v [..., g, m, e].

    Consecutive query heads share a key head; one head can serve all. With several `keys` per position, k has one set of
    m keys after another. `sink` [..., h or 1, n or 1, 1]: one more score per row, without a value. `causal`: a query
    sees the keys up to its own; the last query is at the last key.
    """
    n, m, columns = q.shape[-2], k.shape[-2] // keys, v.shape[-1]
    if causal and (n != m or keys > 1 or keep is not None):
        earlier = causal_mask(n, m, q.device)
        keep, causal = earlier if keep is None else keep & earlier, False
    heads = max(t.shape[-3] for t in (q, k, v))
    q, k, v = (t if t.shape[-3] == heads else t.repeat_interleave(heads // t.shape[-3], -3) for t in (q * scale, k, v))
    if keys > 1:
        v = torch.cat([v] * keys, -2)
        keep, bias = (None if t is None else torch.cat([t] * keys, -1) for t in (keep, bias))
    if sink is not None:  # one more feature, and a first key that is 0 in all others
        bound = torch.finfo(q.dtype).max  # minus infinity times 0 would be NaN
        q = torch.cat((q, sink.clamp(-bound, bound).to(q.dtype).expand(*q.shape[:-1], 1)), -1)
        unit = F.pad(k.new_ones(1, 1), (k.shape[-1], 0, 0, k.shape[-2]))
        k, v = F.pad(k, (0, 1, 1, 0)) + unit, F.pad(v, (0, 0, 1, 0))
        keep, bias = (None if t is None else F.pad(t, (1, 0), value=t.dtype == torch.bool) for t in (keep, bias))
        q = F.pad(q, (0, 0, 1, 0)) if causal else q  # a first query at the sink
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) for t in (q, k, v))
    out = attend(q, k, v, keep, bias, 1.0, dropout, causal)[..., :columns]
    return out[..., 1:, :] if causal and sink is not None else out


def attend_joined(q, k, v, keep, bias, scale, dropout=0.0, causal=False, keys: int = 1, sink=None) -> Tensor:
    """`attend_heads` of several keys per position, where the bias is added to the logsumexp of their scores."""
    if bias is None:
        return attend_heads(q, k, v, keep, bias, scale, dropout, causal, keys, sink)
    q, k, v = with_all_heads(q, k, v)
    scores = (scale * q @ k.mT).unflatten(-1, (keys, v.shape[-2])).logsumexp(-2)
    keep = keep & causal_mask(scores.shape[-2], scores.shape[-1], q.device) if causal else keep
    weights = masked_softmax(scores, keep, bias) if sink is None else sink_softmax(scores, sink, keep, bias)
    return weights.to(v.dtype) @ v


def attend_band(
    q, k, v, left: int, right: int, block: int, mask=None, key_mask=None, batch: int = 0, scale=1.0, dropout=0.0,
    tied: bool = False, sees=None, prefix: int = 0, sink=None,
) -> Tensor:  # fmt: skip
    """`attend_heads` in blocks of queries, each with the keys at most `left` positions before and `right` after them.

    q [..., n, h, d], k [..., m, g, d], v [..., m, g, e] -> [..., n, h, e]. `tied`: n equals m. `sees(query, key)`, a
    function of positions, replaces the band, and applies to the first `prefix` keys, too.
    """
    (q, k, v), outs, first = (t.transpose(-3, -2) for t in (q, k, v)), [], 0
    n, m = q.shape[-2], k.shape[-2]
    offset = 0 if tied else m - n
    for rows in torch.arange(n, device=q.device).split(block):
        begin = min(max(first + offset - left, 0), m)
        end = min(max(first + offset + len(rows) + right, begin), m)
        near = torch.cat([torch.arange(*ends, device=q.device) for ends in ((0, min(prefix, begin)), (begin, end))])
        query, block_rows = rows[:, None] + offset, slice(first, first + len(rows))
        keep = sees(query, near) if sees else (near >= query - left) & (near <= query + right)
        block_mask = mask if mask is None else mask[..., block_rows, :][..., near]
        keep, bias = visible(keep, block_mask, key_mask if key_mask is None else key_mask[..., near], batch, 1)
        block_sink = sink if sink is None or sink.shape[-2] == 1 else sink[..., block_rows, :]
        operands = q[..., block_rows, :], k[..., near, :], v[..., near, :]
        outs.append(attend_heads(*operands, keep, bias, scale, dropout, sink=block_sink))
        first += len(rows)
    return torch.cat(outs, -2).transpose(-3, -2)


def attend_chosen(q, k, v, chosen, heads: int, keep=None, bias=None, scale=1.0, dropout=0.0, causal=False) -> Tensor:
    """`attend_heads` of all heads, of which the chosen are read: q [..., n, k, d], chosen [..., n, k]."""
    lead = torch.broadcast_shapes(q.shape[:-3], chosen.shape[:-2], k.shape[:-3], v.shape[:-3])
    q, chosen = q.expand(*lead, *q.shape[-3:]), chosen.expand(*lead, *chosen.shape[-2:])[..., None]
    all_rows = q.new_zeros(*q.shape[:-2], heads, q.shape[-1]).scatter(-2, chosen.expand(q.shape), q).movedim(-2, -3)
    out = attend_heads(all_rows, k, v, keep, bias, scale, dropout, causal).movedim(-3, -2)
    return out.gather(-2, chosen.expand(*chosen.shape[:-1], out.shape[-1]))


def largest_number(x: Tensor) -> float:
    """The largest finite number of x's dtype."""
    return torch.finfo(x.dtype).max


def exp(x: Tensor) -> Tensor:
    """exp(x)."""
    return x.exp()


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 without cancellation: exp(x) below zero, x + 1 above."""
    return x.clamp(max=0).exp() + x.relu()


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return F.softplus(x)


def top_indices(by: Tensor, k: int, dim: int) -> Tensor:
    """The indices of the k largest entries, largest first; of equal ones the first."""
    return by.sort(dim=dim, descending=True, stable=True).indices.narrow(dim, 0, k)


def running_least(x: Tensor) -> Tensor:
    """The minimum of each row and those before it: [..., m, d]."""
    return x.cummin(-2).values


def rotations(positions: Tensor, base: float, width: int, dtype: torch.dtype, scaling=None, axes=None) -> tuple:
    """Cosines and sines of position * rate per pair: [..., n, width / 2] each."""
    return angles_of(positions, base, width, dtype, scaling, axes)


def is_known(length: int) -> bool:
    """Whether a length is a number."""
    return True


def weighted_sum(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    """The sum over a dimension of x times a weight with as many dimensions or fewer, the last of size 1."""
    return (weight.movedim(dim, -2).mT @ x.movedim(dim, -2)).squeeze(-2)


def joint_shape(*shapes: torch.Size) -> torch.Size:
    """The shape to which these shapes broadcast."""
    return torch.broadcast_shapes(*shapes)


def convolve(x: Tensor, weight: Tensor, left: int, groups: int, tail: int | None = None) -> Tensor:
    """y[c, i] = sum over j and d of x[d, i + j - left] weight[c, d, j]: [..., d, n] -> [..., c, n].

    `groups`: as in conv1d. `tail`: only the last `tail` entries.
    """
    rows = F.pad(x, (left, weight.shape[-1] - left))[(None,) * (3 - x.ndim)]  # one more, so that there are enough
    y = F.conv1d(rows.flatten(0, -3).contiguous(), weight.contiguous(), groups=groups)[..., :-1]
    y = y.reshape(*x.shape[:-2], *y.shape[1:])
    return y if tail is None else y[..., x.shape[-1] - tail :]


class Rows:
    """What the function of a block knows of the call: `at`, positions of its rows; `m`, the number of keys."""

    prefix = begin = 0

    def __init__(self, first: int, count: int, call: tuple, device: torch.device, seed: int | None):
        self.n, self.m, self.batch, self.training, self.sizes = call
        self.first, self.count, self.keys = first + self.m - self.n, count, self.m
        self.at = torch.arange(self.first, self.first + count, device=device)
        self.random = None if seed is None else torch.Generator(device).manual_seed(seed + first)


def block_function(rows, out: int, spans=(), keys=(), legs=(), reach=None):
    """Keeps with a function of a block where operands have rows, or relative positions, and the result has its rows."""
    return lambda function: (function, rows, spans or [0] * len(rows), out)


def blockwise(
    tile, operands: list, n: int, m: int, batch, block, training: bool = False, random: bool = False, sizes=()
) -> Tensor:
    """Applies `tile` to all n query rows, block by block, and again in the backward: memory linear in n and m."""
    function, rows, spans, out = tile
    size = max(block[0], block[1] // max(1, m * math.prod(batch)))
    seed = int(torch.randint(2**62, ())) if random else None

    def computed(first: int, *operands) -> Tensor:
        context = Rows(first, min(size, n - first), (n, m, batch, training, sizes), operands[0].device, seed)
        parts = []
        for x, dim, span in zip(operands, rows, spans, strict=True):
            x = x.narrow(dim, first, context.count) if x is not None and dim and x.shape[dim] > 1 else x
            parts.append(x.narrow(span, first, context.count + m - 1) if span and x.shape[span] > 1 else x)
        return function(context, *parts)

    if n <= size:
        return computed(0, *operands)
    run = torch.utils.checkpoint.checkpoint
    return torch.cat([run(computed, first, *operands, use_reentrant=False) for first in range(0, n, size)], out)


def linear_attention(
    terms: list, v: Tensor, mask=None, key_mask=None, batch: int = 0, heads: int = 0, eps: float = 0.0,
    normalize: bool = True, causal: bool = False, chunk: int = 64, maps: tuple | None = None,
) -> Tensor:  # fmt: skip
    """Scores, divided by (row sum + eps) if `normalize`, times values: v [..., m, e] -> [..., n, e].

    The scores are the sum over `terms`. `batch` and `heads` count dimensions before the sequence. With a `mask`, which
    may hide any pair, the scores are materialised. `maps`: of q and k of the only term.
    """
    if maps is not None:
        terms = [Term(*(map_applied(of, *inputs_of(x)) for of, x in zip(maps, (terms[0].q, terms[0].k), strict=True)))]
    cores = [term.core for term in terms if term.core is not None]
    if cores:
        terms = [by_head(term) for term in terms]
        v = v.unflatten(-1, (cores[0].shape[-1], -1)).movedim(-2, -3)
        read = linear_attention(terms, v, mask, key_mask, batch, heads + 1, eps, normalize, causal, chunk)
        return read.movedim(-3, -2).flatten(-2)
    wide = torch.promote_types(v.dtype, torch.float32)  # half precision would round sums whose differences matter
    with torch.autocast(v.device.type, enabled=False):
        terms = [term.each(lambda x: x.to(wide)) for term in terms]
        values = F.pad(v.to(wide), (0, 1), value=1.0)  # ones: what they read are the row sums
        if mask is None:
            reads = earlier_reads if causal else lambda q, k, values, _: q @ (k.mT @ values)
            read = total_of([reads(term.q, term.k, values, chunk) for term in seen_terms(terms, key_mask, heads)])
        else:
            scores = total_of([term.q @ term.k.mT for term in terms])
            earlier = causal_mask(scores.shape[-2], scores.shape[-1], v.device) if causal else None
            keep, _ = visible(earlier, mask, key_mask, batch, heads)
            read = scores.where(keep, 0) @ values
        out, rows = read[..., :-1], read[..., -1:]
        return (divided(out, rows + eps) if normalize else out).to(v.dtype)


def earlier_reads(q: Tensor, k: Tensor, v: Tensor, chunk: int) -> Tensor:
    """q k^T v over keys not later than the query, chunk by chunk; the last query is at the last key."""
    n, m = q.shape[-2], k.shape[-2]
    q, chunks = F.pad(q, (0, 0, m - n, 0)), (m + chunk - 1) // chunk
    q, k, v = (F.pad(t, (0, 0, 0, chunks * chunk - m)).unflatten(-2, (chunks, chunk)) for t in (q, k, v))
    before = F.pad(k.mT @ v, (0, 0, 0, 0, 1, 0)).cumsum(-3)[..., :-1, :, :]
    read = (q @ k.mT).tril() @ v + q @ before
    return F.pad(read.flatten(-3, -2)[..., :m, :], (0, 0, n - m, 0))


def linear_attentions(kernels: list, v: Tensor, mask=None, key_mask=None, batch: int = 0, heads: int = 0) -> Tensor:
    """The sum of `linear_attention` by kernels, each of one term."""
    masks = mask, key_mask, batch, heads
    return total_of([
        linear_attention([Term(q, k)], v, *masks, eps or 0.0, eps is not None, maps=maps)
        for q, k, *maps, eps in kernels
    ])  # fmt: skip


def divided_reads(reads: list, eps: float) -> Tensor:
    """The sum of the values read, divided by the sum of the rows."""
    out, rows = map(total_of, zip(*reads, strict=True))
    return divided(out, rows + eps)


def decay_reads(terms: list, v: Tensor, causal: bool, chunk: int, rows: bool) -> list[tuple[Tensor, Tensor]]:
    """The values that each term reads, and its row sums."""
    reads, values = [], F.pad(v, (0, 1), value=1.0)
    for q, k, a, b, *_ in terms:
        if a is not None and causal:
            read = decayed_reads(q, k, values, a, b, chunk)
        else:
            q, k = (q, k) if a is None else faded(q, k, a, b)
            read = earlier_reads(q, k, values, chunk) if causal else q @ (k.mT @ values)
        reads.append((read[..., :-1], read[..., -1:]))
    return reads


def decayed_reads(q, k, v, a, b, chunk: int) -> Tensor:
    """Scores sum_d q k exp(a - b) times values, over keys not later than the query; the last query is at the last key.

    q [..., n, d], k [..., m, d], v [..., m, e], a [..., n, 1 or d], b [..., m, 1 or d] -> [..., n, e]. Keys before a
    chunk are one sum, of exp(low - b), where low is the least b so far: no exponent is above 0.
    """
    n, m, dtype = q.shape[-2], k.shape[-2], q.dtype
    q, k, v, a, b = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v, a, b))
    q, a = F.pad(q, (0, 0, m - n, 0)), F.pad(a, (0, 0, m - n, 0), value=-math.inf)
    parts, before, low = [], None, least_of(b[..., :0, :])
    for own_q, own_k, own_v, own_a, own_b in zip(*(t.split(chunk, -2) for t in (q, k, v, a, b)), strict=True):
        least = torch.minimum(low, least_of(own_b.detach()))
        keep = causal_mask(own_q.shape[-2], own_k.shape[-2], q.device)
        read = decayed_scores(own_q, own_k, own_a - least, own_b - least, keep) @ own_v
        added = (own_k * (least - own_b).exp()).mT @ own_v
        if before is not None:
            read = read + (own_q * (own_a - low).exp()) @ before
            added = added + (least - low).exp().mT * before
        parts.append(read)
        before, low = added, least
    return F.pad(torch.cat(parts, -2), (0, 0, n - m, 0)).to(dtype)


def decayed_scores(q, k, a, b, keep=None) -> Tensor:
    """The scores sum_d q k exp(a - b) [..., n, m] where `keep`, else 0; exp(a - b) may overflow elsewhere."""
    by = a[..., :, None, :] - b[..., None, :, :]
    by = (by if keep is None else by.masked_fill(~keep[..., None], -math.inf)).exp().to(q.dtype)
    return (q @ k.mT) * by[..., 0] if by.shape[-1] == 1 else torch.einsum("...nd,...nmd,...md->...nm", q, by, k)


def faded_products(q: Tensor, k: Tensor, a: Tensor, c: Tensor, strict: bool) -> Tensor:
    """The products [M, C, r, C] of r rows per position, q [M, C, r, d], with keys k [M, C, d] up to it, which decayed.

    a and c [M, C, w]: logarithms of the decay of rows and keys, w being 1 or d. `strict`: only keys before it.
    """
    if c.shape[-1] == 1:
        return (q.flatten(1, 2) @ k.mT).unflatten(1, q.shape[1:3]) * fading(a, c, strict)
    by = (a[:, :, None] - c[:, None]).masked_fill(later(c, strict)[..., None], -math.inf).exp()  # M C C d
    return q @ (by * k[:, None]).mT


def running(x: Tensor, decay: Tensor, dims: int, past: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """h[t] = exp(decay[t]) h[t - 1] + x[t] at each key, in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, decay = torch.broadcast_tensors(x.to(wide), decay.to(wide))
    if key_mask is not None:
        shown = key_mask[(..., *[None] * dims)]
        x, decay = x.where(shown, 0), decay.where(shown, 0)
    h, states = x.new_zeros(()) if past is None else past.to(wide), []
    for row, factor in zip(x.unbind(-dims - 1), decay.exp().unbind(-dims - 1), strict=True):
        h = factor * h + row
        states.append(h)
    return torch.stack(states, -dims - 1) if states else x


def scan_reads(x: tuple, decay: tuple, read: Tensor, dims: int, key_mask: Tensor | None) -> Tensor:
    """The sum over the last dimension of h times `read` [..., n, `dims` dimensions, the last but one of size 1].

    h is `scan_sums` of the product of x [..., m, `dims` dimensions] and of that of `decay`, one or two factors each.
    """
    operands = (factor[(None,) * max(0, dims + 1 - factor.ndim)] for factor in (read, *x, *decay))
    return read_sums(tuple(operands), dims, len(x), key_mask)


def gated_end(*operands) -> Tensor:
    """The state after the last key, see `end_of_chunks`."""
    return end_of_chunks(*operands)


def read_gated(q, e, k, w, v, rate, decay, first, undecayed: bool, chunk: int) -> Tensor:
    """The values read by queries, see `gated_delta_rule`: in short chunks, whose pairs of keys have all channels."""
    with exact_products(k):
        return gated_reads_by_chunks(q, e, k, w, v, rate, decay, first, undecayed, min(chunk, 16))


def mixed_states_and_blockwise(
    q, k, v, mix, mask=None, key_mask=None, batch=0, causal=False, chunk=32, added=(None, None), maps=(None, None)
) -> tuple[Tensor, Tensor]:
    """`mixed_states` with v, and without v as [..., h, n]. `added`: what is added to each of the two states."""
    q, k = mapped_sides(maps, q, k)
    values = F.pad(v, (0, 1), value=1.0)
    read = mixed_states(q, k, values, mix, mask, key_mask, batch, causal, chunk)
    return read_too(read[..., :-1], q, added[0]), read_too(read[..., -1:], q, added[1]).squeeze(-1)


def expert_product(x, weight, gates, chosen, heads: int, slots: int, compute=None) -> Tensor:
    """`routed` for any leading dimensions: [..., heads, slots, o]."""
    lead = torch.broadcast_shapes(x.shape[:-3], chosen.shape[:-2])
    x, chosen, *gate_rows = (
        t.expand(*lead, *t.shape[len(t.shape) - last :]).reshape(math.prod(lead), *t.shape[len(t.shape) - last :])
        for t, last in ((x, 3), (chosen, 2), (gates, 2))
        if t is not None
    )
    out = (compute or routed)(x, weight, gate_rows[0] if gate_rows else None, chosen, heads, slots)
    return out.reshape(*lead, heads, slots, weight.shape[-1])


def routed(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """gates * x weight[h, chosen] for t tokens: x [t, h or 1, k or 1, c], weight [h, e, c, o], chosen [t, h, k].

    The result is [t, heads, slots, o]: summed over h if `heads` is 1, over k if `slots` is 1.
    """
    out = x.new_zeros(len(x), heads, slots, weight.shape[-1])
    for head, experts in enumerate(weight):
        for expert, matrix in enumerate(experts):
            token, slot = torch.where(chosen[:, head] == expert)
            rows = x[token, head % x.shape[1], slot % x.shape[2]] @ matrix
            rows = rows if gates is None else rows * gates[token, head, slot, None]
            out[:, head % heads].index_put_((token, slot % slots), rows.to(out.dtype), accumulate=True)
    return out

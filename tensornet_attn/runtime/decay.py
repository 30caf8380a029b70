"""Linear attention with decaying scores, q k^T exp(a - b): sums are stored with a scale, as in online softmax.

For the keys before a chunk the sum over exp(low - b) is stored, where low is the minimum of b: no term is above 1.
Queries read it with the factor exp(a - low), which is at most the decay of the key with this minimum. a and b have one
number per query and key, or one per feature (w of them: 1, or the number of features).
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.fading import middle_of
from tensornet_attn.runtime.linear import Term, added_reads, key_reads, seen_terms, stretch_of, term_reads
from tensornet_attn.runtime.maps import kept, normalized, running_least, with_padding
from tensornet_attn.runtime.masks import causal_mask, visible
from tensornet_attn.runtime.operations import is_plain, largest_number
from tensornet_attn.runtime.positions import is_known
from tensornet_attn.runtime.products import total_of
from tensornet_attn.runtime.softmax import masked_softmax

GROUP = 4  # chunks


def decay_attention(
    terms: list[Term],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    softmax: bool = False,
    causal: bool = False,
    chunk: int = 64,
    reads=None,
    shift: int = 0,
) -> Tensor:
    """`linear_attention` with terms that may decay, and have no core.

    `softmax`: computes softmax(a - b), which does not depend on a, for a single term whose q and k are ones. `reads`:
    how terms read values, by default as `decay_reads`. `shift`: causal queries see keys that are so many positions
    before them.
    """
    if mask is not None:
        causal_keep = causal_mask(terms[0].q.shape[-2], v.shape[-2], v.device, shift) if causal else None
        keep, bias = visible(causal_keep, mask, key_mask, batch, heads)
        if softmax:
            return masked_softmax(compared(terms[0]), keep, bias).to(v.dtype) @ v
        scores = total_of([q @ k.mT if a is None else decayed_scores(q, k, a, b, keep) for q, k, a, b, *_ in terms])
        return (normalized(scores, keep, eps) if normalize else kept(scores, keep)) @ v
    terms = seen_terms(terms, key_mask, heads)
    if softmax:
        (term,) = terms
        a, b, diagonal = term.a, term.b, term.diagonal
        least = (
            running_least((b if diagonal is None else at_next(b, torch.inf)).detach())
            if causal
            else least_of(b.detach())
        )
        least = least if diagonal is None else torch.minimum(least, b.detach() - diagonal.detach())
        least = torch.where(least < largest_number(b), least, 0)  # no visible key: any finite value
        least = with_padding(least, (0, 0, a.shape[-2] - b.shape[-2], 0)) if causal else least
        terms = [term._replace(a=a - a.detach() + least)]  # no exp(a - b) that matters is above 1
    for _ in range(shift):
        v, terms = at_next(v, 0), [shifted_keys(term) for term in terms]
    reads = reads or decay_reads
    reads = reads if terms[0].diagonal is None else functools.partial(own_reads, reads)
    return added_reads(reads, terms, v, eps, normalize, causal, chunk)


def shifted_keys(term: Term) -> Term:
    """A term whose keys are one position later; the first has none."""
    return term._replace(k=at_next(term.k, 0), b=None if term.b is None else at_next(term.b, torch.inf))


def own_reads(reads, terms: list[Term], v: Tensor, causal: bool, chunk: int, rows: bool) -> list[tuple[Tensor, ...]]:
    """`reads` of one term with a `diagonal`: of the keys before the query's own, and of that one."""
    ((q, k, a, b, diagonal, _),) = terms
    n, wide = q.shape[-2], torch.promote_types(q.dtype, torch.float32)
    before = reads([Term(q, at_next(k, 0), a, at_next(b, torch.inf))], at_next(v, 0), causal, chunk, rows)
    pads = zip((v, b - diagonal), (0, torch.inf), strict=True)
    v, b = (with_padding(x, (0, 0, n - x.shape[-2], 0), value=fill) for x, fill in pads)  # at the queries
    weight = q * exp((a - b).to(wide)).to(q.dtype)
    return [*before, (weight * v, weight)]


def at_next(x: Tensor, first: float) -> Tensor:
    """Shifts keys by one position, with `first` at the first position: [..., m, d] -> the same."""
    return F.pad(x, (0, 0, 1, 0), value=first).narrow(-2, 0, x.shape[-2])


def compared(term: Term) -> Tensor:
    """The scores a - b [..., n, m], at a query's own position plus `diagonal`."""
    scores = term.a - term.b.mT
    if term.diagonal is None:
        return scores
    n, m = scores.shape[-2:]
    on_diagonal = torch.arange(m, device=scores.device) == torch.arange(m - n, m, device=scores.device)[:, None]
    return scores + torch.where(on_diagonal, term.diagonal.mT, 0)


def decay_reads(terms: list[Term], v: Tensor, causal: bool, chunk: int, rows: bool) -> list[tuple[Tensor, ...]]:
    """The values that each term reads, and its row sums; decaying terms compute these only if `rows`."""
    reads, width = [], v.shape[-1]
    wider = torch.cat((v, torch.ones_like(v[..., :1])), -1) if rows else v
    for term in terms:
        q, k, a, b, *_ = term
        if a is None:
            reads += term_reads([term], v, causal, chunk, rows)
        elif not causal:
            reads.append(key_reads(*faded(q, k, a, b), v, None, rows))
        elif not rows and decays_values(q, k, v, a, b):
            wide_v, a, b = (x.squeeze(-1).mT for x in (v, a, b))
            read = in_stretches(q.squeeze(-3), k.squeeze(-3), wide_v, a, b, chunk, of_values=True)
            reads.append((read.mT[..., None],))
        else:
            read = in_stretches(q, k, wider, a, b, chunk)
            reads.append((read[..., :width], read[..., width:]))
    return reads


def decays_values(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether heads that queries and keys lack have one decay and one value each: they are read as one wide value."""
    single = v.shape[-1] == a.shape[-1] == b.shape[-1] == 1 and min(x.ndim for x in (q, k, v, a, b)) > 2
    return single and q.shape[-3] == k.shape[-3] == 1 < v.shape[-3]


def in_stretches(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, chunk: int, of_values: bool = False) -> Tensor:
    """`decayed_reads` in stretches that stay in a cache."""
    decays = math.prod(torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v, a, b))))
    decays *= max(a.shape[-1], b.shape[-1])  # each score has a decay for every feature, or value
    stretch = 0 if torch.compiler.is_compiling() else GROUP * stretch_of(decays * GROUP, chunk)
    return decayed_reads(q, k, v, a, b, stretch, chunk, of_values)


def faded(q: Tensor, k: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys with the factors of a decay, for all keys at once."""
    wide = torch.promote_types(q.dtype, torch.float32)
    low = least_of(as_scale(b, q))
    return q * exp((a - low).to(wide)).to(q.dtype), k * exp((low - b).to(wide)).to(k.dtype)


def decayed_reads(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, stretch: int, chunk: int, of_values: bool = False
) -> Tensor:
    """Scores sum_d q k exp(a - b) times values, over keys not later than the query; the last query is at the last key.

    q [..., n, d], k [..., m, d], v [..., m, e], a [..., n, w], b [..., m, w] -> [..., n, e]. Processes `stretch` keys
    at a time, in chunks of `chunk`; stretch 0: all at once, for traced code, where a loop would fix the length.
    `of_values`: exp(a - b) is of the entries of a value, w = e.
    """
    n, m = q.shape[-2], k.shape[-2]
    q, a = with_padding(q, (0, 0, m - n, 0)), with_padding(a, (0, 0, m - n, 0), value=-torch.inf)
    outs, before = [], None
    operands = [(q, k, v, a, b)]
    for q, k, v, a, b in (
        zip(*(t.split(stretch, -2) for t in operands[0]), strict=True) if 0 < stretch < m else operands
    ):
        out, before = decayed_chunks(q, k, v, a, b, chunk, before, 0 if stretch else 1, of_values)
        outs.append(out)
    return with_padding(outs[0] if len(outs) == 1 else torch.cat(outs, -2), (0, 0, n - m, 0))


def decayed_chunks(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, chunk: int, before: tuple | None, least: int, of_values: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The values read by as many queries as keys from these keys and from the previous state, and the new state with
    scale.

    GROUP chunks form a group. There are more than `least` groups: in traced code a size must not become 1 for some
    lengths.
    """
    m, size, wide = k.shape[-2], GROUP * chunk, torch.promote_types(q.dtype, torch.float32)
    groups = (m + (least + 1) * size - 1) // size
    pads = zip((q, k, v, a, b), (0, 0, 0, -torch.inf, torch.inf), strict=True)
    padded = (with_padding(t, (0, 0, 0, groups * size - m), pad).contiguous() for t, pad in pads)  # each is read twice
    q, k, v, a, b = (t.unflatten(-2, (groups, size)).unflatten(-2, (GROUP, chunk)) for t in padded)  # ... s c i d
    of_scales = as_scale(b, q)
    low = running_least(least_of(of_scales).squeeze(-2))  # ... s c w
    first = least_of(of_scales[..., :1, 0, :1, :]).squeeze(-2) if before is None else before[1]  # as the first key
    ends = torch.minimum(running_least(low[..., -1, :]), first)  # ... s w
    start = torch.cat((first, ends), -2)[..., :-1, None, :]  # ... s 1 w
    low = torch.minimum(low, start)
    scales = torch.cat((start, low), -2)  # before each chunk, and after the last
    before_scale, chunk_scale = scales[..., :-1, None, :], low[..., None, :]
    since = exp((a - before_scale).to(wide)).to(q.dtype)
    a, b = (a - chunk_scale).to(wide), (b - chunk_scale).to(wide)  # small at every position
    until, keep = exp(-b).to(k.dtype), ~ahead(chunk, chunk, a.device)
    adds = ((v * until).mT @ k if of_values else (k * until).mT @ v).to(wide)
    states, after = decayed_sums(adds, low, scales, None if before is None else before[0])
    if of_values:
        out = decayed_values(q @ k.mT, v, a, b, keep) + q @ states.mT.to(q.dtype) * since
    else:
        scores = decayed_scores(q, k, a, b, keep, torch.Tensor.masked_fill_)
        out = scores @ v + (q * since) @ states.to(v.dtype)
    out = with_padding(out.flatten(-4, -2), (0, 0, 0, m - groups * size))
    return out, (after, ends[..., -1:, :])


def decayed_sums(adds: Tensor, low: Tensor, scales: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums before each chunk, given what each chunk adds [..., s, c, d, e], and the sum after all chunks.

    Chunk i adds with scale `low` [..., s, c, w]; sums have non-increasing scales `scales` [..., s, c + 1, w], so chunk
    i contributes exp(scale - low[i]) times what it adds. One matrix per group, and one for the groups. After all
    chunks: [..., w, 1, (d/w e)].
    """
    (d, e), w = adds.shape[-2:], low.shape[-1]
    low, scales = low.movedim(-1, -3), scales.movedim(-1, -3)  # ... w s c
    adds = adds.unflatten(-2, (w, d // w)).movedim(-3, -5).flatten(-2)  # ... w s c (d/w e)
    inside = decay_factor(scales, low, adds.dtype) @ adds  # ... w s (c + 1) (d/w e)
    start, end = scales[..., 0], scales[..., -1]
    group_states = decay_factor(start, end, adds.dtype) @ inside[..., -1, :]  # before each group
    if before is not None:
        group_states = group_states + exp((start - start[..., :1]).to(adds.dtype))[..., None] * before
    after = inside[..., -1:, -1, :] + exp((end - start).to(adds.dtype))[..., -1:, None] * group_states[..., -1:, :]
    since = exp((scales[..., :-1] - start[..., None]).to(adds.dtype))
    states = inside[..., :-1, :] + since[..., None] * group_states[..., None, :]
    return states.unflatten(-1, (d // w, e)).movedim(-5, -3).flatten(-3, -2), after


def decay_factor(scales: Tensor, low: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(scales[j] - low[i]) if i < j, else 0: [..., j, i]."""
    later = ahead(low.shape[-1], scales.shape[-1], low.device).mT
    return exp((scales[..., :, None] - low[..., None, :]).masked_fill(~later, -torch.inf).to(dtype))


def decayed_scores(
    q: Tensor, k: Tensor, a: Tensor, b: Tensor, keep: Tensor | None, fill=torch.Tensor.masked_fill
) -> Tensor:
    """Scores [..., n, m] where `keep`, else 0; exp(a - b) may overflow elsewhere. `fill`: may act in place."""
    shared = a.shape[-1] == b.shape[-1] == 1
    if not shared and (middle := boundary(q, a, b)) is not None:
        scores = (q * exp(a - middle)) @ (k * exp(middle - b)).mT
        return scores if keep is None else scores.masked_fill(~keep, 0)
    decay = a - b.mT if shared else a[..., :, None, :] - b[..., None, :, :]
    if keep is not None:
        decay = fill(decay, ~keep if shared else ~keep[..., None], -torch.inf)
    decay = exp(decay).to(q.dtype)
    return q @ k.mT * decay if shared else (q[..., :, None, :] * decay * k[..., None, :, :]).sum(-1)


def decayed_values(scores: Tensor, v: Tensor, a: Tensor, b: Tensor, keep: Tensor) -> Tensor:
    """Scores [..., n, m] where `keep` times values [..., m, e], each entry of which decays by exp(a - b)."""
    if (middle := boundary(scores, a, b)) is not None:
        return (scores.masked_fill(~keep, 0) @ (v * exp(middle - b))) * exp(a - middle)
    decay = exp((a[..., :, None, :] - b[..., None, :, :]).masked_fill_(~keep[..., None], -torch.inf)).to(v.dtype)
    return (scores[..., None] * decay * v[..., None, :, :]).sum(-2)


def boundary(q: Tensor, a: Tensor, b: Tensor) -> float | None:
    """The middle of all finite exponents if exp(a - b) is exp(a - middle) exp(middle - b) without overflow, or None."""
    if q.device.type != "cpu" or q.dtype != a.dtype or not is_plain((q, a, b)):
        return None
    return middle_of(*(x.detach().masked_fill(x.isinf(), 0) for x in (a, b)))


def as_scale(b: Tensor, q: Tensor) -> Tensor:
    """b, of which scales of sums are made. No result depends on a scale, so b is detached: its gradient is zero.

    Where q is rounded to 16 bits, so are sums over queries and over keys that cancel; the gradient of the scale then
    cancels what they are off by at all positions before it.
    """
    return b.detach() if q.dtype == torch.promote_types(q.dtype, torch.float32) else b


def least_of(b: Tensor) -> Tensor:
    """The minimum over the keys, finite even if all are infinite, or none exists: [..., m, w] -> [..., 1, w]."""
    highest = largest_number(b)
    if is_known(b.shape[-2]) and not b.shape[-2]:
        return b.new_full((*b.shape[:-2], 1, b.shape[-1]), highest)
    return b.amin(-2, keepdim=True).clamp(max=highest)


def ahead(rows: int, columns: int, device: torch.device) -> Tensor:
    """True if the column is later than the row: [rows, columns]."""
    return torch.arange(columns, device=device) > torch.arange(rows, device=device)[:, None]

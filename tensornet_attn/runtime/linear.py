"""Attention whose scores are products of query and key features: sums over keys first, no n by m tensor."""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.constants import STRETCH
from tensornet_attn.runtime.maps import added, fewer_calls, has_few, kept, masked_sum, normalized, with_padding
from tensornet_attn.runtime.masks import causal_mask, hide, key_keep, visible
from tensornet_attn.runtime.operations import place_among
from tensornet_attn.runtime.products import exact_products, total_of, wide_products
from tensornet_attn.runtime.tiled_linear import (
    LinearKernel,
    fills_tiles,
    inputs_of,
    map_applied,
    row_divisors,
    row_shares,
    tiled_linear,
    tiled_takes,
)


class Term(NamedTuple):
    """A summand of scores, q k^T: q [..., n, d], k [..., m, d]. With a [..., n, w] and b [..., m, w], q k exp(a - b).

    `diagonal` [..., m, 1]: what is added to a - b at a query's own position. `core` [..., g, h]: features are g groups,
    and values h heads; the scores of head h are the sum over g of core[g, h] times those of group g.
    """

    q: Tensor
    k: Tensor
    a: Any = None
    b: Any = None
    diagonal: Any = None
    core: Tensor | None = None

    def each(self, change):
        """The term with a change of each tensor."""
        fields: list = [None if x is None else change(x) for x in self]
        return Term(*fields)


def linear_attention(
    terms: list[Term],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    causal: bool = False,
    chunk: int = 64,
    maps: tuple | None = None,
    cpp=None,
) -> Tensor:
    """Scores, divided by (row sum + eps) if `normalize`, times values: v [..., m, e] -> [..., n, e].

    The scores are the sum over `terms`, none of which decays. `batch` and `heads` count dimensions before the sequence.
    With a `mask`, which may hide any pair, the scores are materialised. `maps`: functions to apply to the q and the k
    of the only term, or None. `cpp`: a `LinearCpp` for the only term; with it, q and k may be tuples of the arguments
    of their map, [..., rows, columns] with the same further dimensions behind, all without batch or with it.
    """
    if not causal and len(terms) == 1 and terms[0].core is None:
        of_q, of_k = maps or (None, None)
        kernel = LinearKernel(terms[0].q, terms[0].k, of_q, of_k, eps if normalize else None)
        out = in_tiles([kernel], v, mask, key_mask, batch, heads, cpp)
        if out is not None:
            return out
    if maps is not None:
        terms = [
            Term(*(map_applied(of, *inputs_of(side)) for of, side in zip(maps, (terms[0].q, terms[0].k), strict=True)))
        ]
    if mask is not None:
        return dense_linear(terms, v, mask, key_mask, batch, heads, eps, normalize, causal)
    return added_reads(term_reads, seen_terms(terms, key_mask, heads), v, eps, normalize, causal, chunk)


def linear_attentions(
    kernels: list[LinearKernel],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    cpp=None,
) -> Tensor:
    """The sum of `linear_attention` by kernels, each of one term."""
    out = in_tiles(kernels, v, mask, key_mask, batch, heads, cpp)
    if out is not None:
        return out
    masking = (mask, key_mask, batch, heads)
    outs = [
        linear_attention([Term(q, k)], v, *masking, eps or 0.0, eps is not None, maps=(of_q, of_k))
        for q, k, of_q, of_k, eps in kernels
    ]
    return total_of(outs)


def in_tiles(
    kernels: list[LinearKernel], v: Tensor, mask: Tensor | None, key_mask: Tensor | None, batch: int, heads: int, cpp
) -> Tensor | None:
    """`linear_attentions` by `tiled_linear`; None if that does not take the operands."""
    if mask is not None or torch.compiler.is_compiling() or (cpp is None and not fills_tiles(v)):
        return None
    seen = None if key_mask is None else key_keep(key_mask, heads, query=False)[..., None]
    sides = [side for kernel in kernels for side in (kernel.q, kernel.k)]
    inputs: list[Tensor] = []
    places = [[place_among(inputs, x) for x in side] if isinstance(side, tuple) else None for side in sides]
    if not inputs:
        return tiled_linear(kernels, seen, batch, v, cpp) if tiled_takes(seen, *sides, v, cpp=cpp) else None
    if cpp is None or not cpp.takes(v):
        return None
    laid = [laid_input(x, v, heads, len(cpp.small)) for x in inputs]
    if tuple(map(max, zip(*(x.shape[v.ndim :] for x in laid), strict=True))) != cpp.small:
        return None
    first_entry: list = [0] * len(cpp.small)
    operands = [*(x for x in sides if not isinstance(x, tuple)), *(x[(..., *first_entry)] for x in laid)]
    if not tiled_takes(seen, *operands, v, cpp=cpp):
        return None
    sides = [side if at is None else tuple(laid[i] for i in at) for side, at in zip(sides, places, strict=True)]
    pairs = zip(sides[::2], sides[1::2], kernels, strict=True)
    return tiled_linear([kernel._replace(q=q, k=k) for q, k, kernel in pairs], seen, batch, v, cpp)


def laid_input(x: Tensor, v: Tensor, heads: int, small: int) -> Tensor:
    """An argument of a map, with the batch and the heads of the values [..., m, e]."""
    lead = x.shape[: -heads - 2 - small] or v.shape[: -heads - 2]
    return x.expand(*lead, *v.shape[-heads - 2 : -2], *x.shape[-2 - small :])


def seen_terms(terms: list[Term], key_mask: Tensor | None, heads: int) -> list[Term]:
    """The terms with hidden keys set to 0; such a key decays completely, whatever its b."""
    if key_mask is None:
        return terms
    seen = key_keep(key_mask, heads, query=False)[..., None]  # ... m 1

    def shown(x: Tensor | None, fill: float) -> Tensor | None:
        return None if x is None else torch.where(seen, x, fill)

    return [
        Term(q, torch.where(seen, k, 0), a, shown(b, torch.inf), shown(diagonal, 0), core)
        for q, k, a, b, diagonal, core in terms
    ]


def by_head(term: Term) -> Term:
    """A term as one for each head [..., h, n, (g d)]; its core is multiplied into q."""
    q, k, core = term.q.unsqueeze(-3), term.k.unsqueeze(-3), term.core
    if core is None:
        return Term(q, k)
    grouped = q.unflatten(-1, (core.shape[-2], -1))  # ... 1 n g d
    return Term((grouped * core.mT[..., :, None, :, None]).flatten(-2), k)


def added_reads(reads, terms: list[Term], v: Tensor, eps: float, normalize: bool, causal: bool, chunk: int) -> Tensor:
    """The sum of the values that terms read by `reads`, divided by the row sums if `normalize`."""
    if not normalize:
        return total_of([read for read, *_ in reads(terms, v, causal, chunk, False)])
    if v.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(v.device.type):
        return divided_reads(reads(terms, v, causal, chunk, True), eps)
    with exact_products(v):  # products and row sums nearly cancel in the gradient, so neither may be rounded first
        wide = torch.promote_types(v.dtype, torch.float32)
        terms = [term.each(lambda x: x.to(torch.promote_types(x.dtype, wide))) for term in terms]
        return divided_reads(reads(terms, v.to(wide), causal, chunk, True), eps).to(v.dtype)


def term_reads(terms: list[Term], v: Tensor, causal: bool, chunk: int, rows: bool) -> list[tuple[Tensor, ...]]:
    """The values that each term reads, and its row sums if `rows`."""
    if causal:
        return [causal_reads(term.q, term.k, v, chunk, term.core, rows) for term in terms]
    return [key_reads(term.q, term.k, v, term.core, rows) for term in terms]


def joint_reads(q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """q S and q z, z [..., d, 1]: one product on a CPU; two of few rows, and on a GPU, which requires even widths."""
    if q.device.type != "cpu" or has_few(q):
        return q @ S, q @ z
    z = z.expand(*S.shape[:-1], 1)  # keys may lack legs of the values
    return (q @ torch.cat([S, z], -1)).split([S.shape[-1], 1], -1)


def divided_reads(reads: list[tuple[Tensor, ...]], eps: float) -> Tensor:
    """The sum of the values read, divided by the sum of the rows."""
    out, total = reads[0] if len(reads) == 1 else map(total_of, zip(*reads, strict=True))  # ... n e; ... n h
    if torch.is_grad_enabled() and total.shape[-1] == 1 and has_few(out):
        return out / row_divisors(total, eps)  # fewer calls
    share = row_shares(total, eps)  # faster than division
    by_heads = 1 != share.shape[-1] != out.shape[-1]
    if by_heads:
        out, share = out.unflatten(-1, (share.shape[-1], -1)), share[..., None]
    out = out.mul_(share) if fewer_calls() else out * share
    return out.flatten(-2) if by_heads else out


def key_reads(q: Tensor, k: Tensor, v: Tensor, core: Tensor | None = None, rows: bool = True) -> tuple[Tensor, ...]:
    """Scores times values [..., n, e]; if `rows`, also their row sums [..., n, h], where h = 1 without a core."""
    if core is None:
        S = k.mT @ v
        return joint_reads(q, S, k.sum(-2, keepdim=True).mT) if rows else (q @ S,)
    read = wide_products(q, mixed_state(wide_products(k.mT, v), core))
    return (read, row_sums(q, k.sum(-2, keepdim=True), core)) if rows else (read,)


def causal_reads(
    q: Tensor, k: Tensor, v: Tensor, chunk: int, core: Tensor | None = None, rows: bool = True
) -> tuple[Tensor, ...]:
    """Causal `key_reads`, row sums only if `rows`: only keys not later than the query; the last query is at the last
    key.

    Processes one stretch of keys after another, so that temporaries stay in the caches. Traced code, where a loop would
    fix the length, processes all at once.
    """
    n, m = q.shape[-2], k.shape[-2]
    traced = torch.compiler.is_compiling()
    heads = math.prod(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]))
    stretch = m if traced else stretch_of(heads, chunk, core)
    q = with_padding(q, (0, 0, m - n, 0))
    reads, before, operands = [], None, [(q, k, v)]
    for q, k, v in operands if m <= stretch else zip(*(t.split(stretch, -2) for t in operands[0]), strict=True):
        read, before = chunk_reads(q, k, v, chunk, core, before, 1 if traced else 0, rows)
        reads.append(read)
    whole = reads[0] if len(reads) == 1 else (torch.cat(pieces, -2) for pieces in zip(*reads, strict=True))
    return tuple(with_padding(x, (0, 0, n - m, 0)) for x in whole)


def stretch_of(heads: int, chunk: int, core: Tensor | None = None) -> int:
    """Keys, in whole chunks, whose scores have about STRETCH elements; `heads` includes the batch."""
    scores = chunk * (1 if core is None else sum(core.shape[-2:])) * max(1, heads)
    return chunk * max(4, STRETCH // (scores * chunk))


def chunk_reads(
    q: Tensor, k: Tensor, v: Tensor, chunk: int, core: Tensor | None, before: tuple | None, least: int, rows: bool
) -> tuple[list[Tensor], tuple]:
    """The values read by as many queries as keys from these keys and from the previous state, and the new state; if
    `rows`, also row sums, and the new sum of keys.

    Within a chunk the scores are materialised; the keys before a chunk are one state, a cumulative sum over chunks.
    There are more than `least` chunks: in traced code a size must not become 1 for some lengths.
    """
    m = k.shape[-2]
    chunks = (m + (least + 1) * chunk - 1) // chunk
    q, k, v = (with_padding(t, (0, 0, 0, chunks * chunk - m)).contiguous() for t in (q, k, v))  # each is read twice
    q, k, v = (t.unflatten(-2, (chunks, chunk)) for t in (q, k, v))
    core = None if core is None else core.unsqueeze(-3)
    scores = linear_scores(q, k, core, torch.tril)
    of_chunks = [k.mT @ v, *([k.sum(-2, keepdim=True)] if rows else [])]
    (S, *z), after = zip(*map(sums, of_chunks, before or [None] * len(of_chunks)), strict=True)
    read = [scores_read(scores, v, core) + q @ mixed_state(S, core)]
    if rows:
        total = scores.sum(-1, keepdim=True) if core is None else scores.sum(-1).mT
        read.append(total + row_sums(q, z[0], core))
    return [with_padding(x.flatten(-3, -2), (0, 0, 0, m - chunks * chunk)) for x in read], after


def sums(chunk_sums: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums before each chunk [..., chunks, d, e], and of all chunks; they start from `before`, or from 0."""
    wide = torch.promote_types(chunk_sums.dtype, torch.float32)
    if before is None:
        cumulative = F.pad(chunk_sums, (0, 0, 0, 0, 1, 0)).cumsum(-3, dtype=wide)
    else:
        cumulative = torch.cat([before, chunk_sums], -3).cumsum(-3, dtype=wide)
    return cumulative.to(chunk_sums.dtype)[..., :-1, :, :], cumulative[..., -1:, :, :]


def mixed_state(S: Tensor, core: Tensor | None) -> Tensor:
    """core[g, h] S[(g d), (h e)]: the state that the heads read."""
    if core is None:
        return S
    g, h = core.shape[-2:]
    S = S.unflatten(-1, (h, -1)).unflatten(-3, (g, -1))  # ... g d h e
    return (S * core[..., :, None, :, None]).flatten(-4, -3).flatten(-2)


def row_sums(q: Tensor, z: Tensor, core: Tensor | None = None) -> Tensor:
    """Row sums of the scores [..., n, h] from z, the sum of the keys: q [..., n, (g d)], z [..., 1, (g d)]."""
    if core is None:
        return q @ z.mT
    if core.shape[-2] == q.shape[-1]:  # of groups with one feature, without a pass over q
        return wide_products(q, z.mT * core)
    return (q * z).unflatten(-1, (core.shape[-2], -1)).sum(-1) @ core


def linear_scores(q: Tensor, k: Tensor, core: Tensor | None, masked=lambda scores: scores) -> Tensor:
    """The scores [..., n, m], with a core [..., h, n, m]. `masked` sets hidden ones to zero, before a core."""
    if core is None:
        return masked(q @ k.mT)
    q, k = (t.unflatten(-1, (core.shape[-2], -1)).movedim(-2, -3) for t in (q, k))  # ... g n d
    scores = masked(q @ k.mT)
    return (core.mT @ scores.flatten(-2)).unflatten(-1, scores.shape[-2:])


def scores_read(scores: Tensor, v: Tensor, core: Tensor | None) -> Tensor:
    """Scores times values, heads concatenated: [..., n, (h e)]."""
    if core is None:
        return scores @ v
    v = v.unflatten(-1, (core.shape[-1], -1)).movedim(-2, -3)  # ... h m e
    return (scores @ v).movedim(-3, -2).flatten(-2)


def dense_linear(
    terms: list[Term],
    v: Tensor,
    mask: Tensor,
    key_mask: Tensor | None,
    batch: int,
    heads: int,
    eps: float,
    normalize: bool,
    causal: bool,
) -> Tensor:
    """Materialises the scores, for a mask [n, m], [batch..., n, m] or [batch..., heads..., n, m]."""
    cores = [term.core for term in terms if term.core is not None]
    causal_keep = causal_mask(terms[0].q.shape[-2], terms[0].k.shape[-2], v.device) if causal else None
    keep, _ = visible(causal_keep, mask, key_mask, batch, heads + bool(cores))
    of_any_head = keep if keep is None or keep.ndim < 3 else keep.any(-3, keepdim=True)
    by_term = [
        linear_scores(q, k, None) if core is None else linear_scores(q, k, core, lambda x: hide(x, of_any_head, 0))
        for q, k, *_, core in terms
    ]
    if cores:
        by_term = [
            term_scores.unsqueeze(-3) if term.core is None else term_scores
            for term_scores, term in zip(by_term, terms, strict=True)
        ]
    scores = total_of(by_term)
    maps = normalized(scores, keep, eps) if normalize else kept(scores, keep)
    return scores_read(maps, v, cores[0] if cores else None)


def cumulative_sums(
    terms: list[Term],
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    causal: bool = False,
    wide: bool = False,
    one_row: bool = False,
) -> Tensor:
    """The sum over visible keys of q k^T, summed over `terms`: q [..., n, d], k [..., m, d] -> [..., n].

    `batch` and `heads` count dimensions before the sequence. With a `mask`, which may hide any pair, the products are
    materialised. `wide`: compute in at least float32, for sums whose differences matter. `one_row`: all rows are equal,
    and the result has one.
    """
    if one_row:
        terms = [term._replace(q=term.q[..., :1, :]) for term in terms]
    if wide:
        terms = [term.each(lambda x: x.to(torch.promote_types(x.dtype, torch.float32))) for term in terms]
    if mask is not None:
        scores = total_of([term.q @ term.k.mT for term in terms])
        causal_keep = causal_mask(scores.shape[-2], scores.shape[-1], scores.device) if causal else None
        keep, bias = visible(causal_keep, mask, key_mask, batch, heads)
        return masked_sum(added(scores, bias), keep)
    terms = seen_terms(terms, key_mask, heads)
    return total_of(
        [(q * (summed_so_far(k, q.shape[-2]) if causal else k.sum(-2, keepdim=True))).sum(-1) for q, k, *_ in terms]
    )


def outer_sums(
    each: Tensor,
    a: Tensor,
    b: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
) -> Tensor:
    """The sum over visible keys of a b^T: a [..., m, d], b [..., m, e] -> [..., d, e, n].

    `each` [n] are ones. Without a mask all queries see the same keys, and the result has one row for them.
    """
    if mask is not None:
        k = (a[..., None] * b[..., None, :]).movedim(-3, -1)[..., None]  # ... d e m 1
        return cumulative_sums([Term(each[:, None], k)], mask, key_mask, batch, heads)
    if key_mask is not None:
        seen = key_keep(key_mask, heads - 2, query=False)[..., None]  # ... m 1
        a, b = (torch.where(seen, x, 0) for x in (a, b))
    return (a.mT @ b)[..., None][..., : each.shape[0]]


def summed_so_far(k: Tensor, n: int) -> Tensor:
    """Cumulative sums of the keys [..., m, d] at n queries, the last at the last key: [..., n, d]."""
    total = k.cumsum(-2, dtype=torch.promote_types(k.dtype, torch.float32)).to(k.dtype)
    return with_padding(total, (0, 0, n - k.shape[-2], 0))
